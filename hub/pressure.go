package hub

import (
	"context"
	"math"
	"runtime"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"eventhub"
	"eventhub/auth/guard"
)

const (
	// lookEvery is how often the memory is looked at, at most.
	lookEvery = 50 * time.Millisecond
	// fullerPercent, crowdedPercent and fullPercent are how much of the limit is live when new connections are
	// refused, then the AUTH of those that are there, and publishes too. What is left is for acks, deliveries and
	// operators: the garbage collector runs all the time above it.
	fullerPercent, crowdedPercent, fullPercent = 80, 85, 90
	// waitsPercent and crowdWaitsPercent are how much of what may wait to be published does when new connections
	// are refused, and the AUTH of others. At 100 the engine refuses publishes.
	waitsPercent, crowdWaitsPercent = 80, 90
	// pressureRetry is when what was refused is worth another try.
	pressureRetry = time.Second
	// staleAfter is for how long what the last garbage collection found counts while something is refused, at least, and in
	// lengths of a collection: who is refused makes no garbage, and so the runtime's next one may be two minutes away.
	staleAfter      = 2 * time.Second
	staleCollecting = 10
)

// pressure says how much of the memory that the hub may have is in use, and of the time that a publish may wait,
// and refuses in order what would take more: new WebSockets and streams, then the AUTH of strangers, then publishes. What gives
// memory back (acks, deliveries, what operators do) always passes.
//
// It is safe for concurrent use.
type pressure struct {
	limit int64 // bytes; 0: none
	// live returns the bytes that the last garbage collection found, and stacks, and how many collections there were.
	live    func() (bytes int64, collections uint64)
	collect func() // collects garbage, and returns when it has
	// load is how much waits to be published, in percent of what may: at 100 publishes are refused. nil: nobody knows.
	load atomic.Pointer[func() int]

	looked atomic.Int64 // when, in Unix ns
	seen   atomic.Int64 // what live was then

	collections atomic.Uint64 // how many there were then
	due         atomic.Int64  // until when what the last one found counts, in Unix ns
	collecting  atomic.Bool
}

func newPressure(limit int64) *pressure {
	return &pressure{limit: limit, live: liveMemory, collect: runtime.GC}
}

// liveMemory asks the runtime.
func liveMemory() (bytes int64, collections uint64) {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}, {Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(s)
	var n [3]uint64
	for i := range s {
		if s[i].Value.Kind() == metrics.KindUint64 {
			n[i] = s[i].Value.Uint64()
		}
	}
	return int64(min(n[0]+n[1], math.MaxInt64)), n[2]
}

// used returns how many bytes are live, as of a moment ago.
func (p *pressure) used() int64 {
	now, last := time.Now().UnixNano(), p.looked.Load()
	if now-last >= int64(lookEvery) && p.looked.CompareAndSwap(last, now) {
		p.look(now)
	}
	return p.seen.Load()
}

// look notes what is live now, in Unix ns, and has garbage collected where that is too long ago for what is refused.
func (p *pressure) look(now int64) {
	live, collections := p.live()
	p.seen.Store(live)
	switch {
	case p.collections.Swap(collections) != collections:
		p.due.Store(max(p.due.Load(), now+int64(staleAfter)))
	case p.limit > 0 && live > p.limit/100*fullerPercent && now >= p.due.Load() && p.collecting.CompareAndSwap(false, true):
		go func() {
			defer p.collecting.Store(false)
			began := time.Now()
			p.collect()
			p.due.Store(time.Now().Add(max(staleAfter, staleCollecting*time.Since(began))).UnixNano())
		}()
	}
}

// check refuses where more than so many percent of the limit are live.
func (p *pressure) check(percent int64) error {
	if p.limit == 0 || p.used() <= p.limit/100*percent {
		return nil
	}
	e := eventhub.Errorf(eventhub.CodeOverloaded, "the hub has %d of %d MiB of memory in use", p.seen.Load()>>20, p.limit>>20)
	e.RetryAfter = pressureRetry
	return e
}

// waits reports whether so many percent of what may wait to be published do.
func (p *pressure) waits(percent int) bool { return p.waiting() >= percent }

func (p *pressure) waiting() int {
	if load := p.load.Load(); load != nil {
		return (*load)()
	}
	return 0
}

// of has an engine say how much waits.
func (p *pressure) of(load func() int) { p.load.Store(&load) }

// measure returns the limit of memory, what of it is in use, in bytes, and how much waits to be published, in percent.
func (p *pressure) measure() (limit, used int64, load int) { return p.limit, p.used(), p.waiting() }

// checkLoad refuses where so many percent of what may wait to be published do.
func (p *pressure) checkLoad(percent int) error {
	if !p.waits(percent) {
		return nil
	}
	e := eventhub.Errorf(eventhub.CodeOverloaded, "the hub has more to publish than it can")
	e.RetryAfter = pressureRetry
	return e
}

// busy reports whether publishes are refused, or about to be.
func (p *pressure) busy() bool {
	return p.waits(waitsPercent) || p.limit > 0 && p.used() > p.limit/100*fullPercent
}

// tight reports whether new connections are refused for want of memory: those that are there have less of it then.
func (p *pressure) tight() bool { return p.limit > 0 && p.used() > p.limit/100*fullerPercent }

// connection refuses a new WebSocket or stream.
func (p *pressure) connection() error {
	if err := p.checkLoad(waitsPercent); err != nil {
		return err
	}
	return p.check(fullerPercent)
}

// stranger refuses the AUTH of a connection that has shown no right yet: others cost less than what it is
// about to do.
func (p *pressure) stranger() error {
	if err := p.checkLoad(crowdWaitsPercent); err != nil {
		return err
	}
	return p.check(crowdedPercent)
}

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
