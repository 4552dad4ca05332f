package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/hub"
)

// TestConditionalPublish: conditions go to the hub with whatever publishes, and a conflict comes
// back with the present offset.
func TestConditionalPublish(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	ctx := bounded(t)
	set := func(key string, x eventhub.Expect) eventhub.Event {
		return eventhub.Event{Topic: "t", Key: key, Payload: []byte(`1`), Expect: x}
	}
	wantConflict := func(what string, err error, present uint64, index int) {
		t.Helper()
		var e *eventhub.Error
		if !errors.As(err, &e) {
			t.Fatalf("%s: %v; want a conflict", what, err)
		}
		got, ok := eventhub.PresentOffset(err)
		at := -1
		if e.Index != nil {
			at = *e.Index
		}
		if !ok || got != present || at != index {
			t.Errorf("%s: %v, present %d, event %d; want a conflict with %d of event %d", what, err, got, at, present, index)
		}
	}
	receipts, err := c.Publish(ctx, set("k", eventhub.IfKeyOffset(0)))
	if err != nil || receipts[0].Offset != 1 {
		t.Fatalf("%+v, %v", receipts, err)
	}
	_, err = c.Publish(ctx, set("k", eventhub.IfKeyOffset(0)))
	wantConflict("Publish", err, 1, -1)
	_, err = c.Publish(ctx, set("l", eventhub.IfKeyOffset(4)))
	wantConflict("Publish of a key without events", err, 0, -1)
	_, err = c.Publish(ctx, event("t", `1`), set("k", eventhub.IfTopicOffset(9)))
	wantConflict("Publish of a batch", err, 1, 1)
	_, err = c.PublishAndWait(ctx, nil, 0, set("k", eventhub.IfKeyOffset(7)))
	wantConflict("PublishAndWait", err, 1, -1)
	if _, ok := eventhub.PresentOffset(eventhub.Errorf(eventhub.CodeConflict, "of something else")); ok {
		t.Error("a conflict of something else has a present offset")
	}

	in := make(firstLease, 1)
	sub, err := c.Subscribe(ctx, earliest("t", "g"), in)
	if err != nil {
		t.Fatal(err)
	}
	refs := []eventhub.Ref{{Lease: await(t, "a delivery", in)}}
	_, err = eventhub.AckAndPublish(ctx, sub, refs, set("k", eventhub.IfKeyOffset(0)))
	wantConflict("AckAndPublish", err, 1, 0)
	if receipts, err = eventhub.AckAndPublish(ctx, sub, refs, set("k", eventhub.IfKeyOffset(1))); err != nil || receipts[0].Offset != 2 {
		t.Errorf("the lease after a conflict: %+v, %v", receipts, err)
	}
}

// TestNoLostUpdates: clients count together, each by reading the count and writing the next one,
// while their connections are cut. No count is lost, and none is made twice.
func TestNoLostUpdates(t *testing.T) {
	const members, each = 3, 40
	r := rand.New(rand.NewPCG(drawSeed(t), 7))
	h := startHub(t, hub.Config{})
	p := startProxy(t, h.WSAddr())
	ctx := bounded(t)
	var cutting sync.Mutex
	var counting sync.WaitGroup
	var clients []*client.Client
	for range members { // a first connection that is cut is an error of Dial
		clients = append(clients, dial(t, p.addr()))
	}
	for _, c := range clients {
		api, err := client.NewAdmin("http://" + h.HTTPAddr())
		if err != nil {
			t.Fatal(err)
		}
		counting.Go(func() {
			for range each {
				if err := countUp(ctx, c, api); err != nil {
					t.Error(err)
					return
				}
				cutting.Lock()
				if r.IntN(10) == 0 {
					p.cut(0.5, r)
				}
				cutting.Unlock()
			}
		})
	}
	counting.Wait()
	page, err := h.Bus().State(ctx, admin.StateQuery{Topic: "count", Limit: 9})
	if err != nil || len(page.Events) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	e, err := page.Events[0].Event()
	if want := fmt.Sprint(members * each); err != nil || string(e.Payload) != want {
		t.Errorf("the count is %s, %v; want %s", e.Payload, err, want)
	}
}

// countUp adds one to the count, as docs/go-sdk.md has it.
func countUp(ctx context.Context, c *client.Client, api *client.Admin) error {
	var expect uint64
	for {
		page, err := api.State(ctx, admin.StateQuery{Topic: "count", Keys: []string{"n"}, Limit: 1})
		if err != nil && eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
			return err
		}
		var n int
		for _, item := range page.Events {
			e, err := item.Event()
			if err == nil {
				err = json.Unmarshal(e.Payload, &n)
			}
			if err != nil {
				return err
			}
			expect = e.Offset
		}
		_, err = client.PublishJSON(ctx, c, eventhub.Event{Topic: "count", Key: "n", Expect: eventhub.IfKeyOffset(expect)}, n+1)
		present, isConflict := eventhub.PresentOffset(err)
		if !isConflict {
			return err
		}
		expect = present
	}
}

// firstLease has the lease of the first delivery.
type firstLease chan eventhub.Lease

func (l firstLease) Deliver(batch []eventhub.Delivery) int {
	select {
	case l <- batch[0].Lease:
	default:
	}
	return len(batch)
}

func (l firstLease) Ended(error) {}
