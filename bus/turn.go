package bus

import (
	"context"
	"time"

	"eventhub"
	"eventhub/bus/internal/groupstate"
	"eventhub/bus/internal/space"
	"eventhub/store"
)

const (
	// turnRounds bounds a turn, so that a group with much to do lets others in.
	turnRounds = 8
	// keyQueueEvents is how many events at least a group with key queues reads at once.
	keyQueueEvents = 128
	// readAgain is the wait after the store failed a read.
	readAgain = time.Second
	// tightAgain is after how long a group that may not read on for want of memory looks again.
	tightAgain = time.Second
)

// Turn does all that a group can do now. Only one runs at a time for a group.
//
// A round has three steps. Under the lock it settles what time has brought and
// plans what to read for the room that members have; without the lock it reads, and
// lets the filter decide; under the lock again it leases what it has read and hands it
// over. What
// happened in between (an ack, a seek, a member that left) shows in the state
// of the entries and in the epoch, which the third step looks at.
func (g *group) Turn() {
	began := time.Now()
	g.fetch = fetchers.Get().(*fetcher)
	more, spent := true, false
	for n := 0; more && !spent && n < turnRounds; n++ {
		more, spent = g.round(began)
	}
	g.Strained = spent
	g.mu.Lock()
	g.counts.Poll.Observe(float64(time.Since(began)) / float64(time.Millisecond))
	g.weigh()
	g.mu.Unlock()
	g.fetch.release()
	fetchers.Put(g.fetch)
	g.fetch = nil
	if more {
		g.bus.sched.Schedule(g)
	}
}

// round reports whether another one may find more to do, and whether the filter has taken
// the time of the turn, which began at a time.
func (g *group) round(began time.Time) (more, spent bool) {
	g.mu.Lock()
	more = g.plan(g.bus.clock.Now())
	write := g.mustWrite()
	g.mu.Unlock()
	if write {
		g.writeGaps()
	}
	if !more {
		return false, false
	}
	f := g.fetch
	err := g.read(f)
	if err == nil && g.filter != nil {
		f.began = began
		spent = g.judge(f)
	}
	g.mu.Lock()
	if g.state.Epoch() != f.epoch || g.ended != nil {
		defer g.mu.Unlock()
		g.keepVerdicts(nil, len(f.passes))
		return g.ended == nil, spent
	}
	if err != nil {
		g.bus.log.Error("cannot read events for a group", "topic", g.log.Topic(), "group", g.name, "error", err)
		g.putBack(g.bus.clock.After(readAgain))
		g.mu.Unlock()
		return false, false
	}
	letters := g.makeLetters(f.letters[:f.readLetters], f.items)
	g.handOut(g.bus.clock.Now())
	g.mu.Unlock()
	// Not under the lock: the committer, which makes room, may be waiting for it.
	g.submitLetters(letters)
	return true, spent
}

// plan fills g.fetch and reports whether there is anything to read. Where not,
// it leaves a wake-up for the next lease or retry.
func (g *group) plan(now int64) bool {
	f := g.fetch
	f.release()
	*f = fetcher{epoch: g.state.Epoch(), removals: g.log.Removals(), letters: f.letters[:0], due: f.due[:0], items: f.items[:0], batch: f.batch, passes: f.passes[:0]}
	if g.ended != nil {
		return false
	}
	g.weigh()
	more := g.expire(now)
	letters := g.planLetters()
	next := sooner(letters, g.planDeliveries(now))
	if !f.empty() {
		return true
	}
	if more {
		g.bus.sched.Schedule(g)
		return false
	}
	if next = sooner(next, g.state.NextDeadline()); next != 0 {
		g.wakeAt(next)
	}
	return false
}

// planLetters plans the dead letters that are to be made. It returns when to look again, 0 where none
// waits for room.
func (g *group) planLetters() (again int64) {
	f := g.fetch
	// The events of a .dlq topic have no dead letters: they are done, which is no more than an ack.
	if g.state.HasLetters() && !eventhub.IsDeadLetterTopic(g.log.Topic()) && g.bus.space.CheckLetters() != nil {
		return g.bus.clock.After(space.RetryAfter)
	}
	f.letters = g.state.TakeLetters(f.letters, roundEvents)
	return 0
}

