package bus

import (
	"context"
	"slices"
	"strconv"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
)

// What members of doorWorld say, and what must hold.

// settle has a member ack or give up some of what it holds, by lease or by id.
func (w *doorWorld) settle() *deed {
	nothing := &deed{name: "nothing", run: func() {}, then: func(bool) {}}
	busy := slices.DeleteFunc(slices.Clone(w.members), func(m *doorMember) bool { return len(m.held) == 0 })
	if len(busy) == 0 {
		return nothing
	}
	m := busy[rapid.IntRange(0, len(busy)-1).Draw(w.t, "who")]
	one := m.held[rapid.IntRange(0, len(m.held)-1).Draw(w.t, "which")]
	s := eventhub.Settlement{}
	if rapid.IntRange(0, 3).Draw(w.t, "give up") == 0 {
		s.Verdict, s.Terminal = eventhub.Nack, true
	}
	ref := byLease(one)
	if w.namedLast(m, one) && rapid.Bool().Draw(w.t, "by id") {
		ref = eventhub.Ref{ID: one.ID(), Topic: one.Topic}
	}
	s.Refs = []eventhub.Ref{ref}
	var out []eventhub.Outcome
	var err error
	return &deed{name: "settle", topic: one.Topic, run: func() { out, err = m.in.Sub.Settle(context.Background(), s) }, then: func(alone bool) {
		w.settled(m.group, one, s.Verdict, alone, out, err)
		m.held = slices.DeleteFunc(m.held, func(g got) bool { return g.Lease == one.Lease })
	}}
}

// namedLast reports whether the event is the one that its id and topic mean: the last
// one of them that the member was given.
func (w *doorWorld) namedLast(m *doorMember, one got) bool {
	same := slices.DeleteFunc(slices.Clone(m.held), func(g got) bool { return g.Topic != one.Topic || g.ID() != one.ID() })
	return same[len(same)-1].Lease == one.Lease
}

func serialOf(g got) int {
	n, _ := strconv.Atoi(g.Payload)
	return n
}

func (w *doorWorld) event(serial int) *doorEvent {
	i := slices.IndexFunc(w.events, func(e *doorEvent) bool { return e.serial == serial })
	if i < 0 {
		return nil
	}
	return w.events[i]
}

// settled notes what a verdict on one delivery has come to.
func (w *doorWorld) settled(group string, one got, verdict eventhub.Verdict, alone bool, out []eventhub.Outcome, err error) {
	e := w.event(serialOf(one))
	if e == nil {
		w.t.Fatalf("%s has %s at %d of %s, payload %s, which nobody published", group, one.ID(), one.Offset, one.Topic, one.Payload)
	}
	applied := err == nil && out[0] == eventhub.Applied
	switch {
	case applied && e.state == doorGone && alone:
		w.t.Fatalf("the lease of %s in %s, which was deleted, is still good", e.id, e.topic)
	case !applied && e.state == doorThere && alone && !w.unsure[e.topic] && !e.settled[group]:
		w.t.Fatalf("%s settles %s at %d of %s: %v, %v; it holds it", group, e.id, one.Offset, e.topic, out, err)
	case applied && e.settled[group] && !e.maybe[group]:
		w.t.Fatalf("%s has settled event %d, %s of %s, twice", group, e.serial, e.id, e.topic)
	}
	if applied {
		e.settled[group] = true
	}
}

// requeue publishes the event of a dead letter of the topic again.
func (w *doorWorld) requeue(topic string) *deed {
	w.serial++
	e := &doorEvent{serial: w.serial, topic: topic, settled: make(map[string]bool), maybe: make(map[string]bool)}
	n := rapid.IntRange(0, 5).Draw(w.t, "letter")
	var r eventhub.Receipt
	var err error
	return &deed{name: "requeue", topic: topic, run: func() {
		var letters []uint64
		q := admin.DeadLetterQuery{Topic: eventhub.DeadLetterTopic(topic), All: true}
		_ = w.bus.DeadLetters(context.Background(), q, func(d *admin.DeadLetter) error {
			letters = append(letters, d.Offset)
			return nil
		})
		if len(letters) > 0 {
			r, err = w.bus.RequeueIf(context.Background(), q.Topic, letters[n%len(letters)], []byte(strconv.Itoa(e.serial)), admin.MaxRedriveMarks, "somebody")
		}
	}, then: func(alone bool) {
		if eventhub.ErrorCode(err) == eventhub.CodeConflict && !alone {
			return // another one was there before
		}
		if err != nil {
			w.t.Fatalf("requeue in %s: %v", topic, err)
		}
		if r.ID == "" || r.Duplicate {
			return
		}
		e.id, e.state = r.ID, doorThere
		if !alone {
			e.state = doorUnsure
		}
		w.events = append(w.events, e)
	}}
}

