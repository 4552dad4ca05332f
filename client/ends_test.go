package client_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"eventhub"
	"eventhub/client"
	"eventhub/hub"
)

type published struct {
	receipts []eventhub.Receipt
	err      error
}

// inBackground publishes and reports the outcome.
func inBackground(ctx context.Context, c *client.Client, events ...eventhub.Event) <-chan published {
	done := make(chan published, 1)
	go func() {
		r, err := c.Publish(ctx, events...)
		done <- published{r, err}
	}()
	return done
}

// TestDrainFinishesHandlers: the handler under way finishes, publishes, and its
// verdict counts; what was not begun goes to others with its attempt given back.
func TestDrainFinishesHandlers(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	ctx := bounded(t)
	if _, err := c.Publish(ctx, event("t", `1`), event("t", `2`)); err != nil {
		t.Fatal(err)
	}
	begun, proceed := make(chan bool, 9), make(chan struct{})
	var result error
	consumed, drained := make(chan error, 1), make(chan error, 1)
	go func() {
		consumed <- c.Consume(ctx, earliest("t", "g"), func(ctx context.Context, d eventhub.Delivery) error {
			begun <- true
			<-proceed
			_, result = c.Publish(ctx, event("results", `1`))
			return nil
		})
	}()
	await(t, "the handler", begun)
	plain := newCollector(9)
	if _, err := c.Subscribe(ctx, earliest("t", "h"), plain); err != nil {
		t.Fatal(err)
	}
	go func() { drained <- c.Drain(ctx) }()
	if err := await(t, "the end of the plain one", plain.ended); !errors.Is(err, client.ErrClosed) {
		t.Errorf("Ended got %v", err)
	}
	if _, err := c.Subscribe(ctx, earliest("t", "i"), newCollector(0)); !errors.Is(err, client.ErrClosed) {
		t.Errorf("Subscribe while draining: %v", err)
	}
	for range 20 { // Drain would be done by now
		if _, err := c.Publish(ctx, event("v", `1`)); err != nil {
			t.Fatalf("Drain did not wait for the handler: %v", err)
		}
	}
	close(proceed)
	if err := await(t, "the end of Drain", drained); err != nil {
		t.Error(err)
	}
	if err := await(t, "the end of Consume", consumed); !errors.Is(err, client.ErrClosed) || result != nil {
		t.Errorf("Consume = %v; the handler's publish: %v", err, result)
	}
	if _, err := c.Publish(ctx, event("t", `3`)); !errors.Is(err, client.ErrClosed) {
		t.Errorf("Publish after Drain: %v", err)
	}
	var attempts []int
	consuming, stop := context.WithCancel(ctx)
	if err := eventhub.Consume(consuming, h.Bus(), earliest("t", "g"), func(_ context.Context, d eventhub.Delivery) error {
		attempts = append(attempts, int(d.Offset)*10+d.Attempt)
		stop()
		return nil
	}); err != nil || !slices.Equal(attempts, []int{21}) {
		t.Errorf("then came %v, %v; want offset 2 at attempt 1", attempts, err)
	}
	if err := c.Drain(ctx); err != nil {
		t.Errorf("a second Drain: %v", err)
	}
}

// TestDrainWaitsForReceipts: also over a lost connection; and no longer than its
// context.
func TestDrainWaitsForReceipts(t *testing.T) {
	h := startHub(t, hub.Config{})
	for _, inTime := range []bool{true, false} {
		p := startProxy(t, h.WSAddr())
		c := dial(t, p.addr())
		r := newCollector(9)
		if _, err := c.Subscribe(bounded(t), earliest("u", "g"), r); err != nil {
			t.Fatal(err)
		}
		p.losing.Store(true)
		done := inBackground(bounded(t), c, event("t", `1`))
		await(t, "the answer", p.lost)
		ctx, cancel := context.WithCancel(bounded(t))
		defer cancel()
		drained := make(chan error, 1)
		go func() { drained <- c.Drain(ctx) }()
		await(t, "the beginning of Drain", r.ended)
		if inTime {
			p.losing.Store(false)
			p.cut(1, nil)
			if err := await(t, "the end of Drain", drained); err != nil {
				t.Error(err)
			}
			if got := await(t, "the receipt", done); got.err != nil || got.receipts[0].Offset != 1 {
				t.Errorf("%+v", got)
			}
			continue
		}
		cancel()
		if err := await(t, "the end of Drain", drained); !errors.Is(err, context.Canceled) {
			t.Errorf("Drain = %v", err)
		}
		if got := await(t, "the receipt", done); !errors.Is(got.err, client.ErrClosed) {
			t.Errorf("%+v", got)
		}
	}
}

