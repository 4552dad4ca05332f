package client_test

import (
	"context"
	"errors"
	"fmt"

	"eventhub"
	"eventhub/client"
	"eventhub/hub"
)

type order struct{ Item string }

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

	if _, err := client.PublishJSON(ctx, c, eventhub.Event{Topic: "orders.placed", Key: "17"}, order{"lamp"}); err != nil {
		fmt.Println(err)
		return
	}
	opts := eventhub.GroupOptions{Topic: "orders.placed", Group: "billing", Start: eventhub.Earliest, Concurrency: 4}
	err = client.ConsumeJSON(ctx, c, opts, func(_ context.Context, o order, d eventhub.Delivery) error {
		fmt.Println(o.Item, "at offset", d.Offset)
		stop() // enough for an example
		return nil
	})
	fmt.Println("done:", err)
	// Output:
	// lamp at offset 1
	// done: <nil>
}

// A service consumes until it is asked to stop, and then drains: what its handlers
// have begun they finish, and may publish, before the connection is closed.
func ExampleClient_Drain() {
	ctx := context.Background()
	h, err := hub.Start(hub.Config{Store: hub.MemoryStore, WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer h.Stop(ctx)
	c, err := client.Dial(ctx, "ws://"+h.WSAddr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close() // harmless after Drain
	if _, err := client.PublishJSON(ctx, c, eventhub.Event{Topic: "orders.placed"}, order{"lamp"}); err != nil {
		fmt.Println(err)
		return
	}

	opts := eventhub.GroupOptions{Topic: "orders.placed", Group: "shipping", Start: eventhub.Earliest, Concurrency: 4}
	begun, ended := make(chan struct{}), make(chan error)
	go func() {
		ended <- client.ConsumeJSON(ctx, c, opts, func(ctx context.Context, o order, d eventhub.Delivery) error {
			close(begun)
			receipt, err := client.PublishJSON(ctx, c, eventhub.Event{Topic: "orders.shipped", CausedBy: []string{d.ID()}}, o)
			fmt.Println("shipped as event", receipt.Offset)
			return err
		})
	}()
	<-begun // here: a signal
	drained := make(chan error)
	go func() { drained <- c.Drain(ctx) }()
	fmt.Println("ended by Drain:", errors.Is(<-ended, client.ErrClosed))
	fmt.Println("drained:", <-drained)
	// Output:
	// shipped as event 1
	// ended by Drain: true
	// drained: <nil>
}

// A live tail sees every event from its start on, and leaves no trace in the hub. The
// error of the handler ends it.
func ExampleFollowJSON() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	h, err := hub.Start(hub.Config{Store: hub.MemoryStore, WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer h.Stop(context.Background())
	c, err := client.Dial(ctx, "ws://"+h.WSAddr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	for _, item := range []string{"lamp", "chair"} {
		if _, err := client.PublishJSON(ctx, c, eventhub.Event{Topic: "orders.placed"}, order{item}); err != nil {
			fmt.Println(err)
			return
		}
	}

	enough := errors.New("enough")
	tail := eventhub.TailOptions{Topic: "orders.placed", Start: eventhub.Earliest}
	err = client.FollowJSON(ctx, c, tail, func(_ context.Context, o order, d eventhub.Delivery) error {
		fmt.Println(d.Offset, o.Item)
		if d.Offset == 2 {
			return enough // for an example
		}
		return nil
	})
	fmt.Println("ended:", err)
	// Output:
	// 1 lamp
	// 2 chair
	// ended: enough
}
