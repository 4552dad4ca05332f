package bus

import (
	"context"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/store"
)

// Conditions of publishes in the histories.

// expectations counts what became of them, to show that the histories met it.
var expectations struct{ held, conflicts, unindexed int }

func reportExpectations(t *testing.T) {
	x := expectations
	t.Logf("%d conditions held, %d did not, %d met a topic that was not indexed yet", x.held, x.conflicts, x.unindexed)
	if x.held+x.conflicts > 100 && min(x.held, x.conflicts, x.unindexed) == 0 {
		t.Error("the histories did not meet all of it")
	}
	expectations.held, expectations.conflicts, expectations.unindexed = 0, 0, 0
}

// drawExpect gives some events a condition, which may hold.
func (w *world) drawExpect(e *eventhub.Event) {
	if rapid.IntRange(0, 3).Draw(w.t, "expect") > 0 {
		return
	}
	e.Expect.Kind = eventhub.ExpectTopicOffset
	if e.Key != "" && rapid.IntRange(0, 3).Draw(w.t, "of the topic") > 0 {
		e.Expect.Kind = eventhub.ExpectKeyOffset
	}
	now := w.topic(e.Topic).present(e)
	e.Expect.Offset = rapid.SampledFrom([]uint64{now, now, now, now + 1, 0, w.topic(e.Topic).head()}).Draw(w.t, "expected")
}

// present returns what an event should expect.
func (p *modelTopic) present(e *eventhub.Event) uint64 {
	if e.Expect.Kind == eventhub.ExpectTopicOffset {
		return p.head()
	}
	for i := len(p.keys); i > 0; i-- {
		if p.keys[i-1] == e.Key {
			return uint64(i)
		}
	}
	return 0
}

// checkHeld: what the events of a publication expect did hold before them.
func (w *world) checkHeld(events []eventhub.Event, receipts []eventhub.Receipt) {
	for i := range events {
		e := &events[i]
		if e.Expect.IsZero() || receipts[i].Duplicate {
			continue
		}
		expectations.held++
		first := receipts[i].Offset
		for j, r := range receipts[:i] {
			if !r.Duplicate && events[j].Topic == e.Topic {
				first = min(first, r.Offset)
			}
		}
		topic := w.topic(e.Topic)
		w.due(topic, first)
		if now := topic.present(e); now != e.Expect.Offset {
			w.t.Fatalf("event %q of key %q is at %d of %s and expected %s %d, which was %d", receipts[i].ID, e.Key, receipts[i].Offset, e.Topic, e.Expect, e.Expect.Offset, now)
		}
	}
}

// checkConflict: an event, which is no duplicate, expected what was not so.
func (w *world) checkConflict(events []eventhub.Event, err error) {
	expectations.conflicts++
	present, ok := eventhub.PresentOffset(err)
	at := eventhub.AsError(err).Index
	if !ok || at == nil || *at >= len(events) {
		w.t.Fatalf("a conflict without an offset or a place: %+v", eventhub.AsError(err))
	}
	e := &events[*at]
	topic := w.topic(e.Topic)
	_, isDuplicate := topic.first[e.ID]
	if e.Expect.IsZero() || present == e.Expect.Offset || isDuplicate {
		w.t.Fatalf("event %q expects %s %d; duplicate: %t; refused with %v", e.ID, e.Expect, e.Expect.Offset, isDuplicate, err)
	}
	if present == topic.present(e) || w.isMoved(topic, e, present) {
		return
	}
	w.t.Fatalf("event of key %q in %s: %v; the model has %d", e.Key, e.Topic, err, topic.present(e))
}

// isBeingIndexed reports whether events were refused because they expect something of a key, and the
// index of its topic is not ready.
func isBeingIndexed(events []eventhub.Event, err error) bool {
	expects := slices.ContainsFunc(events, func(e eventhub.Event) bool { return e.Expect.Kind == eventhub.ExpectKeyOffset })
	if !expects || eventhub.ErrorCode(err) != eventhub.CodeOverloaded || !strings.Contains(err.Error(), "indexed") {
		return false
	}
	expectations.unindexed++
	return true
}

// isMoved reports whether the event at an offset was delayed until it came there, unknown to
// the model, and would be what an event expects.
func (w *world) isMoved(topic *modelTopic, e *eventhub.Event, offset uint64) bool {
	var batch store.Batch
	if err := w.store.Store.Read(context.Background(), topic.name, offset, 1, 0, &batch); err != nil {
		w.t.Fatal(err)
	}
	if offset <= topic.head() || len(batch.Items) == 0 || batch.Items[0].Offset != offset {
		return false
	}
	moved, err := batch.Items[0].Record.Event(offset)
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.HasPrefix(moved.ID, "later-") && (e.Expect.Kind == eventhub.ExpectTopicOffset || moved.Key == e.Key)
}
