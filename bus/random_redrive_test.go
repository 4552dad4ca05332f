package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/deadletter"
	"eventhub/bus/internal/groupstate"
	"eventhub/store"
)

// Redrives in the histories. The model has a list for each group, of events that are
// done and were given back, and a row for each dead letter. What a redrive takes is
// decided when its commit is built; w.inspect sees that commit, and the model decides
// then too.

// modelRedrive is what makes an event of a group a redriven one.
type modelRedrive struct {
	offset    uint64
	times     int
	mark      string // id
	undecided bool   // whether it is durable is not known
	unsure    bool   // a dead letter that a seek has overtaken may or may not have ended it
}

// redriveCommit is a unit that gives events back to a group.
type redriveCommit struct {
	of    *modelRedriving
	group *modelGroup
	marks map[string]admin.RedriveMark // by id
	seen  int                          // of them in the log
}

// modelRedriving is a call of Redrive.
type modelRedriving struct {
	name    string // unique; it is in each mark as By
	query   admin.RedriveQuery
	matched []admin.DeadLetter // as they were when it was called
	classes []string           // parallel to them: why not, as it was then
	free    bool               // no commit was held up then
	slow    bool               // one letter at a time; other things happen in between
	answer  chan redriveAnswer

	given   map[string]int // events given back, by group
	skipped map[string]int
	unsure  int // skipped, or not, for a reason that is not known
}

type redriveAnswer struct {
	result admin.RedriveResult
	err    error
}

// unknowable is a class: whether the event is done depends on the commit under way.
const unknowable = "?"

// redrives counts what the histories met, to show that they met it.
var redrives redriveCounts

type redriveCounts struct {
	calls, events, delivered, letters int // letters of what was redriven
	kept, taken                       int // events that a seek left on the list, and took off
	lost                              int // acks that a crash has taken back
	counted                           int // comparisons of the counts of a group
}

func (c *redriveCounts) report(t *testing.T) {
	t.Logf("%d redrives gave %d events back, which were delivered %d times and came to %d dead letters; seeks left %d on their lists and took %d off; %d acks of them were lost; counts were compared %d times",
		c.calls, c.events, c.delivered, c.letters, c.kept, c.taken, c.lost, c.counted)
	if c.calls > 1000 && min(c.events, c.delivered, c.letters, c.kept, c.taken, c.counted) == 0 {
		t.Error("the histories did not meet everything that a redrive can come to")
	}
	*c = redriveCounts{}
}

// all yields the events of a group that were ever offered, then those on its list.
func (g *modelGroup) all() iter.Seq2[uint64, *modelEvent] {
	return func(yield func(uint64, *modelEvent) bool) {
		for _, events := range []map[uint64]*modelEvent{g.events, g.again} {
			for offset, e := range events {
				if !yield(offset, e) {
					return
				}
			}
		}
	}
}

// find returns the event at offset: the one on the list, where it is there.
func (g *modelGroup) find(offset uint64) *modelEvent {
	if e := g.again[offset]; e != nil {
		return e
	}
	return g.events[offset]
}

// letterID names the dead letter that an event of the group would come to.
func (g *modelGroup) letterID(offset uint64, e *modelEvent) string {
	mark := ""
	if e != nil && e.redrive != nil {
		mark = e.redrive.mark
	}
	return deadletter.ID(g.topic.name, offset, g.name, g.epoch, mark)
}

// sharesKey reports whether an event on the list has the key of the one at offset, in
// a group in which that counts.
func (g *modelGroup) sharesKey(offset uint64) bool {
	key := g.topic.keys[offset-1]
	if !g.ordered || key == "" {
		return false
	}
	for o := range g.again {
		if g.topic.keys[o-1] == key {
			return true
		}
	}
	return false
}

// keyTaken reports whether another event of e's key is under way: it was delivered
// and is not done.
func (g *modelGroup) keyTaken(offset uint64, e *modelEvent) bool {
	key := g.topic.keys[offset-1]
	if !g.ordered || key == "" {
		return false
	}
	for o, other := range g.all() {
		if other != e && other.holder != nil && g.topic.keys[o-1] == key && (other.state == modelLeased || other.state == modelWaiting) {
			return true
		}
	}
	return false
}

// The step.

