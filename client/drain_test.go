package client_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/internal/bubble"
)

// TestDrainHoldsWhatComes: while a handler finishes for longer than its lease, no lease runs out: not of what waits, of what is
// published meanwhile, nor of what comes again over another connection. The event of the handler is its own also then, and all else
// goes to the next member with no attempt counted but those of the lost connection.
func TestDrainHoldsWhatComes(t *testing.T) {
	for _, cut := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			client.EmptyPools()
			defer client.EmptyPools()
			h, network := pipedHub(t, hub.Config{})
			ctx := context.Background()
			var conns []net.Conn
			open := func() *client.Client {
				c, err := client.Dial(ctx, "ws://"+h.WSAddr(), client.WithReconnect(time.Millisecond, 10*time.Millisecond),
					client.WithNetDial(func(ctx context.Context, kind, addr string) (net.Conn, error) {
						conn, err := network.Dial(ctx, kind, addr)
						conns = append(conns, conn)
						return conn, err
					}))
				if err != nil {
					t.Fatal(err)
				}
				return c
			}
			c := open()
			next := open()
			opts := eventhub.GroupOptions{Topic: "t", Group: "g", Start: eventhub.Earliest, AckTimeout: time.Second, MaxAttempts: 2}
			publish := func(payloads ...string) {
				for _, p := range payloads {
					if _, err := next.Publish(ctx, event("t", p)); err != nil {
						t.Error(err)
					}
				}
			}
			var begun []uint64
			proceed := make(chan struct{})
			consumed, drained := make(chan error, 1), make(chan error, 1)
			publish("1", "2")
			go func() {
				consumed <- c.Consume(ctx, opts, func(_ context.Context, d eventhub.Delivery) error {
					begun = append(begun, d.Offset)
					<-proceed
					return nil
				})
			}()
			synctest.Wait()
			go func() { drained <- c.Drain(ctx) }()
			synctest.Wait()
			publish("3", "4")
			synctest.Wait() // the last one is on its way to the member when its publish is answered
			if cut {
				conns[0].Close()
			}
			time.Sleep(10 * opts.AckTimeout)
			close(proceed)
			if err := errors.Join(<-drained, next.Close()); err != nil {
				t.Error(err)
			}
			if err := <-consumed; !errors.Is(err, client.ErrClosed) {
				t.Errorf("Consume = %v", err)
			}
			var then []int
			rest, stop := context.WithCancel(ctx)
			go func() { time.Sleep(time.Minute); stop() }()
			if err := eventhub.Consume(rest, h.Bus(), opts, func(_ context.Context, d eventhub.Delivery) error {
				then = append(then, int(d.Offset)*10+d.Attempt)
				return nil
			}); err != nil {
				t.Error(err)
			}
			slices.Sort(then)
			want := []int{21, 31, 41}
			if cut {
				want = []int{22, 32, 42} // what a lost connection had counts
			}
			if !slices.Equal(begun, []uint64{1}) || !slices.Equal(then, want) {
				t.Errorf("cut %t: begun %v, then came %v; want offset 1, then %v", cut, begun, then, want)
			}
			if err := h.Stop(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}
