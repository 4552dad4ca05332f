package groupstate

import (
	"cmp"
	"maps"
	"slices"

	"eventhub"
	"eventhub/store"
)

// The model of a group: what is owed, who has what, how often, in which order the events of
// a key come, and what is durable. It has maps and lists and looks through all of them; it
// knows nothing of windows, heaps, runs and parts.

type modelState int

const (
	isWaiting modelState = iota
	isLeased
	inStep       // of acks
	isDying      // to be dead-lettered
	isBeingAdded // to the list of redriven events
)

// modelEvent is one event that is owed.
type modelEvent struct {
	offset   uint64
	state    modelState
	inCommit bool
	attempts int
	stored   int // attempts as the store has them, where it was not touched since a restart; -1: it was
	at       int64
	since    int64
	holder   *modelMember
	serial   uint64
	seen     bool // was delivered in this epoch
	given    bool // … and its receiver took it, or it was before the start
	taken    bool // Due or TakeSuspect has given it out
	times    int  // redriven
	mark     string
}

// modelMember is a holder, and what is reported to it.
type modelMember struct {
	Holder
	room  int // reserved
	ids   map[string]bool
	keeps bool
}

func (m *modelMember) Freed()            { m.room-- }
func (m *modelMember) Forgot(id string)  { delete(m.ids, id) }
func (m *modelMember) KeepsLeases() bool { return m.keeps }

// logged is an event of the log.
type logged struct {
	key    string
	passes bool
	erased bool
	record eventhub.Record
}

// modelStep is a step and its events.
type modelStep struct {
	Step
	events []*modelEvent
	void   bool // the group was sought since it began
	late   map[*modelEvent]bool
}

// durable is what the store has to have of a group.
type durable struct {
	epoch, cursor, base uint64
	done                map[uint64]bool // above the cursor
	attempts, stored    map[uint64]int  // of what was given to somebody
	history             map[uint64][]string
	listed              map[uint64]modelEvent
	gaps, notices       []gap
	knows               store.Marks
}

func (d *durable) equal(o *durable) bool {
	same := func(a, b modelEvent) bool {
		return a.attempts == b.attempts && a.times == b.times && a.mark == b.mark
	}
	return d.epoch == o.epoch && d.cursor == o.cursor && d.base == o.base && maps.Equal(d.done, o.done) && maps.Equal(d.attempts, o.attempts) &&
		maps.EqualFunc(d.history, o.history, slices.Equal) && maps.EqualFunc(d.listed, o.listed, same) &&
		slices.EqualFunc(d.gaps, o.gaps, sameGap) && slices.EqualFunc(d.notices, o.notices, sameGap) && d.knows == o.knows
}

// model is a group.
type model struct {
	maxAttempts int
	byKey       bool
	log         map[uint64]*logged
	head        uint64
	horizon     uint64      // what is below is gone
	marks       store.Marks // what is at or below may be gone

	epoch, base, next uint64
	done              map[uint64]bool        // for the window, also below the cursor
	holes             map[uint64]bool        // done before the start, and not found when it was read up to there
	window            map[uint64]*modelEvent // read and not done
	unread            map[uint64]int         // attempts of events that were given to somebody and not read since the start
	list              map[uint64]*modelEvent // redriven
	history           map[uint64][]string
	queues            map[string][]*modelEvent
	gone              []uint64 // by offset; random_gaps_test.go
	released          uint64   // numbers of gaps that may have been said
	notices           []gap    // of compactions, rising
	knows             store.Marks
}

// find returns the event that is owed under an offset.
func (m *model) find(offset uint64) *modelEvent {
	if e := m.list[offset]; e != nil {
		return e
	}
	return m.window[offset]
}

// wasGiven reports whether an event that was not read again, and was not done, was given to somebody.
func (p *Progress) wasGiven(offset uint64) bool { return p.restoredAs(offset) >= withAttempts }

// all returns all events that are owed, in the order of their offsets.
func (m *model) all() []*modelEvent {
	all := slices.AppendSeq(slices.Collect(maps.Values(m.window)), maps.Values(m.list))
	slices.SortFunc(all, func(a, b *modelEvent) int { return cmp.Compare(a.offset, b.offset) })
	return all
}

func (m *model) cursor(afterCommit bool) uint64 {
	cursor := m.next - 1
	for offset, e := range m.window {
		if !afterCommit || !e.inCommit {
			cursor = min(cursor, offset-1)
		}
	}
	return cursor
}

func (m *model) isHeld(e *modelEvent) bool {
	q := m.queues[m.log[e.offset].key]
	return e.state == isWaiting && slices.Contains(q, e) && q[0] != e
}

