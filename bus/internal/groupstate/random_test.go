package groupstate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/internal/testsize"
	"eventhub/store"
)

// TestRandomGroups drives a group alone, through histories of all that can happen to it, and
// holds it against the model after each step: who has what, what is due and when, what was
// settled and how, which room is free, and, after each commit, what the store would give back.
// In the end everything is done, and nothing is kept.
func TestRandomGroups(t *testing.T) {
	testsize.Histories(t, testsize.Of(5000, 500), func(t *rapid.T) {
		w := newWorld(t)
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, len(steps)-1).Draw(t, "step")
			w.last = steps[i].name
			steps[i].take(w)
			w.check()
		}
		w.drain()
	})
}

var steps = []struct {
	name string
	take func(*world)
}{
	{"trim", (*world).trim}, {"erase", (*world).erase}, {"compact", (*world).compact},
	{"append", (*world).append}, {"append", (*world).append},
	{"read", (*world).read}, {"read", (*world).read}, {"read", (*world).read},
	{"skip", (*world).skip}, {"due", (*world).due}, {"deliver", (*world).deliverDue}, {"suspect", (*world).suspect},
	{"ack", (*world).ack}, {"ack", (*world).ack},
	{"nack", (*world).nack}, {"nack", (*world).nack}, {"extend", (*world).extend},
	{"pass", (*world).pass}, {"pass", (*world).pass},
	{"letters", (*world).letters}, {"begin acks", (*world).beginAcks}, {"release", (*world).release},
	{"begin commit", (*world).beginCommit}, {"begin commit", (*world).beginCommit}, {"end commit", (*world).endCommit}, {"end commit", (*world).endCommit},
	{"leave", (*world).leave}, {"seek", (*world).seek}, {"restart", (*world).restart}, {"restart", (*world).restart},
}

// world is a group, its model, a store, and members.
type world struct {
	model
	t       *rapid.T
	last    string
	g       *Group
	now     int64
	members []*modelMember
	serial  uint64
	runtime uint64
	backoff int64  // of the failure that comes
	created uint64 // the cursor at the creation
	lost    uint64 // offsets that were found gone since the start
	calm    bool   // nothing goes wrong any more

	steps  []*modelStep // that are in no commit
	hand   []uint64     // offsets that are due and were not handed over
	dirty  bool
	parts  map[[2]uint64]store.GroupPart
	stored *durable
	commit *modelCommit // under way
	wrote  *durable     // by the last commit that was built

	settled []settledEvent // that were reported and that the model does not know
}

// modelCommit is a commit under way.
type modelCommit struct {
	steps  []*modelStep
	listed []*Redriven
	added  []*modelEvent
	parts  []store.GroupPart
	reset  bool
	state  *durable
}

func (w *world) Changed() { w.dirty = true }
func (w *world) Settled(offset uint64, how Ending, held, age int64) {
	w.settled = append(w.settled, settledEvent{offset, how, held, age})
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, now: 1_700_000_000_000, parts: make(map[[2]uint64]store.GroupPart)}
	w.maxAttempts = rapid.IntRange(1, 4).Draw(t, "maxAttempts")
	w.byKey = rapid.Bool().Draw(t, "byKey")
	w.log = make(map[uint64]*logged)
	for i := range 3 {
		m := &modelMember{ids: make(map[string]bool), keeps: true}
		m.Holder = Holder{Member: m, Peer: &eventhub.Peer{Name: strconv.Itoa(i)}, Timeout: int64(10_000 * (i + 1))}
		w.members = append(w.members, m)
	}
	cursor := uint64(rapid.SampledFrom([]int{0, 3, chunkSize - 3}).Draw(t, "cursor"))
	w.begin(7, cursor)
	w.head, w.base, w.created = cursor, cursor, cursor
	w.stored = w.durable()
	w.wrote = w.stored
	w.load()
	return w
}

