package retention

import (
	"context"
	"time"

	"eventhub/admin"
	"eventhub/store"
)

// Below counts the events of a topic from an offset up to, but not including, another one.
// After so many calls of the store, unless that is negative, it ends early: reached is up to
// where it has counted.
func Below(ctx context.Context, s store.Retention, topic string, from, to uint64, calls int) (u store.Usage, reached uint64, err error) {
	// The offsets between are at least as many as the events. Where the store finds so many
	// only beyond, there are gaps, and fewer are asked for.
	for most := to - min(from, to); from < to && most > 0; calls-- {
		if calls == 0 {
			return u, from, nil
		}
		part, next, _, err := s.Measure(ctx, topic, from, store.Usage{Events: min(most, to-from)})
		switch {
		case err != nil:
			return u, from, err
		case next > to:
			most = min(most, to-from, part.Events) / 2
			continue
		case part.Events == 0:
			return u, to, nil
		}
		u.Events += part.Events
		u.Bytes += part.Bytes
		from = next
	}
	return u, to, nil
}

// Kept counts all that a topic keeps from an offset on.
func Kept(ctx context.Context, s store.Retention, topic string, from uint64) (u store.Usage, err error) {
	for {
		part, next, done, err := s.Measure(ctx, topic, from, store.Usage{})
		u.Events += part.Events
		u.Bytes += part.Bytes
		if done || err != nil {
			return u, err
		}
		from = next
	}
}

// Plan is what a policy would remove of a topic now.
type Plan struct {
	From, Horizon uint64      // the first offset that is kept, before and after
	Removed, Kept store.Usage // events that go, and that stay
}

// Plan returns what a policy would remove of a topic now. It counts all that the topic keeps.
func (r *Runtime) Plan(ctx context.Context, info store.TopicInfo, policy admin.Retention) (p Plan, err error) {
	p = Plan{From: info.Horizon, Horizon: info.Horizon}
	all, err := Kept(ctx, r.opts.Store, info.Name, info.Horizon)
	if err != nil {
		return p, err
	}
	if policy.Age != 0 {
		at, err := r.opts.Store.SeekTime(ctx, info.Name, r.opts.Wall().Add(-time.Duration(policy.Age)).UnixMilli())
		if err != nil {
			return p, err
		}
		p.Horizon = max(p.Horizon, at)
	}
	over := (&entry{policy: policy, usage: all}).excess()
	for _, until := range []store.Usage{{Events: over.Events}, {Bytes: over.Bytes}} {
		at, err := After(ctx, r.opts.Store, info.Name, info.Horizon, until)
		if err != nil {
			return p, err
		}
		p.Horizon = max(p.Horizon, at)
	}
	p.Kept, err = Kept(ctx, r.opts.Store, info.Name, p.Horizon)
	p.Removed = store.Usage{Events: all.Events - min(all.Events, p.Kept.Events), Bytes: all.Bytes - min(all.Bytes, p.Kept.Bytes)}
	return p, err
}

// After returns the offset after so many events, or bytes of them, from an offset on.
func After(ctx context.Context, s store.Retention, topic string, from uint64, n store.Usage) (uint64, error) {
	for n != (store.Usage{}) {
		part, next, done, err := s.Measure(ctx, topic, from, n)
		if err != nil {
			return 0, err
		}
		from = next
		n.Events -= min(n.Events, part.Events)
		n.Bytes -= min(n.Bytes, part.Bytes)
		if done {
			break
		}
	}
	return from, nil
}
