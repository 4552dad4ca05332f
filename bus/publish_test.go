package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
)

func TestPublishGivesReceipts(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		receipts, err := r.bus.Publish(ctx,
			eventhub.Event{Topic: "a.b", Payload: []byte(`{"n": 1}`)},
			eventhub.Event{Topic: "c", ID: "own", Payload: []byte(`2`)},
			eventhub.Event{Topic: "a.b", Payload: []byte(`3`)})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "offsets", []uint64{receipts[0].Offset, receipts[1].Offset, receipts[2].Offset}, []uint64{1, 1, 2})
		if receipts[1].ID != "own" || len(receipts[0].ID) != 36 || receipts[0].ID >= receipts[2].ID {
			t.Errorf("ids = %q, %q, %q; want uuid, own, a later uuid", receipts[0].ID, receipts[1].ID, receipts[2].ID)
		}
		again, err := r.bus.Publish(ctx, eventhub.Event{Topic: "c", ID: "own", Payload: []byte(`5`)})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "the duplicate's receipt", again[0], eventhub.Receipt{ID: "own", Offset: 1, Duplicate: true})
		equal(t, "payload of c", string(r.events("c")[0].Payload), "2")
		equal(t, "payload of a.b", string(r.events("a.b")[0].Payload), `{"n":1}`)
	})
}

func TestPublishIsAllOrNothing(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, bad := range []struct {
			event eventhub.Event
			code  eventhub.Code
			says  string
		}{
			{eventhub.Event{Topic: "t x", Payload: []byte(`1`)}, eventhub.CodeBadTopic, "t x"},
			{eventhub.Event{Topic: "t", Payload: []byte(`{`)}, eventhub.CodeBadJSON, "payload"},
			{eventhub.Event{Topic: "t"}, eventhub.CodeBadRequest, "payload"},
			{eventhub.Event{Topic: "t.dlq", Payload: []byte(`1`)}, eventhub.CodeForbidden, "t.dlq"},
			{eventhub.Event{Topic: "system.x", Payload: []byte(`1`)}, eventhub.CodeForbidden, "system.x"},
			{eventhub.Event{Topic: "t", ID: "a b", Payload: []byte(`1`)}, eventhub.CodeBadEvent, "a b"},
		} {
			good := eventhub.Event{Topic: "t", Payload: []byte(`1`)}
			_, err := r.bus.Publish(context.Background(), good, bad.event, good)
			wantCode(t, err, bad.code)
			if err == nil || !strings.Contains(err.Error(), bad.says) {
				t.Errorf("error %v does not name %q", err, bad.says)
			}
		}
		if n := len(r.events("t")); n != 0 {
			t.Errorf("%d events of refused batches are in the log", n)
		}
	})
}

func TestEnqueueSettlesEachForItself(t *testing.T) {
	inBubble(t, func(r *rig) {
		event := func(topic, payload string) []eventhub.Event {
			return []eventhub.Event{{Topic: topic, Payload: []byte(payload)}}
		}
		pubs := []eventhub.Publication{
			{Events: event("t", "1")}, {Events: event("t", "nope")}, {Events: event("t", "3")},
			{}, {Events: append(event("t", "4"), event("u", "5")...)},
		}
		calls := 0
		r.bus.Enqueue(context.Background(), pubs, func(back []eventhub.Publication) { calls++ })
		synctest.Wait()
		equal(t, "calls of done", calls, 1)
		wantCode(t, pubs[1].Err, eventhub.CodeBadJSON)
		for _, i := range []int{0, 2, 3, 4} {
			if pubs[i].Err != nil {
				t.Errorf("publication %d: %v", i, pubs[i].Err)
			}
		}
		var payloads []string
		for _, e := range r.events("t") {
			payloads = append(payloads, string(e.Payload))
		}
		equal(t, "payloads in t", payloads, []string{"1", "3", "4"})
		equal(t, "offset of the second in t", pubs[2].Receipts[0].Offset, 2)
		equal(t, "receipts of the pair", len(pubs[4].Receipts), 2)
	})
}

