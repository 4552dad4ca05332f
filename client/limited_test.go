package client_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/internal/bubble"
)

// TestTooManyConnections: where a hub has as many connections of an address, or of a principal, as
// it may have, Dial and a client that has lost its connection wait and try again.
func TestTooManyConnections(t *testing.T) {
	for name, limit := range map[string]string{"of an address": "address: 2", "of a principal": "principal: 2"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "limits.yaml")
			if err := os.WriteFile(path, []byte("connections: {"+limit+"}"), 0o600); err != nil {
				t.Fatal(err)
			}
			bubble.Test(t, func(t *testing.T) { tooManyConnections(t, path) })
		})
	}
}

func tooManyConnections(t *testing.T, limits string) {
	client.EmptyPools()
	defer client.EmptyPools()
	h, network := pipedHub(t, hub.Config{AuthToken: "s3cret", LimitsFile: limits})
	connect := func(ctx context.Context, opts ...client.Option) (*client.Client, error) {
		return client.Dial(ctx, "ws://"+h.WSAddr(), append(opts, client.WithToken("s3cret"))...)
	}
	must := func(c *client.Client, err error) *client.Client {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	plain := client.WithNetDial(network.Dial)
	dials := make(chan time.Time, 1000)
	first, second := must(connect(t.Context(), plain)), must(connect(t.Context(), client.WithNetDial(func(ctx context.Context, kind, addr string) (net.Conn, error) {
		dials <- time.Now()
		return network.Dial(ctx, kind, addr)
	}), client.WithReconnect(time.Millisecond, 2*time.Millisecond)))

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	began := time.Now()
	if _, err := connect(ctx, plain); eventhub.ErrorCode(err) != eventhub.CodeRateLimited || errors.Is(err, client.ErrUnreachable) || !strings.Contains(err.Error(), "and at most 2 are allowed") || time.Since(began) != 10*time.Second {
		t.Errorf("Dial after %s: %v", time.Since(began), err)
	}

	dialed := make(chan *client.Client)
	go func() { dialed <- must(connect(t.Context(), plain)) }()
	time.Sleep(time.Minute)
	first.Close()
	third := <-dialed

	// A connection that is lost, whose place another takes before it is back.
	open, err := second.Admin().Connections(t.Context(), "", 10)
	if err != nil || len(open) != 2 {
		t.Fatalf("%d connections, %v", len(open), err)
	}
	if err := second.Admin().CloseConnection(t.Context(), open[0].ID); err != nil {
		t.Fatal(err)
	}
	synctest.Wait() // the place is free, and the client waits
	for len(dials) > 0 {
		<-dials
	}
	fourth := must(connect(t.Context(), plain))
	published := make(chan error)
	go func() {
		_, err := second.Publish(t.Context(), event("a", "1"))
		published <- err
	}()
	time.Sleep(time.Minute)
	if n := len(dials); n < 30 || n > 60 {
		t.Errorf("the client tried %d times in a minute; the hub has said: in a second", n)
	}
	select {
	case err := <-published:
		t.Errorf("published without a place: %v", err)
	default:
	}
	third.Close()
	if err := <-published; err != nil {
		t.Error(err)
	}
	if err := errors.Join(second.Close(), fourth.Close(), h.Stop(context.Background())); err != nil {
		t.Error(err)
	}
}
