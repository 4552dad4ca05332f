package client_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/client"
	"eventhub/wire"
)

// batchOK answers a PUBLISH of several events, or an ACK that publishes, as a hub
// that has them at offsets from first on.
func batchOK(r *wire.Request, first uint64, duplicate bool) string {
	receipts := make([]eventhub.Receipt, len(r.Events))
	for i, e := range r.Events {
		receipts[i] = eventhub.Receipt{ID: e.ID, Offset: first + uint64(i), Duplicate: duplicate}
	}
	return string(wire.AppendBatchOK(nil, r.Corr, r.HasCorr, receipts))
}

func eventIDs(events []eventhub.Event) (ids string) {
	for _, e := range events {
		ids += e.ID + " "
	}
	return ids
}

// refusing is a script for one refusal.
func refusing(code eventhub.Code) scripted {
	return func(r *wire.Request) ([]string, bool) { return []string{refusal(r, code)}, true }
}

// TestBatchStaysOne: several events of a call are one frame, also when it is sent
// again, under the ids of the first time.
func TestBatchStaysOne(t *testing.T) {
	var sent []string
	seen := func(r *wire.Request) {
		sent = append(sent, fmt.Sprint(r.Op, " ", r.Batch, " ", eventIDs(r.Events)))
	}
	addr := startScripted(t,
		func(r *wire.Request) ([]string, bool) { // committed, the answer lost
			seen(r)
			return nil, false
		},
		func(r *wire.Request) ([]string, bool) {
			seen(r)
			return []string{batchOK(r, 7, true)}, true
		},
	)
	c := dial(t, addr)
	mine := event("u", `2`)
	mine.ID = "mine"
	got, err := c.Publish(bounded(t), event("t", `1`), mine)
	want := []eventhub.Receipt{{ID: got[0].ID, Offset: 7}, {ID: "mine", Offset: 8, Duplicate: true}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	c.Close()
	if frame := fmt.Sprint("PUBLISH true ", got[0].ID, " mine "); !slices.Equal(sent, []string{frame, frame}) {
		t.Errorf("the client sent %q; want twice %q", sent, frame)
	}
}

// TestBatchIsRefusedAsOne: receipts have the ids alone.
func TestBatchIsRefusedAsOne(t *testing.T) {
	c := dial(t, startScripted(t, refusing(eventhub.CodeForbidden)))
	got, err := c.Publish(bounded(t), event("t", `1`), event("t", `2`))
	wantCode(t, err, eventhub.CodeForbidden)
	if len(got) != 2 || got[0].ID == "" || got[0].Offset != 0 {
		t.Errorf("%+v", got)
	}
	c = dial(t, startScripted(t, func(r *wire.Request) ([]string, bool) {
		r.Events = r.Events[:1]
		return []string{batchOK(r, 7, false)}, true
	}))
	_, err = c.Publish(bounded(t), event("t", `1`), event("t", `2`))
	wantCode(t, err, eventhub.CodeInternal)
	_, err = c.Publish(bounded(t), make([]eventhub.Event, wire.MaxEvents+1)...)
	wantCode(t, err, eventhub.CodeBadRequest)
}

// TestEnqueueSaysAll that a publication may ask for.
func TestEnqueueSaysAll(t *testing.T) {
	var mu sync.Mutex
	var sent []string
	c := dial(t, startScripted(t, func(r *wire.Request) ([]string, bool) {
		mu.Lock()
		defer mu.Unlock()
		events := r.Events
		if !r.Batch {
			events = []eventhub.Event{r.Event}
		}
		sent = append(sent, fmt.Sprint(r.Batch, len(events), events[0].Delay, eventhub.Millis(events[0].DeliverAt), r.WaitFor, r.WaitUpTo))
		switch {
		case len(r.WaitFor) > 1:
			late := eventhub.Errorf(eventhub.CodeWaitTimeout, "late")
			if len(r.WaitFor) > 2 {
				late = eventhub.Errorf(eventhub.CodeGone, "removed")
			}
			if len(r.Events) > 1 {
				return []string{string(wire.AppendPublishError(nil, r.Corr, true, late, []eventhub.Receipt{{ID: r.Events[0].ID, Offset: 11}, {ID: r.Events[1].ID, Offset: 12, Duplicate: true}}, true))}, true
			}
			return []string{refusal(r, late.Code)}, true // as of a hub that says no more
		case r.Batch:
			return []string{batchOK(r, 7, false)}, true
		case r.Event.Delay > 0:
			return []string{string(wire.AppendPublishOK(nil, r.Corr, true, eventhub.Receipt{ID: r.Event.ID, DeliverAt: time.UnixMilli(1723140060000)}))}, true
		}
		return []string{fmt.Sprintf(`{"op":"OK","corr":%q,"id":%q,"offset":3}`, r.Corr, r.Event.ID)}, true
	}))
	later, at := event("t", `1`), event("t", `2`)
	later.Delay, at.DeliverAt = time.Minute, time.UnixMilli(1723140000000)
	pubs := []eventhub.Publication{
		{Events: []eventhub.Event{later}},
		{Events: []eventhub.Event{at}},
		{Events: []eventhub.Event{event("t", `3`), event("t", `4`)}},
		{Events: []eventhub.Event{event("t", `5`)}, WaitFor: []string{"g"}, WaitUpTo: time.Second},
		{Events: []eventhub.Event{event("t", `6`)}, WaitFor: []string{"g", "h"}},
		{Events: []eventhub.Event{event("t", `6`), event("t", `7`)}, WaitFor: []string{"g", "h"}},
		{Events: []eventhub.Event{event("t", `6`), event("t", `7`)}, WaitFor: []string{"g", "h", "i"}},
		{},
	}
	done := make(chan []eventhub.Publication, 1)
	c.Enqueue(bounded(t), pubs, func(p []eventhub.Publication) { done <- p })
	var got []string
	for _, p := range await(t, "the outcome", done) {
		text := string(eventhub.ErrorCode(p.Err))
		for _, r := range p.Receipts {
			text += fmt.Sprint(" ", len(r.ID) > 0, r.Offset, eventhub.Millis(r.DeliverAt))
		}
		got = append(got, text)
	}
	if want := []string{" true 0 1723140060000", " true 3 0", " true 7 0 true 8 0", " true 7 0", "wait_timeout true 0 0", "wait_timeout true 11 0 true 12 0", "gone true 11 0 true 12 0", ""}; !slices.Equal(got, want) {
		t.Errorf("the outcomes are %q; want %q", got, want)
	}
	mu.Lock()
	defer mu.Unlock()
	want := []string{"false 1 1m0s 0 [] 0s", "false 1 0s 1723140000000 [] 0s", "true 2 0s 0 [] 0s", "true 1 0s 0 [g] 1s", "true 1 0s 0 [g h] 0s", "true 2 0s 0 [g h] 0s", "true 2 0s 0 [g h i] 0s"}
	for i := range sent {
		sent[i] = strings.TrimSpace(sent[i])
	}
	if !slices.Equal(sent, want) {
		t.Errorf("the client sent %q; want %q", sent, want)
	}
}

// TestCancel: the hub's word is passed on; a second try says that there was a
// first.
func TestCancel(t *testing.T) {
	var asked []string
	addr := startScripted(t,
		func(r *wire.Request) ([]string, bool) {
			asked = append(asked, fmt.Sprint(r.Op, " ", r.Topic, " ", r.ID))
			switch len(asked) {
			case 1:
				return []string{ok(r)}, true
			case 2:
				return []string{refusal(r, eventhub.CodeUnknownID)}, true
			}
			return nil, false
		},
		refusing(eventhub.CodeUnknownID),
	)
	c := dial(t, addr)
	if err := c.Cancel(bounded(t), "t", "x"); err != nil {
		t.Error(err)
	}
	for _, doubt := range []bool{false, true} {
		err := c.Cancel(bounded(t), "t", "x")
		wantCode(t, err, eventhub.CodeUnknownID)
		if said := strings.Contains(eventhub.AsError(err).Message, "may have been"); said != doubt {
			t.Errorf("sent again %v: %v", doubt, err)
		}
	}
	wantCode(t, c.Cancel(bounded(t), "t", "a b"), eventhub.CodeBadEvent)
	wantCode(t, c.Cancel(bounded(t), "t.*", "x"), eventhub.CodeBadTopic)
	c.Close()
	if want := []string{"CANCEL t x", "CANCEL t x", "CANCEL t x"}; !slices.Equal(asked, want) {
		t.Errorf("the client said %q", asked)
	}
}

func deliveryFrom(topic string, offset int) eventhub.Delivery {
	return eventhub.Delivery{
		Topic: topic, Offset: uint64(offset), Attempt: 1, MaxAttempts: 5, AckTimeout: time.Minute,
		Lease:  eventhub.Lease{Runtime: 1, Offset: uint64(offset), Serial: 1},
		Record: fmt.Appendf(nil, `{"ts":1723140000000,"id":"e-%d","topic":%q,"payload":%d}`, offset, topic, offset),
	}
}

// eventsFrame is the EVENTS of a subscription of topic.
func eventsFrame(topic, group string, from, to int) string {
	var batch []eventhub.Delivery
	for offset := from; offset <= to; offset++ {
		batch = append(batch, deliveryFrom("t", offset))
	}
	return string(wire.NewEventFrame(topic, group).AppendAll(nil, batch))
}

// TestEventFrames: a member of a group with room for several asks for EVENTS, and
// a tail does; what is in one is delivered at once.
func TestEventFrames(t *testing.T) {
	for _, tt := range []struct {
		opts wire.SubscribeOptions
		with []client.Option
		want bool
	}{
		{opts: member("t", "g", 0), want: true},
		{opts: member("t", "g", 1)},
		{opts: wire.OfTail(eventhub.TailOptions{Topic: "t"}), want: true},
		{opts: wire.OfTail(eventhub.TailOptions{Topic: "t.**", Topics: []string{"t"}, Filter: &eventhub.Filter{Key: "k*"}, Conflate: time.Second}), want: true},
		{opts: member("t", "g", 0), with: []client.Option{client.WithSingleEvents()}},
	} {
		asked := make(chan wire.Request, 9)
		c := dial(t, startScripted(t, func(r *wire.Request) ([]string, bool) {
			asked <- *r
			return []string{ok(r), eventsFrame(r.Topic, r.Group, 1, 3)}, true
		}), tt.with...)
		r := newCollector(9)
		if _, err := join(bounded(t), c, tt.opts, r); err != nil {
			t.Fatal(err)
		}
		got := await(t, "the SUBSCRIBE", asked)
		if o := got.Subscribe; got.Batch != tt.want || !slices.Equal(o.Topics, tt.opts.Topics) || !o.Filter.Equal(tt.opts.Filter) || o.Conflate != tt.opts.Conflate {
			t.Errorf("%+v: asked for %+v, batch %v", tt.opts, o, got.Batch)
		}
		wantOffsets(t, r, 1, 3)
		c.Close()
	}
}

func member(topic, group string, maxInFlight int) wire.SubscribeOptions {
	return wire.SubscribeOptions{GroupOptions: eventhub.GroupOptions{Topic: topic, Group: group, MaxInFlight: maxInFlight}}
}

// TestAcksGather: acks of one moment go in one frame, by lease, all of them before
// the group is left; a nack goes for itself.
func TestAcksGather(t *testing.T) {
	const n = 2500
	var acks, inTime, frames int
	var seen []bool
	var rest []wire.Op
	over := make(chan struct{})
	addr := startScripted(t, func(r *wire.Request) ([]string, bool) {
		switch r.Op {
		case wire.OpSubscribe:
			return []string{ok(r), eventsFrame(r.Topic, r.Group, 1, n)}, true
		case wire.OpAck:
			frames++
			for _, ref := range r.Settlement.Refs {
				if seen == nil {
					seen = make([]bool, n+1)
				}
				if ref.Lease.Runtime != 1 || ref.Lease.Offset > n || seen[ref.Lease.Offset] {
					t.Errorf("acked by %s", ref.Lease)
					continue
				}
				seen[ref.Lease.Offset] = true
				acks++
			}
			return nil, true
		}
		if rest = append(rest, r.Op); r.Op == wire.OpUnsubscribe {
			inTime = acks
			close(over)
		}
		return []string{ok(r)}, true
	})
	c := dial(t, addr)
	ctx, stop := context.WithCancel(bounded(t))
	err := c.Consume(ctx, eventhub.GroupOptions{Topic: "t.*", Group: "g", MaxInFlight: n}, func(_ context.Context, d eventhub.Delivery) error {
		if d.Offset == n {
			stop()
		}
		if d.Offset == 10 {
			return fmt.Errorf("not this one")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	await(t, "the UNSUBSCRIBE", over)
	if inTime != n-1 || !slices.Equal(rest, []wire.Op{wire.OpNack, wire.OpUnsubscribe}) {
		t.Errorf("%d were acked before %v", inTime, rest)
	}
	if frames > n/2 {
		t.Errorf("%d acks came in %d frames", inTime, frames)
	}
}

// TestSettleInOneFrame: each of many deliveries gets its own outcome.
func TestSettleInOneFrame(t *testing.T) {
	const n = wire.MaxRefs + 3
	var sizes []int
	c := dial(t, startScripted(t, func(r *wire.Request) ([]string, bool) {
		refs := r.Settlement.Refs
		sizes = append(sizes, len(refs))
		outcomes := make([]eventhub.Outcome, len(refs))
		for i, ref := range refs {
			if ref.Lease.Offset%2 == 0 {
				outcomes[i] = eventhub.Stale
			}
		}
		return []string{string(wire.AppendSettleOK(nil, r.Corr, true, outcomes))}, true
	}))
	v := eventhub.Settlement{Refs: make([]eventhub.Ref, n)}
	for i := range v.Refs {
		v.Refs[i].Lease = eventhub.Lease{Runtime: 1, Offset: uint64(i), Serial: 1}
	}
	got, err := c.Settle(bounded(t), "t", "g", v)
	if err != nil || len(got) != n {
		t.Fatalf("%d outcomes, %v", len(got), err)
	}
	for i, o := range got {
		if (o == eventhub.Stale) != (i%2 == 0) {
			t.Fatalf("outcome %d is %d", i, o)
		}
	}
	v.Refs = []eventhub.Ref{{ID: "x", Lease: v.Refs[2].Lease}, {Lease: v.Refs[4].Lease}}
	if got, err := c.Settle(bounded(t), "t", "g", v); err != nil || !slices.Equal(got, []eventhub.Outcome{eventhub.Stale, eventhub.Stale}) {
		t.Errorf("all of them stale: %v, %v", got, err)
	}
	c.Close()
	if !slices.Equal(sizes, []int{wire.MaxRefs, 3, 2}) {
		t.Errorf("the frames were about %v deliveries", sizes)
	}
}

// TestAckGoesAlone: an ack does not wait for something else to be said.
func TestAckGoesAlone(t *testing.T) {
	const n = 20
	c := dial(t, startScripted(t, func(r *wire.Request) ([]string, bool) {
		switch r.Op {
		case wire.OpSubscribe:
			return []string{ok(r), eventsFrame("t", "g", 1, 1)}, true
		case wire.OpAck:
			next := int(r.Settlement.Refs[0].Lease.Offset) + 1
			return []string{eventsFrame("t", "g", next, next)}, true
		}
		return []string{ok(r)}, true
	}))
	ctx, stop := context.WithCancel(bounded(t))
	last := uint64(0)
	if err := c.Consume(ctx, eventhub.GroupOptions{Topic: "t", Group: "g"}, func(_ context.Context, d eventhub.Delivery) error {
		if last = d.Offset; last == n {
			stop()
		}
		return nil
	}); err != nil || last != n {
		t.Errorf("%v; the last event was %d; want %d", err, last, n)
	}
}
