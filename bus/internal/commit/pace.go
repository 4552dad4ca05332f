package commit

import (
	"sync"
	"sync/atomic"
	"time"

	"eventhub"
)

const (
	// leastSample is how many bytes a commit has to have to say how fast the store is: what a small one takes
	// is the fsync.
	leastSample = 256 << 10
	// samples is how many of the last commits count, and fewSamples how many there have to be.
	samples, fewSamples = 16, 4
	// smallCommits is over about how many of the last small ones the time that they take is a mean.
	smallCommits = 8
	// leastWindow is what may always wait.
	leastWindow = 1 << 20
	// apart is how much longer than its share of the store's time a refused publish is to stay away: to read it again
	// and refuse it costs a part of what it costs to take it.
	apart = 8
	// leastRetry is when a refused publish may come again at the earliest.
	leastRetry = 100 * time.Millisecond
)

// pace knows how fast the store takes what waits for it, and so whether more would wait for longer than it may.
// The measure is how fast large commits end one after the other: small ones, as of a hub that has little to do,
// say nothing of what it could do. Without enough of them nothing is refused. What small ones say is how long a commit takes
// at least, as over a journal that is far away: that is no wait, and what fills it may be pending besides.
//
// It is safe for concurrent use. What publishers ask takes no lock while there is room.
type pace struct {
	most    time.Duration // 0: it may wait for ever
	pending atomic.Int64  // bytes of jobs that are queued, or in commits that are not over
	window  atomic.Int64  // how many of them there may be; 0: any number

	mu    sync.Mutex
	ended time.Time       // the end of the last commit
	ring  [samples]sample // of large ones
	n     int             // of all of them so far
	least time.Duration   // how long small commits take, of late
	turn  time.Time       // when the store has had time for all that was refused so far
}

// sample is one commit: so many bytes, in so much time of the store.
type sample struct {
	bytes int64
	took  time.Duration
}

// over notes the end of a commit that has had so many bytes of jobs since it began. They overlap: the time of one
// counts from the end of the one before.
func (p *pace) over(bytes int64, began, now time.Time) {
	p.pending.Add(-bytes)
	p.mu.Lock()
	defer p.mu.Unlock()
	if bytes < leastSample {
		p.least += (now.Sub(began) - p.least) / smallCommits
	}
	if p.ended.After(began) {
		began = p.ended
	}
	p.ended = now
	if p.most == 0 || bytes < leastSample {
		return
	}
	p.ring[p.n%samples] = sample{bytes, max(now.Sub(began), time.Microsecond)}
	p.n++
	if p.n >= fewSamples {
		p.window.Store(max(leastWindow, int64(p.rate()*(p.most+p.least).Seconds())))
	}
}

// rate is how many bytes a second the store takes. p.mu is held.
func (p *pace) rate() float64 {
	var all sample
	for _, s := range p.ring[:min(p.n, samples)] {
		all.bytes += s.bytes
		all.took += s.took
	}
	return float64(all.bytes) / all.took.Seconds()
}

// mostRetry is when a refused publish may come again at the latest. What may wait takes the store as long as most says: where all
// that were refused stay away for much longer it has nothing to do.
func (p *pace) mostRetry() time.Duration { return max(leastRetry, p.most+p.most/2) }

// percent is how much waits of what may.
func (p *pace) percent() int64 {
	if window := p.window.Load(); window > 0 {
		return p.pending.Load() * 100 / window
	}
	return 0
}

// refuse returns what is answered where so many bytes are not taken. Those that are refused are to come again one
// after the other, at the rate at which the store has time for them.
func (p *pace) refuse(bytes int64, now time.Time) error {
	p.mu.Lock()
	rate := p.rate()
	if p.turn.Before(now) {
		p.turn = now
	}
	if p.turn.Sub(now) < p.mostRetry() {
		p.turn = p.turn.Add(time.Duration(float64(bytes) * apart / rate * float64(time.Second)))
	}
	wait := min(max(p.turn.Sub(now), leastRetry), p.mostRetry())
	p.mu.Unlock()
	e := eventhub.Errorf(eventhub.CodeOverloaded, "%d KiB wait to be published, which takes the store more than %s; nothing was published", p.pending.Load()>>10, p.most)
	e.RetryAfter = wait
	return e
}

// IsFull reports whether what waits takes the store longer than Options.MostWait. It is for publishes of clients, and asked before
// they are encoded: to refuse is to cost little.
func (c *Committer) IsFull() bool { return c.pace.percent() >= 100 }

// Refuse returns an error with CodeOverloaded, and when to try again, for publishes of so many bytes, because IsFull
// is true.
func (c *Committer) Refuse(bytes int) error { return c.pace.refuse(int64(bytes), time.Now()) }

// Load returns how much waits, in percent of what the store can take within Options.MostWait; 0 where that is
// not known.
func (c *Committer) Load() int { return int(c.pace.percent()) }