// TestCloseEndsAllAtOnce: whatever waits is notified before Close returns.
func TestCloseEndsAllAtOnce(t *testing.T) {
	h := startHub(t, hub.Config{})
	p := startProxy(t, h.WSAddr())
	c := dial(t, p.addr(), client.WithMaxPending(2))
	ctx := bounded(t)
	r := newCollector(9)
	sub, err := c.Subscribe(ctx, earliest("t", "g"), r)
	if err != nil {
		t.Fatal(err)
	}
	begun := make(chan bool, 1)
	consumed := make(chan error, 1)
	go func() {
		consumed <- c.Consume(ctx, earliest("u", "g"), func(ctx context.Context, _ eventhub.Delivery) error {
			begun <- true
			return nil
		})
	}()
	if _, err := c.Publish(ctx, event("u", `1`)); err != nil {
		t.Fatal(err)
	}
	await(t, "the handler", begun)
	p.losing.Store(true)
	outcome := make(chan error, 1)
	c.Enqueue(ctx, []eventhub.Publication{{Events: []eventhub.Event{event("t", `1`), event("t", `2`)}}},
		func(p []eventhub.Publication) { outcome <- p[0].Err })
	waiting := inBackground(ctx, c, event("t", `3`))
	await(t, "the answer", p.lost)
	c.Close()
	if len(outcome) != 1 || len(r.ended) != 1 {
		t.Fatalf("after Close: %d outcomes, %d ends", len(outcome), len(r.ended))
	}
	_, afterwards := c.Publish(ctx, event("t", `4`))
	_, settling := sub.Settle(ctx, eventhub.Settlement{Refs: []eventhub.Ref{{ID: "x"}}})
	_, joining := c.Subscribe(ctx, earliest("t", "h"), r)
	for i, err := range []error{<-outcome, <-r.ended, await(t, "the outcome", waiting).err, await(t, "the end", consumed), afterwards, settling, joining} {
		if !errors.Is(err, client.ErrClosed) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if err := sub.Unsubscribe(ctx); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// TestContextsEndRequests: whose context ends is not sent again, and its answer
// is nobody's.
func TestContextsEndRequests(t *testing.T) {
	h := startHub(t, hub.Config{})
	p := startProxy(t, h.WSAddr())
	c := dial(t, p.addr())
	// Committed, the answer lost.
	p.losing.Store(true)
	ctx, cancel := context.WithCancel(bounded(t))
	done := inBackground(ctx, c, event("t", `1`))
	await(t, "the answer", p.lost)
	cancel()
	got := await(t, "the outcome", done)
	if !errors.Is(got.err, context.Canceled) || len(got.receipts) != 1 || got.receipts[0].ID == "" || got.receipts[0].Offset != 0 {
		t.Fatalf("%+v", got)
	}
	// Never sent: nobody is there.
	p.aim("127.0.0.1:1")
	p.losing.Store(false)
	p.cut(1, nil)
	short, cancel := context.WithTimeout(bounded(t), 20*time.Millisecond)
	defer cancel()
	outcome := make(chan error, 1)
	c.Enqueue(short, []eventhub.Publication{{Events: []eventhub.Event{event("t", `2`)}}}, func(p []eventhub.Publication) { outcome <- p[0].Err })
	if _, err := c.Publish(short, event("t", `3`)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Publish = %v", err)
	}
	if err := await(t, "the outcome", outcome); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Enqueue = %v", err)
	}
	if _, err := c.Subscribe(short, earliest("t", "g"), newCollector(0)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Subscribe = %v", err)
	}
	p.aim(h.WSAddr())
	again := event("t", `1`)
	again.ID = got.receipts[0].ID
	if r, err := c.Publish(bounded(t), again, event("t", `4`)); err != nil || r[0].Offset != 1 || !r[0].Duplicate || r[1].Offset != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := c.Subscribe(bounded(t), earliest("t", "g"), newCollector(9)); err != nil {
		t.Errorf("the same subscription again: %v", err)
	}
}

// TestPendingIsBounded: beyond the bound publishes wait, in line, and only as
// long as their context.
func TestPendingIsBounded(t *testing.T) {
	h := startHub(t, hub.Config{})
	p := startProxy(t, h.WSAddr())
	c := dial(t, p.addr(), client.WithMaxPending(2))
	if r, err := c.Publish(bounded(t), event("t", `1`), event("t", `2`), event("t", `3`)); err != nil || r[2].Offset != 3 {
		t.Fatalf("more than the bound, alone: %+v, %v", r, err)
	}
	p.losing.Store(true)
	first := inBackground(bounded(t), c, event("t", `4`), event("t", `5`))
	await(t, "the answer", p.lost)
	short, cancel := context.WithTimeout(bounded(t), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Publish(short, event("t", `6`)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beyond the bound: %v", err)
	}
	if r, err := h.Bus().Publish(bounded(t), event("t", `7`)); err != nil || r[0].Offset != 6 {
		t.Errorf("%+v, %v: what had no room was sent", r, err)
	}
	second, third := inBackground(bounded(t), c, event("t", `8`)), inBackground(bounded(t), c, event("t", `9`))
	p.losing.Store(false)
	p.cut(1, nil)
	for _, ch := range []<-chan published{first, second, third} {
		if got := await(t, "the outcome", ch); got.err != nil {
			t.Error(got.err)
		}
	}
}
