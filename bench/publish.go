package bench

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"

	"eventhub"
)

// PublishOptions is the workload publish: events into one topic, each answered
// when it is durable.
type PublishOptions struct {
	Topic       string  `json:"topic"` // default a new one
	Connections int     `json:"connections"`
	InFlight    int     `json:"in_flight"` // events under way on each connection
	Payload     int     `json:"payload_bytes"`
	Batch       int     `json:"batch"` // events a frame
	Keys        int     `json:"keys"`  // how many different ones; 0: none
	IDs         bool    `json:"ids"`   // UUIDv7
	Rate        float64 `json:"rate"`  // events a second; 0: as fast as answers come
	// SDK publishes through the Go SDK, as a program does, and not by frames that are made before. Without
	// IDs publishes are numbered then. It takes neither a Rate nor a Window.
	SDK bool `json:"sdk,omitempty"`
	// Count is how many events are measured, rounded up to whole frames; 0: as
	// many as Duration allows.
	Count    int64         `json:"count"`
	Duration time.Duration `json:"duration_ns"`
	Warmup   time.Duration `json:"warmup_ns"` // of the same load, before, not measured
	// Window is how long each of Result.Windows is; 0: there are none.
	Window time.Duration `json:"window_ns,omitempty"`
}

// Validate names everything that is out of range at once.
func (o *PublishOptions) Validate() error {
	s := o.shape()
	errs := []error{check(
		within{"connections", int64(o.Connections), 1, 10_000},
		within{"batch", int64(o.Batch), 1, 10_000},
		within{"in-flight", int64(o.InFlight), int64(max(o.Batch, 1)), maxSlots * int64(max(o.Batch, 1))},
		within{"payload", int64(o.Payload), int64(s.leastPayload()), eventhub.MaxPayloadBytes},
		within{"keys", int64(o.Keys), 0, 99_999_999},
		within{"count", o.Count, 0, math.MaxInt64},
	)}
	errs = append(errs, checkRate(o.Rate), o.validateSDK())
	if (o.Count == 0) == (o.Duration <= 0) {
		errs = append(errs, eventhub.Errorf(eventhub.CodeBadRequest, "count is %d and duration is %s; one of them says how much to measure", o.Count, o.Duration))
	}
	if o.Warmup < 0 {
		errs = append(errs, eventhub.Errorf(eventhub.CodeBadRequest, "warmup is %s; it can not be negative", o.Warmup))
	}
	if o.Window != 0 && o.Window < leastWindow {
		errs = append(errs, eventhub.Errorf(eventhub.CodeBadRequest, "window is %s; 0 (none) and %s or more are allowed", o.Window, leastWindow))
	}
	return errors.Join(errs...)
}

// leastWindow keeps a run from spending its time on sums.
const leastWindow = 100 * time.Millisecond

// checkRate refuses what can not be kept, and what is so slow that a run looks
// stuck.
func checkRate(rate float64) error {
	if rate == 0 || rate >= 1 && rate <= 1e8 {
		return nil
	}
	return eventhub.Errorf(eventhub.CodeBadRequest, "rate is %g; 0 (as fast as answers come) and 1 to 1e+08 are allowed", rate)
}

func (o *PublishOptions) shape() *shape {
	return &shape{topic: o.Topic, bytes: o.Payload, batch: o.Batch, keys: o.Keys, ids: o.IDs}
}

// Publish runs the workload.
func Publish(ctx context.Context, t *Target, o PublishOptions) (*Result, error) {
	o.Topic = t.topicOr(o.Topic, "publish")
	if err := o.Validate(); err != nil {
		return nil, err
	}
	before, err := t.head(ctx, o.Topic)
	if err != nil {
		return nil, err
	}
	r := begin(ctx, t)
	defer r.close()
	by := publishByFrames
	if o.SDK {
		by = publishBySDK
	}
	res, err := by(r, &o)
	if err != nil {
		return nil, err
	}
	res.finish(r)
	res.Hub.Topic = o.Topic
	head, err := t.head(ctx, o.Topic)
	if err == nil && int64(head-before) != res.Published {
		err = differs("the head of "+o.Topic, head-before, res.Published)
	}
	if err != nil {
		return nil, err
	}
	return res, nil
}

// publishByFrames publishes what was made before.
func publishByFrames(r *run, o *PublishOptions) (*Result, error) {
	load, err := newLoad(r, o.shape(), o.Connections, o.InFlight, o.Rate)
	if err != nil {
		return nil, err
	}
	if o.Warmup > 0 {
		if _, err := load.phase("warm-up", 0, o.Warmup); err != nil {
			return nil, err
		}
		load.forget()
	}
	warm := load.accepted.Load()
	stop := load.window(o.Window)
	took, err := load.phase("measure", o.Count, o.Duration)
	stop()
	if err != nil {
		return nil, err
	}
	res := &Result{Workload: "publish", Settings: *o, Unit: "events", Published: load.accepted.Load(), Publish: load.latency(), Windows: load.windows}
	res.rate(res.Published-warm, took)
	return res, nil
}