// TestOneCommitForAllThatWaits: what arrives while a commit runs shares the
// next one.
func TestOneCommitForAllThatWaits(t *testing.T) {
	inBubble(t, func(r *rig) {
		hold := make(chan struct{})
		r.store.set(hold, nil)
		done := 0
		for range 10 {
			go func() {
				if _, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: "t", Payload: []byte(`1`)}); err != nil {
					t.Error(err)
				}
				r.store.mu.Lock()
				done++
				r.store.mu.Unlock()
			}()
			synctest.Wait()
		}
		if done != 0 {
			t.Errorf("%d receipts before any commit returned", done)
		}
		r.store.set(nil, nil)
		close(hold)
		synctest.Wait()
		equal(t, "receipts", done, 10)
		equal(t, "commits", r.store.calls["Commit"], 2)
	})
}

func TestNoDeliveryBeforeDurability(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g"})
		hold := make(chan struct{})
		r.store.set(hold, nil)
		go r.publish("t", 1, 3)
		equal(t, "deliveries while the commit runs", len(in.Take()), 0)
		r.store.set(nil, nil)
		close(hold)
		equal(t, "offsets afterwards", in.TakeOffsets(), []uint64{1, 2, 3})
	})
}

func TestFullQueueHoldsPublishersBack(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{QueueBytes: 300})
		hold := make(chan struct{})
		r.store.set(hold, nil)
		publish := func(ctx context.Context, errs chan<- error) {
			_, err := r.bus.Publish(ctx, eventhub.Event{Topic: "t", Payload: []byte(`"` + strings.Repeat("x", 200) + `"`)})
			errs <- err
		}
		errs := make(chan error, 3)
		go publish(context.Background(), errs) // is being committed
		synctest.Wait()
		go publish(context.Background(), errs) // is queued
		synctest.Wait()
		ctx, cancel := context.WithCancel(context.Background())
		late := make(chan error, 1)
		go publish(ctx, late) // waits for room
		synctest.Wait()
		cancel()
		synctest.Wait()
		if err := <-late; !errors.Is(err, context.Canceled) {
			t.Errorf("the publisher that gave up got %v", err)
		}
		go publish(context.Background(), errs) // waits for room, and gets it
		synctest.Wait()
		equal(t, "answers while the store hangs", len(errs), 0)
		r.store.set(nil, nil)
		close(hold)
		for range 3 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		equal(t, "events", len(r.events("t")), 3)
	})
}

// TestRoomIsGivenInOrder: a large publication that waits for room is not overtaken for
// ever by small ones that would fit.
func TestRoomIsGivenInOrder(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{QueueBytes: 1000})
		hold := make(chan struct{})
		r.store.set(hold, nil)
		var publishers sync.WaitGroup
		publish := func(ctx context.Context, id string, size int) {
			publishers.Go(func() {
				_, err := r.bus.Publish(ctx, eventhub.Event{Topic: "t", ID: id, Payload: []byte(`"` + strings.Repeat("x", size) + `"`)})
				if (err != nil) != (id == "gone") {
					t.Errorf("publish %s: %v", id, err)
				}
			})
			synctest.Wait()
		}
		publish(context.Background(), "committed", 10) // under way
		publish(context.Background(), "queued", 500)
		ctx, cancel := context.WithCancel(context.Background())
		publish(ctx, "gone", 900) // waits for room, and is first in the line
		publish(context.Background(), "large", 900)
		for i := range 5 {
			publish(context.Background(), fmt.Sprintf("small-%d", i), 10)
		}
		cancel()
		synctest.Wait()
		r.store.set(nil, nil)
		close(hold)
		publishers.Wait()
		var ids []string
		for _, e := range r.events("t") {
			ids = append(ids, e.ID)
		}
		equal(t, "order", ids, []string{"committed", "queued", "large", "small-0", "small-1", "small-2", "small-3", "small-4"})
	})
}