// redrive gives back what was given up and is there.
func (w *doorWorld) redrive(topic string) *deed {
	var r admin.RedriveResult
	var err error
	q := admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: eventhub.DeadLetterTopic(topic)}, Apply: true, Rate: admin.MaxRedriveRate}
	return &deed{name: "redrive", topic: topic, run: func() { r, err = w.bus.Redrive(context.Background(), q) }, then: func(bool) {
		if err != nil && eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
			w.t.Fatalf("redrive of %s: %+v, %v", topic, r, err)
		}
		for _, e := range w.events {
			for group := range r.Groups {
				e.maybe[group] = e.maybe[group] || e.topic == topic && e.settled[group]
			}
		}
	}}
}

// check compares the log with what was published, and what members and tails were given
// with the log.
func (w *doorWorld) check() {
	synctest.Wait()
	offsets := w.checkLog()
	w.checkTopics()
	w.collect()
	for _, m := range w.members {
		w.checkMember(m, offsets)
	}
	for _, m := range w.tails {
		w.checkTail(m)
	}
}

// checkLog: what is gone does not come back, and what is there is there.
func (w *doorWorld) checkLog() map[int]uint64 {
	found := make(map[int]uint64)
	for _, topic := range doorTopics {
		var batch store.Batch
		if err := w.store.Store.Read(context.Background(), topic, 1, 1000, 1<<30, &batch); err != nil {
			w.t.Fatal(err)
		}
		for _, item := range batch.Items {
			e, err := item.Record.Event(item.Offset)
			if err != nil {
				w.t.Fatal(err)
			}
			serial, _ := strconv.Atoi(string(e.Payload))
			found[serial] = item.Offset
		}
	}
	for _, e := range w.events {
		_, there := found[e.serial]
		switch {
		case e.state == doorUnsure && there:
			e.state = doorThere
		case e.state == doorUnsure && w.isDelayed(e):
			e.state = doorDelayed
		case e.state == doorUnsure:
			e.state = doorGone
		case e.state == doorDelayed && e.at <= now():
			e.state = doorThere
		}
		if e.state == doorThere && !there || e.state == doorGone && there || e.state == doorDelayed && there {
			w.t.Fatalf("event %+v is in the log: %t", e, there)
		}
	}
	return found
}

// isDelayed asks the store.
func (w *doorWorld) isDelayed(e *doorEvent) bool {
	p, err := w.store.Store.FindDelayed(context.Background(), e.topic, e.id)
	if err != nil {
		return false
	}
	of, err := p.Record.Event(1)
	return err == nil && string(of.Payload) == strconv.Itoa(e.serial)
}

// checkTopics: a topic is there if somebody made it, and one without events has no head.
func (w *doorWorld) checkTopics() {
	list, err := w.bus.Topics(context.Background(), "", 100)
	if err != nil {
		w.t.Fatal(err)
	}
	there := make(map[string]admin.TopicInfo)
	for _, info := range list {
		there[info.Topic] = info
	}
	for _, topic := range doorTopics {
		info, ok := there[topic]
		if w.unsure[topic] {
			delete(w.unsure, topic)
			delete(w.made, topic)
			if ok && !w.isMade(topic) {
				w.make(topic, "somebody", true)
			}
		}
		if ok != w.isThere(topic) {
			w.t.Fatalf("topic %s is there: %t, %+v; it should be: %t", topic, ok, info, w.isThere(topic))
		}
		empty := !slices.ContainsFunc(w.events, func(e *doorEvent) bool { return e.topic == topic && e.state == doorThere })
		if empty && (info.Head != 0 || info.FirstOffset != 0) {
			w.t.Fatalf("topic %s has no events and is reported as %+v", topic, info)
		}
	}
}