// join puts an event into the queue of its key.
func (m *model) join(e *modelEvent) {
	if key := m.log[e.offset].key; m.byKey && key != "" {
		m.queues[key] = append(m.queues[key], e)
	}
}

func (m *model) isSuspect(e *modelEvent) bool {
	lost := 0
	for _, why := range m.history[e.offset] {
		if why != "nacked" {
			lost++
		}
	}
	return e.attempts >= 2 && lost >= 2
}

// state is what the group has to say of an event.
func (m *model) state(e *modelEvent) State {
	switch {
	case m.isHeld(e):
		return Held
	case e.state == isWaiting:
		return Waiting
	case e.state == isLeased:
		return Leased
	case e.state == isBeingAdded:
		return RedriveInCommit
	case e.state == inStep && e.inCommit:
		return AckInCommit
	case e.state == inStep:
		return AckPending
	case e.inCommit:
		return LetterInCommit
	}
	return LetterPending
}

// wait has an event come again at a time.
func (m *model) wait(e *modelEvent, at int64) {
	e.state, e.at, e.stored, e.inCommit, e.taken = isWaiting, at, -1, false, false
}

// finish settles an event. The next of its key is due.
func (m *model) finish(e *modelEvent) {
	if m.list[e.offset] == e {
		delete(m.list, e.offset)
	} else {
		delete(m.window, e.offset)
		m.done[e.offset] = true
	}
	delete(m.history, e.offset)
	key := m.log[e.offset].key
	if q := m.queues[key]; len(q) > 0 && q[0] == e {
		if m.queues[key] = q[1:]; len(q) > 1 {
			m.wait(q[1], 0)
		}
	}
}

func (m *model) note(e *modelEvent, why string) {
	h := append(slices.Clone(m.history[e.offset]), why)
	m.history[e.offset] = h[max(len(h)-maxHistory, 0):]
}

// revive has a redriven event delivered when it may.
func (m *model) revive(e *modelEvent) {
	m.wait(e, 0)
	m.join(e)
}

// seek puts the cursor at to.
func (m *model) seek(to uint64) {
	listed := m.list
	m.begin(m.epoch+1, to)
	m.base = to
	for _, offset := range slices.Sorted(maps.Keys(listed)) {
		e := listed[offset]
		if offset > to {
			continue
		}
		*e = modelEvent{offset: offset, times: e.times, mark: e.mark, state: e.state, inCommit: e.inCommit, stored: -1}
		m.list[offset] = e
		if e.inCommit || e.state == isBeingAdded {
			e.state, e.inCommit = isBeingAdded, false
		} else {
			m.revive(e)
		}
	}
}

// begin forgets all that is not durable.
func (m *model) begin(epoch, cursor uint64) {
	m.epoch, m.next = epoch, cursor+1
	m.holes = make(map[uint64]bool)
	m.done, m.window, m.unread = make(map[uint64]bool), make(map[uint64]*modelEvent), make(map[uint64]int)
	m.gone, m.notices, m.knows = nil, nil, store.Marks{}
	m.list, m.history, m.queues = make(map[uint64]*modelEvent), make(map[uint64][]string), make(map[string][]*modelEvent)
	for offset := range m.log {
		if offset <= cursor {
			m.done[offset] = true
		}
	}
}

// durable returns what has to be stored: what the commit under way settles is done.
func (m *model) durable() *durable {
	d := &durable{epoch: m.epoch, cursor: m.cursor(true), base: m.base, done: make(map[uint64]bool), attempts: make(map[uint64]int),
		stored: make(map[uint64]int), history: make(map[uint64][]string), listed: make(map[uint64]modelEvent)}
	for _, done := range []map[uint64]bool{m.done, m.holes} {
		for offset := range done {
			if offset > d.cursor {
				d.done[offset] = true
			}
		}
	}
	maps.Copy(d.attempts, m.unread)
	for offset, e := range m.window {
		switch {
		case offset <= d.cursor:
		case e.inCommit:
			d.done[offset] = true
		case e.stored > 0:
			d.attempts[offset], d.stored[offset] = e.stored, e.attempts
		case e.given:
			d.attempts[offset] = e.attempts
		}
	}
	for offset, e := range m.list {
		if !e.inCommit {
			d.listed[offset] = *e
		}
	}
	for offset, h := range m.history {
		if e := m.find(offset); e == nil || !e.inCommit {
			d.history[offset] = h
		}
	}
	for _, g := range m.gaps() {
		if e := m.find(g.carrier); !g.given || e == nil || !e.inCommit {
			d.gaps = append(d.gaps, g)
		}
	}
	d.knows = m.knows
	for _, n := range m.notices {
		if e := m.find(n.carrier); !n.given || e == nil || !e.inCommit {
			d.notices = append(d.notices, n)
		}
	}
	return d
}
