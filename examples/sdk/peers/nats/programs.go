// Package nats has the programs of examples/sdk on NATS JetStream, as its documentation
// writes such programs. The stream ORDERS has the subjects orders.> and allows atomic
// batches and scheduled messages; INVOICES has invoices.>.
package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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

// Publish publishes one event, which the stream has stored when it returns. An answer
// that was lost is made harmless by an id of the program's own.
func Publish(ctx context.Context, js jetstream.JetStream, id string, o Order) (*jetstream.PubAck, error) {
	payload, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	return js.Publish(ctx, "orders.placed", payload, jetstream.WithMsgID(id))
}

// PublishBatch publishes all orders or none. nats.go has no call for it: the headers of
// an atomic batch are set by hand.
func PublishBatch(ctx context.Context, nc *nats.Conn, batch string, orders []Order) error {
	for i, o := range orders {
		payload, err := json.Marshal(o)
		if err != nil {
			return err
		}
		msg := &nats.Msg{Subject: "orders.placed", Data: payload, Header: nats.Header{}}
		msg.Header.Set("Nats-Batch-Id", batch)
		msg.Header.Set("Nats-Batch-Sequence", fmt.Sprint(i+1))
		if i+1 < len(orders) {
			if err := nc.PublishMsg(msg); err != nil {
				return err
			}
			continue
		}
		msg.Header.Set("Nats-Batch-Commit", "1")
		answer, err := nc.RequestMsgWithContext(ctx, msg)
		if err != nil {
			return err
		}
		var ack struct {
			Error *jetstream.APIError `json:"error"`
		}
		if err := json.Unmarshal(answer.Data, &ack); err != nil {
			return err
		}
		if ack.Error != nil {
			return ack.Error
		}
	}
	return nil
}

// Consume charges orders, four at a time. An event that was given up is in no dead
// letters: an advisory names its place in the stream.
func Consume(ctx context.Context, js jetstream.JetStream, charge func(context.Context, Order) error) error {
	cons, err := js.CreateOrUpdateConsumer(ctx, "ORDERS", jetstream.ConsumerConfig{
		Durable: "billing", FilterSubject: "orders.placed", DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second, MaxDeliver: 5,
	})
	if err != nil {
		return err
	}
	iter, err := cons.Messages()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, iter.Stop)()
	workers := make(chan struct{}, 4)
	for {
		msg, err := iter.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) {
			for range cap(workers) {
				workers <- struct{}{}
			}
			return nil
		}
		if err != nil {
			return err
		}
		workers <- struct{}{}
		go func() {
			defer func() { <-workers }()
			var o Order
			if err := json.Unmarshal(msg.Data(), &o); err != nil {
				msg.TermWithReason(err.Error())
				return
			}
			working := time.NewTicker(15 * time.Second)
			over := make(chan struct{})
			go func() {
				defer working.Stop()
				for {
					select {
					case <-working.C:
						msg.InProgress()
					case <-over:
						return
					}
				}
			}()
			err := charge(ctx, o)
			close(over)
			switch {
			case err == nil:
				msg.Ack()
			case errors.Is(err, ErrRefused):
				msg.TermWithReason(err.Error())
			case errors.Is(err, ErrBusy):
				msg.NakWithDelay(time.Hour)
			default: // a Nak without delay comes again at once
				attempt := uint64(1)
				if place, err := msg.Metadata(); err == nil {
					attempt = place.NumDelivered
				}
				msg.NakWithDelay(time.Second << attempt)
			}
		}()
	}
}

// Loop stores orders, one after the other, and acks each when it is stored.
func Loop(ctx context.Context, js jetstream.JetStream, store func(Order) error) error {
	cons, err := js.CreateOrUpdateConsumer(ctx, "ORDERS", jetstream.ConsumerConfig{
		Durable: "warehouse", FilterSubject: "orders.placed", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 5,
	})
	if err != nil {
		return err
	}
	iter, err := cons.Messages()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, iter.Stop)()
	for {
		msg, err := iter.Next()
		if err != nil {
			return err
		}
		var o Order
		if err = json.Unmarshal(msg.Data(), &o); err == nil {
			err = store(o)
		}
		if err == nil {
			err = msg.Ack()
		} else {
			err = msg.Nak()
		}
		if err != nil {
			return err
		}
	}
}

