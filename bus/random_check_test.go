package bus

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/bus/internal/deadletter"
	"eventhub/bus/internal/groupstate"
	"eventhub/store"
)

// The checks.

// check brings the model up to date and compares.
func (w *world) check() {
	synctest.Wait()
	if w.commits == nil {
		for _, answer := range w.seeks {
			if len(answer) == 0 {
				w.t.Fatal("SetCursor does not return")
			}
			if err := <-answer; err != nil {
				w.t.Fatalf("SetCursor: %v", err)
			}
		}
		w.seeks = nil
	}
	if w.commits == nil && w.reads == nil {
		w.awaitRedrives(false)
	}
	w.checkLetters(w.absorb())
	for _, g := range w.groups {
		if g.exists {
			w.checkGroup(g)
		}
	}
	w.checkMembers()
	w.checkCache()
	w.checkPatterns()
	w.checkLetterCounts()
}

// absorb brings the model up to date with what was committed, created and offered. It
// returns the dead letters that came.
func (w *world) absorb() map[string]eventhub.Event {
	synctest.Wait()
	w.receipts()
	w.overdue()
	arrived := w.readLetters()
	w.readMarks()
	w.joined()
	w.startGroups()
	w.mu.Lock()
	journal, wrong := w.journal, w.wrong
	w.journal = nil
	w.mu.Unlock()
	if wrong != "" {
		w.t.Fatal(wrong)
	}
	w.deliverRedriven()
	w.justDone = make(map[modelPlace]bool)
	for _, o := range journal {
		if o.redriven != nil {
			w.commitRedrive(o.redriven, o.at)
			continue
		}
		w.take(o)
		for i, d := range o.batch {
			if id := w.group(d.Topic, o.to.name).topic.ids[d.Offset-1]; id != o.ids[i] {
				w.t.Fatalf("%s at %d is %s; delivered was %s", d.Topic, d.Offset, id, o.ids[i])
			}
		}
	}
	for _, g := range w.groups {
		g.expire(w, now())
	}
	w.redriveAnswers()
	return arrived
}

// receipts checks the receipts of publishers and adds their events to the logs.
func (w *world) receipts() {
	for len(w.pending) > 0 {
		p := w.pending[0]
		w.mu.Lock()
		calls := p.calls
		w.mu.Unlock()
		if calls == 0 && w.commits != nil {
			return
		}
		w.pending = w.pending[1:]
		if calls != 1 {
			w.t.Fatalf("%d calls of done", calls)
		}
		for _, pub := range p.pubs {
			bad := slices.ContainsFunc(pub.Events, func(e eventhub.Event) bool { return !json.Valid(e.Payload) })
			if !bad && eventhub.ErrorCode(pub.Err) == eventhub.CodeConflict {
				w.checkConflict(pub.Events, pub.Err)
				continue
			}
			if !bad && isBeingIndexed(pub.Events, pub.Err) {
				continue
			}
			if bad != (pub.Err != nil) && !(w.breaking && eventhub.ErrorCode(pub.Err) == eventhub.CodeInternal) {
				w.t.Fatalf("publication %+v ended with %v", pub.Events, pub.Err)
			}
			if pub.Err != nil {
				continue
			}
			w.checkHeld(pub.Events, pub.Receipts)
			for i := range pub.Receipts {
				w.receipt(pub.Events[i], pub.Receipts[i])
			}
			if len(pub.Receipts) != len(pub.Events) {
				w.t.Fatalf("%d receipts for %d events", len(pub.Receipts), len(pub.Events))
			}
		}
	}
}

func (w *world) receipt(e eventhub.Event, r eventhub.Receipt) {
	topic := w.topic(e.Topic)
	if !r.Duplicate {
		w.due(topic, r.Offset)
	}
	at := w.committedAt(e.Topic, r.Offset)
	if n := len(topic.at); !r.Duplicate && n > 0 && at < topic.at[n-1] {
		w.t.Fatalf("%d of %s has the commit time %d, that before it %d", r.Offset, e.Topic, at, topic.at[n-1])
	}
	offset, duplicate := topic.add(r.ID, e, at)
	w.added(topic)
	if r.Offset != offset || r.Duplicate != duplicate || e.ID != "" && e.ID != r.ID {
		w.t.Fatalf("receipt of %q in %q = %+v; want offset %d, duplicate %t", e.ID, e.Topic, r, offset, duplicate)
	}
}