// load begins with what is stored.
func (w *world) load() {
	s := w.stored
	known := w.known(s)
	config := Config{MaxAttempts: w.maxAttempts, ByKey: w.byKey, MaxBackoff: 60_000, Backoff: func(int) int64 { return w.backoff }}
	w.runtime++
	w.g = new(Group)
	w.dirty = w.g.Restore(w, config, known, w.created, s.epoch, s.cursor, w.runtime)
	w.wrote = s
}

// known returns what the store has, which has to be s.
func (w *world) known(s *durable) Progress {
	parts := slices.SortedFunc(maps.Values(w.parts), func(a, b store.GroupPart) int { // as a store returns them
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Offset, b.Offset))
	})
	known, err := Load("g", parts, s.cursor)
	if err != nil {
		w.t.Fatal(err)
	}
	w.checkStored(&known, s)
	return known
}

// checkStored compares what the store gives back with what it has to have.
func (w *world) checkStored(known *Progress, s *durable) {
	for offset := range w.log {
		if offset <= s.cursor {
			continue
		}
		alt, hasAlt := s.stored[offset]
		if _, given := s.attempts[offset]; given != known.wasGiven(offset) {
			w.fail("the store has %d as given to somebody: %t", offset, !given)
		}
		if n := known.Attempts(offset); known.IsAcked(offset) != s.done[offset] ||
			n != s.attempts[offset] && !(hasAlt && n == alt) {
			w.fail("the store has %d as done: %t, with %d attempts; want %t and %d", offset, known.IsAcked(offset), n, s.done[offset], s.attempts[offset])
		}
	}
	if got := known.gaps.list; !slices.EqualFunc(got, s.gaps, sameGap) {
		w.fail("the store has the gaps %+v; want %+v", got, s.gaps)
	}
	if got := known.notices.list; !slices.EqualFunc(got, s.notices, sameGap) || known.knows != s.knows {
		w.fail("the store has the notices %+v with %+v; want %+v with %+v", got, known.knows, s.notices, s.knows)
	}
	var offsets []uint64
	for _, r := range known.Redriven() {
		offsets = append(offsets, r.offset)
		if e, ok := s.listed[r.offset]; !ok || r.Mark() != e.mark || r.Attempts() != e.attempts && r.Attempts() != e.stored || r.Entry.Redriven() != e.times {
			w.fail("the store has %d on the list, %+v; want %+v", r.offset, r, e)
		}
	}
	if want := slices.Sorted(maps.Keys(s.listed)); !slices.Equal(offsets, want) {
		w.fail("the store has %v on the list; want %v", offsets, want)
	}
	for offset := range w.log {
		var whys []string
		for _, a := range known.History(offset) {
			whys = append(whys, a.Why)
		}
		if !slices.Equal(whys, s.history[offset]) {
			w.fail("the store has the history %v of %d; want %v", whys, offset, s.history[offset])
		}
	}
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("after %s: %s", w.last, fmt.Sprintf(format, args...))
}

func (w *world) append() {
	for range rapid.IntRange(1, 4).Draw(w.t, "events") {
		w.head += 1 + uint64(rapid.SampledFrom([]int{0, 0, 0, 0, 1, chunkSize}).Draw(w.t, "gap"))
		key := rapid.SampledFrom([]string{"", "a", "b"}).Draw(w.t, "key")
		w.log[w.head] = &logged{key: key, passes: rapid.IntRange(0, 5).Draw(w.t, "passes") > 0,
			record: fmt.Appendf(nil, `{"ts":%d,"id":"e%d","topic":"t","payload":1}`, w.now, w.head)}
	}
}

// read reads the next events.
func (w *world) read() {
	for range rapid.IntRange(1, 4).Draw(w.t, "events") {
		if w.mayDeliver() {
			w.readOne()
		}
	}
}

// skip passes over what was done before the start.
func (w *world) skip() {
	w.g.SkipAcked()
	for w.done[w.next] {
		w.next++
	}
}

