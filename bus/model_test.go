package bus

import (
	"fmt"
	"slices"
	"time"

	"eventhub"
	"eventhub/store"
)

// The model of random_test.go: what the contract says of topics, groups and
// members, without a word on how it is done.

// modelTopic is a log: the id of the event at offset n is ids[n-1].
type modelTopic struct {
	name   string
	ids    []string
	keys   []string
	at     []int64
	first  map[string]uint64 // offset by id
	source *modelTopic       // whose dead letters these are
}

func (p *modelTopic) head() uint64 { return uint64(len(p.ids)) }

func (p *modelTopic) add(id, key string, at int64) (offset uint64, duplicate bool) {
	if first, ok := p.first[id]; ok {
		return first, true
	}
	p.ids, p.keys, p.at = append(p.ids, id), append(p.keys, key), append(p.at, at)
	p.first[id] = p.head()
	return p.head(), false
}

// resolve returns the cursor that a start means.
func (p *modelTopic) resolve(s eventhub.Start) (base uint64, known bool) {
	switch s.Kind {
	case eventhub.StartEarliest:
		return 0, true
	case eventhub.StartOffset:
		return max(s.Offset, 1) - 1, true
	case eventhub.StartAfterID:
		offset, ok := p.first[s.AfterID]
		return offset, ok
	case eventhub.StartTime:
		for i, at := range p.at {
			if at >= s.TS {
				return uint64(i), true
			}
		}
	}
	return p.head(), true
}

type modelGroup struct {
	topic       *modelTopic
	name        string
	exists      bool
	epoch, base uint64 // events at or below base do not count
	ordered     bool   // by key
	paused      bool
	maxAttempts int
	backoff     eventhub.Backoff
	events      map[uint64]*modelEvent // those that were ever offered
	restored    map[uint64]modelEvent  // what the store knew, of those that this engine did not offer yet
	offered     uint64                 // the highest of them
	leases      []eventhub.Lease       // all that were ever given
	stored      store.GroupState       // as last seen
}

func (g *modelGroup) String() string { return g.topic.name + "::" + g.name }

// modelState is where an event of a group stands. In the log and in no map is
// the same as modelWaiting from the beginning of time, save for order.
type modelState int

const (
	modelWaiting modelState = iota
	modelLeased
	modelDying // given up, its dead letter may not be in the log yet
	modelDone
)

type modelEvent struct {
	state    modelState
	attempts int
	stored   int          // attempts, as the store has them, of one that was restored
	holder   *modelMember // of the last lease
	lease    eventhub.Lease
	since    int64 // start of the last lease
	deadline int64
	// A waiting event goes out between these, by the jitter of its backoff.
	earliest, latest int64
}

type modelLetter struct {
	topic    *modelTopic // of the letter
	offset   uint64
	attempts int
	reason   string
	required bool
	seen     bool
}

// modelMember is a Receiver too. room is the engine's to lower, under world.mu.
type modelMember struct {
	w     *world
	group *modelGroup
	opts  eventhub.SubscribeOptions
	sub   eventhub.Subscription
	run   *Bus
	room  int // negative: takes everything
	ended []error

	left     bool
	orphan   bool // its group was deleted
	deleted  bool // … while it was a member
	full     bool
	paused   bool
	inFlight int
	fresh    uint64 // the highest offset that it was the first to be offered
}

// offer is one call of Deliver.
type offer struct {
	to    *modelMember
	at    int64
	batch []eventhub.Delivery
	ids   []string
	taken int
}

func (m *modelMember) Deliver(batch []eventhub.Delivery) int {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	taken := len(batch)
	if m.room >= 0 {
		taken = min(taken, m.room)
		m.room -= taken
	}
	o := offer{to: m, at: now(), batch: slices.Clone(batch), taken: taken}
	for i := range batch {
		o.ids = append(o.ids, batch[i].ID())
	}
	m.w.journal = append(m.w.journal, o)
	return taken
}

func (m *modelMember) Ended(err error) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.ended = append(m.ended, err)
}

// The model of a group.

// forget starts over behind base: after a seek, and when the engine starts.
func (g *modelGroup) forget(w *world, base uint64) {
	for offset, e := range g.events {
		if l := w.letters[g.letterID(offset)]; l != nil && e.state == modelDying {
			l.required = false // the burial may or may not have begun
		}
	}
	clear(g.events)
	g.restored = make(map[uint64]modelEvent)
	g.base, g.offered = base, base
	for _, m := range w.members {
		if m.group == g {
			m.inFlight, m.fresh = 0, 0
		}
	}
}

func (g *modelGroup) letterID(offset uint64) string {
	return deadLetterID(g.topic.name, offset, g.name, g.epoch)
}

