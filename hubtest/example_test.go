package hubtest_test

import (
	"context"
	"testing"

	"eventhub"
	"eventhub/client"
	"eventhub/hubtest"
)

type order struct {
	Item string `json:"item"`
}

// ship is the consumer under test: every order that is placed becomes one that is
// shipped.
func ship(ctx context.Context, c *client.Client) error {
	placed := eventhub.GroupOptions{
		Topic: "order.placed", Group: "shipping",
		Start: eventhub.Earliest,
	}
	return client.ConsumeJSON(ctx, c, placed, func(ctx context.Context, o order, d eventhub.Delivery) error {
		shipped := eventhub.Event{Topic: "order.shipped", CausedBy: []string{d.ID()}}
		_, err := client.PublishJSON(ctx, c, shipped, o)
		return err
	})
}

// testShipping stands for TestShipping in the tests of ship.
func testShipping(t *testing.T) {
	h := hubtest.Start(t)
	ctx, stop := context.WithCancel(t.Context())
	consumer, ended := h.Client(), make(chan error, 1)
	go func() { ended <- ship(ctx, consumer) }()

	lamp, err := client.PublishJSON(ctx, h.Client(), eventhub.Event{Topic: "order.placed"}, order{"lamp"})
	if err != nil {
		t.Fatal(err)
	}
	h.WaitFor("order.placed", "shipping")
	shipped := h.Events("order.shipped", 1)[0]
	if string(shipped.Payload) != `{"item":"lamp"}` || shipped.CausedBy[0] != lamp.ID {
		t.Errorf("shipped %s because of %v", shipped.Payload, shipped.CausedBy)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

var t *testing.T // from go test

func Example() {
	testShipping(t)
}