func (w *world) readOne() {
	w.skip()
	w.overtaken()
	if rapid.IntRange(0, 3).Draw(w.t, "cached") > 0 {
		w.passedBy()
	}
	if w.g.GapsPending() {
		return
	}
	offset := w.next
	for offset <= w.head && (w.log[offset] == nil || w.isGone(offset)) {
		offset++
	}
	w.misses(offset)
	if offset > w.head {
		w.g.SkipTo(w.head + 1)
		w.passed(w.head + 1)
		w.next = w.head + 1
		return
	}
	if w.g.Missed(offset); w.g.GapsPending() {
		return
	}
	w.passed(offset)
	l := w.log[offset]
	var key []byte
	if w.byKey && l.key != "" {
		key = []byte(l.key)
	}
	isDone := w.done[offset]
	stored, given := w.unread[offset]
	want := !isDone && l.passes && (key == nil || len(w.queues[l.key]) == 0)
	if got := w.g.NeedsRoom(offset, key, l.passes); got != want {
		w.fail("NeedsRoom(%d) = %t; want %t", offset, got, want)
	}
	m := w.members[rapid.IntRange(0, len(w.members)-1).Draw(w.t, "member")]
	if want {
		m.room++
	}
	entry := w.g.Read(offset, key, l.passes, w.now)
	w.next = offset + 1
	delete(w.unread, offset)
	if isDone || !l.passes {
		w.done[offset] = true
		if w.list[offset] == nil {
			delete(w.history, offset)
			w.expect(settledEvent{offset: offset, how: Passed})
		}
	} else {
		e := &modelEvent{offset: offset, attempts: min(stored, w.maxAttempts-1), stored: stored, given: given}
		w.window[offset] = e
		w.join(e)
		if !w.isHeld(e) && !w.isSuspect(e) {
			if entry == nil {
				w.fail("Read(%d) does not deliver it", offset)
			}
			e.taken = true
			w.deliver(e, entry, m)
			return
		}
		if !w.isSuspect(e) || w.isHeld(e) {
			e.stored = -1
		} else {
			e.at = w.now
		}
	}
	if want {
		m.room--
	}
	if entry != nil {
		w.fail("Read(%d) delivers it", offset)
	}
}

// deliver hands an event to a member that has reserved room.
func (w *world) deliver(e *modelEvent, entry *Entry, m *modelMember) {
	l := w.log[e.offset]
	before := *e
	want, notice := w.gapOf(e, e.holder == nil)
	had := w.g.Deliver(entry, &m.Holder, l.record, w.now, 0)
	w.serial++
	if lease := w.g.Number(entry, w.serial); lease != (eventhub.Lease{Runtime: w.runtime, Offset: e.offset, Serial: w.serial}) {
		w.fail("the lease of %d is %+v", e.offset, lease)
	}
	wantAfter, wantFirst, wantMarks := saidWith(want, notice)
	if after, first, passed, ok := w.g.Gap(entry); ok != (wantFirst != 0) || after != wantAfter || first != wantFirst || passed != wantMarks {
		w.fail("%d is delivered with the gap %d, %d, %+v: %t; want %+v with %+v", e.offset, after, first, passed, ok, want, notice)
	}
	if got := entry.Attempts(); got != e.attempts+1 {
		w.fail("%d is delivered as attempt %d; want %d", e.offset, got, e.attempts+1)
	}
	e.state, e.holder, e.since, e.at, e.serial, e.stored, e.seen, e.given, e.taken = isLeased, m, w.now, w.now+m.Timeout, w.serial, -1, true, true, false
	e.attempts++
	switch w.pick(10, "receiver") {
	case 0: // it has no room
		w.g.Undelivered(entry, &had)
		*e = before
		e.stored, e.taken, e.seen = -1, false, true
	case 1: // it acks by being sent to
		m.ids[string(l.record.ID())] = true
		w.give(e, want, notice)
		w.g.Delivered(entry, &had, true, w.now)
		w.expect(settledEvent{e.offset, Acked, 0, w.now - l.record.CommitTime()})
		w.finish(e)
		w.endGaps(e.offset)
	default:
		m.ids[string(l.record.ID())] = true
		w.give(e, want, notice)
		w.g.Delivered(entry, &had, false, w.now)
	}
}