// committedAt returns the commit time of an event.
func (w *world) committedAt(topic string, offset uint64) int64 {
	var batch store.Batch
	if err := w.store.Store.Read(context.Background(), topic, offset, 1, 0, &batch); err != nil || len(batch.Items) == 0 {
		w.t.Fatalf("read %q at %d: %v; %d events are there", topic, offset, err, len(batch.Items))
	}
	return batch.Items[0].Record.CommitTime()
}

// readLetters adds the dead letters that came to their logs.
func (w *world) readLetters() map[string]eventhub.Event {
	arrived := make(map[string]eventhub.Event)
	for _, topic := range w.topics {
		if topic.source == nil {
			continue
		}
		var batch store.Batch
		if err := w.store.Store.Read(context.Background(), topic.name, topic.head()+1, 1000, 1<<30, &batch); err != nil {
			w.t.Fatal(err)
		}
		for _, item := range batch.Items {
			e, err := item.Record.Event(item.Offset)
			if err != nil {
				w.t.Fatal(err)
			}
			if _, duplicate := topic.add(e.ID, e, e.TS); duplicate || item.Offset != topic.head() {
				w.t.Fatalf("dead letter %s is at %d of %s", e.ID, item.Offset, topic.name)
			}
			w.added(topic)
			arrived[e.ID] = e
			w.addRow(topic, item, e)
		}
	}
	return arrived
}

// checkLetters: every event given up has its dead letter, once, and no other
// has one.
func (w *world) checkLetters(arrived map[string]eventhub.Event) {
	w.arrive(arrived)
	if w.reads != nil || w.commits != nil {
		return
	}
	for id, l := range w.letters {
		if l.required && !l.seen {
			w.t.Fatalf("no dead letter %s: %+v", id, l)
		}
	}
	for _, g := range w.groups {
		for _, e := range g.all() {
			if e.state == modelDying {
				g.move(e, modelDone)
			}
		}
	}
	w.settled()
}

// arrive: each dead letter that came is that of an event given up, and the first one.
func (w *world) arrive(arrived map[string]eventhub.Event) {
	for id, e := range arrived {
		l := w.letters[id]
		if l == nil || l.seen || l.topic.name != e.Topic {
			w.t.Fatalf("an unexpected dead letter: %s", e.Payload)
		}
		l.seen = true
		w.letterCame(l)
		var p deadletter.Payload
		if err := json.Unmarshal(e.Payload, &p); err != nil {
			w.t.Fatal(err)
		}
		if p.Topic != l.group.topic.name || p.Group != l.group.name || p.Redriven != l.redriven || p.Event.Key != l.topic.source.keys[l.offset-1] ||
			p.Offset != l.offset || p.Attempts != l.attempts || p.Reason != l.reason || p.Event.ID != l.topic.source.ids[l.offset-1] {
			w.t.Fatalf("dead letter %s; want %+v", e.Payload, l)
		}
	}
}

// load reads a group's stored state, which never goes back.
func (w *world) load(g *modelGroup) store.GroupState {
	s, err := w.store.Store.Group(context.Background(), g.topic.name, g.name)
	if err != nil {
		w.t.Fatal(err)
	}
	if s.Epoch < g.stored.Epoch || s.Epoch == g.stored.Epoch && s.Cursor < g.stored.Cursor {
		w.t.Fatalf("%s is stored at %+v, before it was at %+v", g, s, g.stored)
	}
	g.stored = s
	return s
}