// cursor is just below the first event that is not done. Those that are being
// buried, and those that were done before the engine started and that it may not
// have read again, are done as the caller says.
func (g *modelGroup) cursor(buried, restored bool) uint64 {
	for offset := g.base + 1; offset <= g.topic.head(); offset++ {
		e := g.events[offset]
		if e == nil && restored && g.restored[offset].state == modelDone {
			continue
		}
		if e == nil || e.state != modelDone && !(buried && e.state == modelDying) {
			return offset - 1
		}
	}
	return max(g.base, g.topic.head())
}

// isBehind reports whether an earlier event of its key is not done. One that is
// being buried is done as the caller says.
func (g *modelGroup) isBehind(offset uint64, buried bool) bool {
	key := g.topic.keys[offset-1]
	if !g.ordered || key == "" {
		return false
	}
	for o := g.base + 1; o < offset; o++ {
		if g.topic.keys[o-1] != key || g.restored[o].state == modelDone {
			continue
		}
		if e := g.events[o]; e == nil || e.state != modelDone && !(buried && e.state == modelDying) {
			return true
		}
	}
	return false
}

// A suspect has failed twice. It is leased alone.
func (e *modelEvent) isSuspect() bool {
	if e.state == modelLeased {
		return e.attempts >= 3
	}
	return e.state == modelWaiting && e.attempts >= 2
}

// suspectWith returns the offset of a suspect that m, or with nil anybody in the
// group, holds.
func (g *modelGroup) suspectWith(m *modelMember) uint64 {
	for offset, e := range g.events {
		if e.state == modelLeased && e.isSuspect() && (m == nil || e.holder == m) {
			return offset
		}
	}
	return 0
}

// apply is the rule of docs/protocol.md for one ref.
func (g *modelGroup) apply(w *world, via *modelMember, ref eventhub.Ref, s *eventhub.Settlement) eventhub.Outcome {
	offset, e := g.named(via, ref)
	if e == nil || e.state != modelLeased && (e.state != modelWaiting || s.Verdict == eventhub.Extend) {
		if s.Verdict == eventhub.Extend {
			return eventhub.Unknown
		}
		return eventhub.Stale
	}
	switch {
	case s.Verdict == eventhub.Ack:
		g.move(e, modelDone)
	case s.Verdict == eventhub.Extend:
		by := s.By
		if by == 0 {
			by = e.holder.opts.AckTimeout
		}
		e.deadline = min(now()+max(by, time.Second).Milliseconds(), e.since+time.Hour.Milliseconds())
	default:
		g.nack(w, offset, s)
	}
	return eventhub.Applied
}

// named finds the event whose last lease ref means.
func (g *modelGroup) named(via *modelMember, ref eventhub.Ref) (uint64, *modelEvent) {
	if ref.ID == "" {
		if e := g.events[ref.Lease.Offset]; e != nil && e.holder != nil && e.lease == ref.Lease {
			return ref.Lease.Offset, e
		}
		return 0, nil
	}
	offset := g.topic.first[ref.ID]
	if e := g.events[offset]; e != nil && e.holder == via {
		return offset, e
	}
	return 0, nil
}

func (g *modelGroup) nack(w *world, offset uint64, s *eventhub.Settlement) {
	reason := s.Reason
	if reason == "" {
		reason = "nacked"
	}
	earliest, latest := g.back(g.events[offset].attempts, now())
	if s.Delay > 0 {
		earliest = now() + s.Delay.Milliseconds()
		latest = earliest
	}
	if s.Terminal {
		g.die(w, offset, reason)
		return
	}
	g.failed(w, offset, earliest, latest, reason)
}

// back returns when the attempt after the given one may begin.
func (g *modelGroup) back(attempts int, from int64) (earliest, latest int64) {
	d := g.backoff.Min
	for range attempts - 1 {
		d = min(2*d, g.backoff.Max)
	}
	ms := d.Milliseconds()
	return from + ms - ms/2, from + ms
}

func (g *modelGroup) failed(w *world, offset uint64, earliest, latest int64, reason string) {
	if e := g.events[offset]; e.attempts < g.maxAttempts {
		g.wait(e, earliest, latest)
		return
	}
	g.die(w, offset, reason)
}

func (g *modelGroup) wait(e *modelEvent, earliest, latest int64) {
	g.move(e, modelWaiting)
	e.earliest, e.latest = earliest, latest
}

func (g *modelGroup) die(w *world, offset uint64, reason string) {
	e := g.events[offset]
	g.move(e, modelDying)
	for _, topic := range w.topics {
		if topic.source == g.topic {
			w.letters[g.letterID(offset)] = &modelLetter{topic: topic, offset: offset, attempts: e.attempts, reason: reason,
				required: true, seen: w.seen(g.letterID(offset))}
		}
	}
}

