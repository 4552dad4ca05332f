package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"eventhub"
	"eventhub/internal/bubble"
	"eventhub/outbox"
	"eventhub/outbox/outboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hub is a publisher that keeps what it was given, and knows the ids.
type hub struct {
	mu      sync.Mutex
	log     []eventhub.Event
	offsets map[string]uint64
	calls   int
	most    int // events in one publish
	// answer, where not nil, says what happens to a publish: nothing is done with an
	// error, except where it is errLost, which comes after the events are in the log.
	answer func(ctx context.Context, events []eventhub.Event) error
}

var errLost = errors.New("the answer is lost")

func (h *hub) Publish(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	h.mu.Lock()
	h.calls++
	h.most = max(h.most, len(events))
	answer := h.answer
	h.mu.Unlock()
	var err error
	if answer != nil {
		err = answer(ctx, events)
	}
	if err != nil && !errors.Is(err, errLost) {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.offsets == nil {
		h.offsets = make(map[string]uint64)
	}
	var receipts []eventhub.Receipt
	for _, e := range events {
		at, known := h.offsets[e.ID]
		if !known {
			h.log = append(h.log, e)
			at = uint64(len(h.log))
			h.offsets[e.ID] = at
		}
		receipts = append(receipts, eventhub.Receipt{ID: e.ID, Offset: at, Duplicate: known})
	}
	if err != nil {
		return nil, err
	}
	return receipts, nil
}

func (h *hub) Enqueue(context.Context, []eventhub.Publication, func([]eventhub.Publication)) {
	panic("not used")
}

func (h *hub) ids() (ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.log {
		ids = append(ids, e.ID)
	}
	return ids
}

func (h *hub) called() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls
}

func drainer(t *testing.T, table outbox.Table, h eventhub.Publisher, o outbox.Options) *outbox.Drainer {
	t.Helper()
	d, err := outbox.NewDrainer(table, h, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// run starts a drainer, and returns what stops it and waits for its end.
func run(t *testing.T, d *outbox.Drainer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func addRows(t *testing.T, m *outboxtest.Memory, key string, n int) (ids []string) {
	t.Helper()
	for i := range n {
		added, err := m.Add(eventhub.Event{Topic: "t", Key: key, Payload: fmt.Append(nil, i)})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, added...)
	}
	return ids
}

func statuses(t *testing.T, m *outboxtest.Memory) map[outbox.Status]int {
	t.Helper()
	rows, err := m.List(t.Context(), nil, "", 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	n := make(map[outbox.Status]int)
	for _, r := range rows {
		n[r.Status]++
	}
	return n
}

func want(t *testing.T, m *outboxtest.Memory, status outbox.Status, rows int) {
	t.Helper()
	if n := statuses(t, m); n[status] != rows {
		t.Errorf("%d rows are %s, want %d; all: %v", n[status], status, rows, n)
	}
}

func TestDrains(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, h := outboxtest.NewMemory(time.Now), &hub{}
		ids := addRows(t, m, "k", 250)
		var settled int
		d := drainer(t, m, h, outbox.Options{Settled: func(o []outbox.Outcome) { settled += len(o) }})
		stop := run(t, d)
		synctest.Wait()
		if diff := cmp.Diff(ids, h.ids()); diff != "" {
			t.Errorf("the log (-want +got):\n%s", diff)
		}
		want(t, m, outbox.Sent, 250)
		if h.calls != 3 || h.most != outbox.DefaultBatch || settled != 250 {
			t.Errorf("%d publishes of up to %d events, %d settled", h.calls, h.most, settled)
		}
		late := addRows(t, m, "k", 1)
		time.Sleep(4 * outbox.DefaultInterval)
		synctest.Wait()
		if r, err := m.Show(t.Context(), late[0]); err != nil || r.Status != outbox.Sent || r.Offset != 251 {
			t.Errorf("the row that came later is %+v, %v", r, err)
		}
		stop()
	})
}

func TestDrainsUntilEmpty(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, h := outboxtest.NewMemory(time.Now), &hub{}
		addRows(t, m, "", 5)
		// Somebody else has the first row.
		if _, err := m.Turn(t.Context(), nil, outbox.Claim{Max: 1, Lease: 10 * time.Second, Worker: "died"}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := drainer(t, m, h, outbox.Options{UntilEmpty: true}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(t, m, outbox.Sent, 5)
		if took := time.Since(began); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("it took %s; the lease of the other one ends after 10 s", took)
		}
	})
}

