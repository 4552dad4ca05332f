package client_test

import (
	"context"
	"fmt"

	"eventhub"
	"eventhub/client"
	"eventhub/hub"
)

func Example() {
	h, err := hub.Start(hub.Config{Store: hub.MemoryStore, WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer h.Stop(context.Background())
	defer stop()

	c, err := client.Dial(ctx, "ws://"+h.WSAddr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	type order struct{ Item string }
	if _, err := client.PublishJSON(ctx, c, eventhub.Event{Topic: "orders.placed", Key: "17"}, order{"lamp"}); err != nil {
		fmt.Println(err)
		return
	}
	opts := eventhub.SubscribeOptions{Topic: "orders.placed", Group: "billing", Start: eventhub.Start{Kind: eventhub.StartEarliest}}
	err = client.SubscribeJSON(ctx, c, opts, 4, func(_ context.Context, o order, d eventhub.Delivery) error {
		fmt.Println(o.Item, "at offset", d.Offset)
		stop() // enough for an example
		return nil
	})
	fmt.Println("done:", err)
	// Output:
	// lamp at offset 1
	// done: <nil>
}
