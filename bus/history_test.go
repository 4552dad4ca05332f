package bus

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
)

// replay returns "topic/offset" of what a replay visits.
func (r *rig) replay(q admin.ReplayQuery) []string {
	r.t.Helper()
	seen := []string{}
	err := r.bus.Replay(context.Background(), q, func(topic string, item eventhub.Item) error {
		seen = append(seen, fmt.Sprint(topic, "/", item.Offset))
		return nil
	})
	if err != nil {
		r.t.Errorf("Replay(%+v): %v", q, err)
	}
	return seen
}

// publishEvents publishes each event by itself and a second after the one before.
func (r *rig) publishEvents(events ...eventhub.Event) []eventhub.Receipt {
	r.t.Helper()
	var all []eventhub.Receipt
	for _, e := range events {
		if e.Payload == nil {
			e.Payload = []byte(`1`)
		}
		receipts, err := r.bus.Publish(context.Background(), e)
		if err != nil {
			r.t.Fatal(err)
		}
		all = append(all, receipts...)
		time.Sleep(time.Second)
	}
	return all
}

// found shows a page as "topic/id".
func found(t *testing.T) func(list []admin.Found, err error) string {
	return func(list []admin.Found, err error) string {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
		var names []string
		for _, f := range list {
			names = append(names, fmt.Sprintf("%s/%s", f.Topic, f.Record.ID()))
		}
		return strings.Join(names, " ")
	}
}

// TestLinks: whichever way an event comes into the log, it is found by what it says
// of others.
func TestLinks(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx, none := context.Background(), eventhub.Place{}
		r.publishEvents(
			eventhub.Event{Topic: "b", ID: "root", Headers: map[string]string{"X-Correlation-Id": "c"}},
			eventhub.Event{Topic: "a", ID: "root"},
			eventhub.Event{Topic: "c", ID: "two", CausedBy: []string{"root", "other", "root"}},
			eventhub.Event{Topic: "a", ID: "one", CausedBy: []string{"root"}, Headers: map[string]string{"x-correlation-id": "c", "x-a": "d"}},
			eventhub.Event{Topic: "a", ID: "later", CausedBy: []string{"root"}, Headers: map[string]string{"x-correlation-id": "c"}, Delay: time.Minute},
		)
		equal(t, "find", found(t)(r.bus.Find(ctx, "root", 10)), "a/root b/root")
		equal(t, "find one", found(t)(r.bus.Find(ctx, "root", 1)), "a/root")
		equal(t, "find none", found(t)(r.bus.Find(ctx, "later", 1)), "")
		equal(t, "effects", found(t)(r.bus.Effects(ctx, "root", none, 10)), "a/one c/two")
		equal(t, "effects of the other", found(t)(r.bus.Effects(ctx, "other", none, 10)), "c/two")
		equal(t, "correlated", found(t)(r.bus.Correlated(ctx, "c", none, 10)), "a/one b/root")
		time.Sleep(2 * time.Minute) // now the last one is published
		equal(t, "effects", found(t)(r.bus.Effects(ctx, "root", none, 10)), "a/one a/later c/two")
		equal(t, "after", found(t)(r.bus.Effects(ctx, "root", eventhub.Place{Topic: "a", Offset: 2}, 10)), "a/later c/two")
		equal(t, "a page", found(t)(r.bus.Effects(ctx, "root", eventhub.Place{Topic: "a", Offset: 2}, 1)), "a/later")
		equal(t, "correlated", found(t)(r.bus.Correlated(ctx, "c", none, 10)), "a/one a/later b/root")
		equal(t, "correlated after", found(t)(r.bus.Correlated(ctx, "c", eventhub.Place{Topic: "aa"}, 10)), "b/root")

		// A dead letter is an effect of its event.
		in := r.subscribe(opts("c", "g"))
		e := in.Take()[0]
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(e))
		synctest.Wait()
		list, err := r.bus.Effects(ctx, "two", none, 10)
		if err != nil || len(list) != 1 || list[0].Topic != "c.dlq" {
			t.Errorf("effects of a dead event: %v, %v", list, err)
		}
		// And so is what an ack-and-publish publishes.
		r.publishEvents(eventhub.Event{Topic: "c", ID: "three"})
		h := []eventhub.AckPublish{{Refs: []eventhub.Ref{byLease(in.Take()[0])},
			Events: []eventhub.Event{{Topic: "d", ID: "four", CausedBy: []string{"three"}, Payload: []byte(`1`)}}}}
		in.Sub.AckAndPublish(ctx, h, func([]eventhub.AckPublish) {})
		synctest.Wait()
		equal(t, "effects of an ack-and-publish", found(t)(r.bus.Effects(ctx, "three", none, 10)), "d/four")
	})
}