// load publishes over some connections, closed (a frame goes out when an answer
// came) or open (at a rate, whatever the answers do).
type load struct {
	r     *run
	shape *shape
	conns []*publisher
	rate  float64 // events a second; 0: closed

	accepted atomic.Int64 // events that the hub took, of all phases

	// Of the workload overload.
	impatient        bool
	reading          bool // its readers run until the end of the run
	refused, notSent atomic.Int64

	// Of the phase under way.
	left     atomic.Int64 // frames that may still be sent
	until    int64        // time of the run after which none is sent
	start    int64        // time at which the first frame is due
	interval float64      // nanoseconds between two frames

	windows []Window       // that are over
	past    *hdr.Histogram // what these have
}

// serialBits is how far the serial numbers of two connections are apart. Ids of the same
// millisecond differ in them; what is random of an id is not enough for that.
const serialBits = 36

// publisher is one connection of a load. Its reader and the pacer both send.
type publisher struct {
	l      *load
	c      *conn
	index  int
	random *rand.Rand

	mu     sync.Mutex
	slots  []slot
	free   []int
	out    []byte
	due    int64 // frames of an open load that should have been sent
	sent   int64 // and those that have
	over   bool  // no more will be due
	serial uint64
	quiet  int64 // time of the run until which the hub wants nothing
	rec    *recorder
}

// slot is one frame that is under way, or may be.
type slot struct {
	*template
	since int64 // time of the run from which its latency counts
	open  bool
}

// newLoad connects and makes the frames.
func newLoad(r *run, s *shape, connections, inFlight int, rate float64) (*load, error) {
	l := &load{r: r, shape: s, rate: rate, past: newHistogram()}
	r.enter("connect", int64(connections))
	conns, err := r.connect(connections)
	if err != nil {
		return nil, err
	}
	for i, c := range conns {
		p := &publisher{l: l, c: c, index: i, serial: uint64(i) << serialBits, rec: newRecorder(), random: rand.New(rand.NewPCG(r.t.Seed, uint64(i)))}
		for n := range max(inFlight/s.batch, 1) {
			made, err := newTemplate(s, n, p.random)
			if err != nil {
				return nil, err
			}
			p.slots = append(p.slots, slot{template: made})
			p.free = append(p.free, n)
		}
		l.conns = append(l.conns, p)
	}
	return l, nil
}

// phase publishes so many events, or for so long, waits for all answers, and
// returns how long that took.
func (l *load) phase(name string, count int64, d time.Duration) (time.Duration, error) {
	batch := int64(l.shape.batch)
	frames := int64(math.MaxInt64)
	if count > 0 {
		frames = (count + batch - 1) / batch
	}
	l.r.enter(name, count)
	l.start = l.r.now()
	l.until = math.MaxInt64
	if d > 0 {
		l.until = l.start + int64(d)
	}
	if l.rate > 0 {
		l.interval = 1e9 * float64(batch) / l.rate
		if d > 0 {
			frames = min(frames, max(int64(float64(d)/l.interval), 1))
		}
		l.until = math.MaxInt64 // what was due is sent
	}
	l.left.Store(frames)
	var pacer sync.WaitGroup
	if l.rate > 0 {
		for _, p := range l.conns {
			p.due, p.sent, p.over = 0, 0, false
		}
		pacer.Go(func() { l.pace(frames) })
	}
	err := l.r.all(len(l.conns), func(i int) error { return l.conns[i].work() })
	pacer.Wait()
	return time.Duration(l.r.now() - l.start), err
}

// pace makes frames due, in turn on all connections.
func (l *load) pace(frames int64) {
	const longest = 10 * time.Millisecond // it has to notice the end of the run
	n := int64(len(l.conns))
	touched := make([]bool, n)
	for next := int64(0); next < frames && l.r.ctx.Err() == nil; {
		now := l.r.now() - l.start
		if wait := time.Duration(float64(next)*l.interval) - time.Duration(now); wait > 0 {
			nap(min(wait, longest))
			continue
		}
		clear(touched)
		for ; next < frames && float64(next)*l.interval <= float64(now); next++ {
			p := l.conns[next%n]
			p.mu.Lock()
			p.due++
			p.mu.Unlock()
			touched[next%n] = true
		}
		for i, p := range l.conns {
			if touched[i] {
				if err := p.flush(); err != nil {
					l.r.fail(err)
				}
			}
		}
	}
	for _, p := range l.conns {
		p.mu.Lock()
		p.over = true
		if len(p.free) == len(p.slots) {
			_ = p.c.net.SetReadDeadline(time.Unix(1, 0)) // wakes its reader, which gets nothing any more
		}
		p.mu.Unlock()
	}
}

