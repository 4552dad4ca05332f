package hub_test

import (
	"context"
	"flag"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"eventhub"
	"eventhub/bench"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/store"
	"eventhub/store/memory"
)

var (
	overloadFor   = flag.Duration("overload.for", time.Second, "how long TestOverload publishes three times what its hub can take")
	overloadBound = flag.Bool("overload.bound", false, "TestOverload expects what docs/security.md says of goodput and latencies, which needs a machine of its own")
)

// slowStore takes so many bytes of records a second, as a disk does that is no faster.
type slowStore struct {
	store.Store
	rate float64
}

func (s *slowStore) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	bytes := 0
	for _, u := range units {
		for i := range u.Appends {
			bytes += len(u.Appends[i].Record)
		}
	}
	time.Sleep(time.Duration(float64(bytes) / s.rate * float64(time.Second))) // what is slow
	return s.Store.Commit(ctx, units, sync)
}

// TestOverload has a hub get three times what its store can take. It refuses publishes with a time, and new connections
// and the AUTH of strangers too, and nothing else; what it takes is in the log; and then it takes everything again.
func TestOverload(t *testing.T) {
	// A slow store, so that a machine which has little time for the publishers sends three times what it takes, too.
	connections := 1
	if *overloadBound {
		connections = 8
	}
	for name, impatient := range map[string]bool{"publishers that wait as they are told": false, "publishers that do not": true} {
		t.Run(name, func(t *testing.T) {
			h := start(t, hub.Config{
				OpenStore: func(func(error)) (store.Store, error) {
					return &slowStore{Store: memory.Open(memory.Options{}), rate: float64(connections << 19)}, nil
				},
			})
			w := &overloadWatch{hub: h}
			if _, err := h.Bus().Publish(t.Context(), make100("work")...); err != nil {
				t.Fatal(err)
			}
			over := make(chan struct{})
			watched := make(chan struct{})
			go func() { defer close(watched); w.watch(t, over) }()
			var res *bench.Result
			// Where the machine had no time for the publishers the best rate is none, and three times as much no overload, but more
			// may be; where it had none for the watch, that did not come in the overload.
			for tries := 0; tries < 5 && (res == nil || res.Overload.Refused == 0 || w.refused.Load() == 0); tries++ {
				var err error
				res, err = bench.MeasureOverload(t.Context(), &bench.Target{URL: "ws://" + h.WSAddr()}, bench.OverloadOptions{
					Connections: connections, InFlight: 1024, Payload: 1024, Times: float64(3 * (tries + 1)), Impatient: impatient, // at best an eighth of a second of them waits
					Warmup: 500 * time.Millisecond, Measure: max(time.Second, *overloadFor/10), Duration: *overloadFor,
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			close(over)
			<-watched
			o := res.Overload
			t.Logf("%.0f events/s at best; of %.0f under overload %.2f of the best, %.2f of what was taken at that rate were taken, until OK p50 %.0f p99 %.0f ms, %d refused, %d not sent; at half the rate p99 %.0f ms before and %.0f after, as before after %.1f s",
				o.Best, o.Offered, o.Ratio, o.OfFull, res.Publish.At(50), res.Publish.At(99), o.Refused, o.NotSent, o.Half.At(99), o.After.At(99), o.Back)
			if o.Refused == 0 || w.refused.Load() == 0 || w.acked.Load() == 0 {
				t.Errorf("%d publishes and %d new connections were refused, and %d events acked; want some of each", o.Refused, w.refused.Load(), w.acked.Load())
			}
			info, err := h.Bus().Topic(t.Context(), res.Hub.Topic)
			if err != nil || int64(info.Head) != res.Published || res.Errors != 0 {
				t.Errorf("the topic has %d events, %v; %d were taken, with %d other errors", info.Head, err, res.Published, res.Errors)
			}
			if late, err := client.Dial(t.Context(), "ws://"+h.WSAddr(), client.WithLogger(slog.New(slog.DiscardHandler))); err != nil {
				t.Errorf("a new connection afterwards: %v", err)
			} else {
				late.Close()
			}
			if *overloadBound && (min(o.Ratio, o.OfFull) < 0.9 || res.Publish.At(99) > 2500 || o.Back > 2) {
				t.Errorf("goodput %.2f, p99 %.0f ms, as before after %.1f s; want at least 0.9, and at most 2500 ms and 2 s", o.Ratio, res.Publish.At(99), o.Back)
			}
		})
	}
}

// overloadWatch asks a hub for what it never refuses, and for new connections.
type overloadWatch struct {
	hub     *hub.Hub
	refused atomic.Int64 // new connections
	acked   atomic.Int64 // events
}

func (w *overloadWatch) watch(t *testing.T, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-time.After(20 * time.Millisecond):
		}
		for _, url := range []string{"http://" + w.hub.OpsAddr() + "/metrics", "http://" + w.hub.HTTPAddr() + "/v1/topics"} {
			if status, body, _ := askFor(t, http.MethodGet, url, ""); status != http.StatusOK {
				t.Errorf("%s: %d %s", url, status, body)
			}
		}
		w.work(t)
		status, body, header := askFor(t, http.MethodGet, "http://"+w.hub.WSAddr()+"/ws", "", "Connection", "Upgrade", "Upgrade", "websocket",
			"Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version", "13")
		switch {
		case status == http.StatusSwitchingProtocols:
		case status == http.StatusServiceUnavailable && header.Get("Retry-After") != "" && strings.Contains(body, string(eventhub.CodeOverloaded)):
			w.refused.Add(1)
		default:
			t.Errorf("an upgrade: %d %v %s", status, header, body)
		}
	}
}

// work takes an event as a group does, and acks it.
func (w *overloadWatch) work(t *testing.T) {
	group := "http://" + w.hub.HTTPAddr() + "/v1/topics/work/groups/g"
	_, body, _ := askFor(t, http.MethodPost, group+"/pull?max=1&wait_ms=0", `{"from":"earliest"}`)
	_, lease, ok := strings.Cut(body, `"lease":"`)
	if lease, _, _ = strings.Cut(lease, `"`); !ok {
		if !strings.Contains(body, `"deliveries":[]`) {
			t.Errorf("a pull was answered by %s", body)
		}
		return
	}
	if status, body, _ := askFor(t, http.MethodPost, group+"/ack", `{"leases":["`+lease+`"]}`); status != http.StatusOK {
		t.Errorf("an ack was answered by %d %s", status, body)
	}
	w.acked.Add(1)
}

// make100 returns a hundred events.
func make100(topic string) []eventhub.Event {
	events := make([]eventhub.Event, 100)
	for i := range events {
		events[i] = eventhub.Event{Topic: topic, Payload: []byte("1")}
	}
	return events
}

// askFor returns the answer to a request; of an upgrade no body.
func askFor(t *testing.T, method, url, body string, header ...string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, "", nil
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return 0, "", nil
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusSwitchingProtocols {
		return answer.StatusCode, "", answer.Header
	}
	said, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Error(err)
	}
	return answer.StatusCode, string(said), answer.Header
}