// give notes that an event was delivered with a gap and a notice.
func (w *world) give(e *modelEvent, g, notice gap) {
	for offset := g.after + 1; offset < g.first; offset++ {
		w.gone[offset] = byRepeat + e.offset
	}
	if i := slices.Index(w.notices, notice); i >= 0 {
		w.notices[i].carrier, w.notices[i].given = e.offset, true
	}
}

// due takes what is due again.
func (w *world) due() {
	room := w.pick(6, "room")
	got, next, short := w.g.Due(nil, w.now, room)
	var want []uint64
	first := int64(0)
	for _, e := range w.all() {
		switch {
		case e.state != isWaiting || e.taken || w.isHeld(e):
		case e.at > w.now:
			first = cmp.Or(min(cmp.Or(first, e.at), e.at), e.at)
		case !w.isSuspect(e):
			want = append(want, e.offset)
		}
	}
	for _, offset := range got {
		if e := w.find(offset); e == nil || e.state != isWaiting || e.at > w.now || w.isSuspect(e) {
			w.fail("%d is due: %+v", offset, e)
		}
		w.find(offset).taken = true
	}
	for _, offset := range want {
		if !short && !slices.Contains(got, offset) {
			w.fail("%d is not due; %v are", offset, got)
		}
	}
	switch {
	case short && len(got) != room:
		w.fail("%d are due with room for %d, and it is short", len(got), room)
	case !short && first != 0 && (next == 0 || next > first):
		w.fail("the next is due at %d; want %d", next, first)
	}
	w.hand = append(w.hand, got...)
}

// deliverDue delivers what is due, later than it was taken, or returns it.
func (w *world) deliverDue() {
	hand := w.hand
	w.hand = nil
	for _, offset := range hand {
		w.handOne(offset, w.g.DueAgain(offset, w.now))
	}
}

func (w *world) handOne(offset uint64, entry *Entry) {
	e := w.find(offset)
	if want := e != nil && e.state == isWaiting && e.at <= w.now && !w.isHeld(e); want != (entry != nil) {
		w.fail("DueAgain(%d) = %+v; it is %+v", offset, entry, e)
	}
	if entry == nil {
		return
	}
	switch pick := w.pick(8, "hand over"); {
	case w.isGone(offset):
		w.settleGone(e, entry)
	case pick == 0 || !w.mayDeliver():
		w.g.ReturnDue([]uint64{offset}, w.now+5)
		e.at, e.taken = max(e.at, w.now+5), false
	default:
		m := w.members[rapid.IntRange(0, len(w.members)-1).Draw(w.t, "member")]
		m.room++
		w.deliver(e, entry, m)
	}
}

// suspect delivers the next event that has to be alone.
func (w *world) suspect() {
	_, _, _ = w.g.Due(nil, w.now, 0) // finds them
	left := w.g.Suspects(w.now)
	any := slices.ContainsFunc(w.all(), func(e *modelEvent) bool {
		return e.state == isWaiting && !e.taken && e.at <= w.now && !w.isHeld(e) && w.isSuspect(e)
	})
	ready := slices.ContainsFunc(w.all(), func(e *modelEvent) bool {
		return e.state == isWaiting && e.at <= w.now && !w.isHeld(e) && !w.isSuspect(e)
	})
	if left == 0 && any && !ready { // else one that there is no room for may come first
		w.fail("there is a suspect, and it is not found")
	}
	if left > 0 {
		offset := w.g.TakeSuspect()
		w.find(offset).taken = true
		w.handOne(offset, w.g.DueAgain(offset, w.now))
	}
}

