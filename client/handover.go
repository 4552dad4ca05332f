package client

import (
	"context"

	"eventhub"
)

// HandOver implements eventhub.Subscriber.
func (c *Client) HandOver(_ context.Context, _, _ string, hs []eventhub.Handover, done func([]eventhub.Handover)) {
	refuse(hs, done)
}

// HandOver implements eventhub.Subscription.
func (s *subscription) HandOver(_ context.Context, hs []eventhub.Handover, done func([]eventhub.Handover)) {
	refuse(hs, done)
}

func refuse(hs []eventhub.Handover, done func([]eventhub.Handover)) {
	for i := range hs {
		hs[i].Err = eventhub.Errorf(eventhub.CodeUnsupportedOp, "publish in ACK is not there yet")
	}
	done(hs)
}

// Patterns implements eventhub.Inspector.
func (a *API) Patterns(context.Context, string) ([]eventhub.GroupPattern, error) { return nil, nil }