// redrive gives dead letters back, or asks what that would do. Where there are none a
// group gives up what it has under way, and where nothing is, somebody is to have
// something.
func (w *world) redrive() {
	var busy []*modelGroup
	for _, g := range w.groups {
		for _, e := range g.all() {
			if e.state == modelLeased && !slices.Contains(busy, g) {
				busy = append(busy, g)
			}
		}
	}
	switch none := len(w.rows) == 0; {
	case len(busy) > 0 && (none || w.dice("give up", 3)):
		w.giveUp(busy[rapid.IntRange(0, len(busy)-1).Draw(w.t, "who")])
	case none:
		g := w.drawGroup()
		w.publish()
		w.check()
		w.join(w.drawOptions(g.name, g.topic, g.topic.name), -1)
	case w.commits == nil && w.reads == nil && w.dice("requeue", 6):
		w.requeue()
	default:
		w.redriveOne()
	}
}

// requeue publishes the event of a dead letter with another payload.
func (w *world) requeue() {
	topic := rapid.SampledFrom(slices.Sorted(maps.Keys(w.rows))).Draw(w.t, "of")
	d := w.rows[topic][rapid.IntRange(0, len(w.rows[topic])-1).Draw(w.t, "letter")]
	payload := rapid.SampledFrom([]string{`"better"`, `"still better"`}).Draw(w.t, "payload")
	seen := rapid.IntRange(0, len(d.Marks)).Draw(w.t, "marks")
	r, err := w.bus.RequeueIf(context.Background(), d.Topic, d.Offset, []byte(payload), seen, payload)
	stale := seen < min(len(d.Marks), admin.MaxRedriveMarks)
	if stale && eventhub.ErrorCode(err) == eventhub.CodeConflict {
		synctest.Wait()
		n := len(d.Marks)
		if w.readMarks(); len(d.Marks) != n {
			w.t.Fatalf("Requeue of %+v, of %d marks, was refused, and has left marks", d, seen)
		}
		return
	}
	if err != nil {
		w.t.Fatalf("Requeue of %+v: %v", d, err)
	}
	source := w.topic(d.Topic)
	w.receipt(eventhub.Event{Topic: d.Topic, ID: r.ID, Key: source.keys[d.Event-1], Tags: source.tags[d.Event-1]}, r)
	known := slices.ContainsFunc(d.Marks, func(m admin.RedriveMark) bool { return m.RequeuedAs == r.ID })
	if r.Duplicate != known || stale && !known {
		w.t.Fatalf("Requeue of %+v as %s: %+v", d, payload, r)
	}
	synctest.Wait()
	n := len(d.Marks)
	w.readMarks()
	if fresh := d.Marks[n:]; known && len(fresh) > 0 || !known && (len(fresh) != 1 || fresh[0].RequeuedAs != r.ID || fresh[0].By != payload) {
		w.t.Fatalf("Requeue of %+v as %s: %+v; its marks: %+v", d, payload, r, d.Marks)
	}
}

// dice is true once in n times.
func (w *world) dice(what string, n int) bool { return rapid.IntRange(1, n).Draw(w.t, what) == n }

// giveUp has a group give up all that it has under way.
func (w *world) giveUp(g *modelGroup) {
	s := eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true, Reason: "given up"}
	for _, e := range g.all() {
		if e.state == modelLeased {
			s.Refs = append(s.Refs, eventhub.Ref{Lease: e.lease})
		}
	}
	for _, ref := range s.Refs {
		w.apply([]*modelGroup{g}, nil, ref, &s)
	}
	out, err := w.bus.Settle(context.Background(), g.topic.name, g.name, s)
	if err != nil || slices.ContainsFunc(out, func(o eventhub.Outcome) bool { return o != eventhub.Applied }) {
		w.t.Fatalf("NACKs of all that %s has leased: %v, %v", g, out, err)
	}
}