// draw returns an event that a lease names: mostly one that has one. The entry is found by the
// lease, or by the id and the holder.
func (w *world) draw() (e *modelEvent, entry *Entry) {
	all := slices.DeleteFunc(w.all(), func(e *modelEvent) bool { return e.serial == 0 })
	if len(all) == 0 {
		return nil, nil
	}
	e = all[rapid.IntRange(0, len(all)-1).Draw(w.t, "event")]
	lease := eventhub.Lease{Runtime: w.runtime, Offset: e.offset, Serial: e.serial}
	switch rapid.IntRange(0, 5).Draw(w.t, "by") {
	case 0: // an older lease
		lease.Serial -= uint64(rapid.IntRange(1, int(e.serial)).Draw(w.t, "older"))
		if got := w.g.OfLease(lease); got != nil {
			w.fail("an older lease of %d is good", e.offset)
		}
		return nil, nil
	case 1: // that of an earlier run
		lease.Runtime--
		if got := w.g.OfLease(lease); got != nil {
			w.fail("a lease of %d from before a seek or a start is good", e.offset)
		}
		return nil, nil
	case 2:
		for _, m := range w.members {
			got := w.g.OfID(fmt.Sprintf("e%d", e.offset), &m.Holder)
			if (got != nil) != (e.holder == m) {
				w.fail("%d by its id of member %s: %+v; it is %+v", e.offset, m.Peer.Name, got, e)
			}
			if got != nil {
				entry = got
			}
		}
	default:
		entry = w.g.OfLease(lease)
	}
	if entry == nil || entry != w.g.Find(e.offset) {
		w.fail("%d is not found by its lease, %+v; it is %+v", e.offset, lease, e)
	}
	return e, entry
}

// counts reports whether a verdict on the event counts.
func counts(e *modelEvent) bool { return e.state == isLeased || e.state == isWaiting }

func (w *world) ack() {
	e, entry := w.draw()
	if e == nil {
		return
	}
	if ok := w.g.Ack(entry, w.now); ok != counts(e) {
		w.fail("Ack of %d: %t; it is %+v", e.offset, ok, e)
	} else if ok {
		w.expectAck(e)
		w.finish(e)
		w.endGaps(e.offset)
	}
}

func (w *world) expectAck(e *modelEvent) {
	age := e.since - w.log[e.offset].record.CommitTime()
	w.expect(settledEvent{e.offset, Acked, w.now - e.since, w.now - e.since + age})
}

func (w *world) nack() {
	e, entry := w.draw()
	if e == nil {
		return
	}
	f := Failure{Cause: rapid.SampledFrom([]Cause{Nacked, Nacked, Refused}).Draw(w.t, "cause"), Now: w.now}
	f.Reason = rapid.SampledFrom([]string{"", "broken"}).Draw(w.t, "reason")
	f.Delay = time.Duration(rapid.SampledFrom([]int{0, 7}).Draw(w.t, "delay")) * time.Millisecond
	w.backoff = int64(rapid.IntRange(1, 20_000).Draw(w.t, "backoff"))
	ok := counts(e)
	if got := w.g.Fail(entry, f); got != ok {
		w.fail("nack of %d: %t; it is %+v", e.offset, got, e)
	}
	if ok {
		w.fails(e, "nacked", f.Cause == Refused, w.now+cmp.Or(f.Delay.Milliseconds(), w.backoff))
	}
}

// fails ends an attempt.
func (w *world) fails(e *modelEvent, why string, final bool, at int64) {
	if e.state == isLeased {
		w.note(e, why)
	}
	if e.stored = -1; final || e.attempts >= w.maxAttempts {
		e.state, e.taken = isDying, false
		return
	}
	w.wait(e, at)
}

func (w *world) extend() {
	e, entry := w.draw()
	if e == nil {
		return
	}
	by := int64(rapid.SampledFrom([]int{0, 100, 30_000, 10_000_000}).Draw(w.t, "by"))
	if ok := w.g.Extend(entry, by, w.now); ok != (e.state == isLeased) {
		w.fail("Extend of %d: %t; it is %+v", e.offset, ok, e)
	} else if ok {
		e.at = min(w.now+max(cmp.Or(by, e.holder.Timeout), 1000), e.since+3_600_000)
	}
}

// pass lets time pass, and leases end.
func (w *world) pass() {
	w.now += int64(rapid.SampledFrom([]int{1, 1000, 15_000, 70_000, 4_000_000}).Draw(w.t, "ms"))
	w.expire()
}

