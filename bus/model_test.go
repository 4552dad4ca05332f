package bus

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
)

// The model of random_test.go: what the contract says of topics, groups and
// members, without a word on how it is done.

// modelTopic is a log: the id of the event at offset n is ids[n-1].
type modelTopic struct {
	name   string
	exists bool // by an event, a group or a delayed event
	ids    []string
	keys   []string
	tags   [][]string
	at     []int64
	first  map[string]uint64 // offset by id
	source *modelTopic       // whose dead letters these are
}

func (p *modelTopic) head() uint64 { return uint64(len(p.ids)) }

func (p *modelTopic) add(id string, e eventhub.Event, at int64) (offset uint64, duplicate bool) {
	if first, ok := p.first[id]; ok {
		return first, true
	}
	p.ids, p.keys, p.tags, p.at = append(p.ids, id), append(p.keys, e.Key), append(p.tags, e.Tags), append(p.at, at)
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
	due         bool   // its topic was created: it is made, or will be
	epoch, base uint64 // events at or below base do not count
	firstEpoch  uint64
	paused      bool
	modelSettings
	events   map[uint64]*modelEvent // those that were ever offered
	restored map[uint64]modelEvent  // what the store knew, of those that this engine did not offer yet
	again    map[uint64]*modelEvent // those that were redriven and are not done
	past     map[string]bool        // marks of those that are done, whether durably, and that the store may still have
	offered  uint64                 // the highest of them
	leases   []eventhub.Lease       // all that were ever given
	stored   store.GroupState       // as last seen
}

// modelSettings are what a group keeps for life, and what a pattern has for topics
// to come.
type modelSettings struct {
	ordered     bool // by key
	maxAttempts int
	backoff     eventhub.Backoff
	filter      *eventhub.Filter
}

// settingsOf resolves what is asked of a new group.
func settingsOf(o *eventhub.GroupOptions) modelSettings {
	s := modelSettings{ordered: o.Ordering == eventhub.OrderingKey, maxAttempts: o.MaxAttempts, backoff: o.Backoff, filter: o.Filter}
	if s.maxAttempts == 0 {
		s.maxAttempts = eventhub.DefaultMaxAttempts
	}
	if s.backoff == (eventhub.Backoff{}) {
		s.backoff = eventhub.Backoff{Min: eventhub.DefaultMinBackoff, Max: eventhub.DefaultMaxBackoff}
	}
	return s
}

// mismatches reports whether the options ask for another value than there is. One
// that is absent never does.
func (s *modelSettings) mismatches(o *eventhub.GroupOptions) bool {
	return o.Ordering != "" && (o.Ordering == eventhub.OrderingKey) != s.ordered ||
		o.MaxAttempts != 0 && o.MaxAttempts != s.maxAttempts ||
		o.Backoff != (eventhub.Backoff{}) && o.Backoff != s.backoff ||
		o.Filter != nil && !o.Filter.Equal(s.filter)
}

// passes reports whether the event gets through the filter: one that does not
// counts as done.
func (g *modelGroup) passes(offset uint64) bool {
	f := g.filter
	if f == nil {
		return true
	}
	key := g.topic.keys[offset-1]
	if prefix, ok := strings.CutSuffix(f.Key, "*"); ok && !strings.HasPrefix(key, prefix) || !ok && f.Key != "" && key != f.Key {
		return false
	}
	return !slices.ContainsFunc(f.Tags, func(tag string) bool { return !slices.Contains(g.topic.tags[offset-1], tag) })
}

func (g *modelGroup) String() string { return g.topic.name + "::" + g.name }

// modelState is the state of an event in a group. In the log and in no map is
// the same as modelWaiting from the beginning of time, except for order.
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
	lost     int          // attempts that ended with the lease or the member, as the history says
	stored   int          // attempts, as the store has them, of one that was restored
	holder   *modelMember // of the last lease
	lease    eventhub.Lease
	since    int64 // start of the last lease
	turn     int   // of its holder: how many leases it had got before
	deadline int64
	// A waiting event goes out between these, by the jitter of its backoff.
	earliest, latest int64
	redrive          *modelRedrive // of one on the list of these, which is in modelGroup.again
}

type modelLetter struct {
	topic    *modelTopic // of the letter
	group    *modelGroup // that gave up
	event    *modelEvent
	offset   uint64
	attempts int
	redriven int
	reason   string
	required bool
	seen     bool
}