// What the hub refuses for good is parked with the reason, and all others are published.
func TestParks(t *testing.T) {
	bad := eventhub.Errorf(eventhub.CodeBadEvent, "payload 7 is not liked")
	find := func(events []eventhub.Event) int {
		return slices.IndexFunc(events, func(e eventhub.Event) bool { return strings.HasSuffix(string(e.Payload), "7") })
	}
	for name, refuse := range map[string]func(i int) error{
		"the hub says which one": func(i int) error { return eventhub.AtIndex(bad, "events", i) },
		"it does not":            func(int) error { return bad },
		"it has no right":        func(int) error { return eventhub.Errorf(eventhub.CodeForbidden, "no publish permission") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m, h := outboxtest.NewMemory(time.Now), &hub{}
				h.answer = func(_ context.Context, events []eventhub.Event) error {
					if i := find(events); i >= 0 {
						return refuse(i)
					}
					return nil
				}
				ids := addRows(t, m, "k", 100)
				m.Insert(outboxtest.Raw{ID: "broken", Topic: "t", Key: "k", Payload: `{`})
				if err := drainer(t, m, h, outbox.Options{UntilEmpty: true}).Run(t.Context()); err != nil {
					t.Fatal(err)
				}
				want(t, m, outbox.Parked, 11)
				want(t, m, outbox.Sent, 90)
				for i := len(ids) - 1; i >= 0; i-- {
					if i%10 == 7 {
						r, _ := m.Show(t.Context(), ids[i])
						if r.Status != outbox.Parked || r.LastError == "" {
							t.Errorf("row %d is %+v", i, r)
						}
						ids = slices.Delete(ids, i, i+1)
					}
				}
				if diff := cmp.Diff(ids, h.ids()); diff != "" {
					t.Errorf("the log (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A hub that is away for an hour costs a few attempts, parks nothing and loses nothing.
func TestHubIsAway(t *testing.T) {
	for name, err := range map[string]error{
		"no connection":        errors.New("connection refused"),
		"overloaded":           eventhub.Errorf(eventhub.CodeOverloaded, "too much to do"),
		"stops":                eventhub.Errorf(eventhub.CodeShuttingDown, "stops"),
		"the token is refused": eventhub.Errorf(eventhub.CodeBadToken, "no such token"),
		"broken":               eventhub.Errorf(eventhub.CodeInternal, "the store is broken"),
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m, h := outboxtest.NewMemory(time.Now), &hub{}
				h.answer = func(context.Context, []eventhub.Event) error { return err }
				ids := addRows(t, m, "k", 300)
				var log strings.Builder
				stop := run(t, drainer(t, m, h, outbox.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}))
				time.Sleep(time.Hour)
				synctest.Wait()
				if n := h.called(); n < 100 || n > 400 {
					t.Errorf("%d attempts in an hour", n)
				}
				want(t, m, outbox.Pending, 300)
				h.mu.Lock()
				h.answer = nil
				h.mu.Unlock()
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				want(t, m, outbox.Sent, 300)
				if diff := cmp.Diff(ids, h.ids()); diff != "" {
					t.Errorf("the log (-want +got):\n%s", diff)
				}
				stop()
				if n := strings.Count(log.String(), "level=WARN"); n == 0 || n > 3 {
					t.Errorf("%d warnings:\n%s", n, log.String())
				}
			})
		})
	}
}

// A row that fails alone, for a reason that may pass, holds up its key and nobody else.
func TestRowThatFailsAlone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, h := outboxtest.NewMemory(time.Now), &hub{}
		var blocked, after, others []string
		others = append(others, addRows(t, m, "a", 10)...)
		blocked = addRows(t, m, "b", 1)
		after = addRows(t, m, "b", 3)
		others = append(others, addRows(t, m, "c", 10)...)
		h.answer = func(_ context.Context, events []eventhub.Event) error {
			for _, e := range events {
				if e.ID == blocked[0] {
					return eventhub.Errorf(eventhub.CodeInternal, "it breaks the hub")
				}
			}
			return nil
		}
		stop := run(t, drainer(t, m, h, outbox.Options{}))
		time.Sleep(time.Minute)
		synctest.Wait()
		if diff := cmp.Diff(others, h.ids()); diff != "" {
			t.Errorf("what is not held up (-want +got):\n%s", diff)
		}
		if r, _ := m.Show(t.Context(), blocked[0]); r.Status == outbox.Parked || !strings.Contains(r.LastError, "breaks the hub") {
			t.Errorf("the row is %+v", r)
		}
		h.mu.Lock()
		h.answer = nil
		h.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if diff := cmp.Diff(append(append(others, blocked...), after...), h.ids()); diff != "" {
			t.Errorf("at the end (-want +got):\n%s", diff)
		}
		stop()
	})
}

