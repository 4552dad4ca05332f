package commit

import (
	"context"
	"sync"
	"time"

	"eventhub/store"
)

// A commit that has nothing but events of publishers need not be over for the next one
// to be built: while the syncer waits for its fsync and answers the publishers, in the
// order of the commits, another is put together where enough is waiting for it. Every
// other commit begins when those before it are over, for what it writes depends on what
// became of them.
//
// Little is better left to gather (Options.EarlyBytes): it will be one commit with what
// comes until the fsync is over, and that is soon. For the same reason a commit of little
// is not pipelined at all.

// EarlyBytes is the default of Options.EarlyBytes.
const EarlyBytes = 64 << 10

// pipeline has the commits whose fsync is under way: one that the syncer waits for and
// at most one after it.
type pipeline struct {
	store store.Pipeline
	in    chan *syncing
	over  sync.WaitGroup // of all that are under way; added to and waited for by the committer alone
	ended chan struct{}
	spare chan *syncing

	failed error // why a commit was not synced; of the syncer's goroutine
}

// syncing is one commit of plain jobs alone.
type syncing struct {
	batch    []Job
	requests []*Request
	units    []*store.Unit
	wait     func() error
	bytes    int64
	taken    time.Time
	began    time.Time
}

// Unpipelined makes do with a store that has no Pipeline: a commit is over when it has
// begun.
type Unpipelined struct{ store.Log }

// Start implements store.Pipeline.
func (u Unpipelined) Start(ctx context.Context, units []*store.Unit) (func() error, error) {
	return func() error { return nil }, u.Commit(ctx, units, true)
}

func (p *pipeline) begin(c *Committer) {
	var ok bool
	if p.store, ok = c.opts.Store.(store.Pipeline); !ok {
		p.store = Unpipelined{c.opts.Store}
	}
	p.in, p.ended, p.spare = make(chan *syncing), make(chan struct{}), make(chan *syncing, 3)
	go func() {
		defer close(p.ended)
		for s := range p.in {
			c.await(s)
		}
	}()
}

// drain returns when nothing is under way.
func (p *pipeline) drain() { p.over.Wait() }

func (p *pipeline) end() {
	close(p.in)
	<-p.ended
}

func (p *pipeline) take() *syncing {
	select {
	case s := <-p.spare:
		return s
	default:
		return &syncing{}
	}
}

func (p *pipeline) keep(s *syncing) {
	clear(s.batch)
	clear(s.requests)
	clear(s.units)
	s.batch, s.requests, s.units, s.wait = s.batch[:0], s.requests[:0], s.units[:0], nil
	select {
	case p.spare <- s:
	default:
	}
}

// tooEarly reports whether a commit is being synced and so little waits that the next
// one is better built after it; the syncer gives a hint then.
func (c *Committer) tooEarly() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inSync > 0 && c.queued < c.opts.EarlyBytes
}

// isPlain reports whether the commit that is to be built has plain jobs and nothing else.
func (c *Committer) isPlain(dirty []State) bool {
	if c.opts.SyncEvery != 0 || len(dirty) > 0 || !c.joint.isEmpty() || len(c.batch) == 0 {
		return false
	}
	for _, j := range c.batch {
		if !j.request().Plain {
			return false
		}
	}
	return true
}

// isWorthIt reports whether c.batch is so much that the next commit may be built while
// it is synced, or must wait its turn after another. To hand little to the syncer costs
// whoever waits for it two switches of goroutines.
func (c *Committer) isWorthIt() bool {
	bytes := 0
	for _, j := range c.batch {
		bytes += j.request().Bytes
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inSync > 0 || bytes >= c.opts.EarlyBytes
}

// start applies c.batch and leaves the rest to the syncer.
func (c *Committer) start() {
	p := c.pipeline.take()
	p.batch = append(p.batch, c.batch...)
	p.bytes, p.taken = c.bytes, c.taken
	for _, j := range c.batch {
		r := j.request()
		p.requests = append(p.requests, r)
		for i := range r.Units {
			p.units = append(p.units, &r.Units[i])
		}
	}
	clear(c.batch)
	p.began = time.Now()
	err := c.Broken()
	if err == nil {
		c.stall.begin(p.began)
		if p.wait, err = c.pipeline.store.Start(context.Background(), p.units); err != nil {
			c.stall.end(time.Now())
			err = c.Fail(err)
		}
	}
	if err != nil {
		c.pipeline.drain()
		c.conclude(p, err)
		return
	}
	c.mu.Lock()
	c.inSync++
	c.mu.Unlock()
	c.pipeline.over.Add(1)
	c.pipeline.in <- p
}

// await ends one commit, on the syncer's goroutine. After one that failed none is said to
// have gone well, whatever the store says of it; one before may still be.
func (c *Committer) await(p *syncing) {
	err := p.wait()
	took := time.Since(p.began)
	c.stall.end(p.began.Add(took))
	if c.pipeline.failed == nil && err != nil {
		c.pipeline.failed = c.Fail(err)
	}
	err = c.pipeline.failed
	if err == nil {
		c.opts.Observe(took, p.units)
		c.opts.Committed(p.requests)
	}
	c.conclude(p, err)
	c.mu.Lock()
	c.inSync--
	c.mu.Unlock()
	c.pipeline.over.Done()
	c.hint()
}

// conclude answers the publishers of a commit.
func (c *Committer) conclude(p *syncing, err error) {
	for _, j := range p.batch {
		j.Done(err)
	}
	c.pace.over(p.bytes, p.taken, time.Now())
	c.pipeline.keep(p)
}