// modelMember is a Receiver too. room is the engine's to lower, under world.mu.
type modelMember struct {
	w        *world
	name     string             // of its group
	patterns []eventhub.Pattern // what it asked for
	groups   []*modelGroup      // in which it is a member
	opts     eventhub.GroupOptions
	sub      eventhub.Subscription
	run      *Bus
	room     int // negative: takes everything
	ended    []error

	left     bool
	ending   bool // the engine is ending it
	orphan   bool // one of its groups was deleted
	deleted  bool // … while it was a member
	full     bool
	passed   []*modelGroup // offered something since it is full
	paused   bool
	inFlight int                     // in all groups
	turns    int                     // leases that it ever got
	fresh    map[*modelGroup]uint64  // the highest offset that it was the first to be offered
	last     map[string][]modelPlace // the last leases of an id, one a group
}

// modelPlace is an event in a group.
type modelPlace struct {
	group  *modelGroup
	offset uint64
}

// several reports whether the subscription is over more than one topic.
func (m *modelMember) several() bool {
	return len(m.patterns) > 1 || eventhub.IsPattern(m.patterns[0].String())
}

func (m *modelMember) covers(topic *modelTopic) bool {
	return covers(m.patterns, topic.name) && m.opts.Allowed.Allow(topic.name)
}

func covers(patterns []eventhub.Pattern, topic string) bool {
	return slices.ContainsFunc(patterns, func(p eventhub.Pattern) bool { return p.Match(topic) })
}

func (m *modelMember) isIn(g *modelGroup) bool { return slices.Contains(m.groups, g) }

// active reports whether the member may be given something.
func (m *modelMember) active() bool { return m.run == m.w.bus && !m.left && !m.full && !m.paused }