func (w *world) checkGroup(g *modelGroup) {
	s := w.load(g)
	epoch, cursor := s.Epoch, s.Cursor
	if rt := w.runtime(g.topic.name, g.name); rt != nil {
		epoch, cursor = rt.position()
	}
	low, high := g.cursor(false, false), g.cursor(true, true)
	if epoch != g.epoch || cursor < low || cursor > high {
		w.t.Fatalf("%s is at %d, %d; want %d, %d to %d", g, epoch, cursor, g.epoch, low, high)
	}
	if s.Epoch == epoch && s.Cursor > cursor {
		w.t.Fatalf("%s is at %d and is stored at %d", g, cursor, s.Cursor)
	}
	if w.reads != nil {
		return
	}
	if c, err := w.bus.Cursor(context.Background(), g.topic.name, g.name); err != nil || c.Offset != cursor || c.Epoch != epoch ||
		c.Offset > 0 && c.Offset <= g.topic.head() && c.LastID != g.topic.ids[c.Offset-1] {
		w.t.Fatalf("Cursor = %+v, %v; want %d, %d", c, err, epoch, cursor)
	}
	w.checkLag(g)
	w.checkFlight(g)
	w.checkIdle(g)
}

// checkLag: the lag is the number of events that are not done.
func (w *world) checkLag(g *modelGroup) {
	if w.commits != nil {
		return // some are in between
	}
	info, err := w.bus.Group(context.Background(), g.topic.name, g.name)
	if err != nil {
		w.t.Fatal(err)
	}
	lag, unread := uint64(0), uint64(0)
	for offset := g.base + 1; offset <= g.topic.head(); offset++ {
		e := g.events[offset]
		switch {
		case e == nil && !g.passes(offset) && g.restored[offset].state != modelDone:
			unread++ // it counts until somebody has room for what comes
		case e == nil && g.restored[offset].state != modelDone || e != nil && e.state != modelDone:
			lag++
		}
	}
	if info.Redriven != len(g.again) {
		w.t.Fatalf("%s is reported to have %d redriven events; it has %d", g, info.Redriven, len(g.again))
	}
	if info.Lag < lag || info.Lag > lag+unread || info.Paused != g.paused || !info.Filter.Equal(g.filter) {
		w.t.Fatalf("%s is reported as %+v; %d are not done, %d more may be", g, info, lag, unread)
	}
}

// checkIdle: while a member has room nothing waits that could go out. Where a
// suspect is due, in whatever topic, one of the members there may be kept free for
// it.
func (w *world) checkIdle(g *modelGroup) {
	if w.commits != nil && slices.ContainsFunc(w.groups, func(other *modelGroup) bool { return other.due && other.name == g.name }) {
		return // with the creation that is held up subscriptions become members of it
	}
	room, idle := 0, false
	var kept []*modelGroup
	for _, m := range w.members {
		if !m.isIn(g) || !m.active() || g.paused {
			continue
		}
		idle = idle || m.inFlight == 0 && !m.calm()
		if m.inFlight >= m.opts.MaxInFlight || m.suspect() != 0 {
			continue
		}
		room++
		for _, other := range m.groups {
			if other.suspect() == 0 && other.suspectDue() && !slices.Contains(kept, other) {
				kept = append(kept, other)
			}
		}
	}
	room -= len(kept)
	if g.suspect() != 0 {
		idle = false // one at a time
	}
	for offset, e := range g.events {
		if e.state == modelWaiting && e.latest <= now() && !g.isHeldByKey(offset, false) && !g.sharesKey(offset) && (room > 0 && !e.isSuspect() || idle && e.isSuspect()) {
			w.t.Fatalf("%s has room (%d, idle %t) and does not deliver %d again, attempts %d, due for %d ms", g, room, idle, offset, e.attempts, now()-e.latest)
		}
	}
	w.checkAgain(g, room, idle)
	for room > 0 {
		readable := min(g.topic.head(), g.cursor(false, false)+w.opts.AckWindow)
		for offset := g.base + 1; offset <= readable; offset++ {
			e := g.restored[offset]
			if g.events[offset] == nil && !g.isDone(offset) && !g.isHeldByKey(offset, false) && !g.sharesKey(offset) && (idle || !e.isSuspect()) {
				w.t.Fatalf("%s has room and does not deliver %d", g, offset)
			}
		}
		if !g.reread(readable) {
			break
		}
	}
}

