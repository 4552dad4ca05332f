package ops

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/bus"
	"eventhub/internal/bubble"
	"eventhub/store/memory"
)

// What happens in TestTheRealEngine: so many events; some of them are published
// twice; one is refused always, one once.
const (
	orders, twice = 40, 5
	poison, slow  = 7, 9
)

// TestTheRealEngine publishes, consumes and gives up events on a real bus and
// finds each of them in the metrics and the views.
func TestTheRealEngine(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memory.Open(memory.Options{MaxTopics: 100})
		b, err := bus.New(bus.Options{Store: s})
		if err != nil {
			t.Fatal(err)
		}
		cfg := filled().config()
		cfg.Engine = b.Measure
		cfg.Authenticate = func(context.Context, string, bool) (Access, error) { return Access{Inspector: b}, nil }
		h := open(t, cfg)
		last := publishOrders(t, b)

		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		consumed := make(chan error, 1)
		go func() { consumed <- consumeOrders(ctx, b) }()
		time.Sleep(time.Millisecond) // the first event is being handled, the others are leased
		synctest.Wait()
		wantAtWork(t, h)

		time.Sleep(time.Minute) // all backoffs
		cancel()
		if err := <-consumed; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		wantDone(t, h, last)
		if err := errors.Join(b.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
}

// keeper takes what it is given and says nothing of it.
type keeper struct{}

func (keeper) Deliver(batch []eventhub.Delivery) int { return len(batch) }
func (keeper) Ended(error)                           {}

// TestTheRealEngineHoldsBack: what keeps events of a real group back is in the
// metrics and the views, and no longer when it is over.
func TestTheRealEngineHoldsBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memory.Open(memory.Options{MaxTopics: 100})
		b, err := bus.New(bus.Options{Store: s})
		if err != nil {
			t.Fatal(err)
		}
		cfg := filled().config()
		cfg.Engine = b.Measure
		cfg.Authenticate = func(context.Context, string, bool) (Access, error) { return Access{Inspector: b}, nil }
		h := open(t, cfg)
		ctx := context.Background()
		one := eventhub.Event{Topic: "orders", Key: "k", Payload: []byte(`1`)}
		if _, err := b.Publish(ctx, one, one, one); err != nil {
			t.Fatal(err)
		}
		opts := eventhub.GroupOptions{Topic: "orders", Group: "billing", Ordering: eventhub.OrderingKey,
			Start: eventhub.Earliest, Peer: eventhub.Peer{Transport: "ws", Name: "me"}}
		if _, err := b.Subscribe(ctx, opts, keeper{}); err != nil {
			t.Fatal(err)
		}
		shows := func(paused float64, lag string) {
			t.Helper()
			synctest.Wait()
			wantSamples(t, scrape(t, h), samples{
				of("eventhub_group_held_events", "orders", "billing"): 2,
				of("eventhub_group_paused", "orders", "billing"):      paused,
			})
			if w := get(h, "/lag?topic=orders&group=billing"); !strings.Contains(w.Body.String(), `"lag":3,`+lag) {
				t.Errorf("/lag answers %s; want %s", w.Body, lag)
			}
			if w := get(h, "/inflight?topic=orders&group=billing"); !strings.Contains(w.Body.String(), `"leased":1,"waiting":0,"held":2,`) {
				t.Errorf("/inflight answers %s", w.Body)
			}
		}
		blocked := `"blocked_by":{"kind":"key","key":"k","offset":1,`
		shows(0, blocked)
		if err := b.PauseGroup(ctx, "orders", "billing"); err != nil {
			t.Fatal(err)
		}
		shows(1, `"paused":true,"blocked_by":{"kind":"paused"}`)
		if err := b.ResumeGroup(ctx, "orders", "billing"); err != nil {
			t.Fatal(err)
		}
		shows(0, blocked)
		if err := errors.Join(b.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
}

// publishOrders returns the last order's id.
func publishOrders(t *testing.T, p eventhub.Publisher) (last string) {
	t.Helper()
	var all []eventhub.Event
	for i := range orders {
		all = append(all, eventhub.Event{Topic: "orders", ID: fmt.Sprint("order-", i), Payload: []byte(`"` + strings.Repeat("x", 100) + `"`)})
	}
	for _, batch := range [][]eventhub.Event{all, all[:twice]} {
		if _, err := p.Publish(context.Background(), batch...); err != nil {
			t.Fatal(err)
		}
	}
	return all[orders-1].ID
}

// consumeOrders handles one event at a time, each in 3 ms.
func consumeOrders(ctx context.Context, s eventhub.Subscriber) error {
	opts := eventhub.GroupOptions{
		Topic: "orders", Group: "billing", Start: eventhub.Earliest,
		MaxAttempts: 3, Peer: eventhub.Peer{Transport: "ws"},
	}
	return eventhub.Consume(ctx, s, opts, func(_ context.Context, d eventhub.Delivery) error {
		time.Sleep(3 * time.Millisecond)
		if d.Offset == poison || d.Offset == slow && d.Attempt == 1 {
			return errors.New("no")
		}
		return nil
	})
}

func wantAtWork(t *testing.T, h http.Handler) {
	t.Helper()
	wantSamples(t, scrape(t, h), samples{
		of("events_inflight", "orders", "billing"):           orders,
		of("ws_inflight", "orders", "billing"):               orders,
		of("eventhub_group_lag_events", "orders", "billing"): orders,
		of("eventhub_group_members", "orders", "billing"):    1,
		of("events_acked_total", "orders", "billing"):        0,
	})
	w := get(h, "/inflight?topic=orders&group=billing&limit=1")
	if want := fmt.Sprintf(`"leased":%d,"waiting":0,"held":0,"events":[{"offset":1,`, orders); !strings.Contains(w.Body.String(), want) {
		t.Errorf("/inflight answers %s", w.Body)
	}
}

func wantDone(t *testing.T, h http.Handler, last string) {
	t.Helper()
	got := scrape(t, h)
	const again = 2 + 1 // poison has three attempts, slow has two
	wantSamples(t, got, samples{
		of("events_published_total", "orders"):                         orders,
		of("events_published_total", "orders.dlq"):                     1,
		of("eventhub_duplicates_total", "orders"):                      twice,
		of("events_delivered_total", "orders", "billing"):              orders + again,
		of("eventhub_events_redelivered_total", "orders", "billing"):   again,
		of("events_acked_total", "orders", "billing"):                  orders - 1,
		of("events_nacked_total", "orders", "billing"):                 3 + 1,
		of("eventhub_events_dead_lettered_total", "orders", "billing"): 1,
		of("eventhub_leases_expired_total", "orders", "billing"):       0,
		of("events_inflight", "orders", "billing"):                     0,
		of("eventhub_group_lag_events", "orders", "billing"):           0,
		of("eventhub_group_waiting_events", "orders", "billing"):       0,
		of("eventhub_group_members", "orders", "billing"):              0,
		of("delivery_handler_duration_ms_count", "orders", "billing"):  orders - 1,
		of("delivery_latency_ms_count", "orders", "billing"):           orders - 1,
		"eventhub_commit_events_sum":                                   orders + 1,
		"eventhub_queued_bytes":                                        0,
	})
	if got[of("eventhub_published_bytes_total", "orders")] < orders*100 || got["eventhub_store_size_bytes"] <= 0 {
		t.Errorf("%v bytes published, the store has %v", got[of("eventhub_published_bytes_total", "orders")], got["eventhub_store_size_bytes"])
	}
	// Bubbles begin in the year 2000, and all orders are of one commit.
	ts := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	cursor := fmt.Sprintf(`"group":"billing","lastId":"%s","lastTs":%d,"offset":%d,`, last, ts, orders)
	w := get(h, "/lag?topic=orders&group=billing")
	if answer := w.Body.String(); !strings.Contains(answer, cursor) || !strings.HasSuffix(answer, fmt.Sprintf(`"tail":"%s","lagMs":0,"lag":0}`+"\n", last)) {
		t.Errorf("/lag answers %s", answer)
	}
	if w := get(h, "/cursors?topic=orders"); !strings.Contains(w.Body.String(), `"cursors":[{`+cursor) {
		t.Errorf("/cursors answers %s", w.Body)
	}
}

func wantSamples(t *testing.T, got, want samples) {
	t.Helper()
	for key, v := range want {
		if have, ok := got[key]; !ok || have != v {
			t.Errorf("%s is %v (%v); want %v", key, have, ok, v)
		}
	}
}
