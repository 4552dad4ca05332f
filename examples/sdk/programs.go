// Package sdk has ten small programs on the Go SDK. The same ten, for NATS JetStream and
// for Watermill, are in the module peers; docs/go-sdk.md compares them.
package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
)

// Order is what is sold.
type Order struct {
	Customer string `json:"customer"`
	Item     string `json:"item"`
	Amount   int    `json:"amount"`
}

// What a payment may say.
var (
	ErrRefused = errors.New("the card was refused")
	ErrBusy    = errors.New("the bank is closed")
)

// Publish publishes one event, which is durable when it returns.
func Publish(ctx context.Context, c *client.Client, o Order) (eventhub.Receipt, error) {
	return client.PublishJSON(ctx, c, eventhub.Event{Topic: "orders.placed", Key: o.Customer}, o)
}

// PublishBatch publishes all orders or none.
func PublishBatch(ctx context.Context, c *client.Client, orders []Order) error {
	events := make([]eventhub.Event, len(orders))
	for i, o := range orders {
		payload, err := json.Marshal(o)
		if err != nil {
			return err
		}
		events[i] = eventhub.Event{Topic: "orders.placed", Key: o.Customer, Payload: payload}
	}
	_, err := c.Publish(ctx, events...)
	return err
}

// Consume charges orders, four at a time: an error is tried again after the group's
// backoff, a refused card goes to the dead letters at once, a closed bank is asked in
// an hour.
func Consume(ctx context.Context, c *client.Client, charge func(context.Context, Order) error) error {
	opts := eventhub.GroupOptions{Topic: "orders.placed", Group: "billing", Start: eventhub.Earliest, Concurrency: 4}
	return client.ConsumeJSON(ctx, c, opts, func(ctx context.Context, o Order, _ eventhub.Delivery) error {
		err := charge(ctx, o)
		switch {
		case errors.Is(err, ErrRefused):
			return eventhub.Terminal(err)
		case errors.Is(err, ErrBusy):
			return eventhub.RetryAfter(time.Hour, err)
		}
		return err
	})
}

// Loop stores orders, one after the other, and acks each when it is stored.
func Loop(ctx context.Context, c *client.Client, store func(Order) error) error {
	opts := eventhub.GroupOptions{Topic: "orders.placed", Group: "warehouse", Start: eventhub.Earliest}
	for d, err := range c.Deliveries(ctx, opts) {
		if err != nil {
			return err
		}
		var o Order
		if err = d.Decode(&o); err == nil {
			err = store(o)
		}
		if err == nil {
			err = d.Ack(ctx)
		} else {
			err = d.Nack(ctx, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Tail shows the orders since a time, and those that come, until show returns an error.
func Tail(ctx context.Context, c *client.Client, since time.Time, show func(Order) error) error {
	opts := eventhub.TailOptions{Topic: "orders.placed", Start: eventhub.At(since)}
	return client.FollowJSON(ctx, c, opts, func(_ context.Context, o Order, _ eventhub.Delivery) error { return show(o) })
}

// Audit notes large orders of all kinds: eight customers at a time, each one's orders
// one after the other.
func Audit(ctx context.Context, c *client.Client, note func(topic string, o Order) error) error {
	opts := eventhub.GroupOptions{
		Topic: "orders.*", Group: "audit", Start: eventhub.Earliest, Concurrency: 8,
		Filter: &eventhub.Filter{CEL: "event.payload.amount >= 1000"}, Ordering: eventhub.OrderingKey,
	}
	return client.ConsumeJSON(ctx, c, opts, func(_ context.Context, o Order, d eventhub.Delivery) error { return note(d.Topic, o) })
}

// Transform makes an invoice of each order, exactly once.
func Transform(ctx context.Context, c *client.Client, invoice func(eventhub.Delivery) ([]byte, error)) error {
	opts := eventhub.GroupOptions{Topic: "orders.placed", Group: "invoicing", Start: eventhub.Earliest}
	return c.Transform(ctx, opts, func(_ context.Context, d eventhub.Delivery) ([]eventhub.Event, error) {
		payload, err := invoice(d)
		return []eventhub.Event{{Topic: "invoices.made", Payload: payload}}, err
	})
}

// PublishAndWait publishes an order and waits until it is charged.
func PublishAndWait(ctx context.Context, c *client.Client, o Order) error {
	payload, err := json.Marshal(o)
	if err != nil {
		return err
	}
	_, err = c.PublishAndWait(ctx, []string{"billing"}, 30*time.Second, eventhub.Event{Topic: "orders.placed", Key: o.Customer, Payload: payload})
	return err
}

// Remind publishes a reminder that comes in a day, unless it is cancelled before.
func Remind(ctx context.Context, c *client.Client, o Order) (cancel func(context.Context) error, _ error) {
	reminder, err := client.PublishJSON(ctx, c, eventhub.Event{Topic: "orders.reminders", Delay: 24 * time.Hour}, o)
	return func(ctx context.Context) error { return c.Cancel(ctx, "orders.reminders", reminder.ID) }, err
}

// Repair lets billing see all since a time again, and gives it back the orders that it
// gave up.
func Repair(ctx context.Context, c *client.Client, since time.Time) error {
	if _, err := c.Admin().SeekGroup(ctx, "orders.placed", "billing", eventhub.At(since), true); err != nil {
		return err
	}
	given := admin.DeadLetterQuery{Topic: "orders.placed", Group: "billing"}
	_, err := c.Admin().Redrive(ctx, admin.RedriveQuery{DeadLetterQuery: given, Apply: true})
	return err
}