// redriveOne draws a redrive and calls it. nil: nothing can be redriven now.
func (w *world) redriveOne() *modelRedriving {
	if w.reads != nil || len(w.joins) > 0 || slices.ContainsFunc(w.groups, func(g *modelGroup) bool { return g.due }) {
		return nil // it would wait for a creation under a lock, which a bubble does not count as rest
	}
	q, ok := w.drawDeadLetters()
	if !ok {
		return nil
	}
	w.redriven++
	rd := &modelRedriving{
		name: fmt.Sprintf("redrive-%d", w.redriven), answer: make(chan redriveAnswer, 1),
		given: make(map[string]int), skipped: make(map[string]int),
	}
	rd.query = admin.RedriveQuery{DeadLetterQuery: q, Apply: rapid.IntRange(0, 4).Draw(w.t, "apply") > 0, Rate: admin.MaxRedriveRate, By: rd.name}
	if rd.query.Apply && q.Limit == 0 && w.dice("slow", 3) {
		rd.slow, rd.query.Rate = true, slowRate
	}
	rd.free = w.commits == nil && !rd.slow
	rd.matched = w.matched(&q)
	for i := range rd.matched {
		rd.classes = append(rd.classes, w.group(rd.matched[i].Topic, rd.matched[i].Group).class(&rd.matched[i]))
	}
	w.checkDeadLetters(q, rd.matched)
	if !rd.query.Apply {
		w.rehearse(rd)
		return rd
	}
	redrives.calls++
	w.mu.Lock()
	w.redrives[rd.name] = rd
	w.mu.Unlock()
	w.redriving = append(w.redriving, rd)
	go func(b *Bus) {
		result, err := b.Redrive(context.Background(), rd.query)
		rd.answer <- redriveAnswer{result, err}
	}(w.bus)
	synctest.Wait()
	if w.commits == nil {
		w.awaitRedrives(false)
	}
	return rd
}

// slowRate gives back one event after the other.
const slowRate = 20