// The limit of a topic holds up its rows, however many stand in front, and those of no other.
func TestLimitedTopic(t *testing.T) {
	for name, waits := range map[string]bool{"the publisher says it": false, "the publisher waits until the lease ends": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m, h := outboxtest.NewMemory(time.Now), &hub{}
				h.answer = func(ctx context.Context, events []eventhub.Event) error {
					if !slices.ContainsFunc(events, func(e eventhub.Event) bool { return e.Topic == "t" }) {
						return nil
					}
					if waits {
						<-ctx.Done()
					}
					return &eventhub.Error{Code: eventhub.CodeRateLimited, Message: "slow", RetryAfter: 20 * time.Second}
				}
				addRows(t, m, "", 300)
				fast, err := m.Add(eventhub.Event{Topic: "fast", Key: "k", Payload: []byte("1")}, eventhub.Event{Topic: "fast", Key: "k", Payload: []byte("2")})
				if err != nil {
					t.Fatal(err)
				}
				stop := run(t, drainer(t, m, h, outbox.Options{Lease: time.Second}))
				time.Sleep(time.Minute)
				synctest.Wait()
				if diff := cmp.Diff(fast, h.ids()); diff != "" {
					t.Errorf("the log (-want +got):\n%s", diff)
				}
				want(t, m, outbox.Pending, 300)
				if n := h.called(); n > 400 {
					t.Errorf("%d publishes in a minute", n)
				}
				h.mu.Lock()
				h.answer = nil
				h.mu.Unlock()
				time.Sleep(time.Minute)
				synctest.Wait()
				want(t, m, outbox.Sent, 302)
				stop()
			})
		})
	}
}

// A publish that takes longer than the lease is given up when the lease ends, tried again
// under the same ids, and done once.
func TestLeaseShorterThanAPublish(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, h := outboxtest.NewMemory(time.Now), &hub{}
		takes := 3 * time.Second
		h.answer = func(ctx context.Context, events []eventhub.Event) error {
			select {
			case <-time.After(takes):
				return nil
			case <-ctx.Done(): // the hub goes on
				takes /= 2
				return errLost
			}
		}
		ids := addRows(t, m, "k", 20)
		stop := run(t, drainer(t, m, h, outbox.Options{Lease: time.Second}))
		time.Sleep(time.Minute)
		synctest.Wait()
		want(t, m, outbox.Sent, 20)
		if diff := cmp.Diff(ids, h.ids()); diff != "" {
			t.Errorf("the log (-want +got):\n%s", diff)
		}
		stop()
		if takes > 750*time.Millisecond {
			t.Errorf("a publish that took longer than its lease was not given up")
		}
	})
}

// What is under way when a drainer is to stop is finished, and marked.
func TestStops(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, h := outboxtest.NewMemory(time.Now), &hub{}
		h.answer = func(ctx context.Context, _ []eventhub.Event) error {
			select {
			case <-time.After(3 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		addRows(t, m, "k", 150)
		stop := run(t, drainer(t, m, h, outbox.Options{}))
		time.Sleep(time.Second)
		began := time.Now()
		stop()
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("it took %s", took)
		}
		want(t, m, outbox.Sent, 100)
		want(t, m, outbox.Pending, 50)

		h.answer = func(ctx context.Context, _ []eventhub.Event) error { <-ctx.Done(); return ctx.Err() }
		stop = run(t, drainer(t, m, h, outbox.Options{Grace: time.Second}))
		time.Sleep(time.Second)
		began = time.Now()
		stop()
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("with a hub that hangs it took %s", took)
		}
		want(t, m, outbox.Pending, 50)
	})
}

// A table that is not there ends Run; one that cannot be read for a while does not.
func TestTableFails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, h := outboxtest.NewMemory(time.Now), &hub{}
		addRows(t, m, "k", 10)
		fails := 0
		m.Fail = func() error {
			if fails++; fails%2 == 1 {
				return errors.New("the database restarts")
			}
			return nil
		}
		if err := drainer(t, m, h, outbox.Options{UntilEmpty: true, Batch: 1}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(t, m, outbox.Sent, 10)
		if len(h.log) != 10 {
			t.Errorf("the log has %d events", len(h.log))
		}
	})
}

// A time ahead of this machine's clock is left out, as the hub would refuse it.
func TestTimeAhead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, h := outboxtest.NewMemory(func() time.Time { return time.Now().Add(time.Hour) }), &hub{}
		addRows(t, m, "", 1)
		if err := drainer(t, m, h, outbox.Options{UntilEmpty: true}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		m2 := outboxtest.NewMemory(time.Now)
		added := time.Now()
		addRows(t, m2, "", 1)
		time.Sleep(time.Hour)
		if err := drainer(t, m2, h, outbox.Options{UntilEmpty: true}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if h.log[0].TS != 0 || h.log[1].TS != added.UnixMilli() {
			t.Errorf("times %d and %d; want 0 and %d", h.log[0].TS, h.log[1].TS, added.UnixMilli())
		}
	})
}