func (w *world) expire() {
	var want []*modelEvent
	for _, e := range w.all() {
		if e.state == isLeased && e.at <= w.now {
			want = append(want, e)
		}
	}
	slices.SortStableFunc(want, func(a, b *modelEvent) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.offset, b.offset)) })
	for {
		entry, ok := w.g.Overdue(w.now)
		if !ok {
			break
		}
		if entry == nil {
			continue
		}
		if len(want) == 0 || entry.offset != want[0].offset {
			w.fail("the lease of %d ends; want %+v", entry.offset, want)
		}
		e := want[0]
		want = want[1:]
		if w.pick(6, "on its way") == 0 {
			w.g.Postpone(entry, w.now)
			if e.at = w.now + e.holder.Timeout; w.now-e.since >= 3_600_000 {
				e.attempts--
				w.wait(e, w.now)
			}
			continue
		}
		w.backoff = int64(rapid.IntRange(1, 20_000).Draw(w.t, "backoff"))
		w.g.Fail(entry, Failure{Cause: Expired, Now: w.now})
		w.fails(e, "expired", false, w.now+w.backoff)
	}
	if len(want) > 0 {
		w.fail("the leases of %+v do not end", want)
	}
}

func (w *world) leave() {
	m := w.members[rapid.IntRange(0, len(w.members)-1).Draw(w.t, "member")]
	from := uint64(rapid.IntRange(0, int(w.serial)+1).Draw(w.t, "give back from"))
	var want []uint64
	for _, e := range w.all() {
		if e.state == isLeased && e.holder == m {
			want = append(want, e.serial)
		}
	}
	got := w.g.Serials(nil, &m.Holder)
	slices.Sort(got)
	if slices.Sort(want); !slices.Equal(got, want) {
		w.fail("the leases of member %s are %v; want %v", m.Peer.Name, got, want)
	}
	w.g.Leave(&m.Holder, from, w.now, 0)
	for _, e := range w.all() {
		switch {
		case e.state != isLeased || e.holder != m:
		case e.serial >= from:
			e.attempts--
			w.wait(e, w.now)
		default:
			w.fails(e, "disconnected", false, w.now)
		}
	}
	m.keeps = rapid.Bool().Draw(w.t, "keeps leases")
}

func (w *world) seek() {
	if rapid.Bool().Draw(w.t, "really") {
		return
	}
	to := uint64(rapid.IntRange(0, int(w.head)).Draw(w.t, "to"))
	offsets := slices.Sorted(maps.Keys(w.log))
	if len(w.list) > 0 {
		offsets = slices.Sorted(maps.Keys(w.list))
	}
	if len(offsets) > 0 && rapid.Bool().Draw(w.t, "to an event") {
		to = rapid.SampledFrom(offsets).Draw(w.t, "event")
	}
	w.runtime++
	after := to
	if to > 0 && rapid.IntRange(0, 2).Draw(w.t, "below the horizon") == 0 {
		after = uint64(rapid.IntRange(0, int(to-1)).Draw(w.t, "after"))
	}
	missing := Missing{After: after, First: to + 1, Knows: w.marks}
	if rapid.Bool().Draw(w.t, "a place") {
		missing.Marks = w.marks.Above(to, store.Marks{})
	}
	w.g.Seek(to, missing, w.runtime)
	w.seekModel(to)
	w.lost += w.lose(after+1, to)
	if w.knows = w.marks; missing.Marks != (store.Marks{}) {
		w.owe(to, missing.Marks)
		w.mustPend()
	}
}

func (w *world) seekModel(to uint64) {
	w.model.seek(to)
	w.forget()
	for _, s := range w.steps {
		s.void = true
	}
	if w.commit != nil {
		for _, s := range w.commit.steps {
			s.void = true
		}
	}
}

// forget has the members begin again.
func (w *world) forget() {
	for _, m := range w.members {
		m.room -= m.Void()
		clear(m.ids)
	}
	w.hand = nil
}

// restart ends the process: with what is stored, or after a last write.
func (w *world) restart() {
	if rapid.IntRange(0, 2).Draw(w.t, "really") == 0 {
		w.startAgain(rapid.Bool().Draw(w.t, "crash"))
	}
}

