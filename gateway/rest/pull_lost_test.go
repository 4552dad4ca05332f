package rest

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"eventhub"
	"eventhub/internal/bubble"
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
			bubble.Test(t, func(t *testing.T) {
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

// revoking is a purse whose client loses its token while it waits.
type revoking struct {
	*purse
	revoke context.CancelFunc
}

func (p revoking) Pull(ctx context.Context, opts eventhub.GroupOptions, wait time.Duration) ([]eventhub.Delivery, error) {
	deliveries, err := p.purse.Pull(ctx, opts, wait)
	p.revoke()
	<-ctx.Done()
	return deliveries, err
}

// TestPullWithoutToken: who has lost the token gets nothing more, and what was taken goes
// back to the group.
func TestPullWithoutToken(t *testing.T) {
	p := &purse{settled: make(chan eventhub.Settlement, 1)}
	revoked, revoke := context.WithCancel(t.Context())
	_, h := mount(t, Access{Subscriber: p, Puller: revoking{p, revoke}, Revoked: revoked})
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/v1/topics/t/groups/g/pull", nil))
	if answer.Code != http.StatusUnauthorized || !strings.Contains(answer.Body.String(), "The token was revoked.") {
		t.Errorf("answered %d %s", answer.Code, answer.Body)
	}
	close(p.settled)
	if s := <-p.settled; s.Verdict != eventhub.Nack || len(s.Refs) != 1 || s.Refs[0].Lease != purseLease {
		t.Errorf("settled %+v", s)
	}
}

// inDoubt is a publisher whose client loses its token while a commit is under way.
type inDoubt struct {
	eventhub.Publisher
	revoke context.CancelFunc
}

func (p inDoubt) Publish(ctx context.Context, _ ...eventhub.Event) ([]eventhub.Receipt, error) {
	p.revoke()
	<-ctx.Done()
	return nil, eventhub.Wrap(eventhub.CodeShuttingDown, ctx.Err(), "the events may or may not be published")
}

// TestPublishInDoubtWithoutToken: 401 would say that nothing is published.
func TestPublishInDoubtWithoutToken(t *testing.T) {
	revoked, revoke := context.WithCancel(t.Context())
	_, h := mount(t, Access{Publisher: inDoubt{revoke: revoke}, Revoked: revoked})
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/publish/t", strings.NewReader("1")))
	if answer.Code != http.StatusServiceUnavailable || !strings.Contains(answer.Body.String(), "may or may not be published") {
		t.Errorf("answered %d %s", answer.Code, answer.Body)
	}
}