// calm reports whether others have the member for a while, since a suspect had it.
func (m *modelMember) calm() bool {
	s := m.sub.(*subscription)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bus.clock.Now() < s.reservation.calm
}

// suspectDue reports whether a suspect may be waiting for its turn.
func (g *modelGroup) suspectDue() bool {
	for _, e := range g.all() {
		if e.state == modelWaiting && e.isSuspect() && e.earliest <= now() {
			return true
		}
	}
	for _, e := range g.restored {
		if e.isSuspect() {
			return true
		}
	}
	return false
}

func (w *world) runtime(topic, name string) *group {
	w.bus.mu.RLock()
	defer w.bus.mu.RUnlock()
	if rt := w.bus.groups[groupKey{topic: topic, group: name}]; rt != nil && rt.loaded.Load() {
		return rt
	}
	return nil
}

// checkMembers: Ended is called once for those that the end of the bus surprised.
func (w *world) checkMembers() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.members {
		want := 0
		code := eventhub.CodeShuttingDown
		if m.run != w.bus && !m.left {
			want = 1
		}
		if m.deleted {
			want, code = 1, eventhub.CodeNotSubscribed
		}
		if len(m.ended) != want || want == 1 && eventhub.ErrorCode(m.ended[0]) != code {
			w.t.Fatalf("Ended was called with %v", m.ended)
		}
	}
}

func (w *world) checkCache() {
	_, bytes := w.bus.logs.Holds()
	if bytes > w.opts.TailCacheBytes {
		w.t.Fatalf("the tails hold %d bytes; %d are allowed", bytes, w.opts.TailCacheBytes)
	}
}

// drain acks everything until nothing is left, and looks for what is left.
func (w *world) drain() {
	appointments := 2 * time.Hour // until the last one has passed
	if w.disk != nil {
		// Its own timers make so long a time dear. A new engine has no old leases.
		w.powerLoss()
		appointments = time.Minute
	}
	w.release()
	w.check()
	w.awaitRedrives(true)
	w.check()
	w.skew(max(w.set.most, w.clock.skew.Load())) // so that all of them come
	for len(w.delayed) > 0 {
		time.Sleep(2500 * time.Millisecond) // the longest delay
		w.check()
	}
	for _, g := range w.groups {
		// What a power loss has left of a group's parts goes with the next write.
		if g.paused || g.exists && w.disk != nil {
			if err := w.bus.ResumeGroup(context.Background(), g.topic.name, g.name); err != nil {
				w.t.Fatal(err)
			}
			g.paused = false
		}
	}
	for _, m := range w.members {
		if m.run == w.bus && m.paused && !m.left {
			if err := m.sub.Resume(context.Background()); err != nil {
				w.t.Fatal(err)
			}
		}
		m.paused = false
	}
	w.check()
	for _, m := range w.members {
		if m.run == w.bus {
			w.mu.Lock()
			m.room = -1
			w.mu.Unlock()
			m.full, m.passed = false, nil
			m.sub.Ready()
		}
	}
	for _, name := range groupNames {
		for _, text := range slices.Sorted(maps.Keys(w.patterns[name])) {
			w.join(eventhub.GroupOptions{Topic: text, Group: name}.WithDefaults(), -1)
		}
	}
	for _, g := range w.groups {
		if g.exists {
			w.join(eventhub.GroupOptions{Topic: g.topic.name, Group: g.name}.WithDefaults(), -1)
		}
	}
	w.check()
	for w.anyBehind() {
		for _, g := range w.groups {
			w.ackAll(g)
		}
		time.Sleep(500 * time.Millisecond)
		w.check()
	}
	time.Sleep(appointments)
	w.check()
	for _, g := range w.groups {
		if g.exists {
			w.checkDrained(g)
		}
	}
	w.checkLeft()
	alarms := w.bus.sched.Appointments()
	if jobs, bytes, dirty := w.bus.committer.Pending(); alarms+jobs+bytes+dirty != 0 {
		w.t.Fatalf("left over: %d appointments, %d submissions of %d bytes, %d groups to flush", alarms, jobs, bytes, dirty)
	}
}