// startAgain ends the process, at any point or in order, and begins again.
func (w *world) startAgain(crash bool) {
	switch {
	case crash:
		if w.commit != nil && rapid.Bool().Draw(w.t, "after the commit") {
			w.apply(w.commit)
		}
	default:
		for w.commit != nil {
			w.endCommit()
		}
		w.g.End()
		for _, e := range w.all() {
			if e.state == isLeased {
				e.attempts--
				e.state = isWaiting
			}
		}
		w.flush()
	}
	w.steps, w.commit, w.settled = nil, nil, nil
	w.forget()
	for _, m := range w.members {
		m.room = 0
	}
	s := w.stored
	w.begin(s.epoch, s.cursor)
	w.base = s.base
	maps.Copy(w.done, s.done)
	w.lost = 0
	for _, g := range s.gaps {
		w.released++
		for offset := g.after + 1; offset < g.first; offset++ {
			w.mark(offset, notGone, byRepeat+g.carrier)
			if !g.given {
				w.mark(offset, byRepeat, kept+w.released)
			}
		}
	}
	w.knows = s.knows
	for _, n := range s.notices {
		n.kept = true
		w.notices = append(w.notices, n)
	}
	known := w.known(s)
	for offset := range w.log {
		if offset > s.cursor && known.wasGiven(offset) {
			w.unread[offset] = known.Attempts(offset) // it is one of those that checkStored allows
		}
	}
	for offset, h := range s.history {
		w.history[offset] = h
	}
	w.load()
	for _, offset := range slices.Sorted(maps.Keys(s.listed)) {
		l := s.listed[offset]
		e := &modelEvent{offset: offset, times: l.times, mark: l.mark, attempts: min(l.attempts, w.maxAttempts-1)}
		w.list[offset] = e
		w.revive(e)
		if e.stored = -1; l.attempts > e.attempts {
			e.stored = l.attempts // until it is written again
		}
	}
	w.wrote = w.durable()
}

// flush writes what has changed.
func (w *world) flush() {
	c := &modelCommit{state: w.durable()}
	c.parts, c.reset, _ = w.g.Parts(w.g.Cursor())
	w.apply(c)
}

// pick draws one of n, or returns the last where nothing is to go wrong.
func (w *world) pick(n int, what string) int {
	if w.calm {
		return n - 1
	}
	return rapid.IntRange(0, n-1).Draw(w.t, what)
}

// expect checks that a settled event was reported.
func (w *world) expect(want settledEvent) {
	w.t.Helper()
	i := slices.IndexFunc(w.settled, func(s settledEvent) bool { return s.offset == want.offset })
	if i < 0 {
		w.fail("it was not reported that %+v", want)
	}
	got := w.settled[i]
	w.settled = slices.Delete(w.settled, i, i+1)
	if want.how != Acked {
		got.held, got.age = 0, 0
	}
	if got != want {
		w.fail("reported was %+v; want %+v", got, want)
	}
}