// planDeliveries plans what is to be read for members with room. It returns when
// the next retry may be due, 0 where none is or no room is waiting for it.
func (g *group) planDeliveries(now int64) (next int64) {
	f := g.fetch
	f.head = g.log.Head()
	if g.paused {
		g.yield()
		return 0
	}
	if g.state.GapsPending() { // it goes on after their commit
		g.lookAround(false)
		return 0
	}
	g.state.SkipAcked() // nobody waits for them
	f.ahead = g.readAhead()
	g.reviewSuspects(now)
	room := 0
	for _, m := range g.members {
		room += m.room()
	}
	room = min(room, roundEvents)
	var short bool
	f.due, next, short = g.state.Due(f.due, now, room)
	room -= len(f.due)
	again := g.planIsolated(now, room)
	if g.isCramped() {
		again = sooner(again, g.bus.clock.After(tightAgain))
	}
	if g.hasFresh() {
		if short = short || room <= 0; room > 0 {
			f.want = room
			if g.isByKey() || g.filter != nil {
				room = max(room, keyQueueEvents) // many may be held or excluded, and need none
			}
			if g.isByKey() {
				f.want = room
			}
			f.from, f.limit = g.state.Next(), min(room, f.ahead)
		}
	}
	if f.empty() {
		g.lookAround(short)
		if g.state.Suspects(now) > 0 && !g.state.SuspectOut() {
			if g.reserved == nil && again == 0 {
				g.awaitReservation()
			}
			g.awaitIdle()
		}
	}
	return sooner(next, again)
}

// awaitIdle has a group that rests while it has suspects woken when a member could
// take one: the one that is kept for them, or another that is free before.
func (g *group) awaitIdle() {
	for _, m := range g.members {
		if m.awaitIdle() {
			g.bus.sched.Schedule(g)
		}
	}
}

// awaitReservation has a group that has suspects and nobody to give them to woken when that may
// be otherwise.
func (g *group) awaitReservation() {
	for _, m := range g.members {
		if m.awaitReservation() {
			g.bus.sched.Schedule(g)
		}
	}
}

// yield lets others have what a paused group has no use for: the room that it may
// have been woken for, and a member that was kept free for its suspects.
func (g *group) yield() {
	if g.reserved != nil && !g.state.SuspectOut() {
		g.setReserved(nil)
	}
	g.lookAround(false)
}

// lookAround is what a group does about the room of its members when it is to
// rest: where it is short of it, it waits for some, else it lets others have it.
func (g *group) lookAround(short bool) {
	for _, m := range g.members {
		if !short {
			m.passOn()
		} else if m.await() {
			g.bus.sched.Schedule(g) // there is some just now
		}
	}
}

// weigh counts what the group has in memory of events that are not done. g.mu is held.
func (g *group) weigh() {
	var bytes int64
	if g.ended == nil {
		bytes = g.state.Memory()
	}
	g.bus.groupBytes.Add(bytes - g.bytes)
	g.bytes = bytes
}

// isTight reports whether groups have as much memory as they may for events that are not done.
func (b *Bus) isTight() bool {
	return b.opts.GroupBytes > 0 && b.groupBytes.Load() >= int64(b.opts.GroupBytes)
}

// hasFresh reports whether there is an event to be read that the window has room for.
func (g *group) hasFresh() bool { return g.state.Next() <= g.fetch.head && g.fetch.ahead > 0 }

// isCramped reports whether the window would have room for an event that is there, if memory were not scarce.
func (g *group) isCramped() bool {
	return g.fetch.ahead == 0 && g.state.Next() <= g.fetch.head && g.state.Size() < g.bus.opts.AckWindow
}

// readAhead returns how many more events the group may read.
func (g *group) readAhead() int {
	ahead := int(g.bus.opts.AckWindow - min(g.state.Size(), g.bus.opts.AckWindow))
	if left := TightWindow - g.state.NotDone(); left < ahead && g.bus.isTight() {
		return max(left, 0)
	}
	return ahead
}

