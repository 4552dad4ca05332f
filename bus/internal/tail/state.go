package tail

import (
	"context"
	"sort"
	"time"

	"eventhub"
	"eventhub/internal/record/layout"
	"eventhub/store"
)

// A tail with the state (eventhub.StartSnapshot) is given the state of its topic by key at an
// offset, then everything after that. It is in one of three phases. While it loads, a goroutine
// notes the offsets of the state's events (load.go), 8 bytes a key, and nothing is delivered.
// Then its turns read the events at these offsets, a page at a time as the receiver takes them,
// in rising order. From the mark that the state is complete on it follows the topic as any tail.
//
// What is removed meanwhile:
//
//   - An event of the state that compaction has taken before it was read is left out: a newer
//     one of its key comes after the state, or the key has ended.
//   - The reader is told of a horizon that has moved (StatePart.Horizon): keys whose newest event
//     is below it are in no state any more. It needs no event for that.
//   - An erasure may bring the event before back, the end of the topic takes all, and ends of
//     keys that compaction took before the tail had them are told by nothing. So the tail is given
//     another state, as of its place where that is known still, and else as of now. What is
//     erased is known from the commits of this run of the hub: Tails.revisions counts them, and
//     a tail that goes on after a lost connection has to name the same count, run and life.
//
// Invariants: the part of a tail with the state is behind from the start of a load until it has
// caught up; the tail is blocked unless it follows, so only its own turns deliver before that. Of
// removed and a load, whoever comes second sees the other: removed counts before it looks for
// tails, a load is known before it looks at the count.

type phase uint8

const (
	loading phase = iota
	sending
	following
)

// stateful is what a tail with the state has besides its part. Tail.mu guards it.
type stateful struct {
	phase  phase
	loads  int                // how often one was begun: a turn knows by it that all has changed
	cancel context.CancelFunc // of the load under way
	// place, if it is placed, is up to where the tail's owner had everything when the load began;
	// from is what it names to go on, nil for nothing. verify: the place is to be held against the
	// log.
	place  eventhub.Place
	placed bool
	from   *snapshotToken
	verify bool
	// stale: what was given is not the state any more.
	stale bool
	// horizon is the highest one that is known, told the one that the receiver knows.
	horizon, told uint64

	token   snapshotToken
	begins  bool     // nothing of the state was taken yet
	sent    int      // events of the state
	last    uint64   // the offset of the last one
	offsets []uint64 // of those that are left, rising
	held    int      // bytes of the budget
}

// statePage is how many events of a state are read at once.
const statePage = 512

// newStateful returns the state of a tail that begins with the state, or goes on.
func newStateful(o *eventhub.TailOptions) (*stateful, error) {
	s := &stateful{}
	for _, p := range o.Places {
		if p.Topic == o.Topic {
			s.place, s.placed, s.verify = p, true, p.Offset > 0
		}
	}
	if o.Snapshot == "" {
		return s, nil
	}
	from, err := parseSnapshot(o.Snapshot)
	s.from = &from
	return s, err
}

// HasState reports whether the tail is given the state of its topic, which may come again.
func (t *Tail) HasState() bool { return t.snap != nil }

// lacks reports whether ordinary events have to wait: the state is not there, or the receiver is to be told first
// that something of it is there no more.
func (s *stateful) lacks() bool {
	return s != nil && (s.phase != following || s.stale || s.horizon > s.told)
}

// drop forgets the offsets up to one.
func (s *stateful) drop(through uint64) {
	s.offsets = s.offsets[sort.Search(len(s.offsets), func(i int) bool { return s.offsets[i] > through }):]
}

// release gives back what a state has held. t.mu is held.
func (t *Tail) release() {
	t.tails.states.Give(t.snap.held)
	t.snap.offsets, t.snap.held = nil, 0
}

// turnState does what there is to do of the state, and reports whether the tail may follow.
// t.mu is not held.
func (t *Tail) turnState(f *feed, began time.Time) bool {
	for range turnRounds {
		t.mu.Lock()
		s := t.snap
		switch {
		case t.left || t.opening || t.paused || t.full:
			t.mu.Unlock()
			return false
		case s.phase == following && s.stale:
			t.beginLoad()
			t.mu.Unlock()
			return false
		case s.phase == loading, s.horizon > s.told && !t.tellHorizon():
			t.mu.Unlock()
			return false
		case s.phase == following:
			t.mu.Unlock()
			return true
		}
		t.mu.Unlock()
		if !t.sendState(f, began) {
			return false
		}
	}
	t.tails.sched.Schedule(t)
	return false
}

// mark gives the receiver something of the state that is no event, and reports whether there was
// room. t.mu is held, here and below where nothing else is said.
func (t *Tail) mark(s eventhub.StatePart) bool {
	t.full = t.receiver.Deliver([]eventhub.Delivery{{Topic: t.topic(), Attempt: 1, MaxAttempts: 1, State: &s}}) == 0
	return !t.full
}

// topic returns the topic of a tail with the state.
func (t *Tail) topic() string { return t.parts[0].shard.topic.name }

func (t *Tail) tellHorizon() bool {
	s := t.snap
	horizon := s.horizon
	if !t.mark(eventhub.StatePart{Horizon: horizon}) {
		return false
	}
	s.told = horizon
	return true
}

// complete says that there is no more of the state, and lets the tail follow.
func (t *Tail) complete() bool {
	s := t.snap
	token := s.token
	token.complete = true
	if !t.mark(eventhub.StatePart{Snapshot: token.String(), Complete: true, Offset: token.at, Count: s.sent}) {
		return false
	}
	s.token, s.phase = token, following
	t.release()
	return true
}

