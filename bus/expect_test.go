package bus

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
)

// wantConflict fails the test unless an error is a conflict of the event at an index, where the
// offset is that one.
func wantConflict(t *testing.T, err error, index int, present uint64) {
	t.Helper()
	got, ok := eventhub.PresentOffset(err)
	if at := eventhub.AsError(err); !ok || got != present || at.Index == nil || *at.Index != index {
		t.Errorf("%v (%+v); want a conflict of event %d with %d", err, at, index, present)
	}
}

func expecting(key string, x eventhub.Expect) eventhub.Event {
	return eventhub.Event{Topic: "t", Key: key, Payload: []byte(`1`), Expect: x}
}

func TestConditionalPublish(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		first, err := r.bus.Publish(ctx, expecting("k", eventhub.IfKeyOffset(0)), expecting("l", eventhub.IfTopicOffset(0)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.bus.Publish(ctx, expecting("k", eventhub.IfKeyOffset(0)))
		wantConflict(t, err, 0, first[0].Offset)
		_, err = r.bus.Publish(ctx, expecting("m", eventhub.IfKeyOffset(5)))
		wantConflict(t, err, 0, 0)

		// The index is that of the list that was published, delayed events included.
		later := expecting("k", eventhub.Expect{})
		later.Delay = time.Hour
		_, err = r.bus.Publish(ctx, later, expecting("l", eventhub.IfKeyOffset(first[1].Offset)), later, expecting("k", eventhub.IfTopicOffset(7)), later)
		wantConflict(t, err, 3, first[1].Offset)
		if list, err := r.bus.Scheduled(ctx, admin.ScheduleQuery{}); err != nil || len(list) > 0 {
			t.Errorf("a conflict has delayed %+v, %v", list, err)
		}
		equal(t, "events", len(r.events("t")), 2)

		// Publications of one call are one after the other.
		pubs := []eventhub.Publication{
			{Events: []eventhub.Event{expecting("k", eventhub.IfKeyOffset(1))}},
			{Events: []eventhub.Event{expecting("k", eventhub.IfKeyOffset(1))}},
			{Events: []eventhub.Event{expecting("k", eventhub.IfKeyOffset(3))}},
		}
		r.bus.Enqueue(ctx, pubs, func([]eventhub.Publication) {})
		synctest.Wait()
		if pubs[0].Err != nil || pubs[2].Err != nil {
			t.Errorf("%v, %v; want no errors", pubs[0].Err, pubs[2].Err)
		}
		wantConflict(t, pubs[1].Err, 0, 3)
	})
}

// What cannot be asked for is refused, and named.
func TestConditionsRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		late := expecting("k", eventhub.IfKeyOffset(0))
		late.Delay = time.Second
		due := expecting("k", eventhub.IfTopicOffset(0))
		due.DeliverAt = time.Now().Add(-time.Hour)
		for what, e := range map[string]eventhub.Event{
			"no key":      expecting("", eventhub.IfKeyOffset(1)),
			"delay":       late,
			"deliver at":  due,
			"not offsets": expecting("k", eventhub.IfKeyOffset(eventhub.MaxOffset+1)),
			"no kind":     expecting("k", eventhub.Expect{Kind: 9}),
		} {
			_, err := r.bus.Publish(context.Background(), e)
			if eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
				t.Errorf("%s: %v; want bad_request", what, err)
			}
		}
		for _, x := range []eventhub.Expect{eventhub.IfKeyOffset(0), eventhub.IfTopicOffset(0)} {
			e := expecting("k", x)
			e.ID = "i"
			_, err := r.bus.Import(context.Background(), e)
			wantCode(t, err, eventhub.CodeBadRequest)
			e.Topic = "t.dlq"
			_, err = r.bus.Import(context.Background(), e)
			wantCode(t, err, eventhub.CodeBadRequest)
		}
		equal(t, "events", len(r.events("t")), 0)
	})
}

// A publish that is refused by its condition waits for nobody.
func TestConditionWithWait(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		r.index("t")
		in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g", Start: eventhub.Latest})
		ctx := context.Background()
		_, err := eventhub.PublishAndWait(ctx, r.bus, []string{"g"}, time.Second, expecting("k", eventhub.IfKeyOffset(3)))
		wantConflict(t, err, 0, 0)
		go func() {
			synctest.Wait()
			in.Ack(byLease(in.Take()[0]))
		}()
		receipts, err := eventhub.PublishAndWait(ctx, r.bus, []string{"g"}, time.Second, expecting("k", eventhub.IfKeyOffset(0)))
		if err != nil || receipts[0].Offset != 2 {
			t.Errorf("%+v, %v; want offset 2", receipts, err)
		}
	})
}

// An ack-and-publish whose condition does not hold leaves the lease, and does not hold up the
// steps of others. Of two that expect the same, one is made.
func TestConditionOfAckAndPublish(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("in", 1, 4)
		r.publish("out", 1, 1)
		r.index("out")
		in := r.subscribe(eventhub.GroupOptions{Topic: "in", Group: "g", Start: eventhub.Earliest, AckTimeout: time.Hour})
		got := in.Take()
		of := func(x eventhub.Expect) eventhub.Event {
			return eventhub.Event{Topic: "out", Key: "sum", Payload: []byte(`1`), Expect: x}
		}
		steps := []eventhub.Event{of(eventhub.IfKeyOffset(0)), of(eventhub.IfKeyOffset(0)), of(eventhub.Expect{}), of(eventhub.IfTopicOffset(1))}
		hold := make(chan struct{})
		r.store.set(hold, nil)
		go r.publish("other", 1, 1) // while it is committed all steps wait together
		synctest.Wait()
		hs := make([]eventhub.AckPublish, len(steps))
		for i := range hs {
			hs[i] = eventhub.AckPublish{Refs: []eventhub.Ref{byLease(got[i])}, Events: steps[i : i+1]}
		}
		in.Sub.AckAndPublish(context.Background(), hs, func([]eventhub.AckPublish) {})
		r.store.set(nil, nil)
		close(hold)
		synctest.Wait()
		events := r.events("out")
		made := 0
		for i := range hs {
			if hs[i].Err == nil {
				made++
				continue
			}
			present, ok := eventhub.PresentOffset(hs[i].Err)
			if !ok || present == steps[i].Expect.Offset {
				t.Errorf("step %d: %v; want a conflict", i, hs[i].Err)
			}
		}
		if hs[2].Err != nil || hs[0].Err == nil && hs[1].Err == nil || made+1 != len(events) {
			t.Errorf("%v, %v, %v, %v; %d events", hs[0].Err, hs[1].Err, hs[2].Err, hs[3].Err, len(events))
		}
		equal(t, "delivered again", len(in.Take()), 0)
		for i := range hs {
			want := eventhub.Stale
			if hs[i].Err != nil {
				want = eventhub.Applied
			}
			equal(t, "outcome", in.Ack(byLease(got[i])), []eventhub.Outcome{want})
		}
		equal(t, "cursor", r.cursor("in", "g").Offset, 4)
	})
}
