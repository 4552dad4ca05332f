package bus

import (
	"context"
	"sync"
	"time"

	"eventhub/store"
)

// earlyBytes is the default of Options.EarlyBytes. Less is better left to gather: it
// will be one commit with what comes until the fsync is over, and that is soon. For the
// same reason a commit of less is not pipelined at all.
const earlyBytes = 64 << 10

// pipeline has the commits whose fsync is under way: one that the syncer waits for and
// at most one behind it.
type pipeline struct {
	store store.Pipeline
	in    chan *syncing
	over  sync.WaitGroup // of all that are under way; added to and waited for by the committer alone
	ended chan struct{}
	spare chan *syncing

	failed error // why a commit was not synced; of the syncer's goroutine
}

// syncing is one commit of publications alone.
type syncing struct {
	batch []*submission
	units []*store.Unit
	wait  func() error
	began time.Time
}

// unpipelined makes do with a store that has no Pipeline.
type unpipelined struct{ store.Log }

func (u unpipelined) Start(ctx context.Context, units []*store.Unit) (func() error, error) {
	return func() error { return nil }, u.Commit(ctx, units, true)
}

func (p *pipeline) begin(c *committer) {
	var ok bool
	if p.store, ok = c.bus.store.(store.Pipeline); !ok {
		p.store = unpipelined{c.bus.store}
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
	clear(s.units)
	s.batch, s.units, s.wait = s.batch[:0], s.units[:0], nil
	select {
	case p.spare <- s:
	default:
	}
}

// tooEarly reports whether a commit is being synced and so little waits that the next
// one is better built behind it; the syncer gives a hint then.
func (c *committer) tooEarly() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inSync > 0 && c.queued < c.bus.opts.EarlyBytes
}

// isPlain reports whether the commit that is to be built has events of publishers and
// nothing else, so that nothing in it depends on how the one before ends.
func (c *committer) isPlain(dirty []*group) bool {
	if c.bus.opts.SyncEvery != 0 || len(dirty) > 0 || len(c.exchanges) > 0 || len(c.batch) == 0 {
		return false
	}
	for _, s := range c.batch {
		if s.prepare != nil || s.drop != "" || s.barrier != nil {
			return false
		}
	}
	return true
}

// isWorthIt reports whether c.batch is so much that the next commit may be built while
// it is synced, or must wait its turn behind another. To hand little to the syncer costs
// whoever waits for it two switches of goroutines.
func (c *committer) isWorthIt() bool {
	bytes := 0
	for _, s := range c.batch {
		bytes += s.bytes
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inSync > 0 || bytes >= c.bus.opts.EarlyBytes
}

// start applies c.batch and leaves the rest to the syncer.
func (c *committer) start() {
	p := c.pipeline.take()
	p.batch = append(p.batch, c.batch...)
	for _, s := range c.batch {
		for i := range s.units {
			p.units = append(p.units, &s.units[i])
		}
	}
	clear(c.batch)
	p.began = time.Now()
	err := c.whyBroken()
	if err == nil {
		c.stall.begin(p.began)
		if p.wait, err = c.pipeline.store.Start(context.Background(), p.units); err != nil {
			c.stall.end(time.Now())
			err = c.fail(err)
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

// await ends one commit, on the syncer's goroutine. Behind one that failed none is told
// that it went well, whatever the store says of it; one before may still be.
func (c *committer) await(p *syncing) {
	err := p.wait()
	took := time.Since(p.began)
	c.stall.end(p.began.Add(took))
	if c.pipeline.failed == nil && err != nil {
		c.pipeline.failed = c.fail(err)
	}
	err = c.pipeline.failed
	if err == nil {
		c.bus.counts.commit(took, p.units)
		c.bus.committed(p.batch)
	}
	c.conclude(p, err)
	c.mu.Lock()
	c.inSync--
	c.mu.Unlock()
	c.pipeline.over.Done()
	c.hint()
}

// conclude tells the publishers of a commit.
func (c *committer) conclude(p *syncing, err error) {
	for _, s := range p.batch {
		s.finish(s, err)
	}
	c.pipeline.keep(p)
}