// sendState sends the next page of the state. It reports whether there may be more to do. t.mu
// is not held.
func (t *Tail) sendState(f *feed, began time.Time) bool {
	t.mu.Lock()
	s := t.snap
	if t.left || s.phase != sending { // since the turn has looked
		t.mu.Unlock()
		return false
	}
	loads := s.loads
	if s.horizon > 0 {
		s.drop(s.horizon - 1)
	}
	if len(s.offsets) == 0 {
		defer t.mu.Unlock()
		return t.complete()
	}
	page := s.offsets[:min(len(s.offsets), statePage)]
	log := t.parts[0].shard.log
	t.mu.Unlock()
	decided, err := f.readAt(t.tails.store, log.Topic(), page)
	if err != nil {
		t.tails.log.Error("cannot read the state for a live tail", "topic", log.Topic(), "error", err)
		t.mu.Lock()
		defer t.mu.Unlock()
		if !t.left {
			t.tails.sched.ScheduleAt(t, t.tails.clock.After(readAgain))
		}
		return false
	}
	deliveries := f.prepare(log.Topic(), f.items)
	for {
		n, passed := len(deliveries), deliveries
		if t.wants != nil {
			n, t.Strained = t.judge(deliveries, f, began)
			passed = f.passed
		}
		t.mu.Lock()
		if t.left || t.paused || t.full || s.phase != sending || s.loads != loads {
			t.mu.Unlock()
			return false
		}
		isTaken := t.handState(passed)
		if isTaken && n == len(deliveries) {
			s.drop(page[decided-1])
		} else if isTaken {
			s.drop(deliveries[n-1].Offset)
		}
		t.mu.Unlock()
		if deliveries = deliveries[n:]; !isTaken || len(deliveries) == 0 {
			return isTaken
		}
		if t.Strained {
			t.tails.sched.Schedule(t)
			return false
		}
	}
}

// inState is what most events of a state say.
var inState = &eventhub.StatePart{}

// handState gives the receiver events of the state, and reports whether it took them all. What
// it did not take is read again.
func (t *Tail) handState(ds []eventhub.Delivery) bool {
	s := t.snap
	for len(ds) > 0 {
		batch := ds[:min(t.batchSize, len(ds)):min(t.batchSize, len(ds))]
		for i := range batch {
			batch[i].State = inState
		}
		if s.begins {
			batch[0].State = &eventhub.StatePart{Snapshot: s.token.String()}
		}
		taken := t.receiver.Deliver(batch)
		t.parts[0].shard.topic.handed.Add(uint64(taken))
		if taken > 0 {
			s.begins, s.last = false, batch[taken-1].Offset
			s.sent += taken
			s.drop(s.last)
		}
		if taken < len(batch) {
			t.full = true
			return false
		}
		ds = ds[taken:]
	}
	return true
}

// readAt reads the events at offsets that rise, as far as there still are some, up to roundBytes.
// decided says of how many it knows.
func (f *feed) readAt(s store.Store, topic string, offsets []uint64) (decided int, _ error) {
	f.reset()
	for bytes := 0; decided < len(offsets) && bytes < roundBytes; {
		rest := offsets[decided:]
		run := 1
		for run < len(rest) && rest[run]-rest[0] < uint64(sparse*(run+1)) {
			run++
		}
		before := len(f.batch.Items)
		span := int(rest[run-1]-rest[0]) + 1
		if err := s.Read(context.Background(), topic, rest[0], span, roundBytes-bytes, &f.batch); err != nil {
			return 0, err
		}
		known := rest[run-1] // up to where the read says all
		for _, item := range f.batch.Items[before:] {
			known = item.Offset
			for decided < len(offsets) && offsets[decided] < item.Offset {
				decided++
			}
			if decided < len(offsets) && offsets[decided] == item.Offset {
				f.items = append(f.items, item)
				decided++
			}
			bytes += len(item.Record)
		}
		if len(f.batch.Items) == before {
			for decided < len(offsets) && offsets[decided] <= known {
				decided++
			}
		}
	}
	return decided, nil
}

// sparse is how many events of the log are read for one of the state: that costs less than
// another read.
const sparse = 8

func (ts *Tails) removed(topic string, horizon uint64, isErased bool) {
	ts.mu.Lock()
	if isErased {
		ts.revisions[topic]++
	}
	shared := ts.topics[topic]
	ts.mu.Unlock()
	if shared == nil {
		return
	}
	for _, p := range shared.all() {
		if p.tail.snap != nil {
			p.tail.removed(p, horizon, isErased)
		}
	}
}

// all returns the parts of the tails of a topic.
func (t *sharedTopic) all() (parts []*part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.shards {
		parts = append(parts, *s.parts.Load()...)
	}
	return parts
}

// removed notes what the topic of a tail with the state has lost. t.mu is not held.
func (t *Tail) removed(p *part, horizon uint64, isErased bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left {
		return
	}
	s := t.snap
	s.stale = s.stale || isErased
	horizon = min(horizon, p.shard.log.Head()+1)
	if horizon > s.horizon {
		s.horizon = horizon
		if s.phase == following {
			t.overtaken(p, horizon, store.Marks{}) // what was read of it before is not to come after the notice
		}
	}
	t.tails.sched.Schedule(t)
}

// passing makes the filter of a tail with the state let through what ends a key, because its
// reader has to learn of that, unless key, a filter of the key alone, leaves the key out.
func passing(wants, key Wants) Wants {
	if wants == nil {
		return nil
	}
	return func(r eventhub.Record, offset uint64) bool {
		return wants(r, offset) || layout.IsTombstone(r) && len(r.Key()) > 0 && (key == nil || key(r, offset))
	}
}
