package client_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"eventhub"
	"eventhub/wire"
)

// limiting is a hub that refuses so many publishes before it takes each, by topic, and says
// what it was asked for.
func limiting(refusals map[string]int, retry string, tried chan<- string) scripted {
	return func(r *wire.Request) ([]string, bool) {
		topic := r.Event.Topic
		tried <- topic
		if refusals[topic] > 0 {
			refusals[topic]--
			return []string{fmt.Sprintf(`{"op":"ERR","code":"rate_limited","msg":"slowly","corr":%q%s}`, r.Corr, retry)}, true
		}
		return []string{fmt.Sprintf(`{"op":"OK","corr":%q,"id":"x","offset":7}`, r.Corr)}, true
	}
}

// TestLimitsMakePublishesSlower: what the hub refuses for now is tried again, each publication
// for itself, and all else is as it was.
func TestLimitsMakePublishesSlower(t *testing.T) {
	tried := make(chan string, 100)
	refusals := map[string]int{"a": 3, "c": 2}
	c := dial(t, startScripted(t, limiting(refusals, `,"retry_after_ms":1`, tried)))
	receipts, err := c.Publish(bounded(t), event("a", `1`))
	if err != nil || len(receipts) != 1 || receipts[0].Offset != 7 {
		t.Errorf("Publish: %v, %v", receipts, err)
	}
	if len(tried) != 4 {
		t.Errorf("%d tries; want 4", len(tried))
	}
	pubs := []eventhub.Publication{{Events: []eventhub.Event{event("b", `1`)}}, {Events: []eventhub.Event{event("c", `1`)}}, {}, {Events: []eventhub.Event{event("d", `1`)}}}
	done := make(chan []eventhub.Publication)
	c.Enqueue(bounded(t), pubs, func(pubs []eventhub.Publication) { done <- pubs })
	for i, pub := range <-done {
		if pub.Err != nil || len(pub.Receipts) != len(pub.Events) || len(pub.Events) > 0 && pub.Receipts[0].Offset != 7 {
			t.Errorf("Enqueue %d: %v, %v", i, pub.Receipts, pub.Err)
		}
	}
	if len(tried) != 4+5 {
		t.Errorf("%d tries; want 5 more", len(tried)-4)
	}
}

// TestWaitForALimitEnds: with the context or the client, and then nothing is published.
func TestWaitForALimitEnds(t *testing.T) {
	for name, closes := range map[string]bool{"context": false, "client": true} {
		t.Run(name, func(t *testing.T) {
			tried := make(chan string, 100)
			c := dial(t, startScripted(t, limiting(map[string]int{"a": 100, "b": 100}, `,"retry_after_ms":3600000`, tried)))
			ctx, cancel := context.WithCancel(context.Background()) // nothing else ends the wait
			defer cancel()
			ended := make(chan error, 2)
			go func() {
				_, err := c.Publish(ctx, event("a", `1`))
				ended <- err
			}()
			c.Enqueue(ctx, []eventhub.Publication{{Events: []eventhub.Event{event("b", `1`)}}}, func(pubs []eventhub.Publication) { ended <- pubs[0].Err })
			<-tried
			<-tried
			if _, err := c.Publish(bounded(t), event("c", `1`)); err != nil { // whose answer comes after theirs
				t.Fatal(err)
			}
			if closes {
				c.Close()
			} else {
				cancel()
			}
			for range 2 {
				if err := <-ended; eventhub.ErrorCode(err) != eventhub.CodeRateLimited && !errors.Is(err, context.Canceled) {
					t.Errorf("ended with %v", err)
				}
			}
			if len(tried) != 1 {
				t.Errorf("%d tries before the time that the hub has said", len(tried)-1)
			}
		})
	}
}
