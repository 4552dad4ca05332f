package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"eventhub"
)

const (
	// watchEvery is the time between two looks at how far a run is.
	watchEvery = 500 * time.Millisecond
	// dialers is how many connections are opened at once.
	dialers = 32
	// maxRefused ends a run: a hub that refuses so much is not measured by it.
	maxRefused = 1_000
)

// run is one run of a workload: its connections, its goroutines and what they
// count. It ends when the work is done, when its context does, or with the first
// failure, which is the cause of its context's end.
type run struct {
	t      *Target
	ctx    context.Context
	cancel context.CancelCauseFunc
	began  time.Time // 0 of all times of the run
	conns  []*conn
	work   sync.WaitGroup // whatever goes on until the run is closed

	moved   atomic.Int64 // whatever the phase counts
	refused refusals

	mu    sync.Mutex // guards what follows
	phase Progress   // Phase and Total; since when, below
	since time.Time
}

// begin returns a run that is watched. close ends it.
func begin(ctx context.Context, t *Target) *run {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &run{t: t, ctx: ctx, cancel: cancel, began: time.Now(), since: time.Now()}
	r.work.Go(r.look)
	return r
}

// close closes what is open and waits until nothing of the run is left.
func (r *run) close() {
	r.cancel(nil)
	for _, c := range r.conns {
		c.net.Close()
	}
	r.work.Wait()
}

// now is the time of the run, in nanoseconds.
func (r *run) now() int64 { return int64(time.Since(r.began)) }

// enter begins a phase, which counts from 0 to total, 0 where that is not known.
func (r *run) enter(phase string, total int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moved.Store(0)
	r.phase, r.since = Progress{Phase: phase, Total: total}, time.Now()
}

// look reports how far the run is, and ends it when nothing moves for too long.
func (r *run) look() {
	tick := time.NewTicker(min(watchEvery, r.patience()/4))
	defer tick.Stop()
	last, still := int64(-1), time.Now()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-tick.C:
		}
		r.mu.Lock()
		p := r.phase
		p.Done = r.moved.Load()
		p.PerSecond = float64(p.Done) / time.Since(r.since).Seconds()
		r.mu.Unlock()
		if r.t.Progress != nil && p.Phase != "" {
			r.t.Progress(p)
		}
		if p.Done != last {
			last, still = p.Done, time.Now()
		} else if time.Since(still) > r.patience() {
			r.fail(fmt.Errorf("nothing has moved for %s in phase %q, at %d", r.patience(), p.Phase, p.Done))
		}
	}
}

func (r *run) patience() time.Duration {
	if r.t.Patience > 0 {
		return r.t.Patience
	}
	return DefaultPatience
}

// fail ends the run. The first failure is reported.
func (r *run) fail(err error) {
	r.cancel(err)
}

// connect opens so many connections more, which close when the run ends.
func (r *run) connect(n int) ([]*conn, error) {
	opened := make([]*conn, n)
	var todo atomic.Int64
	err := r.all(min(n, dialers), func(int) error {
		for {
			i := int(todo.Add(1)) - 1
			if i >= n {
				return nil
			}
			c, err := dial(r.ctx, r.t)
			if err != nil {
				return err
			}
			opened[i] = c
			r.moved.Add(1)
		}
	})
	for _, c := range opened {
		if c != nil {
			r.conns = append(r.conns, c)
			context.AfterFunc(r.ctx, func() { c.net.Close() })
		}
	}
	return opened, err
}

// all runs work for 0 to n-1 at the same time and waits for all of them. The first
// failure ends the run, and with it the others.
func (r *run) all(n int, work func(i int) error) error {
	var workers sync.WaitGroup
	for i := range n {
		workers.Go(func() {
			if err := work(i); err != nil {
				r.fail(err)
			}
		})
	}
	workers.Wait()
	return context.Cause(r.ctx)
}

// refuse counts an ERR of the hub. One that no client can go on from, or one too
// many, is returned.
func (r *run) refuse(err *eventhub.Error) error {
	switch err.Code {
	case eventhub.CodeShuttingDown, eventhub.CodeUnauthorized, eventhub.CodeForbidden, eventhub.CodeUnsupportedOp:
		return err
	}
	if r.refused.add(err) >= maxRefused {
		return fmt.Errorf("%d requests were refused, the last one with %w", maxRefused, err)
	}
	return nil
}

// refusals counts the hub's errors by their code.
type refusals struct {
	mu     sync.Mutex
	counts map[eventhub.Code]int64
	first  string
}

func (f *refusals) add(err *eventhub.Error) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.counts == nil {
		f.counts, f.first = make(map[eventhub.Code]int64), err.Error()
	}
	f.counts[err.Code]++
	return f.sum()
}

func (f *refusals) sum() (n int64) {
	for _, c := range f.counts {
		n += c
	}
	return n
}

func (f *refusals) total() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sum()
}

// sample names the codes that came, with their number, and the first message.
func (f *refusals) sample() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var codes []string
	for code, n := range f.counts {
		codes = append(codes, fmt.Sprintf("%d %s", n, code))
	}
	if len(codes) == 0 {
		return ""
	}
	slices.Sort(codes)
	return strings.Join(codes, ", ") + "; first " + f.first
}

// complaint returns what an ERR says, nil for any other frame.
func (c *conn) complaint(message []byte) (*eventhub.Error, error) {
	if err := c.dec.Decode(message, &c.frame); err != nil {
		return nil, fmt.Errorf("the frame %.80q: %w", message, err)
	}
	return c.frame.Err, nil
}

// ended returns why the run has ended, or err where it has not: connections that
// the run itself closed are no news.
func (r *run) ended(err error) error {
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	return err
}
