package bench

import (
	"context"
	"errors"
	"time"

	"eventhub"
)

// OverloadOptions is the workload overload: what is left of a hub's rate when more is published than it can take.
type OverloadOptions struct {
	Topic       string  `json:"topic"` // default a new one
	Connections int     `json:"connections"`
	InFlight    int     `json:"in_flight"` // events under way on each connection under overload, at most
	Payload     int     `json:"payload_bytes"`
	Times       float64 `json:"times"` // what is due under overload, of the best rate
	// Impatient publishers go on at once when the hub says when to try again.
	Impatient bool          `json:"impatient,omitempty"`
	Warmup    time.Duration `json:"warmup_ns"`   // as fast as answers come, before, not measured
	Measure   time.Duration `json:"measure_ns"`  // of the best rate, at it, and of half of it, before and after
	Duration  time.Duration `json:"duration_ns"` // of the overload
}

// Overload is what the workload overload has measured.
type Overload struct {
	Best    float64  `json:"best_per_second"`    // as fast as answers come, 64 under way on each connection
	Full    float64  `json:"full_per_second"`    // what was taken where the best rate was due, whatever the answers did
	Offered float64  `json:"offered_per_second"` // what was due
	Goodput float64  `json:"goodput_per_second"` // what was taken
	Ratio   float64  `json:"ratio"`              // of the best
	OfFull  float64  `json:"ratio_of_full"`      // and of Full, whose publishers are the same
	Refused int64    `json:"refused"`            // with CodeOverloaded
	NotSent int64    `json:"not_sent"`           // due when too many were under way, or the publisher was told to wait
	Half    *Latency `json:"half_latency"`       // at half of the best rate, before
	After   *Latency `json:"after_latency"`      // and after
	// Back is how long after the end of the overload the latencies were those of before again: until the end of
	// the last tenth of a second whose 99th percentile was above 50 ms and twice that of before. In seconds.
	Back float64 `json:"back_seconds"`
}

// Validate names everything that is out of range at once.
func (o *OverloadOptions) Validate() error {
	s := &shape{bytes: o.Payload, batch: 1}
	errs := []error{check(
		within{"connections", int64(o.Connections), 1, 10_000},
		within{"in-flight", int64(o.InFlight), 1, maxSlots},
		within{"payload", int64(o.Payload), int64(s.leastPayload()), eventhub.MaxPayloadBytes},
	)}
	if !(o.Times >= 1 && o.Times <= 100) {
		errs = append(errs, eventhub.Errorf(eventhub.CodeBadRequest, "times is %g; 1 to 100 are allowed", o.Times))
	}
	if o.Duration <= 0 || o.Measure <= 0 || o.Warmup < 0 {
		errs = append(errs, eventhub.Errorf(eventhub.CodeBadRequest, "duration is %s, measure is %s and warmup is %s; the first two must be positive", o.Duration, o.Measure, o.Warmup))
	}
	return errors.Join(errs...)
}

const (
	// bestInFlight is how many events are under way on each connection where the best rate is measured.
	bestInFlight = 64
	// backWindow is how long the stretches are in which a hub is found to be as before, and fineLatency what is always
	// as before, in milliseconds.
	backWindow  = 100 * time.Millisecond
	fineLatency = 50
)

// MeasureOverload runs the workload.
func MeasureOverload(ctx context.Context, t *Target, o OverloadOptions) (*Result, error) {
	o.Topic = t.topicOr(o.Topic, "overload")
	if err := o.Validate(); err != nil {
		return nil, err
	}
	r := begin(ctx, t)
	defer r.close()
	best, err := newLoad(r, &shape{topic: o.Topic, bytes: o.Payload, batch: 1}, o.Connections, min(bestInFlight, o.InFlight), 0)
	if err != nil {
		return nil, err
	}
	if o.Warmup > 0 {
		if _, err := best.phase("warm-up", 0, o.Warmup); err != nil {
			return nil, err
		}
	}
	warm := best.accepted.Load()
	took, err := best.phase("best", 0, o.Measure)
	if err != nil {
		return nil, err
	}
	res := &Result{Workload: "overload", Settings: o, Unit: "events", Overload: &Overload{Best: float64(best.accepted.Load()-warm) / took.Seconds()}}
	l, err := newLoad(r, best.shape, o.Connections, o.InFlight, 0)
	if err != nil {
		return nil, err
	}
	l.impatient = o.Impatient
	if err := l.overload(res, &o); err != nil {
		return nil, err
	}
	res.Published = best.accepted.Load() + l.accepted.Load()
	res.finish(r)
	res.Hub.Topic = o.Topic
	return res, nil
}

