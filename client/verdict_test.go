package client_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/wire"
)

// TestVerdictsByHand: inside Consume of a client, Ack, Nack and Extend of a delivery
// count for the lease that the client holds, once, and what the handler returns
// afterwards does not.
func TestVerdictsByHand(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	ctx, stop := context.WithCancel(bounded(t))
	defer stop()
	var events []eventhub.Event
	for i := range 4 {
		events = append(events, event("t", fmt.Sprint(i)))
	}
	if _, err := c.Publish(ctx, events...); err != nil {
		t.Fatal(err)
	}
	var again error
	seen := make(map[uint64]int)
	opts := earliest("t", "g")
	opts.Backoff = eventhub.Backoff{Min: time.Millisecond, Max: time.Millisecond}
	err := c.Consume(ctx, opts, func(ctx context.Context, d eventhub.Delivery) error {
		if seen[d.Offset]++; seen[3] == 3 && seen[4] == 2 {
			stop() // after this one
		}
		switch d.Offset {
		case 1: // acked by hand: the error has no effect
			if err := errors.Join(d.Extend(ctx, time.Minute), d.Ack(ctx)); err != nil {
				t.Error(err)
			}
			again = d.Ack(ctx)
			return errors.New("too late")
		case 2:
			return eventhub.Terminal(errors.New("hopeless"))
		case 3:
			if d.Attempt < 3 {
				return eventhub.RetryAfter(time.Millisecond, errors.New("soon"))
			}
			return nil
		}
		if d.Attempt == 2 {
			return nil
		}
		if err := d.Nack(ctx, eventhub.RetryAfter(time.Millisecond, errors.New("later"))); err != nil {
			t.Error(err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, again, eventhub.CodeLeaseLost)
	for offset, want := range map[uint64]int{1: 1, 2: 1, 3: 3, 4: 2} {
		if seen[offset] != want {
			t.Errorf("offset %d was delivered %d times; want %d", offset, seen[offset], want)
		}
	}
	// Consume does not wait for the dead letter, which the hub publishes after it has taken the NACK.
	came := errors.New("the dead letter came")
	if err := c.Follow(bounded(t), tailFrom("t.dlq"), func(context.Context, eventhub.Delivery) error { return came }); !errors.Is(err, came) {
		t.Fatal(err)
	}
	letters, err := client.NewAdmin("http://" + h.HTTPAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer letters.Close()
	found := 0
	if err := letters.DeadLetters(bounded(t), admin.DeadLetterQuery{Topic: "t"}, func(l *admin.DeadLetter) error {
		found++
		if l.Event != 2 || l.Attempts != 1 || l.Reason != "hopeless" {
			t.Errorf("the dead letter is %+v", l)
		}
		return nil
	}); err != nil || found != 1 {
		t.Errorf("%d dead letters, %v", found, err)
	}
}

// TestSettlingOutsideAHandler: a delivery of Subscribe is settled from anywhere, one of
// a tail says that there is nothing to settle.
func TestSettlingOutsideAHandler(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	ctx := bounded(t)
	if _, err := c.Publish(ctx, event("t", "1")); err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{"g", ""} {
		r := keeping{came: make(chan eventhub.Delivery, 2)}
		sub, err := join(ctx, c, wire.SubscribeOptions{GroupOptions: earliest("t", group)}, r)
		if err != nil {
			t.Fatal(err)
		}
		d := await(t, "the event", r.came)
		if group == "" {
			wantCode(t, d.Ack(ctx), eventhub.CodeBadRequest)
			continue
		}
		if err := d.Ack(ctx); err != nil {
			t.Error(err)
		}
		wantCode(t, d.Nack(ctx, nil), eventhub.CodeLeaseLost)
		if err := sub.Unsubscribe(ctx); err != nil {
			t.Error(err)
		}
		if info, err := h.Bus().Group(ctx, "t", group); err != nil || info.Cursor != 1 {
			t.Errorf("the group is %+v, %v", info, err)
		}
	}
}

// keeping is a Receiver that keeps what it gets.
type keeping struct{ came chan eventhub.Delivery }

func (k keeping) Deliver(batch []eventhub.Delivery) int {
	for _, d := range batch {
		k.came <- d
	}
	return len(batch)
}

func (keeping) Ended(error) {}

// TestStoppedHandlerIsNoFailure: a handler that its context has ended gives the event
// back; the attempt does not count, and the next member has it at once.
func TestStoppedHandlerIsNoFailure(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	if _, err := c.Publish(bounded(t), event("t", "1")); err != nil {
		t.Fatal(err)
	}
	for name, consume := range map[string]func(context.Context, eventhub.GroupOptions, eventhub.Handler) error{
		"Consume": c.Consume,
		"Transform": func(ctx context.Context, opts eventhub.GroupOptions, h eventhub.Handler) error {
			return c.Transform(ctx, opts, func(ctx context.Context, d eventhub.Delivery) ([]eventhub.Event, error) {
				return nil, h(ctx, d)
			})
		},
	} {
		opts := earliest("t", name)
		for range 2 {
			ctx, stop := context.WithCancel(bounded(t))
			err := consume(ctx, opts, func(ctx context.Context, d eventhub.Delivery) error {
				if d.Attempt != 1 {
					t.Errorf("%s: attempt %d", name, d.Attempt)
				}
				stop()
				return fmt.Errorf("handle: %w", ctx.Err())
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
}
