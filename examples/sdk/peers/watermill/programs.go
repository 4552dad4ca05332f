// Package watermill has the programs of examples/sdk on Watermill, as its documentation
// writes such programs. Publisher and subscriber are those of a broker under it; what
// depends on that broker alone has no program here: tails from a time, patterns, order by
// key, waiting for consumers, cancelling, and moving a consumer.
package watermill

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
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

// Publish publishes one event. Whether it is durable then is the broker's to say.
func Publish(_ context.Context, pub message.Publisher, o Order) error {
	payload, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return pub.Publish("orders.placed", message.NewMessage(watermill.NewUUID(), payload))
}

// PublishBatch publishes orders. Whether it is all or none depends on the broker.
func PublishBatch(_ context.Context, pub message.Publisher, orders []Order) error {
	messages := make([]*message.Message, len(orders))
	for i, o := range orders {
		payload, err := json.Marshal(o)
		if err != nil {
			return err
		}
		messages[i] = message.NewMessage(watermill.NewUUID(), payload)
	}
	return pub.Publish("orders.placed", messages...)
}

// Consume charges orders. Retries are made in the program and hold the next message up,
// the hour for a closed bank too; a refused card goes to a topic of its own.
func Consume(ctx context.Context, sub message.Subscriber, pub message.Publisher, logger watermill.LoggerAdapter, charge func(context.Context, Order) error) error {
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	poison, err := middleware.PoisonQueue(pub, "orders.poison")
	if err != nil {
		return err
	}
	retry := middleware.Retry{
		MaxRetries: 4, InitialInterval: time.Second, MaxInterval: 10 * time.Minute, Multiplier: 2, Logger: logger,
		ShouldRetry: func(p middleware.RetryParams) bool { return !errors.Is(p.Err, ErrRefused) },
	}
	router.AddMiddleware(poison, retry.Middleware)
	router.AddConsumerHandler("billing", "orders.placed", sub, func(msg *message.Message) error {
		var o Order
		if err := json.Unmarshal(msg.Payload, &o); err != nil {
			return errors.Join(ErrRefused, err)
		}
		err := charge(msg.Context(), o)
		if errors.Is(err, ErrBusy) {
			select {
			case <-time.After(time.Hour):
			case <-msg.Context().Done():
			}
		}
		return err
	})
	return router.Run(ctx)
}

// Loop stores orders, one after the other, and acks each when it is stored.
func Loop(ctx context.Context, sub message.Subscriber, store func(Order) error) error {
	messages, err := sub.Subscribe(ctx, "orders.placed")
	if err != nil {
		return err
	}
	for msg := range messages {
		var o Order
		err := json.Unmarshal(msg.Payload, &o)
		if err == nil {
			err = store(o)
		}
		if err == nil {
			msg.Ack()
		} else {
			msg.Nack()
		}
	}
	return ctx.Err()
}

// Transform makes an invoice of each order, at least once.
func Transform(ctx context.Context, sub message.Subscriber, pub message.Publisher, logger watermill.LoggerAdapter, invoice func(*message.Message) ([]byte, error)) error {
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	router.AddHandler("invoicing", "orders.placed", sub, "invoices.made", pub, func(msg *message.Message) ([]*message.Message, error) {
		payload, err := invoice(msg)
		if err != nil {
			return nil, err
		}
		return []*message.Message{message.NewMessage("invoicing-"+msg.UUID, payload)}, nil
	})
	return router.Run(ctx)
}

// Remind publishes a reminder that comes in a day, with the brokers that can. It cannot
// be cancelled.
func Remind(_ context.Context, pub message.Publisher, o Order) error {
	payload, err := json.Marshal(o)
	if err != nil {
		return err
	}
	msg := message.NewMessage(watermill.NewUUID(), payload)
	delay.Message(msg, delay.For(24*time.Hour))
	return pub.Publish("orders.reminders", msg)
}

// Repair publishes again, for all consumers, what was given up.
func Repair(ctx context.Context, sub message.Subscriber, pub message.Publisher, logger watermill.LoggerAdapter) error {
	again, err := requeuer.NewRequeuer(requeuer.Config{
		Subscriber: sub, SubscribeTopic: "orders.poison", Publisher: pub,
		GeneratePublishTopic: func(requeuer.GeneratePublishTopicParams) (string, error) { return "orders.placed", nil },
	}, logger)
	if err != nil {
		return err
	}
	return again.Run(ctx)
}
