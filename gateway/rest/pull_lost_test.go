package rest

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"eventhub"
)

// purse hands out one large delivery, and keeps what is settled.
type purse struct {
	eventhub.Subscriber
	settled chan eventhub.Settlement
}

var purseLease = eventhub.Lease{Runtime: 1, Offset: 1, Serial: 1}

func (p *purse) Pull(context.Context, eventhub.GroupOptions, time.Duration) ([]eventhub.Delivery, error) {
	d := tailEvent("t", 1, `"`+strings.Repeat("x", 100_000)+`"`)
	d.Lease = purseLease
	return []eventhub.Delivery{d}, nil
}

func (p *purse) Settle(_ context.Context, topic, group string, s eventhub.Settlement) ([]eventhub.Outcome, error) {
	if topic == "t" && group == "g" {
		p.settled <- s
	}
	return make([]eventhub.Outcome, len(s.Refs)), nil
}

// TestPullLost: what does not reach the client goes back to the group, whether the
// client is gone or takes nothing.
func TestPullLost(t *testing.T) {
	for name, closes := range map[string]bool{"gone": true, "takes nothing": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &purse{settled: make(chan eventhub.Settlement, 1)}
				_, h := mount(t, Access{Subscriber: p, Puller: p})
				door := &pipes{make(chan net.Conn), make(chan struct{})}
				server := &http.Server{Handler: h, ReadTimeout: time.Minute, IdleTimeout: time.Minute}
				go func() { _ = server.Serve(door) }() // until it is closed
				conn := door.dial()
				if _, err := conn.Write([]byte("POST /v1/topics/t/groups/g/pull HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")); err != nil {
					t.Fatal(err)
				}
				r, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil || r.StatusCode != 200 {
					t.Fatal(r, err)
				}
				synctest.Wait()
				began := time.Now()
				if closes {
					conn.Close()
				}
				want := eventhub.Settlement{
					Verdict: eventhub.Nack, Refs: []eventhub.Ref{{Lease: purseLease}},
					Delay: time.Millisecond, Reason: "the client was gone before it was answered",
				}
				if diff := cmp.Diff(want, <-p.settled); diff != "" {
					t.Errorf("settled (-want +got):\n%s", diff)
				}
				if since := time.Since(began); closes && since != 0 || since > writeWait {
					t.Errorf("it took %v", since)
				}
				conn.Close()
				server.Close()
			})
		})
	}
}