// An empty outbox is looked at a few times a second at most.
func TestIdle(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, h := outboxtest.NewMemory(time.Now), &hub{}
		looks := 0
		m.Fail = func() error { looks++; return nil }
		stop := run(t, drainer(t, m, h, outbox.Options{}))
		time.Sleep(time.Hour)
		stop()
		if looks < 3600 || looks > 3620 {
			t.Errorf("%d looks in an hour; one a second is expected", looks)
		}
	})
}

// waiting is a table that says when there are rows.
type waiting struct {
	*outboxtest.Memory
	wake chan struct{}
}

func (w *waiting) Wait(ctx context.Context, atMost time.Duration) error {
	select {
	case <-w.wake:
	case <-ctx.Done():
	case <-time.After(atMost):
	}
	return nil
}

func TestWoken(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, h := &waiting{outboxtest.NewMemory(time.Now), make(chan struct{}, 1)}, &hub{}
		var looks atomic.Int64
		w.Fail = func() error { looks.Add(1); return nil }
		stop := run(t, drainer(t, w, h, outbox.Options{Interval: time.Minute}))
		time.Sleep(90 * time.Second)
		addRows(t, w.Memory, "", 1)
		w.wake <- struct{}{}
		synctest.Wait()
		want(t, w.Memory, outbox.Sent, 1)
		if n := looks.Load(); n > 5 {
			t.Errorf("%d looks", n)
		}
		close(w.wake) // it wakes without end
		looks.Store(0)
		time.Sleep(time.Second)
		if n := looks.Load(); n > 25 {
			t.Errorf("%d looks in a second", n)
		}
		stop()
	})
}

func TestForgets(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for keep, left := range map[time.Duration]int{0: 0, time.Minute: 0, 1000 * time.Hour: 2500, -1: 2500} {
			m, h := outboxtest.NewMemory(time.Now), &hub{}
			addRows(t, m, "", 2500)
			stop := run(t, drainer(t, m, h, outbox.Options{Keep: keep, Interval: time.Hour}))
			time.Sleep(outbox.DefaultKeep + 2*time.Minute)
			synctest.Wait()
			want(t, m, outbox.Sent, left)
			stop()
		}
	})
}

func TestOptions(t *testing.T) {
	for _, o := range []outbox.Options{
		{Batch: -1}, {Batch: outbox.MaxBatch + 1}, {Lease: time.Millisecond}, {Lease: 2 * time.Hour}, {Interval: time.Microsecond},
		{Interval: 2 * time.Hour}, {Order: "x"}, {Worker: strings.Repeat("w", 129)}, {Grace: -1},
	} {
		if _, err := outbox.NewDrainer(outboxtest.NewMemory(time.Now), &hub{}, o); eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
			t.Errorf("%+v: %v", o, err)
		}
	}
	a, b := drainer(t, nil, nil, outbox.Options{}), drainer(t, nil, nil, outbox.Options{})
	if a.Worker() == "" || a.Worker() == b.Worker() {
		t.Errorf("two drainers are %q and %q", a.Worker(), b.Worker())
	}
}

func TestMetrics(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, h, reg := outboxtest.NewMemory(time.Now), &hub{}, prometheus.NewRegistry()
		m.Insert(outboxtest.Raw{ID: "broken", Topic: "t", Payload: `{`})
		addRows(t, m, "", 3)
		h.answer = func(context.Context, []eventhub.Event) error { return errors.New("away") }
		stop := run(t, drainer(t, m, h, outbox.Options{Registerer: reg}))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		got := values(t, reg)
		if got[`eventhub_outbox_rows{pending}`]+got[`eventhub_outbox_rows{claimed}`] != 3 || got[`eventhub_outbox_rows{error}`] != 1 ||
			got["eventhub_outbox_oldest_seconds"] < 5 || got["eventhub_outbox_retried_total"] < 6 || got["eventhub_outbox_parked_total"] != 1 {
			t.Errorf("away: %v", got)
		}
		h.mu.Lock()
		h.answer = nil
		h.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		got = values(t, reg)
		if got[`eventhub_outbox_rows{pending}`] != 0 || got["eventhub_outbox_oldest_seconds"] != 0 || got["eventhub_outbox_sent_total"] != 3 ||
			got["eventhub_outbox_publish_seconds"] == 0 {
			t.Errorf("at the end: %v", got)
		}
		stop()
	})
}

// values are the metrics by name and label; of a histogram its count.
func values(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += "{" + l.GetValue() + "}"
			}
			all[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return all
}