// isByKey reports whether the events of a key are delivered one after the other.
func (g *group) isByKey() bool { return g.settings.Ordering == eventhub.OrderingKey }

// expire ends leases whose deadline has passed, some at a time: others wait for the
// lock. It reports whether there are more.
func (g *group) expire(now int64) (more bool) {
	for range roundEvents {
		e, ok := g.state.Overdue(now)
		switch {
		case !ok:
			return false
		case e == nil:
		case isUnsent(e):
			g.state.Postpone(e, now)
		default:
			g.counts.Expired++
			g.state.Fail(e, groupstate.Failure{Cause: groupstate.Expired, Now: now, Drift: g.bus.clock.Drift()})
		}
	}
	next := g.state.NextDeadline()
	return next != 0 && next <= now
}

// read gets the planned events from the tail or from the store.
func (g *group) read(f *fetcher) error {
	f.batch.Reset()
	for f.readLetters < len(f.letters) && f.bytes < roundBytes {
		if err := g.readOne(f, f.letters[f.readLetters].Offset); err != nil {
			return err
		}
		f.readLetters++
	}
	for f.readDue < len(f.due) && f.bytes < roundBytes {
		if err := g.readOne(f, f.due[f.readDue]); err != nil {
			return err
		}
		f.readDue++
	}
	if f.bytes >= roundBytes {
		f.from = 0 // another round has room for it
	}
	if f.from == 0 {
		return nil
	}
	var ok bool
	if f.items, ok = g.log.Read(f.items, f.from, f.limit); ok {
		return nil
	}
	mark := len(f.batch.Items)
	err := g.bus.store.Read(context.Background(), g.log.Topic(), f.from, f.limit, roundBytes-f.bytes, &f.batch)
	f.items = append(f.items, f.batch.Items[mark:]...)
	f.horizon, f.marks = f.batch.Horizon, f.batch.Marks()
	return err
}

// readOne gets one event; one that the log no longer has comes without a
// record.
func (g *group) readOne(f *fetcher, offset uint64) error {
	n := len(f.items)
	var ok bool
	if f.items, ok = g.log.Read(f.items, offset, 1); !ok {
		mark := len(f.batch.Items)
		if err := g.bus.store.Read(context.Background(), g.log.Topic(), offset, 1, 0, &f.batch); err != nil {
			return err
		}
		f.items = append(f.items, f.batch.Items[mark:]...)
	}
	if len(f.items) == n || f.items[n].Offset != offset {
		f.items = append(f.items[:n], store.Item{Offset: offset})
	}
	f.bytes += len(f.items[n].Record)
	return nil
}

// putBack undoes a plan whose reading failed.
func (g *group) putBack(at int64) {
	g.state.ReturnLetters(g.fetch.letters)
	g.state.ReturnDue(g.fetch.due, at)
	g.wakeAt(at)
}

// handOut leases what was read and gives it to the members' receivers.
func (g *group) handOut(now int64) {
	f := g.fetch
	f.drift = g.bus.clock.Drift() // commit times are those of the wall clock
	letters, due := f.readLetters, f.readDue
	g.state.ReturnLetters(f.letters[letters:])
	g.state.ReturnDue(f.due[due:], 0)
	for _, item := range f.items[letters : letters+due] {
		g.redeliver(item, now)
	}
	fresh := f.items[letters+due:]
	g.state.Overtaken(f.horizon)
	g.state.Passed(f.marks)
	taken := 0
	for taken < len(fresh) && g.take(fresh[taken], g.filter == nil || f.passes[taken], now) {
		taken++ // the others are read again when there is room
	}
	if g.filter != nil && len(fresh) > 0 {
		g.keepVerdicts(fresh, taken)
	}
	if f.from != 0 && len(fresh) == 0 {
		// Up to the head that was there, the log holds nothing to read.
		g.state.SkipTo(f.head + 1)
	}
	if f.from != 0 {
		g.waits.Passed() // what is between the events that were read is gone
	}
	for _, m := range g.members {
		g.flush(m, now)
	}
}

