package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// openSlots is how many events of an open load may be unanswered on a connection.
// A system that needs more can not keep up, and its run fails.
const openSlots = 10_000

// flow is an open load with one member that receives it: events are due at fixed times, and
// each says when it was.
type flow struct {
	load     latencyLoad
	began    time.Time
	rec      *recorder
	warm     int64 // events of the warm-up
	measured int64

	came atomic.Int64
	oks  atomic.Int64
	bad  atomic.Int64
}

// sender is how a system publishes one event, and takes the answers of connection i
// until it is closed.
type sender struct {
	n     int
	send  func(i int64, due time.Duration) error
	serve func(ctx context.Context, i int) error
	close func()
}

func newFlow(l latencyLoad) *flow {
	return &flow{
		load: l, began: time.Now(), rec: newRecorder(),
		warm: int64(l.warmup.Seconds() * l.rate), measured: int64(l.duration.Seconds() * l.rate),
	}
}

func (f *flow) total() int64 { return f.warm + f.measured }

// arrived takes one delivery. Those of the warm-up, which come first, are not timed.
func (f *flow) arrived(payload []byte) {
	due, ok := dueOf(payload)
	if !ok {
		f.bad.Add(1)
	}
	if f.came.Add(1) > f.warm {
		f.rec.Lock()
		f.rec.add(time.Since(f.began) - due)
		f.rec.Unlock()
	}
}

func (f *flow) answered(n int64) { f.oks.Add(n) }

// complete reports whether everything has come.
func (f *flow) complete() bool { return f.came.Load() >= f.total() }

// run publishes while receive, which returns when the flow is complete, receives.
func (f *flow) run(ctx context.Context, receive func(context.Context) error, s sender) (*outcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, f.load.warmup+f.load.duration+time.Minute, errors.New("not everything came within a minute"))
	defer cancel()
	fail := make(chan error, s.n+2)
	var work sync.WaitGroup
	var over atomic.Bool
	for i := range s.n {
		work.Go(func() {
			if err := s.serve(ctx, i); err != nil && !over.Load() {
				fail <- err
			}
		})
	}
	from := time.Since(f.began)
	work.Go(func() {
		pace(ctx, f.began, from, f.load.rate, f.total(), func(i int64, due time.Duration) {
			if err := s.send(i, due); err != nil {
				fail <- err
				cancel()
			}
		})
	})
	received := make(chan error, 1)
	go func() { received <- receive(ctx) }()
	var err error
	select {
	case err = <-received:
	case err = <-fail:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	for err == nil && f.oks.Load() < f.total() && ctx.Err() == nil {
		time.Sleep(time.Millisecond) // the last answers may come after the last delivery
	}
	over.Store(true)
	cancel()
	s.close()
	work.Wait()
	if err != nil {
		return nil, err
	}
	if f.bad.Load() > 0 || f.came.Load() != f.total() || f.oks.Load() != f.total() {
		return nil, fmt.Errorf("%d events were due, %d answered, %d delivered, %d of them without their time", f.total(), f.oks.Load(), f.came.Load(), f.bad.Load())
	}
	took := time.Since(f.began) - from
	o := &outcome{Count: f.measured, Seconds: took.Seconds(), Quantiles: summarize(f.rec)}
	o.Value = o.at(50)
	return o, nil
}