// seen tells whether an earlier run wrote that dead letter already.
func (w *world) seen(id string) bool { l := w.letters[id]; return l != nil && l.seen }

func (g *modelGroup) move(e *modelEvent, to modelState) {
	if e.state == modelLeased {
		e.holder.inFlight--
	}
	if to == modelLeased {
		e.holder.inFlight++
	}
	e.state = to
}

// expire ends the leases that ran out up to and including the given time.
func (g *modelGroup) expire(w *world, at int64) {
	for offset, e := range g.events {
		if e.state == modelLeased && e.deadline <= at {
			earliest, latest := g.back(e.attempts, e.deadline)
			g.failed(w, offset, earliest, latest, "lease expired")
		}
	}
}

// reread takes note that the engine has read up to offset again.
func (g *modelGroup) reread(offset uint64) (some bool) {
	for o, e := range g.restored {
		if o <= offset && e.state == modelDone {
			g.events[o] = &e
			delete(g.restored, o)
			some = true
		}
	}
	return some
}

// take checks one offer and does to the model what the engine did.
func (w *world) take(o offer) {
	m, g := o.to, o.to.group
	g.expire(w, o.at)
	fail := func(format string, args ...any) {
		w.t.Fatalf("%s delivers %+v: %s", g, o, fmt.Sprintf(format, args...))
	}
	switch {
	case m.left || m.run != w.bus:
		fail("the member has left")
	case m.full:
		fail("the receiver is full")
	case m.paused || g.paused:
		fail("the member or its group is paused")
	case len(o.batch) > m.opts.BatchSize:
		fail("batchSize is %d", m.opts.BatchSize)
	case m.inFlight+len(o.batch) > m.opts.MaxInFlight:
		fail("%d in flight already, maxInFlight is %d", m.inFlight, m.opts.MaxInFlight)
	}
	for i, d := range o.batch {
		e := g.offer(w, m, d, o.at, fail)
		if held := g.suspectWith(m); held != 0 {
			fail("the member holds %d, which is a suspect", held)
		}
		if e.isSuspect() && (m.inFlight > 0 || len(o.batch) > 1 || g.suspectWith(nil) != 0) {
			fail("%d has failed %d times and does not go out alone", d.Offset, e.attempts)
		}
		if i >= o.taken {
			m.full = true
			continue // as if it had not been: waiting since before, attempts as before
		}
		e.attempts++
		if m.opts.AutoAck {
			g.move(e, modelDone)
			continue
		}
		e.holder, e.lease = m, d.Lease
		e.since, e.deadline = o.at, o.at+m.opts.AckTimeout.Milliseconds()
		g.move(e, modelLeased)
		g.leases = append(g.leases, d.Lease)
	}
}

// offer checks that the event may go out now and is what the log has.
func (g *modelGroup) offer(w *world, m *modelMember, d eventhub.Delivery, at int64, fail func(string, ...any)) *modelEvent {
	e := g.events[d.Offset]
	if e == nil {
		if d.Offset <= g.base || d.Offset > g.topic.head() {
			fail("%d is not between %d and %d", d.Offset, g.base, g.topic.head())
		}
		restored := g.restored[d.Offset]
		if d.Offset <= m.fresh && !g.ordered && !restored.isSuspect() {
			fail("%d comes after %d", d.Offset, m.fresh)
		}
		if d.Offset > g.cursor(true, true)+w.opts.AckWindow {
			fail("%d is too far above the cursor %d", d.Offset, g.cursor(true, true))
		}
		e = &restored
		delete(g.restored, d.Offset)
		g.events[d.Offset] = e
		if !restored.isSuspect() {
			m.fresh = d.Offset
		}
		g.offered = max(g.offered, d.Offset)
		g.reread(g.offered)
	}
	switch {
	case g.isBehind(d.Offset, true):
		fail("%d is behind an event of its key, %q", d.Offset, g.topic.keys[d.Offset-1])
	case e.state != modelWaiting:
		fail("%d is in state %d", d.Offset, e.state)
	case at < e.earliest:
		fail("%d is due in %d ms", d.Offset, e.earliest-at)
	case d.Attempt != e.attempts+1 || d.Attempt > g.maxAttempts || d.MaxAttempts != g.maxAttempts:
		fail("%d is attempt %d of %d; want %d of %d", d.Offset, d.Attempt, d.MaxAttempts, e.attempts+1, g.maxAttempts)
	case d.Topic != g.topic.name || d.AckTimeout != m.opts.AckTimeout || d.Lease.IsZero() != m.opts.AutoAck:
		fail("%d has a wrong topic, timeout or lease", d.Offset)
	case !m.opts.AutoAck && slices.Contains(g.leases, d.Lease):
		fail("the lease of %d was given before", d.Offset)
	}
	return e
}
