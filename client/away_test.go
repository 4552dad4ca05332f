package client_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"eventhub"
	"eventhub/hub"
)

// TestGroupMovedWhileAway: a group that is moved, or deleted and made again, while its
// member has no connection is handled again from where it is then. The first delivery says
// so, and an event that a handler still has is not left to that handler. Without a move
// it is.
func TestGroupMovedWhileAway(t *testing.T) {
	for how, move := range map[string]func(context.Context, *hub.Hub) error{
		"sought": func(ctx context.Context, h *hub.Hub) error {
			_, err := h.Bus().SeekGroup(ctx, "t", "g", eventhub.Earliest, true)
			return err
		},
		"made again": func(ctx context.Context, h *hub.Hub) error { return h.Bus().DeleteGroup(ctx, "t", "g") },
	} {
		t.Run(how, func(t *testing.T) { movedWhileAway(t, move) })
	}
}

func movedWhileAway(t *testing.T, move func(context.Context, *hub.Hub) error) {
	h := startHub(t, hub.Config{})
	p := startProxy(t, h.WSAddr())
	ctx, stop := context.WithCancel(bounded(t))
	if _, err := h.Bus().Publish(ctx, event("t", "1"), event("t", "2")); err != nil {
		t.Fatal(err)
	}
	c := dial(t, p.addr())
	handled, proceed, consumed := make(chan string, 9), make(chan struct{}), make(chan error, 1)
	go func() {
		consumed <- c.Consume(ctx, atOnce(3, earliest("t", "g")), func(_ context.Context, d eventhub.Delivery) error {
			handled <- fmt.Sprint(d.Offset, " ", d.Sought)
			if d.Offset == 1 {
				<-proceed
			}
			return nil
		})
	}()
	expect := func(want ...string) {
		t.Helper()
		left := make(map[string]bool)
		for _, w := range want {
			left[w] = true
		}
		for range want {
			got := await(t, "a delivery", handled)
			if !left[got] {
				t.Fatalf("offset and Sought are %s; want %v", got, want)
			}
			delete(left, got)
		}
	}
	away := func(then func(context.Context, *hub.Hub) error) {
		t.Helper()
		p.aim("127.0.0.1:1") // nobody listens
		p.cut(1, nil)
		for members := -1; members != 0; { // until the hub knows
			info, err := h.Bus().Group(ctx, "t", "g")
			if err != nil {
				t.Fatal(err)
			}
			members = len(info.Members)
			time.Sleep(time.Millisecond)
		}
		if err := then(ctx, h); err != nil {
			t.Fatal(err)
		}
		p.aim(h.WSAddr())
	}
	defer func() {
		close(proceed)
		stop()
		if err := <-consumed; err != nil {
			t.Error(err)
		}
	}()
	expect("1 false", "2 false")
	away(move)
	expect("1 true", "2 false")
	away(func(ctx context.Context, h *hub.Hub) error {
		_, err := h.Bus().Publish(ctx, event("t", "3"))
		return err
	})
	for got := ""; got != "3 false"; { // the ack of 2 may be lost
		if got = await(t, "event 3", handled); got != "2 false" && got != "3 false" {
			t.Fatalf("offset and Sought are %s", got)
		}
	}
}