// Tail shows the orders since a time, and those that come, until show returns an error.
func Tail(ctx context.Context, js jetstream.JetStream, since time.Time, show func(Order) error) error {
	cons, err := js.OrderedConsumer(ctx, "ORDERS", jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{"orders.placed"}, DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since,
	})
	if err != nil {
		return err
	}
	iter, err := cons.Messages()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, iter.Stop)()
	for {
		msg, err := iter.Next()
		if err != nil {
			return err
		}
		var o Order
		if err := json.Unmarshal(msg.Data(), &o); err != nil {
			return err
		}
		if err := show(o); err != nil {
			iter.Stop()
			return err
		}
	}
}

// Audit notes large orders of all kinds. The program filters by content itself; to keep
// the orders of a customer in order there is one message at a time for all of them.
func Audit(ctx context.Context, js jetstream.JetStream, note func(topic string, o Order) error) error {
	cons, err := js.CreateOrUpdateConsumer(ctx, "ORDERS", jetstream.ConsumerConfig{
		Durable: "audit", FilterSubject: "orders.*", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 1, MaxDeliver: 5,
	})
	if err != nil {
		return err
	}
	consuming, err := cons.Consume(func(msg jetstream.Msg) {
		var o Order
		if err := json.Unmarshal(msg.Data(), &o); err != nil {
			msg.TermWithReason(err.Error())
			return
		}
		if o.Amount < 1000 {
			msg.Ack()
			return
		}
		if err := note(msg.Subject(), o); err != nil {
			msg.Nak()
			return
		}
		msg.Ack()
	})
	if err != nil {
		return err
	}
	defer consuming.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-consuming.Closed():
		return errors.New("the consumer ended")
	}
}

// Transform makes an invoice of each order: at least once, and once within the stream's
// duplicate window, as publishing and acking are two steps.
func Transform(ctx context.Context, js jetstream.JetStream, invoice func(jetstream.Msg) ([]byte, error)) error {
	cons, err := js.CreateOrUpdateConsumer(ctx, "ORDERS", jetstream.ConsumerConfig{
		Durable: "invoicing", FilterSubject: "orders.placed", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 5,
	})
	if err != nil {
		return err
	}
	consuming, err := cons.Consume(func(msg jetstream.Msg) {
		place, err := msg.Metadata()
		if err != nil {
			msg.Nak()
			return
		}
		payload, err := invoice(msg)
		if err != nil {
			msg.Nak()
			return
		}
		id := fmt.Sprintf("invoicing-%d", place.Sequence.Stream)
		if _, err := js.Publish(ctx, "invoices.made", payload, jetstream.WithMsgID(id)); err != nil {
			msg.Nak()
			return
		}
		msg.DoubleAck(ctx)
	})
	if err != nil {
		return err
	}
	defer consuming.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-consuming.Closed():
		return errors.New("the consumer ended")
	}
}

// PublishAndWait publishes an order and asks again and again whether it is charged.
func PublishAndWait(ctx context.Context, js jetstream.JetStream, o Order) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	payload, err := json.Marshal(o)
	if err != nil {
		return err
	}
	ack, err := js.Publish(ctx, "orders.placed", payload)
	if err != nil {
		return err
	}
	cons, err := js.Consumer(ctx, "ORDERS", "billing")
	if err != nil {
		return err
	}
	for {
		info, err := cons.Info(ctx)
		if err != nil {
			return err
		}
		if info.AckFloor.Stream >= ack.Sequence {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Remind publishes a reminder that comes in a day, unless it is cancelled before: a
// schedule has a subject of its own, which is purged.
func Remind(ctx context.Context, js jetstream.JetStream, id string, o Order) (cancel func(context.Context) error, _ error) {
	payload, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	_, err = js.Publish(ctx, "orders.schedules."+id, payload,
		jetstream.WithScheduleAt(time.Now().Add(24*time.Hour)), jetstream.WithScheduleTarget("orders.reminders"))
	return func(ctx context.Context) error {
		stream, err := js.Stream(ctx, "ORDERS")
		if err != nil {
			return err
		}
		return stream.Purge(ctx, jetstream.WithPurgeSubject("orders.schedules."+id))
	}, err
}

// Repair lets billing see all since a time again: the consumer is made again, and its
// members have to be started again. There are no dead letters to give back.
func Repair(ctx context.Context, js jetstream.JetStream, since time.Time) error {
	cons, err := js.Consumer(ctx, "ORDERS", "billing")
	if err != nil {
		return err
	}
	info, err := cons.Info(ctx)
	if err != nil {
		return err
	}
	if err := js.DeleteConsumer(ctx, "ORDERS", "billing"); err != nil {
		return err
	}
	config := info.Config
	config.DeliverPolicy, config.OptStartTime = jetstream.DeliverByStartTimePolicy, &since
	_, err = js.CreateConsumer(ctx, "ORDERS", config)
	return err
}
