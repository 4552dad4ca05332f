package sdk

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"time"

	"eventhub"
	"eventhub/client"
)

// Workers posts orders to a webhook: sixteen at a time, those of a customer one after the
// other. What the webhook refuses (4xx) goes to the dead letters at once, unless it asks
// to wait (429); all else is tried again.
func Workers(ctx context.Context, c *client.Client, url string) error {
	opts := eventhub.GroupOptions{
		Topic: "orders.placed", Group: "webhook", Start: eventhub.Earliest,
		Concurrency: 16, Ordering: eventhub.OrderingKey,
	}
	return c.Consume(ctx, opts, func(ctx context.Context, d eventhub.Delivery) error {
		e, err := d.Event()
		if err != nil {
			return eventhub.Terminal(err)
		}
		ask, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(e.Payload))
		if err != nil {
			return eventhub.Terminal(err)
		}
		answer, err := http.DefaultClient.Do(ask)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		err = fmt.Errorf("%s answered %s", url, answer.Status)
		switch code := answer.StatusCode; {
		case code < 300:
			return nil
		case code == http.StatusTooManyRequests:
			return eventhub.RetryAfter(time.Minute, err)
		case code >= 400 && code < 500:
			return eventhub.Terminal(err)
		}
		return err
	})
}
