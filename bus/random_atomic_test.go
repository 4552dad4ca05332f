package bus

import (
	"context"
	"fmt"
	"slices"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/store"
)

// Ack-and-publishes and scheduled events in the histories.

// modelDelayed is an event that was published with a delay.
type modelDelayed struct {
	event eventhub.Event
	at    int64
}

// ackAndPublish acks deliveries of a member and publishes events in one step: all of it
// happens, or nothing.
func (w *world) ackAndPublish() {
	g := w.drawGroup()
	via := w.drawMember(func(m *modelMember) bool { return m.isIn(g) && m.run == w.bus && !m.orphan })
	if via == nil || w.commits != nil {
		return
	}
	h := eventhub.AckPublish{}
	for range rapid.IntRange(1, 2).Draw(w.t, "refs") {
		h.Refs = append(h.Refs, w.drawRef(g, via))
	}
	for range rapid.IntRange(1, 2).Draw(w.t, "events") {
		e := eventhub.Event{Topic: rapid.SampledFrom([]string{"b", "b", "a", "a.x"}).Draw(w.t, "topic"), Payload: []byte(`"made of it"`)}
		if rapid.IntRange(0, 4).Draw(w.t, "own id") == 0 {
			e.ID = rapid.SampledFrom([]string{"p", "q", "r", "s"}).Draw(w.t, "id")
		}
		if rapid.Bool().Draw(w.t, "keyed") {
			e.Key = "k"
		}
		w.drawExpect(&e)
		h.Events = append(h.Events, e)
	}
	places, valid := w.find(via, h.Refs)
	hs, calls := []eventhub.AckPublish{h}, 0
	w.guarded(func() { via.sub.AckAndPublish(context.Background(), hs, func([]eventhub.AckPublish) { calls++ }) })
	synctest.Wait()
	code := eventhub.ErrorCode(hs[0].Err)
	switch {
	case calls != 1:
		w.t.Fatalf("%d calls of done after an ack-and-publish", calls)
	case valid && code == eventhub.CodeConflict:
		w.checkConflict(h.Events, hs[0].Err)
		return // the leases stay, and the events do not come again
	case valid && isBeingIndexed(h.Events, hs[0].Err):
		return // likewise
	case valid != (code == ""), !valid && code != eventhub.CodeLeaseLost && code != eventhub.CodeBadRequest:
		w.t.Fatalf("ack-and-publish of %+v in %s: %v; its leases are valid: %t", h.Refs, g, hs[0].Err, valid)
	case !valid:
		return // that nothing was published shows in the heads
	}
	w.checkHeld(h.Events, hs[0].Receipts)
	for i, r := range hs[0].Receipts {
		w.receipt(h.Events[i], r)
	}
	for _, p := range places {
		e := p.group.find(p.offset)
		p.group.move(e, modelDone)
		if e.redrive != nil {
			p.group.past[e.redrive.mark] = true
		}
	}
}

// find finds the events that refs name, and reports whether all of them can be
// acked in one step: they are of one topic, each named once by its last lease.
func (w *world) find(via *modelMember, refs []eventhub.Ref) (places []modelPlace, valid bool) {
	for _, ref := range refs {
		g, offset, e := named(via.groups, via, ref)
		p := modelPlace{g, offset}
		if e == nil || e.state != modelLeased && e.state != modelWaiting || slices.Contains(places, p) || len(places) > 0 && places[0].group != g {
			return nil, false
		}
		places = append(places, p)
	}
	return places, true
}

// delayEvent publishes an event with a delay.
func (w *world) delayEvent() {
	if w.commits != nil {
		return // would wait
	}
	w.delays++
	delay := time.Duration(rapid.SampledFrom([]int{1, 40, 300, 2500}).Draw(w.t, "delay")) * time.Millisecond
	e := eventhub.Event{
		Topic: rapid.SampledFrom([]string{"a", "b", "a.x"}).Draw(w.t, "topic"), ID: fmt.Sprintf("later-%d", w.delays),
		Key: rapid.SampledFrom([]string{"", "k"}).Draw(w.t, "key"), Payload: []byte(`"later"`), Delay: delay,
	}
	receipts, err := w.bus.Publish(context.Background(), e)
	at := w.wall() + delay.Milliseconds()
	if err != nil || receipts[0] != (eventhub.Receipt{ID: e.ID, DeliverAt: time.UnixMilli(at)}) {
		w.t.Fatalf("a publish with delay %s: %+v, %v; want it at %d", delay, receipts, err, at)
	}
	w.delayed = append(w.delayed, modelDelayed{e, at})
	w.added(w.topic(e.Topic))
}

// cancel takes a scheduled event back, or tries it with one that is not.
func (w *world) cancel() {
	if w.commits != nil || w.delays == 0 {
		return
	}
	id := fmt.Sprintf("later-%d", rapid.IntRange(1, w.delays).Draw(w.t, "which"))
	topic := rapid.SampledFrom([]string{"a", "b", "a.x"}).Draw(w.t, "topic")
	i := slices.IndexFunc(w.delayed, func(p modelDelayed) bool { return p.event.ID == id })
	want := eventhub.CodeUnknownID
	if i >= 0 {
		topic, want = w.delayed[i].event.Topic, ""
		w.delayed = slices.Delete(w.delayed, i, i+1)
	}
	if err := w.bus.Cancel(context.Background(), topic, id); eventhub.ErrorCode(err) != want {
		w.t.Fatalf("Cancel of %s: %v; want %q", id, err, want)
	}
}

func (w *world) topic(name string) *modelTopic { return w.topics[slices.Index(worldTopics, name)] }

// due adds the scheduled events that came to a topic below an offset: each one
// once, and not before its time.
func (w *world) due(topic *modelTopic, below uint64) {
	if topic.head()+1 >= below || topic.source != nil {
		return
	}
	var batch store.Batch
	if err := w.store.Store.Read(context.Background(), topic.name, topic.head()+1, 1000, 1<<30, &batch); err != nil {
		w.t.Fatal(err)
	}
	for _, item := range batch.Items {
		if item.Offset >= below {
			return
		}
		id := string(item.Record.ID())
		i := slices.IndexFunc(w.delayed, func(p modelDelayed) bool { return p.event.Topic == topic.name && p.event.ID == id })
		if i < 0 || max(item.Record.CommitTime(), w.set.before) < w.delayed[i].at {
			w.t.Fatalf("%s is at %d of %s, and nobody published it there, or for a later time; delayed: %+v", id, item.Offset, topic.name, w.delayed)
		}
		offset, _ := topic.add(id, w.delayed[i].event, item.Record.CommitTime())
		if offset != item.Offset {
			w.t.Fatalf("%s is at %d of %s; want %d", id, item.Offset, topic.name, offset)
		}
		w.delayed = slices.Delete(w.delayed, i, i+1)
		w.added(topic)
	}
}

// overdue adds what has come due, and looks for what should have.
func (w *world) overdue() {
	if len(w.pending) > 0 {
		return // its events have their places, which we do not know yet
	}
	for _, topic := range w.topics {
		w.due(topic, eventhub.MaxOffset)
	}
	for _, p := range w.delayed {
		if p.at <= w.wall() && w.commits == nil && !w.breaking && now() > w.set.noticed {
			w.t.Fatalf("%s was due at %d and is not in %s %d ms later", p.event.ID, p.at, p.event.Topic, w.wall()-p.at)
		}
	}
}