// anyBehind reports whether a group has not done all; it gives up on those that
// never will.
func (w *world) anyBehind() bool {
	w.rounds++
	return w.rounds < 100 && slices.ContainsFunc(w.groups, func(g *modelGroup) bool {
		return g.exists && (g.cursor(false, false) < g.topic.head() || len(g.again) > 0)
	})
}

func (w *world) ackAll(g *modelGroup) {
	var s eventhub.Settlement
	for _, e := range g.all() {
		if e.state == modelLeased {
			s.Refs = append(s.Refs, eventhub.Ref{Lease: e.lease})
		}
	}
	for _, ref := range s.Refs {
		w.apply([]*modelGroup{g}, nil, ref, &s)
	}
	if len(s.Refs) == 0 {
		return
	}
	out, err := w.bus.Settle(context.Background(), g.topic.name, g.name, s)
	if err != nil || slices.ContainsFunc(out, func(o eventhub.Outcome) bool { return o != eventhub.Applied }) {
		w.t.Fatalf("acks of all that is leased: %v, %v", out, err)
	}
}

// checkLeft looks for what subscriptions and the table of patterns still have.
func (w *world) checkLeft() {
	for _, m := range w.members {
		if m.run != w.bus || m.left {
			continue
		}
		s := m.sub.(*subscription)
		s.mu.Lock()
		inFlight, reserved, ids, roomQueue := s.inFlight, s.reservedBy != nil, s.ids.len(), len(s.roomQueue)+len(s.idlers)
		s.mu.Unlock()
		if inFlight != 0 || reserved || ids != 0 || roomQueue > 2*len(m.groups) {
			w.t.Fatalf("the subscription to %v keeps %d leases, %d ids, %d roomQueue, reserved: %t", m.patterns, inFlight, ids, roomQueue, reserved)
		}
	}
	loaded, numbers := len(w.bus.loaded()), len(w.bus.runtimes.groups)
	if numbers != loaded {
		w.t.Fatalf("%d groups are loaded; %d have a number", loaded, numbers)
	}
	t := &w.bus.patterns
	for name, g := range t.groups {
		if g.users != 0 || len(g.subs) == 0 && len(g.patterns) == 0 {
			w.t.Fatalf("group %s is kept for %d users, %d subscriptions, patterns %v", name, g.users, len(g.subs), g.patterns)
		}
	}
	if len(t.created) != 0 {
		w.t.Fatalf("newborn topics left: %v", t.created)
	}
}

func (w *world) checkDrained(g *modelGroup) {
	if c := g.cursor(false, false); c < g.topic.head() {
		w.t.Fatalf("%s is at %d after draining; the head is %d", g, c, g.topic.head())
	}
	if len(g.again) > 0 {
		w.t.Fatalf("%s has redriven events left: %v", g, g.again)
	}
	if s := w.load(g); s.Cursor != g.cursor(false, false) {
		w.t.Fatalf("%s is stored at %d after draining; it is at %d", g, s.Cursor, g.cursor(false, false))
	}
	rt := w.runtime(g.topic.name, g.name)
	rt.mu.Lock()
	defer rt.mu.Unlock()
	inFlight := 0
	for _, m := range rt.members {
		inFlight += m.holder.Leases()
	}
	if inFlight != 0 || !rt.state.Idle() {
		w.t.Fatalf("%s has %d leases and keeps %+v", g, inFlight, &rt.state)
	}
	parts, err := w.store.Store.GroupParts(context.Background(), g.topic.name, g.name)
	parts = slices.DeleteFunc(parts, func(p store.GroupPart) bool { return p.Kind == groupstate.PartBase })
	if err != nil || len(parts) != 0 {
		w.t.Fatalf("%s keeps parts %v, %v", g, parts, err)
	}
}