// offer is one call of Deliver.
type offer struct {
	to       *modelMember
	at       int64
	batch    []eventhub.Delivery
	ids      []string
	taken    int
	redriven *redriveCommit // where not nil, it is none, but a commit that redrives
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

// forget starts over after base: after a seek, and when the engine starts.
func (g *modelGroup) forget(w *world, base uint64) {
	for offset, e := range g.all() {
		if l := w.letters[g.letterID(offset, e)]; l != nil && e.state == modelDying {
			l.required = false // the dead letter may or may not have begun
		}
	}
	for _, e := range g.all() {
		if e.state == modelLeased {
			e.holder.inFlight--
		}
	}
	clear(g.events)
	g.restored = make(map[uint64]modelEvent)
	g.base, g.offered = base, base
	for _, m := range w.members {
		delete(m.fresh, g)
	}
}

// isDone reports whether an event that the engine may not have read yet is done:
// it was before the engine started, or does not pass the filter.
func (g *modelGroup) isDone(offset uint64) bool {
	return g.restored[offset].state == modelDone || !g.passes(offset)
}

// cursor is just below the first event that is not done. Those that are being
// dead-lettered are done where the caller says dying, those that are done and that the
// engine may not have read where it says unread.
func (g *modelGroup) cursor(dying, unread bool) uint64 {
	for offset := g.base + 1; offset <= g.topic.head(); offset++ {
		e := g.events[offset]
		if e == nil && unread && g.isDone(offset) {
			continue
		}
		if e == nil || e.state != modelDone && !(dying && e.state == modelDying) {
			return offset - 1
		}
	}
	return max(g.base, g.topic.head())
}

// isHeldByKey reports whether an earlier event of its key is not done. One that is
// being dead-lettered is done where the caller says dying.
func (g *modelGroup) isHeldByKey(offset uint64, dying bool) bool {
	key := g.topic.keys[offset-1]
	if !g.ordered || key == "" {
		return false
	}
	for o := g.base + 1; o < offset; o++ {
		if g.topic.keys[o-1] != key || g.isDone(o) {
			continue
		}
		if e := g.events[o]; e == nil || e.state != modelDone && !(dying && e.state == modelDying) {
			return true
		}
	}
	return false
}

// A suspect has failed twice, and nobody has said so. It is leased alone.
func (e *modelEvent) isSuspect() bool {
	if e.lost < 2 {
		return false
	}
	if e.state == modelLeased {
		return e.attempts >= 3
	}
	return e.state == modelWaiting && e.attempts >= 2
}

// lostOf counts the attempts of a stored history that nobody NACKed.
func lostOf(history []admin.Attempt) (n int) {
	for _, a := range history {
		if a.Why != "nacked" {
			n++
		}
	}
	return n
}

// suspect returns the offset of a suspect that somebody in the group holds.
func (g *modelGroup) suspect() uint64 {
	for offset, e := range g.all() {
		if e.state == modelLeased && e.isSuspect() && !e.holder.ending {
			return offset
		}
	}
	return 0
}

// suspect returns the offset of a suspect that the member holds, whatever topic it
// is of.
func (m *modelMember) suspect() uint64 {
	for _, g := range m.groups {
		for offset, e := range g.all() {
			if e.state == modelLeased && e.isSuspect() && e.holder == m && now() < e.since+m.opts.AckTimeout.Milliseconds() {
				return offset
			}
		}
	}
	return 0
}

// apply is the rule of docs/semantics.md for one ref, which names a delivery of one
// of the groups.
func (w *world) apply(groups []*modelGroup, via *modelMember, ref eventhub.Ref, s *eventhub.Settlement) eventhub.Outcome {
	g, offset, e := named(groups, via, ref)
	if ref.ID != "" && len(via.having(ref)) > 1 {
		return eventhub.Ambiguous
	}
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
func named(groups []*modelGroup, via *modelMember, ref eventhub.Ref) (*modelGroup, uint64, *modelEvent) {
	if ref.ID == "" {
		for _, g := range groups {
			if e := g.find(ref.Lease.Offset); e != nil && e.holder != nil && e.lease == ref.Lease {
				return g, ref.Lease.Offset, e
			}
		}
		return nil, 0, nil
	}
	had := via.having(ref)
	if len(had) != 1 {
		return nil, 0, nil
	}
	return had[0].group, had[0].offset, had[0].group.find(had[0].offset)
}

// having returns the events of an id that are not given up or done and that the member
// was the last to get, in the topic that ref names or in any. More than one is ambiguous.
func (m *modelMember) having(ref eventhub.Ref) (had []modelPlace) {
	for _, p := range m.last[ref.ID] {
		if e := p.group.find(p.offset); e != nil && e.holder == m && e.state < modelDying && (ref.Topic == "" || ref.Topic == p.group.topic.name) {
			had = append(had, p)
		}
	}
	return had
}

func (g *modelGroup) nack(w *world, offset uint64, s *eventhub.Settlement) {
	reason := s.Reason
	if reason == "" {
		reason = "nacked"
	}
	earliest, latest := g.back(g.find(offset).attempts, now())
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
	if e := g.find(offset); e.attempts < g.maxAttempts {
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
	e := g.find(offset)
	g.move(e, modelDying)
	id, times := g.letterID(offset, e), 0
	if e.redrive != nil {
		times = e.redrive.times
	}
	for _, topic := range w.topics {
		if topic.source == g.topic {
			w.letters[id] = &modelLetter{topic: topic, group: g, event: e, offset: offset, attempts: e.attempts, redriven: times, reason: reason,
				required: true, seen: w.seen(id)}
		}
	}
}

// seen reports whether an earlier run wrote that dead letter already.
func (w *world) seen(id string) bool { l := w.letters[id]; return l != nil && l.seen }

func (g *modelGroup) move(e *modelEvent, to modelState) {
	if e.state == modelLeased {
		e.holder.inFlight--
	}
	if to == modelLeased {
		e.holder.inFlight++
	}
	if to == modelDone && e.redrive != nil {
		delete(g.again, e.redrive.offset)
		g.past[e.redrive.mark] = e.state == modelDying
	}
	e.state = to
}

// expire ends the leases that ran out up to and including the given time.
func (g *modelGroup) expire(w *world, at int64) {
	for offset, e := range g.all() {
		if e.state == modelLeased && e.deadline <= at {
			earliest, latest := g.back(e.attempts, e.deadline)
			e.lost++
			g.failed(w, offset, earliest, latest, "lease expired")
		}
	}
}

// reread takes note that the engine has read up to offset.
func (g *modelGroup) reread(offset uint64) (some bool) {
	for o, e := range g.restored {
		if o <= offset && e.state == modelDone {
			g.events[o] = &e
			delete(g.restored, o)
			some = true
		}
	}
	if g.filter == nil {
		return some
	}
	for o := g.base + 1; o <= min(offset, g.topic.head()); o++ {
		if g.events[o] == nil && !g.passes(o) {
			g.events[o] = &modelEvent{state: modelDone}
			some = true
		}
	}
	return some
}

// take checks one offer and does to the model what the engine did.
func (w *world) take(o offer) {
	m := o.to
	g := w.group(o.batch[0].Topic, m.name)
	fail := func(format string, args ...any) {
		w.t.Fatalf("%s delivers %+v: %s", g, o, fmt.Sprintf(format, args...))
	}
	for _, other := range m.groups {
		other.expire(w, o.at)
	}
	switch {
	case !m.isIn(g) || !g.exists:
		fail("the subscription to %v has nothing to do with it", m.patterns)
	case m.left || m.run != w.bus:
		fail("the member has left")
	case m.full && (o.taken > 0 || slices.Contains(m.passed, g)):
		fail("the receiver is full")
	case m.paused || g.paused:
		fail("the member or its group is paused")
	case len(o.batch) > m.opts.BatchSize:
		fail("batch_size is %d", m.opts.BatchSize)
	case m.inFlight+len(o.batch) > m.opts.MaxInFlight && !m.ending: // one that ends has given some back already
		fail("%d in flight already, max_in_flight is %d", m.inFlight, m.opts.MaxInFlight)
	}
	for i, d := range o.batch {
		if d.Topic != g.topic.name {
			fail("%d is of topic %q", d.Offset, d.Topic)
		}
		e := g.offer(w, m, d, o.at, fail)
		if held := m.suspect(); held != 0 && !m.ending {
			fail("the member holds %d, which is a suspect", held)
		}
		if e.isSuspect() && (m.inFlight > 0 && !m.ending || len(o.batch) > 1 || g.suspect() != 0) {
			fail("%d has failed %d times and does not go out alone", d.Offset, e.attempts)
		}
		if i >= o.taken {
			m.full = true
			continue // as if it had not been: waiting since before, attempts as before
		}
		e.attempts++
		if m.opts.AutoAck {
			g.move(e, modelDone)
			w.justDone[modelPlace{g, d.Offset}] = true
			continue
		}
		e.holder, e.lease = m, d.Lease
		e.since, e.deadline, e.turn = o.at, o.at+m.opts.AckTimeout.Milliseconds(), m.turns
		m.turns++
		m.last[o.ids[i]] = append(slices.DeleteFunc(m.last[o.ids[i]], func(p modelPlace) bool { return p.group == g }), modelPlace{g, d.Offset})
		g.move(e, modelLeased)
		g.leases = append(g.leases, d.Lease)
	}
	if m.full {
		// A turn of another topic may have been under way.
		m.passed = append(m.passed, g)
	}
}

// offer checks that the event may go out now and is what the log has.
func (g *modelGroup) offer(w *world, m *modelMember, d eventhub.Delivery, at int64, fail func(string, ...any)) *modelEvent {
	e := g.events[d.Offset]
	switch {
	case d.Redriven > 0 || g.again[d.Offset] != nil:
		e = g.offerAgain(d, fail)
	case e == nil:
		e = g.firstOffer(w, m, d, fail)
	}
	if e.state == modelLeased && e.holder.ending {
		g.giveBack(e)
	}
	switch {
	case e.redrive == nil && !g.passes(d.Offset):
		fail("%d does not pass %s", d.Offset, g.filter)
	case e.redrive == nil && g.isHeldByKey(d.Offset, true):
		fail("%d comes before an earlier event of its key, %q, is done", d.Offset, g.topic.keys[d.Offset-1])
	case g.keyTaken(d.Offset, e):
		fail("another event of the key of %d, %q, is under way", d.Offset, g.topic.keys[d.Offset-1])
	case e.state != modelWaiting:
		fail("%d is in state %d", d.Offset, e.state)
	case at < e.earliest:
		fail("%d is due in %d ms", d.Offset, e.earliest-at)
	case d.Attempt != e.attempts+1 || d.Attempt > g.maxAttempts || d.MaxAttempts != g.maxAttempts:
		fail("%d is attempt %d of %d; want %d of %d", d.Offset, d.Attempt, d.MaxAttempts, e.attempts+1, g.maxAttempts)
	case d.AckTimeout != m.opts.AckTimeout || d.Lease.IsZero() != m.opts.AutoAck:
		fail("%d has a wrong timeout or lease", d.Offset)
	case !m.opts.AutoAck && slices.Contains(g.leases, d.Lease):
		fail("the lease of %d was given before", d.Offset)
	}
	return e
}

// firstOffer is of an event that this engine has not offered before.
func (g *modelGroup) firstOffer(w *world, m *modelMember, d eventhub.Delivery, fail func(string, ...any)) *modelEvent {
	if d.Offset <= g.base || d.Offset > g.topic.head() {
		fail("%d is not between %d and %d", d.Offset, g.base, g.topic.head())
	}
	restored := g.restored[d.Offset]
	if d.Offset <= m.fresh[g] && !g.ordered && !restored.isSuspect() {
		fail("%d comes after %d", d.Offset, m.fresh[g])
	}
	if d.Offset > g.cursor(true, true)+w.opts.AckWindow {
		fail("%d is too far above the cursor %d", d.Offset, g.cursor(true, true))
	}
	e := &restored
	delete(g.restored, d.Offset)
	g.events[d.Offset] = e
	if !restored.isSuspect() {
		m.fresh[g] = d.Offset
	}
	g.offered = max(g.offered, d.Offset)
	g.reread(g.offered)
	return e
}

// giveBack takes a lease back as if it had not been.
func (g *modelGroup) giveBack(e *modelEvent) {
	e.attempts--
	g.wait(e, now(), now())
}