// work sends and reads until the phase is over and every answer is there.
func (p *publisher) work() error {
	if err := p.c.net.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	for {
		if err := p.flush(); err != nil {
			return err
		}
		if p.done() {
			return nil
		}
		if err := p.read(); err != nil && !(errors.Is(err, os.ErrDeadlineExceeded) && p.done()) {
			return p.l.r.ended(err)
		}
	}
}

// done reports whether nothing is under way and nothing will be.
func (p *publisher) done() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free) == len(p.slots) && (p.l.rate == 0 || p.over && p.sent == p.due)
}

// flush sends what may be sent, in one write.
func (p *publisher) flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.l.r.now()
	p.out = p.out[:0]
	for n := p.allowance(now); n > 0; n-- {
		last := len(p.free) - 1
		s := &p.slots[p.free[last]]
		p.free = p.free[:last]
		s.since, s.open = now, true
		if p.l.rate > 0 {
			s.since = p.l.start + int64(float64(p.sent*int64(len(p.l.conns))+int64(p.index))*p.l.interval)
			p.sent++
		}
		if p.l.shape.ids || p.l.shape.keys > 0 {
			s.fresh(p.l.r.began.UnixMilli()+now/1e6, &p.serial, p.l.shape.keys, p.random)
		}
		s.stamp(s.since)
		p.out = append(p.out, s.b...)
	}
	if len(p.out) == 0 {
		return nil
	}
	return p.c.write(p.out)
}

// allowance takes as many frames out of what is left as can be sent now.
func (p *publisher) allowance(now int64) int64 {
	n := int64(len(p.free))
	if p.l.rate > 0 {
		return min(n, p.due-p.sent)
	}
	if n == 0 || now >= p.l.until {
		return 0
	}
	left := p.l.left.Add(-n)
	if left < 0 {
		n = max(n+left, 0)
	}
	return n
}

// read takes the answers of one read.
func (p *publisher) read() error {
	var answered, accepted int64
	now := int64(0)
	err := p.c.read(func(message []byte) error {
		if now == 0 { // after the read
			now = p.l.r.now()
			p.mu.Lock()
			p.rec.Lock()
		}
		n, ok := slotOf(message)
		if !ok {
			err, bad := p.c.complaint(message)
			if bad != nil {
				return bad
			}
			if err == nil {
				return eventhub.Errorf(eventhub.CodeInternal, "the hub sent %.80q to a publisher", message)
			}
			if !p.told(err) {
				if bad := p.l.r.refuse(err); bad != nil {
					return bad
				}
			}
			corr, _ := p.c.frame.CorrNumber()
			n = int(corr) - corrBase
		}
		if n < 0 || n >= len(p.slots) || !p.slots[n].open {
			return eventhub.Errorf(eventhub.CodeInternal, "the hub answered what was not asked: %.80q", message)
		}
		p.slots[n].open = false
		p.free = append(p.free, n)
		answered++
		if ok {
			accepted++
			p.rec.add(now - p.slots[n].since)
		}
		return nil
	})
	if now != 0 {
		p.rec.Unlock()
		p.mu.Unlock()
	}
	batch := int64(p.l.shape.batch)
	p.l.accepted.Add(accepted * batch)
	p.l.r.moved.Add(answered * batch)
	return err
}

// forget removes the latencies of the warm-up.
func (l *load) forget() {
	for _, p := range l.conns {
		p.rec.reset()
	}
}

// window begins windows of some length, none for 0. stop ends the last one.
func (l *load) window(length time.Duration) (stop func()) {
	if length == 0 {
		return func() {}
	}
	began, over := time.Now(), make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(length)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				l.endWindow(began)
			case <-over:
				l.endWindow(began)
				return
			}
		}
	})
	return func() {
		close(over)
		work.Wait()
	}
}

func (l *load) endWindow(began time.Time) {
	h := newHistogram()
	for _, p := range l.conns {
		p.rec.drain(h)
	}
	l.past.Merge(h)
	l.windows = append(l.windows, Window{End: time.Since(began).Seconds(), Latency: describe(h)})
}

// latency is from when a frame was due, or sent, to its answer.
func (l *load) latency() *Latency {
	for _, p := range l.conns {
		p.rec.drain(l.past)
	}
	return describe(l.past)
}