// awaitRedrives waits for those under way, where the rate makes them wait.
func (w *world) awaitRedrives(slow bool) {
	for _, rd := range w.redriving {
		for n := 0; len(rd.answer) == 0 && (slow || !rd.slow); n++ {
			if n == 20+1000/slowRate*len(rd.matched) {
				w.t.Fatalf("Redrive of %+v does not return", rd.query)
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
	}
}

// rehearse calls a redrive that is to change nothing.
func (w *world) rehearse(rd *modelRedriving) {
	listed := make(map[modelPlace]bool)
	var samples []admin.DeadLetter
	for i, d := range rd.matched {
		p, why := modelPlace{w.group(d.Topic, d.Group), d.Event}, rd.classes[i]
		if why == "" && listed[p] {
			why = skipWaiting
		}
		if why == unknowable {
			rd.unsure++
			continue
		}
		if why != "" {
			rd.skipped[why]++
			continue
		}
		listed[p] = true
		rd.given[d.Group]++
		samples = append(samples, d)
	}
	turn := func(d admin.DeadLetter) int { // a group at a time
		return slices.IndexFunc(rd.matched, func(of admin.DeadLetter) bool { return of.Group == d.Group })
	}
	slices.SortStableFunc(samples, func(a, b admin.DeadLetter) int { return turn(a) - turn(b) })
	result, err := w.bus.Redrive(context.Background(), rd.query)
	if rd.unsure > 0 && err == nil {
		return
	}
	if got := result.Samples; err != nil || len(got) != min(len(samples), admin.RedriveSamples) || len(got) > 0 && !reflect.DeepEqual(got, samples[:len(got)]) {
		w.t.Fatalf("a dry redrive of %+v: %+v, %v; want %+v", rd.query, result, err, samples)
	}
	w.checkResult(rd, result)
}

// What the engine does about it.

// inspectMarks notes the marks that are committed, and that the unit puts on the
// group's list what they say.
func (w *world) inspectMarks(u *store.Unit) {
	p := &redriveCommit{marks: make(map[string]admin.RedriveMark)}
	for _, a := range u.Appends {
		if a.Topic != admin.RedriveTopic {
			continue
		}
		e, err := a.Record.Event(1)
		var m admin.RedriveMark
		if err == nil {
			err = json.Unmarshal(e.Payload, &m)
		}
		if err != nil {
			w.blame("a mark cannot be read: %v", err)
			return
		}
		if m.RequeuedAs == "" {
			p.marks[e.ID] = m
		}
	}
	if len(p.marks) == 0 {
		return
	}
	w.mu.Lock()
	for _, m := range p.marks {
		p.of, p.group = w.redrives[m.By], w.group(m.Topic, m.Group)
	}
	w.mu.Unlock()
	listed := make(map[string]*groupstate.Redriven)
	for _, ch := range u.Groups {
		for _, part := range ch.Parts {
			if part.Kind != groupstate.PartRedriven || len(part.Value) == 0 || ch.Topic != p.group.topic.name || ch.Group != p.group.name {
				continue
			}
			known, err := groupstate.Load(ch.Group, []store.GroupPart{part}, 0)
			if err != nil {
				w.blame("a part of the list of %s: %v", ch.Group, err)
				return
			}
			r := known.Redriven()[0]
			listed[r.Mark()] = r
		}
	}
	for id, m := range p.marks {
		if r := listed[id]; r == nil || r.Offset() != m.Offset || r.Entry.Redriven() != m.Redriven || r.Attempts() != 0 || m.By != p.of.name {
			w.blame("mark %s is committed, %+v, with %+v on the list of its group", id, m, r)
			return
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range p.marks {
		w.redriveCommits[id] = p
	}
	w.journal = append(w.journal, offer{at: now(), redriven: p})
}

// blame notes that a commit was wrong.
func (w *world) blame(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = fmt.Sprintf(format, args...)
}

// readMarks looks at the marks that came: each one is of a redrive, those of one unit
// come together.
func (w *world) readMarks() {
	var batch store.Batch
	if err := w.store.Store.Read(context.Background(), admin.RedriveTopic, uint64(len(w.marks))+1, 10_000, 1<<30, &batch); err != nil {
		w.t.Fatal(err)
	}
	var redriveCommits []*redriveCommit
	for _, item := range batch.Items {
		e, err := item.Record.Event(item.Offset)
		if err != nil {
			w.t.Fatal(err)
		}
		var m admin.RedriveMark
		if err := json.Unmarshal(e.Payload, &m); err != nil {
			w.t.Fatal(err)
		}
		w.mu.Lock()
		p := w.redriveCommits[e.ID]
		w.mu.Unlock()
		if (p == nil) != (m.RequeuedAs != "") || slices.Contains(w.marks, e.ID) || p != nil && m != p.marks[e.ID] {
			w.t.Fatalf("an unexpected mark %s: %s", e.ID, e.Payload)
		}
		var row *admin.DeadLetter
		for _, d := range w.rows[m.DeadLetter.Topic] {
			if d.ID == m.DeadLetterID {
				row = d
			}
		}
		if row == nil || row.Topic != m.Topic || row.Group != m.Group || row.Event != m.Offset || row.Offset != m.DeadLetter.Offset ||
			!slices.Equal(e.CausedBy, []string{row.ID}) {
			w.t.Fatalf("mark %s is of no dead letter: %s, caused by %v; %+v", e.ID, e.Payload, e.CausedBy, row)
		}
		m.TS = item.Record.CommitTime()
		if len(row.Marks) < admin.MaxRedriveMarks {
			row.Marks = append(row.Marks, m)
		}
		w.times[row.ID] = max(w.times[row.ID], m.Redriven)
		if p != nil {
			w.lastRedrive[row.ID] = e.ID
		}
		w.marks = append(w.marks, e.ID)
		if p != nil {
			redriveCommits = append(redriveCommits, p)
			p.seen++
		}
	}
	for _, p := range redriveCommits {
		if p.seen != len(p.marks) {
			w.t.Fatalf("of %d marks in one unit %d are in the log: %+v", len(p.marks), p.seen, p.marks)
		}
	}
}

// checkMarks: a power loss takes no mark that was seen.
func (w *world) checkMarks() {
	var batch store.Batch
	if err := w.store.Store.Read(context.Background(), admin.RedriveTopic, 1, 10_000, 1<<30, &batch); err != nil {
		w.t.Fatal(err)
	}
	for i, id := range w.marks {
		if i >= len(batch.Items) || string(batch.Items[i].Record.ID()) != id {
			w.t.Fatalf("the power loss took mark %s", id)
		}
	}
}

// commitRedrive does to the model what the commit of a redrive does: what is done and not on
// the list is put there, and nothing else is.
func (w *world) commitRedrive(p *redriveCommit, at int64) {
	g, rd := p.group, p.of
	g.expire(w, at)
	byLetter := make(map[string]string)
	for id, m := range p.marks {
		byLetter[m.DeadLetterID] = id
	}
	if len(byLetter) != len(p.marks) || rd.given[g.name] != 0 && !rd.slow || rd.slow && len(p.marks) > 1 {
		w.t.Fatalf("a dead letter is redriven twice by %s: %+v", rd.name, p.marks)
	}
	for i := range rd.matched {
		d := &rd.matched[i]
		if d.Group != g.name {
			continue
		}
		id, taken := byLetter[d.ID]
		if !taken && rd.slow {
			continue // it has its own turn
		}
		why := g.class(d)
		if !taken && why == "" && w.justDone[modelPlace{g, d.Event}] {
			why = unknowable // maybe only while this commit, which had looked, was being written
		}
		switch {
		case why != unknowable && taken != (why == ""):
			w.t.Fatalf("%s: dead letter %+v is redriven: %t; it is %q", rd.name, d, taken, why)
		case !taken && why == unknowable:
			rd.unsure++
		case !taken:
			rd.skipped[why]++
		}
		if !taken {
			continue
		}
		m, most := p.marks[id], max(times(d), w.times[d.ID]+1)
		if rd.slow {
			most += len(w.redrives) // the others may have been faster
		}
		if m.Redriven < times(d) || m.Redriven > most || m.Offset != d.Event {
			w.t.Fatalf("the mark of %+v is %+v", d, m)
		}
		g.list(id, m)
		rd.given[g.name]++
		delete(byLetter, d.ID)
	}
	if len(byLetter) != 0 {
		w.t.Fatalf("%s redrives what it was not asked for: %+v", rd.name, p.marks)
	}
	w.deliverRedriven()
}

// list puts an event on the list of its group.
func (g *modelGroup) list(id string, m admin.RedriveMark) {
	if e := g.find(m.Offset); e != nil {
		g.move(e, modelDone) // it was, and now it is known
	} else if m.Offset > g.base && g.restored[m.Offset].state != modelDone {
		g.events[m.Offset] = &modelEvent{state: modelDone}
	}
	g.again[m.Offset] = &modelEvent{redrive: &modelRedrive{offset: m.Offset, times: m.Redriven, mark: id, undecided: true}}
	redrives.events++
}

// deliverRedriven has what was redriven durably delivered.
func (w *world) deliverRedriven() {
	for _, g := range w.groups {
		for _, e := range g.again {
			e.redrive.undecided = e.redrive.undecided && !w.marked(e.redrive.mark)
		}
	}
}

func (w *world) marked(id string) bool { return slices.Contains(w.marks, id) }

// redriveAnswers looks at what redrives were answered.
func (w *world) redriveAnswers() {
	w.redriving = slices.DeleteFunc(w.redriving, func(rd *modelRedriving) bool {
		if len(rd.answer) == 0 {
			return false
		}
		a := <-rd.answer
		given, before := 0, 0
		for id, p := range w.redriveCommits {
			if p.of == rd && w.marked(id) {
				given++
				if p.marks[id].DeadLetter.Offset <= a.result.After {
					before++
				}
			}
		}
		if a.err != nil {
			if code := eventhub.ErrorCode(a.err); !w.breaking || code != eventhub.CodeInternal && code != eventhub.CodeShuttingDown || a.result.Redriven > given ||
				rd.slow && (given > a.result.Redriven+1 || before != a.result.Redriven) {
				w.t.Fatalf("redrive of %+v: %+v, %v", rd.query, a.result, a.err)
			}
			return true
		}
		if rd.slow {
			w.checkSlow(rd, a.result)
		} else {
			w.skipRest(rd)
			w.checkResult(rd, a.result)
		}
		if given != a.result.Redriven {
			w.t.Fatalf("redrive of %+v is answered with %+v; %d of its marks are in the log", rd.query, a.result, given)
		}
		return true
	})
}

// skipRest counts what was skipped in groups that were given nothing.
func (w *world) skipRest(rd *modelRedriving) {
	for i, d := range rd.matched {
		why := rd.classes[i]
		switch {
		case rd.given[d.Group] > 0:
		case why == "" && rd.free:
			w.t.Fatalf("%+v was not redriven by %+v", d, rd.query)
		case why == "" || why == unknowable || !rd.free:
			rd.unsure++
		default:
			rd.skipped[why]++
		}
	}
}

// checkSlow is checkResult for one in which other things happened: what was skipped
// is not known, and other redrives may have been faster.
func (w *world) checkSlow(rd *modelRedriving, r admin.RedriveResult) {
	skipped := 0
	for _, n := range r.Skipped {
		skipped += n
	}
	if r.Matched != r.Redriven+skipped || r.Matched > len(rd.matched) || !maps.Equal(r.Groups, rd.given) || !r.Applied {
		w.t.Fatalf("redrive of %+v, slowly: %+v; want %v of %d", rd.query, r, rd.given, len(rd.matched))
	}
}

// checkResult holds a result against what the model has counted.
func (w *world) checkResult(rd *modelRedriving, r admin.RedriveResult) {
	given, left, after := 0, rd.unsure, rd.query.After
	for _, n := range rd.given {
		given += n
	}
	for _, why := range []string{skipWaiting, skipOpen, skipNoGroup, skipGone} {
		n := r.Skipped[why] - rd.skipped[why]
		if left -= n; n < 0 {
			left = -1
			break
		}
	}
	if n := len(rd.matched); n > 0 {
		after = rd.matched[n-1].Offset
	}
	if left != 0 || r.Matched != len(rd.matched) || r.Redriven != given || !maps.Equal(r.Groups, rd.given) || r.After != after ||
		r.Applied != rd.query.Apply || r.Topic != rd.query.Topic {
		w.t.Fatalf("redrive of %+v: %+v; want %d matched, %v redriven, %v skipped and %d more, up to %d", rd.query, r, len(rd.matched), rd.given, rd.skipped, rd.unsure, after)
	}
}

// offerAgain is of an event that was redriven.
func (g *modelGroup) offerAgain(d eventhub.Delivery, fail func(string, ...any)) *modelEvent {
	e := g.again[d.Offset]
	switch {
	case e == nil:
		fail("%d is not on the list of what was redriven", d.Offset)
	case e.redrive.undecided:
		fail("%d is not durably redriven", d.Offset)
	case d.Redriven != e.redrive.times:
		fail("%d is said to be redriven %d times; it was %d times", d.Offset, d.Redriven, e.redrive.times)
	}
	e.redrive.unsure = false
	redrives.delivered++
	return e
}

// keepAgain is what a seek does to the list: it leaves what is at or below to, which
// begins again.
func (g *modelGroup) keepAgain(w *world, to uint64) {
	for offset, e := range g.again {
		l := w.letters[g.letterID(offset, e)]
		switch {
		case e.state == modelDying && l != nil && l.seen:
			delete(g.again, offset)
		case offset > to:
			redrives.taken++
			delete(g.again, offset)
		default:
			redrives.kept++
			r := *e.redrive
			r.unsure = r.unsure || e.state == modelDying
			*e = modelEvent{redrive: &r}
		}
	}
	clear(g.past)
}

// settled: with nothing held up all dead letters have come to their end.
func (w *world) settled() {
	for _, g := range w.groups {
		for _, e := range g.again {
			e.redrive.unsure = false
		}
	}
}

// restoreAgain returns the list of a group as the store has it: all that was on it
// durably, and nothing else but what was acked a short time ago.
func (w *world) restoreAgain(g *modelGroup, p *groupstate.Progress, crash bool) map[uint64]*modelEvent {
	list := make(map[uint64]*modelEvent)
	for _, r := range p.Redriven() {
		offset := r.Offset()
		e := g.again[offset]
		if e != nil && e.redrive.mark != r.Mark() {
			e = nil
		}
		firm, past := g.past[r.Mark()]
		l := w.letters[deadletter.ID(g.topic.name, offset, g.name, g.epoch, r.Mark())]
		switch {
		case firm || l != nil && l.seen:
			w.t.Fatalf("%s has %d on its list, %+v; it is done durably", g, offset, r)
		case e == nil && !(past && crash):
			w.t.Fatalf("%s has %d on its list, %+v; %+v should be there", g, offset, r, g.again[offset])
		case !w.marked(r.Mark()):
			w.t.Fatalf("%s has %d on its list, %+v, and the log does not have its mark", g, offset, r)
		case e != nil && (r.Entry.Redriven() != e.redrive.times || !crash && !e.hadAttempts(r.Attempts())):
			w.t.Fatalf("%s has %d on its list, %+v; it was %+v, %+v", g, offset, r, e, e.redrive)
		}
		if e == nil {
			redrives.lost++
		}
		list[offset] = &modelEvent{
			attempts: min(r.Attempts(), g.maxAttempts-1), stored: r.Attempts(), lost: lostOf(p.History(offset)),
			redrive: &modelRedrive{offset: offset, times: r.Entry.Redriven(), mark: r.Mark()},
		}
	}
	for offset, e := range g.again {
		l := w.letters[g.letterID(offset, e)]
		switch {
		case list[offset] != nil && list[offset].redrive.mark == e.redrive.mark:
		case e.redrive.undecided && crash:
		case e.state == modelDying && l != nil && l.seen:
		default:
			w.t.Fatalf("%s does not have %d on its list any more: %+v, %+v", g, offset, e, e.redrive)
		}
	}
	clear(g.past)
	return list
}

// hadAttempts reports whether the event, as an engine that ends in order leaves it,
// had so many.
func (e *modelEvent) hadAttempts(n int) bool {
	if e.state == modelLeased {
		return n == e.attempts-1
	}
	return n == e.attempts || e.holder == nil && n == e.stored
}

// checkList: after a flush the store has the list as it is, without what was done
// before.
func (w *world) checkList(g *modelGroup, done map[string]bool) {
	p, err := progressOf(context.Background(), w.store.Store, g.topic.name, g.name, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	stored := make(map[uint64]*groupstate.Redriven)
	for _, r := range p.Redriven() {
		offset := r.Offset()
		stored[offset] = r
		if _, past := done[r.Mark()]; past {
			w.t.Fatalf("%s keeps %d on its stored list, which is done: %+v", g, offset, r)
		}
	}
	for offset, e := range g.again {
		if r := stored[offset]; e.state != modelDying && (r == nil || r.Mark() != e.redrive.mark) {
			w.t.Fatalf("%s has %d not on its stored list: %+v, %+v", g, offset, e, e.redrive)
		}
	}
}

// checkAgain is checkIdle for the list: what is due goes out, unless its key is held.
func (w *world) checkAgain(g *modelGroup, room int, idle bool) {
	if w.commits != nil {
		return // some may be in between
	}
	for offset, e := range g.again {
		suspect := e.isSuspect()
		if e.state != modelWaiting || e.latest > now() {
			continue
		}
		key, held := g.topic.keys[offset-1], false
		if g.ordered && key != "" {
			for o, other := range g.all() {
				if g.topic.keys[o-1] == key && (other.state == modelLeased || other.state == modelDying || other.state == modelWaiting && other.latest > now()) {
					held = true
				}
				suspect = suspect || other.isSuspect() && g.topic.keys[o-1] == key
			}
			for o, other := range g.restored {
				suspect = suspect || other.isSuspect() && g.topic.keys[o-1] == key
			}
		}
		if !held && (room > 0 && !suspect || idle) {
			w.t.Fatalf("%s has room (%d, idle %t) and does not deliver %d, which was redriven: %+v", g, room, idle, offset, e)
		}
	}
}

// addRow notes a dead letter as DeadLetters is to return it.
func (w *world) addRow(topic *modelTopic, item store.Item, e eventhub.Event) {
	var p deadletter.Payload
	if err := json.Unmarshal(e.Payload, &p); err != nil {
		w.t.Fatal(err)
	}
	w.rows[topic.name] = append(w.rows[topic.name], &admin.DeadLetter{
		Offset: item.Offset, ID: e.ID, TS: item.Record.CommitTime(), Topic: p.Topic, Group: p.Group, Event: p.Offset, EventID: p.Event.ID, Key: p.Event.Key,
		Epoch: p.Epoch, Attempts: p.Attempts, Reason: p.Reason, Redriven: p.Redriven,
	})
}

// checkFlight compares what is reported of the list with it. A group that is not loaded has
// nothing under way.
func (w *world) checkFlight(g *modelGroup) {
	if w.commits != nil || w.runtime(g.topic.name, g.name) == nil {
		return
	}
	list, err := w.bus.InFlight(context.Background(), g.topic.name, g.name, admin.MaxPage)
	if err != nil {
		w.t.Fatal(err)
	}
	n := 0
	for _, f := range list {
		if e := g.find(f.Offset); e != nil {
			w.checkTimes(g, e, &f)
		}
		if f.Redriven == 0 {
			continue
		}
		n++
		e := g.again[f.Offset]
		states := map[modelState][]string{modelLeased: {"leased"}, modelWaiting: {"waiting", "held"}, modelDying: {"dead_lettering"}}
		if e == nil || e.redrive.times != f.Redriven || e.attempts != f.Attempt || !slices.Contains(states[e.state], f.State) {
			w.t.Fatalf("%s has %+v in flight; it is %+v", g, f, e)
		}
	}
	if n != len(g.again) {
		w.t.Fatalf("%s has %d redriven events in flight; it has %d: %+v", g, n, len(g.again), list)
	}
}