// overload publishes at half of the best rate, at all of it, at more than it, and at half of it again.
func (l *load) overload(res *Result, o *OverloadOptions) error {
	out := res.Overload
	if err := l.shed("half", out.Best/2, o.Measure); err != nil {
		return err
	}
	out.Half = l.latency()
	l.renew()
	before := l.accepted.Load()
	if err := l.shed("full", out.Best, o.Measure); err != nil {
		return err
	}
	out.Full = float64(l.accepted.Load()-before) / o.Measure.Seconds()
	l.renew()
	before = l.accepted.Load()
	out.Offered = out.Best * o.Times
	if err := l.shed("overload", out.Offered, o.Duration); err != nil {
		return err
	}
	res.rate(l.accepted.Load()-before, o.Duration)
	out.Goodput, out.Ratio, out.OfFull = res.PerSecond, res.PerSecond/out.Best, res.PerSecond/max(out.Full, 1)
	out.Refused, out.NotSent = l.refused.Load(), l.notSent.Load()
	res.Publish = l.latency()
	l.renew()
	stop := l.window(backWindow)
	err := l.shed("after", out.Best/2, o.Measure)
	stop()
	out.After = l.latency()
	if err == nil {
		err = l.settle()
	}
	if err != nil || out.Half == nil {
		return err
	}
	for _, w := range l.windows {
		if w.Latency != nil && w.Latency.At(99) > max(fineLatency, 2*out.Half.At(99)) {
			out.Back = w.End
		}
	}
	return nil
}

// settle waits until all is answered.
func (l *load) settle() error {
	return l.r.all(len(l.conns), func(i int) error {
		for p := l.conns[i]; l.r.ctx.Err() == nil; time.Sleep(time.Millisecond) {
			p.mu.Lock()
			all := len(p.free) == len(p.slots)
			p.mu.Unlock()
			if all {
				return nil
			}
		}
		return nil
	})
}

// renew forgets what was measured.
func (l *load) renew() {
	l.forget()
	l.past, l.windows = newHistogram(), nil
	l.refused.Store(0)
	l.notSent.Store(0)
}

// shed publishes at a rate for some time, whatever the answers do: what is due while a connection has no slot, or
// was told to wait, or is being written to, is not sent. It does not wait for the last answers.
func (l *load) shed(name string, rate float64, d time.Duration) error {
	l.r.enter(name, 0)
	l.rate = rate
	l.interval = 1e9 / rate
	l.start = l.r.now()
	l.until = l.start + int64(d)
	if !l.reading {
		l.reading = true
		for _, p := range l.conns {
			l.r.work.Go(func() {
				for l.r.ctx.Err() == nil {
					if err := p.read(); err != nil {
						l.r.fail(l.r.ended(err))
					}
				}
			})
		}
	}
	return l.r.all(len(l.conns), func(i int) error { return l.conns[i].shed() })
}

// shed is one connection's part.
func (p *publisher) shed() error {
	const every = 5 * time.Millisecond
	p.mu.Lock()
	p.sent = 0
	p.mu.Unlock()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for p.l.r.ctx.Err() == nil && p.l.r.now() < p.l.until {
		if out := p.frames(); len(out) > 0 {
			if err := p.c.write(out); err != nil {
				return p.l.r.ended(err)
			}
		}
		<-tick.C
	}
	return nil
}

// frames returns the frames that are due now and may be sent.
func (p *publisher) frames() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.l.r.now()
	conns := int64(len(p.l.conns))
	due := (int64(float64(now-p.l.start)/p.l.interval) - int64(p.index) + conns - 1) / conns
	n := min(int64(len(p.free)), due-p.sent)
	if now < p.quiet {
		n = 0
	}
	if skip := due - p.sent - n; skip > 0 {
		p.l.notSent.Add(skip)
		p.sent += skip
	}
	p.out = p.out[:0]
	for ; n > 0; n-- {
		last := len(p.free) - 1
		s := &p.slots[p.free[last]]
		p.free = p.free[:last]
		s.since, s.open = p.l.start+int64(float64(p.sent*conns+int64(p.index))*p.l.interval), true
		p.sent++
		p.out = append(p.out, s.b...)
	}
	return p.out
}

// told notes that the hub has refused a publish of an open load and said when to come again. p.mu is held.
func (p *publisher) told(err *eventhub.Error) bool {
	if !p.l.reading || err.Code != eventhub.CodeOverloaded || err.RetryAfter <= 0 {
		return false
	}
	p.l.refused.Add(1)
	if !p.l.impatient {
		p.quiet = max(p.quiet, p.l.r.now()+int64(err.RetryAfter))
	}
	return true
}
