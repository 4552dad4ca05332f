package hub

import (
	"context"
	"math"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"eventhub"
	"eventhub/auth/guard"
)

const (
	// lookEvery is how often the memory is looked at, at most.
	lookEvery = 50 * time.Millisecond
	// fullerPercent and fullPercent are how much of the limit is live when new connections are
	// refused, and publishes too. What is left is for acks, deliveries and operators: the garbage
	// collector runs all the time above it.
	fullerPercent, fullPercent = 80, 90
	// pressureRetry is when what was refused is worth another try.
	pressureRetry = time.Second
)

// pressure says how much of the memory that the hub may have is in use, and refuses in order what
// would take more: new WebSockets and streams, then publishes. What gives memory back (acks,
// deliveries, what operators do) always passes.
//
// It is safe for concurrent use.
type pressure struct {
	limit int64        // bytes; 0: none
	live  func() int64 // bytes that the last garbage collection found, and stacks

	looked atomic.Int64 // when, in Unix ns
	seen   atomic.Int64 // what live was then
}

func newPressure(limit int64) *pressure { return &pressure{limit: limit, live: liveMemory} }

// liveMemory asks the runtime.
func liveMemory() int64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(s)
	var sum uint64
	for i := range s {
		if s[i].Value.Kind() == metrics.KindUint64 {
			sum += s[i].Value.Uint64()
		}
	}
	return int64(min(sum, math.MaxInt64))
}

// check refuses where more than so many percent of the limit are live.
func (p *pressure) check(percent int64) error {
	if p.limit == 0 {
		return nil
	}
	now, last := time.Now().UnixNano(), p.looked.Load()
	if now-last >= int64(lookEvery) && p.looked.CompareAndSwap(last, now) {
		p.seen.Store(p.live())
	}
	if p.seen.Load() <= p.limit/100*percent {
		return nil
	}
	e := eventhub.Errorf(eventhub.CodeOverloaded, "the hub has %d of %d MiB of memory in use", p.seen.Load()>>20, p.limit>>20)
	e.RetryAfter = pressureRetry
	return e
}

// connection refuses a new WebSocket or stream.
func (p *pressure) connection() error { return p.check(fullerPercent) }

// publisher returns next, without what there is no memory for.
func (p *pressure) publisher(next eventhub.Publisher) eventhub.Publisher {
	if p.limit == 0 {
		return next
	}
	return &pressedPublisher{next, p}
}

type pressedPublisher struct {
	next     eventhub.Publisher
	pressure *pressure
}

// Publish implements eventhub.Publisher.
func (p *pressedPublisher) Publish(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	if err := p.pressure.check(fullPercent); err != nil {
		return nil, err
	}
	return p.next.Publish(ctx, events...)
}

// Enqueue implements eventhub.Publisher.
func (p *pressedPublisher) Enqueue(ctx context.Context, pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	err := p.pressure.check(fullPercent)
	if err == nil {
		p.next.Enqueue(ctx, pubs, done)
		return
	}
	guard.HandOver(pubs,
		func(pub *eventhub.Publication) error {
			if pub.Refused != nil {
				return nil // the engine has its number alone
			}
			return pub.Refuse(err)
		},
		func(pub *eventhub.Publication, err error) { pub.Err = err },
		func(rest []eventhub.Publication, done func([]eventhub.Publication)) { p.next.Enqueue(ctx, rest, done) },
		done)
}