// take deals with an event that is read in its turn: it is delivered, or held back because
// of its key, or was done before the process was started, or does not pass the filter.
// false: no member has room for it, or a gap is to be written before.
func (g *group) take(item store.Item, passes bool, now int64) bool {
	if g.state.Missed(item.Offset); g.state.GapsPending() {
		return false
	}
	var key []byte
	if g.isByKey() {
		key = item.Record.Key()
	}
	var m *member
	if g.state.NeedsRoom(item.Offset, key, passes) {
		if m = g.nextMember(); m == nil {
			return false
		}
	}
	if e := g.state.Read(item.Offset, key, passes, now); e != nil {
		g.lease(m, e, item, now)
	} else if m != nil {
		m.free() // it is to be delivered alone
	}
	return true
}

func (g *group) redeliver(item store.Item, now int64) {
	e := g.state.DueAgain(item.Offset, now)
	if e == nil {
		return // settled while it was read
	}
	if item.Record == nil {
		g.state.Gone(e, now)
		return
	}
	if g.state.GapsPending() {
		g.state.ReturnDue([]uint64{item.Offset}, 0)
		return
	}
	m := g.reserved
	if !g.state.IsSuspect(e) {
		m = g.nextMember()
	} else if m != nil && (g.paused || !m.reserveAlone()) {
		m = nil
	}
	if m == nil {
		g.state.ReturnDue([]uint64{item.Offset}, 0)
		return
	}
	g.lease(m, e, item, now)
}

// nextMember reserves room for one lease, with each member in its turn, or
// returns nil.
func (g *group) nextMember() *member {
	if g.paused {
		return nil
	}
	for range g.members {
		if g.turnTo >= len(g.members) {
			g.turnTo = 0
		}
		m := g.members[g.turnTo]
		g.turnTo++
		if m.reserve() {
			return m
		}
	}
	return nil
}

// lease gives the entry to m, which has reserved room for it, and puts the delivery
// into m's batch.
func (g *group) lease(m *member, e *groupstate.Entry, item store.Item, now int64) {
	before := g.state.Deliver(e, &m.holder, item.Record, now, g.fetch.drift)
	d := eventhub.Delivery{
		Topic: g.log.Topic(), Offset: e.Offset(), Record: item.Record,
		Attempt: e.Attempts(), MaxAttempts: g.settings.MaxAttempts, AckTimeout: m.sub.opts.AckTimeout,
		Redriven: e.Redriven(), Gap: g.gapOf(e),
	}
	if !m.dated {
		d.Epoch, d.Sought = g.state.Epoch(), m.sought
		m.dated, m.sought = true, false
	}
	d.Bind(m.sub)
	m.batch = append(m.batch, d)
	m.given = append(m.given, e)
	m.before = append(m.before, before)
	if len(m.batch) >= m.sub.opts.BatchSize {
		g.flush(m, now)
	}
}

// flush hands m's batch to its receiver. What that does not take was never
// delivered: the entry becomes again what it was.
func (g *group) flush(m *member, now int64) {
	if len(m.batch) == 0 {
		return
	}
	taken := g.give(m)
	g.counts.delivered(m.batch[:taken])
	acks := m.sub.opts.AutoAck && !m.sub.opts.Buffered
	for i, e := range m.given {
		if i < taken {
			g.state.Delivered(e, &m.before[i], acks, now)
			continue
		}
		if m.batch[i].Epoch != 0 { // the next delivery says it
			m.dated, m.sought = false, m.batch[i].Sought
		}
		g.state.Undelivered(e, &m.before[i])
	}
	clear(m.batch)
	clear(m.given)
	m.batch, m.given, m.before = m.batch[:0], m.given[:0], m.before[:0]
}

// give numbers the leases of m's batch and calls the receiver. Where it takes
// less, the subscription gets nothing more until it is ready again.
func (g *group) give(m *member) (taken int) {
	s := m.sub
	s.giving.Lock()
	defer s.giving.Unlock()
	serial := g.bus.serials.Add(uint64(len(m.batch))) - uint64(len(m.batch))
	for i, e := range m.given {
		serial++
		lease := g.state.Number(e, serial)
		if !s.opts.AutoAck {
			m.batch[i].Lease = lease
		}
	}
	taken = s.receiver.Deliver(m.batch)
	s.gave(m, taken)
	return taken
}