// TestBrokenStoreAcknowledgesNothing: after one failed commit there is no OK
// any more, the reason is reported once, and Close returns it.
func TestBrokenStoreAcknowledgesNothing(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		var fatal []error
		r.start(Options{Fatal: func(err error) { fatal = append(fatal, err) }})
		broken := errors.New("disk on fire")
		r.store.set(nil, broken)
		for range 2 {
			_, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: "t", Payload: []byte(`1`)})
			wantCode(t, err, eventhub.CodeInternal)
			if strings.Contains(eventhub.AsError(err).Message, "fire") {
				t.Errorf("the message shows the cause: %v", err)
			}
			r.store.set(nil, nil) // the store would work again, but nobody may know
		}
		if len(fatal) != 1 || !errors.Is(fatal[0], broken) {
			t.Errorf("Fatal got %v; want the cause once", fatal)
		}
		equal(t, "commits tried", r.store.calls["Commit"], 1)
		if err := r.bus.Close(); !errors.Is(err, broken) {
			t.Errorf("Close = %v; want the cause", err)
		}
		r.start(Options{})
	})
}

func TestClosedBusRefuses(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		_, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: "t", Payload: []byte(`1`)})
		wantCode(t, err, eventhub.CodeShuttingDown)
		_, err = r.bus.Subscribe(context.Background(), eventhub.GroupOptions{Topic: "t", Group: "g"}, &inbox{})
		wantCode(t, err, eventhub.CodeShuttingDown)
		r.stop()
	})
}

// TestIndexOfABadEvent: an error about one event has its index, whatever is wrong with it,
// and its message leaves the name of the list to the transport. One about the publication as
// a whole has none. Publications of the same call are published.
func TestIndexOfABadEvent(t *testing.T) {
	inBubble(t, func(r *rig) {
		good := eventhub.Event{Topic: "t", Payload: []byte("1")}
		deep := []byte(strings.Repeat("[", 1001) + strings.Repeat("]", 1001))
		for name, tt := range map[string]struct {
			bad   eventhub.Event
			code  eventhub.Code
			begin string
		}{
			"topic":    {eventhub.Event{Topic: "a b", Payload: []byte("1")}, eventhub.CodeBadTopic, `topic "a b"`},
			"own":      {eventhub.Event{Topic: "t.dlq", Payload: []byte("1")}, eventhub.CodeForbidden, `topic "t.dlq"`},
			"id":       {eventhub.Event{Topic: "t", ID: "a/b", Payload: []byte("1")}, eventhub.CodeBadEvent, `id "a/b"`},
			"ts":       {eventhub.Event{Topic: "t", TS: time.Now().Add(time.Hour).UnixMilli(), Payload: []byte("1")}, eventhub.CodeBadEvent, "ts is"},
			"delay":    {eventhub.Event{Topic: "t", Delay: 9000 * time.Hour, Payload: []byte("1")}, eventhub.CodeBadEvent, "delay_ms is"},
			"no JSON":  {eventhub.Event{Topic: "t", Payload: []byte("{")}, eventhub.CodeBadJSON, "payload: "},
			"too deep": {eventhub.Event{Topic: "t", Payload: deep}, eventhub.CodeBadJSON, "payload: "},
		} {
			pubs := []eventhub.Publication{
				{Events: []eventhub.Event{good}}, {Events: []eventhub.Event{good, good, tt.bad, tt.bad}}, {Events: []eventhub.Event{tt.bad}},
				{Events: []eventhub.Event{good}, WaitFor: []string{"nobody"}}, {Events: []eventhub.Event{good}},
			}
			answered := make(chan struct{})
			r.bus.Enqueue(context.Background(), pubs, func([]eventhub.Publication) { close(answered) })
			<-answered
			for i, want := range []int{-1, 2, 0, -1, -1} {
				err := pubs[i].Err
				if isBad := want >= 0; isBad {
					wantCode(t, err, tt.code)
					if !strings.HasPrefix(eventhub.AsError(err).Message, tt.begin) {
						t.Errorf("publication %d: %v; want a message that begins with %q", i, err, tt.begin)
					}
				} else if (err != nil) != (i == 3) {
					t.Errorf("publication %d: %v", i, err)
				}
				equal(t, name+": index", indexOf(err), want)
			}
		}
	})
}
