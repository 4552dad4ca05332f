package sdk

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/client"
	"eventhub/hubtest"
)

// run runs a program until the test ends, or stop.
func run(t *testing.T, program func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- program(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func publish(t *testing.T, c *client.Client, orders ...Order) {
	t.Helper()
	if err := PublishBatch(t.Context(), c, orders); err != nil {
		t.Fatal(err)
	}
}

func TestPublish(t *testing.T) {
	h := hubtest.Start(t)
	receipt, err := Publish(t.Context(), h.Client(), Order{"ann", "lamp", 20})
	if err != nil {
		t.Fatal(err)
	}
	publish(t, h.Client(), Order{"bob", "desk", 200}, Order{"ann", "chair", 100})
	events := h.Events("orders.placed", 3)
	if events[0].ID != receipt.ID || events[0].Key != "ann" || string(events[1].Payload) != `{"customer":"bob","item":"desk","amount":200}` {
		t.Errorf("%+v", events)
	}
}

// TestConsume: what is refused is a dead letter at once; what is repaired comes again.
func TestConsume(t *testing.T) {
	h := hubtest.Start(t)
	c := h.Client()
	began := time.Now()
	publish(t, c, Order{"ann", "lamp", 20}, Order{"bob", "desk", 200}, Order{"cid", "vase", 50})
	var mu sync.Mutex
	charged := make(map[string]int)
	times := func(item string) int {
		mu.Lock()
		defer mu.Unlock()
		return charged[item]
	}
	run(t, func(ctx context.Context) error {
		return Consume(ctx, c, func(_ context.Context, o Order) error {
			mu.Lock()
			defer mu.Unlock()
			switch charged[o.Item]++; {
			case o.Item == "desk" && charged[o.Item] == 1:
				return ErrRefused
			case o.Item == "vase" && charged[o.Item] == 1:
				return ErrBusy
			}
			return nil
		})
	})
	letter := h.Events(eventhub.DeadLetterTopic("orders.placed"), 1)[0]
	if letter.Key != "bob" || times("desk") != 1 {
		t.Errorf("the dead letter is %+v, after %d attempts", letter, times("desk"))
	}
	// The vase has to be given back before: what is given back after the seek waits for an hour.
	for given := false; !given; time.Sleep(time.Millisecond) {
		info, err := c.Admin().Group(t.Context(), "orders.placed", "billing")
		if err != nil {
			t.Fatal(err)
		}
		given = info.Waiting == 1
	}
	if err := Repair(t.Context(), c, began.Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	h.WaitFor("orders.placed", "billing")
	if vase, desk := times("vase"), times("desk"); vase != 2 || desk < 2 { // desk is seen again, and may be given back after that
		t.Errorf("the vase was charged %d times, the desk %d times", vase, desk)
	}
	if err := PublishAndWait(t.Context(), c, Order{"eve", "rug", 10}); err != nil || times("rug") != 1 {
		t.Errorf("waited: %v; charged %d times", err, times("rug"))
	}
}

func TestLoop(t *testing.T) {
	h := hubtest.Start(t)
	c := h.Client()
	publish(t, c, Order{Item: "lamp"}, Order{Item: "desk"})
	var stored []string
	stop := run(t, func(ctx context.Context) error {
		return Loop(ctx, c, func(o Order) error { stored = append(stored, o.Item); return nil })
	})
	h.WaitFor("orders.placed", "warehouse")
	stop()
	if !slices.Equal(stored, []string{"lamp", "desk"}) {
		t.Errorf("stored %v", stored)
	}
}

func TestTail(t *testing.T) {
	h := hubtest.Start(t)
	c := h.Client()
	publish(t, c, Order{Item: "lamp"}, Order{Item: "desk"})
	var shown []string
	enough := errors.New("enough")
	if err := Tail(t.Context(), c, time.Now().Add(-time.Minute), func(o Order) error {
		if shown = append(shown, o.Item); len(shown) == 2 {
			return enough
		}
		return nil
	}); err != enough || !slices.Equal(shown, []string{"lamp", "desk"}) {
		t.Errorf("shown %v: %v", shown, err)
	}
}

func TestAudit(t *testing.T) {
	h := hubtest.Start(t)
	c := h.Client()
	publish(t, c, Order{"ann", "boat", 5000}, Order{"ann", "lamp", 20}, Order{"ann", "car", 9000})
	var noted []string
	stop := run(t, func(ctx context.Context) error {
		return Audit(ctx, c, func(topic string, o Order) error { noted = append(noted, topic+" "+o.Item); return nil })
	})
	h.WaitFor("orders.placed", "audit")
	stop()
	if !slices.Equal(noted, []string{"orders.placed boat", "orders.placed car"}) {
		t.Errorf("noted %v", noted)
	}
}

func TestTransform(t *testing.T) {
	h := hubtest.Start(t)
	c := h.Client()
	receipt, err := Publish(t.Context(), c, Order{Item: "lamp"})
	if err != nil {
		t.Fatal(err)
	}
	run(t, func(ctx context.Context) error {
		return Transform(ctx, c, func(d eventhub.Delivery) ([]byte, error) {
			e, err := d.Event()
			return e.Payload, err
		})
	})
	invoice := h.Events("invoices.made", 1)[0]
	if invoice.CausedBy[0] != receipt.ID || invoice.ID != eventhub.ResultID("invoicing", "orders.placed", 1, 0) {
		t.Errorf("the invoice is %+v", invoice)
	}
}

func TestRemind(t *testing.T) {
	h := hubtest.Start(t)
	c := h.Client()
	cancel, err := Remind(t.Context(), c, Order{Item: "lamp"})
	if err != nil {
		t.Fatal(err)
	}
	if err := cancel(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := cancel(t.Context()); eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		t.Errorf("cancelled twice: %v", err)
	}
}
