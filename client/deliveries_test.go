package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"eventhub"
	"eventhub/hub"
)

// TestDeliveriesGiveBack: what a loop did not settle, and what it did not get to, goes
// to the next one without counting; the last pair says why there are no more.
func TestDeliveriesGiveBack(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	if _, err := c.Publish(bounded(t), event("t", "1"), event("t", "2"), event("t", "3")); err != nil {
		t.Fatal(err)
	}
	for d, err := range c.Deliveries(bounded(t), earliest("t", "g")) {
		if err != nil {
			t.Fatal(err)
		}
		if d.Offset == 2 {
			break
		}
		if err := d.Ack(bounded(t)); err != nil {
			t.Error(err)
		}
		wantCode(t, d.Ack(bounded(t)), eventhub.CodeLeaseLost)
	}
	asked := errors.New("asked to stop")
	ctx, stop := context.WithCancelCause(bounded(t))
	defer stop(nil)
	next, reasons := uint64(2), 0
	for d, err := range c.Deliveries(ctx, earliest("t", "g")) {
		if err != nil {
			if reasons++; err != asked {
				t.Errorf("the reason is %v", err)
			}
			continue
		}
		if d.Offset != next || d.Attempt != 1 {
			t.Errorf("offset %d in attempt %d; want %d in its first", d.Offset, d.Attempt, next)
		}
		if err := d.Ack(ctx); err != nil {
			t.Error(err)
		}
		if next++; next == 4 {
			stop(asked)
		}
	}
	if next != 4 || reasons != 1 {
		t.Errorf("the loop ended before offset %d, with %d reasons", next, reasons)
	}
	for _, err := range c.Deliveries(bounded(t), eventhub.GroupOptions{Topic: "a b", Group: "g"}) {
		wantCode(t, err, eventhub.CodeBadTopic)
	}
}

// TestGroupWithoutName: it is an error and never a live tail.
func TestGroupWithoutName(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	ctx, nameless := bounded(t), eventhub.GroupOptions{Topic: "t"}
	_, subscribed := c.Subscribe(ctx, nameless, newCollector(9))
	_, inProcess := h.Bus().Subscribe(ctx, nameless, newCollector(9))
	none := func(context.Context, eventhub.Delivery) error { return nil }
	for name, err := range map[string]error{
		"Subscribe": subscribed, "in process": inProcess, "Consume": c.Consume(ctx, nameless, none),
		"Transform": c.Transform(ctx, nameless, func(context.Context, eventhub.Delivery) ([]eventhub.Event, error) { return nil, nil }),
	} {
		wantCode(t, err, eventhub.CodeBadRequest)
		if err == nil || !strings.Contains(err.Error(), "group is empty") {
			t.Errorf("%s says %v", name, err)
		}
	}
}