// check compares the group with the model.
func (w *world) check() {
	if len(w.settled) > 0 {
		w.fail("reported was %+v", w.settled)
	}
	states := make(map[State]int)
	room := make(map[*modelMember]int)
	deadline := int64(0)
	for _, e := range w.all() {
		state := w.state(e)
		if got := w.g.Find(e.offset); got == nil || got.State() != state || got.Attempts() != e.attempts || got.Redriven() != e.times {
			w.fail("%d is %+v; want state %d and %+v", e.offset, got, state, e)
		}
		if states[state]++; state.TakesRoom() {
			room[e.holder]++
		}
		if e.state == isLeased && (deadline == 0 || e.at < deadline) {
			deadline = e.at
		}
	}
	g := w.g
	if got, want := []int{g.Leased(), g.Waiting(), g.Held(), g.Listed()},
		[]int{states[Leased] + states[AckPending] + states[AckInCommit], states[Waiting], states[Held], len(w.list)}; !slices.Equal(got, want) {
		w.fail("%d are leased, waiting, held, listed; want %d", got, want)
	}
	cursor := w.cursor(false)
	size, lag, from := uint64(len(w.window)), uint64(0), max(w.next, w.horizon)
	for offset := range w.done {
		if offset > cursor && offset < w.next {
			size++
		}
	}
	for offset := range w.window {
		if offset >= w.horizon {
			lag++
		}
	}
	for offset := from; offset <= w.head; offset++ {
		if !w.done[offset] {
			lag++
		}
	}
	if got, want := []uint64{g.Epoch(), g.Base(), g.Cursor(), g.CursorAfterCommit(), g.Next(), g.Size(), g.Lag(w.head, w.horizon)},
		[]uint64{w.epoch, w.base, cursor, w.cursor(true), w.next, size, lag}; !slices.Equal(got, want) {
		w.fail("epoch, base, cursor, that after the commit, next, size and lag are %d; want %d", got, want)
	}
	if got := g.NextDeadline(); got != deadline {
		w.fail("the next deadline is %d; want %d", got, deadline)
	}
	w.checkMembers(room)
	for offset := range w.log {
		isHole := slices.ContainsFunc(g.progress.holes, func(r run) bool { return r.from <= offset && offset <= r.to })
		if offset > cursor && isHole != w.holes[offset] {
			w.fail("%d is noted as done and gone: %t", offset, isHole)
		}
	}
	w.checkGaps()
	if (w.wrote == nil || !w.durable().equal(w.wrote)) && !w.dirty {
		w.fail("a change was not reported: %+v, written was %+v", w.durable(), w.wrote)
	}
}

func (w *world) checkMembers(room map[*modelMember]int) {
	for _, m := range w.members {
		if m.room != room[m] || m.Leases() != room[m] {
			w.fail("member %s has room for %d taken, and %d leases; want %d", m.Peer.Name, m.room, m.Leases(), room[m])
		}
		for id := range m.ids {
			offset, _ := strconv.ParseUint(id[1:], 10, 64)
			if e := w.find(offset); e == nil || e.holder != m || e.state == isDying {
				w.fail("member %s still has %s, which is %+v", m.Peer.Name, id, e)
			}
		}
	}
	for _, e := range w.all() {
		if e.state == isLeased && !e.holder.ids[fmt.Sprintf("e%d", e.offset)] {
			w.fail("the holder of %d does not have its id", e.offset)
		}
	}
}

// drain lets everything come to its end.
func (w *world) drain() {
	w.calm = true
	if rapid.Bool().Draw(w.t, "drain after a start") {
		w.startAgain(false)
	}
	for n := 0; len(w.all()) > 0 || w.next <= w.head || n < 3; n++ {
		if w.last = "drain"; n > 200 {
			w.fail("these are never done: %+v", w.all())
		}
		w.now += 100_000
		w.mayDeliver()
		w.skip()
		w.check()
		for i := 0; w.next <= w.head && (i == 0 || n > 20); i++ { // one by one at first: each may move the cursor
			w.mayDeliver()
			w.readOne()
		}
		w.g.Due(nil, w.now, 0)
		for w.g.Suspects(w.now) > 0 {
			offset := w.g.TakeSuspect()
			w.handOne(offset, w.g.DueAgain(offset, w.now))
		}
		w.due()
		w.deliverDue()
		for _, e := range w.all() {
			if e.state == isLeased {
				w.g.Ack(w.g.Find(e.offset), w.now)
				w.expectAck(e)
				w.finish(e)
				w.endGaps(e.offset)
			}
		}
		w.letters()
		w.endCommit()
		w.beginCommit()
		w.endCommit()
		w.check()
	}
	w.now += 10 * 3_600_000
	w.expire()
	w.g.Due(nil, w.now, 1000)
	w.g.Suspects(w.now)
	if !w.g.Idle() {
		w.fail("all is done, and the group keeps %+v", w.g)
	}
	w.flush()
	for key := range w.parts {
		if key[0] != PartBase && key[0] != PartGaps && key[0] != PartMarks && !(key[0] == PartProgress && (key[1]+1)*chunkSize > w.cursor(false)+1) { // of a chunk that the cursor has passed
			w.fail("all is done, and the store keeps %v", w.parts)
		}
	}
}