// collect takes what members were given, and forgets those that have ended.
func (w *doorWorld) collect() {
	w.members = slices.DeleteFunc(w.members, func(m *doorMember) bool {
		m.held = append(m.held, m.in.Take()...)
		m.in.Mu.Lock()
		defer m.in.Mu.Unlock()
		return len(m.in.Ends) > 0
	})
	for _, m := range w.members {
		// A lease of an event that is gone is void.
		m.held = slices.DeleteFunc(m.held, func(g got) bool {
			e := w.event(serialOf(g))
			return e == nil || e.state == doorGone
		})
	}
}

// checkMember: it, or another one of its group, has all that is there.
func (w *doorWorld) checkMember(m *doorMember, offsets map[int]uint64) {
	for _, e := range w.events {
		if e.state != doorThere || e.settled[m.group] || !covers(m.patterns, e.topic) {
			continue
		}
		holders := 0
		for _, other := range w.members {
			if other.group != m.group {
				continue
			}
			// A restart or a member that left may have brought it again.
			if slices.ContainsFunc(other.held, func(g got) bool { return serialOf(g) == e.serial }) {
				holders++
			}
		}
		if holders != 1 && !(e.maybe[m.group] && holders == 0) {
			w.t.Fatalf("a member of %s by %v is there, and event %d, %s at %d of %s, is held by %d members", m.group, m.patterns, e.serial, e.id, offsets[e.serial], e.topic, holders)
		}
	}
}

// checkTail: it has had all that is there, once, offsets rising.
func (w *doorWorld) checkTail(m *doorTail) {
	for _, g := range m.in.Take() {
		serial := serialOf(g)
		e := w.event(serial)
		if e == nil || !covers(m.patterns, g.Topic) || e.topic != g.Topic {
			w.t.Fatalf("a tail of %v is given %s at %d of %s, payload %s", m.patterns, g.ID(), g.Offset, g.Topic, g.Payload)
		}
		if g.Offset <= m.last[g.Topic] {
			w.t.Fatalf("a tail of %v is given %d of %s after %d", m.patterns, g.Offset, g.Topic, m.last[g.Topic])
		}
		m.last[g.Topic] = g.Offset
		m.got[serial] = true
	}
	for _, e := range w.events {
		if e.state == doorThere && e.serial >= m.since && covers(m.patterns, e.topic) && !m.got[e.serial] {
			w.t.Fatalf("a tail of %v has not had event %d, %s of %s", m.patterns, e.serial, e.id, e.topic)
		}
	}
}

// finish lets one member of each group have everything; then all that is there is
// settled, once. After a start from the store topics are described alike.
func (w *doorWorld) finish() {
	time.Sleep(2 * time.Second)
	w.check()
	before, err := w.bus.Topics(context.Background(), "", 100)
	if err != nil {
		w.t.Fatal(err)
	}
	w.restart()
	after, err := w.bus.Topics(context.Background(), "", 100)
	if err != nil || !slices.Equal(before, after) {
		w.t.Fatalf("topics are reported as %+v; before the restart as %+v; %v", after, before, err)
	}
	for _, group := range []string{"g", "h"} {
		d := w.join([]string{"p.**"}, group)
		d.run()
		d.then(true)
	}
	for range 20 {
		w.check()
		for _, m := range w.members {
			for _, one := range m.held {
				out, err := m.in.Sub.Settle(context.Background(), eventhub.Settlement{Refs: []eventhub.Ref{byLease(one)}})
				w.settled(m.group, one, eventhub.Ack, true, out, err)
			}
			m.held = nil
		}
	}
	for _, topic := range doorTopics {
		d := w.deleteTopic(topic)
		d.run()
		d.then(true)
	}
	w.check()
	w.checkForgotten()
}

// checkForgotten: of topics that are deleted nothing is kept.
func (w *doorWorld) checkForgotten() {
	c := &w.bus.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, topic := range doorTopics {
		if c.topics[topic] != nil {
			w.t.Fatalf("topic %s was deleted and is counted: %+v", topic, c.topics[topic])
		}
	}
}
