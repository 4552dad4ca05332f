package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/testsize"
)

var (
	dueEvents = testsize.Int("due.events", 10_000, 3_000, "events that TestManyDue schedules")
	dueLead   = flag.Duration("due.lead", 3*time.Second, "how far ahead the first of them is due when publishing begins")
	dueSpread = flag.Duration("due.spread", 3*time.Second, "the time within which they are due")
	dueKills  = flag.Int("due.kills", 3, "how often TestManyDue kills the hub: once while all wait, and then while they enter the log")
	dueLate   = flag.Duration("due.late", 0, "the 99th percentile that TestManyDue allows, from deliver_at to delivery; 0: it is reported and not judged")
)

const (
	dueTopic = "due.log"
	dueBatch = 500 // events in one publish
)

// TestManyDue schedules many events that are due within a short time, kills the hub
// while they wait and while they enter the log, and has a group take them: each is
// in the log once and is delivered, none early, by the time of its commit and by
// that of its delivery. A hub that is not killed while they are due delivers each
// once.
func TestManyDue(t *testing.T) {
	seed := drawSeed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir, addr := t.TempDir(), freePort(t)
	hub := startPatientHub(t, "--store", dir, "--ws", addr)
	empty := hub.resident(t)
	began := time.Now()
	m := newDueMember(began.Add(*dueLead), rng)
	scheduled := m.publish(t, addr)
	took := time.Since(began)
	after := hub.resident(t)
	hub.kill()
	hub = startHub(t, "--store", dir, "--ws", addr)
	t.Logf("%d of %d events scheduled in %s; hub %.0f MiB when empty, %.0f MiB after the publishes, %.0f MiB restarted over them",
		scheduled, len(m.at), took.Round(time.Millisecond), empty, after, hub.resident(t))
	if scheduled == 0 {
		t.Error("none had to wait; it shows nothing")
	}
	c := connect(t, addr)
	sub, err := c.Subscribe(t.Context(), eventhub.GroupOptions{
		Topic: dueTopic, Group: "g", Start: eventhub.Earliest,
		MaxInFlight: 10_000, BatchSize: 1000, MaxAttempts: 1000, AckTimeout: time.Hour, Backoff: eventhub.Backoff{Min: time.Millisecond},
	}, m)
	if err != nil {
		t.Fatal(err)
	}
	var acking sync.WaitGroup
	acking.Go(func() { m.ack(t, sub) })
	for kill := 1; kill < *dueKills; kill++ {
		m.await(t, kill*len(m.at) / *dueKills)
		hub.kill()
		hub = startHub(t, "--store", dir, "--ws", addr)
	}
	m.await(t, len(m.at))
	awaitGroup(t, hub, dueTopic, "g", uint64(len(m.at)))
	t.Logf("hub %.0f MiB when all were delivered, %.1f s of processor time", hub.resident(t), hub.metric(t, "process_cpu_seconds_total"))
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	m.stop()
	acking.Wait()
	m.check(t, hub)
	if code := hub.stop(); code != exitDone {
		t.Errorf("exit code %d after SIGTERM:\n%s", code, hub.logged())
	}
}

// dueMember is the one member of the group, and what it knows of every event.
type dueMember struct {
	at []int64 // deliver_at, by the number in the id

	mu       sync.Mutex
	changed  sync.Cond
	offset   []uint64 // 0: not delivered so far
	late     []int64  // ms from deliver_at to the delivery
	entered  []int64  // ms from deliver_at to the commit
	distinct int
	again    int // deliveries of what was delivered before
	refs     []eventhub.Ref
	stopped  bool
	wrong    []string
}

func newDueMember(base time.Time, rng *rand.Rand) *dueMember {
	n := *dueEvents
	m := &dueMember{at: make([]int64, n), offset: make([]uint64, n), late: make([]int64, n), entered: make([]int64, n)}
	m.changed.L = &m.mu
	for i := range m.at {
		m.at[i] = base.UnixMilli() + rng.Int64N(dueSpread.Milliseconds()+1)
	}
	return m
}

// publish schedules them all, and returns how many of them had to wait.
func (m *dueMember) publish(t *testing.T, addr string) (scheduled int) {
	t.Helper()
	c := connect(t, addr)
	var pubs []eventhub.Publication
	for first := 0; first < len(m.at); first += dueBatch {
		var events []eventhub.Event
		for i := first; i < min(first+dueBatch, len(m.at)); i++ {
			events = append(events, eventhub.Event{Topic: dueTopic, ID: fmt.Sprint("due-", i), DeliverAt: time.UnixMilli(m.at[i]), Payload: fmt.Appendf(nil, `{"n":%d}`, i)})
		}
		pubs = append(pubs, eventhub.Publication{Events: events})
	}
	var answered sync.WaitGroup
	for i := range pubs {
		answered.Add(1)
		c.Enqueue(t.Context(), pubs[i:i+1], func([]eventhub.Publication) { answered.Done() })
	}
	answered.Wait()
	for _, p := range pubs {
		if p.Err != nil || len(p.Receipts) != len(p.Events) {
			t.Fatalf("%d events were answered by %d receipts, %v", len(p.Events), len(p.Receipts), p.Err)
		}
		for i, r := range p.Receipts {
			if !r.DeliverAt.IsZero() {
				scheduled++
			}
			if r.Duplicate || r.ID != p.Events[i].ID || !r.DeliverAt.IsZero() && !r.DeliverAt.Equal(p.Events[i].DeliverAt) {
				t.Fatalf("%s for %s was answered by %+v", p.Events[i].ID, p.Events[i].DeliverAt, r)
			}
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	return scheduled
}

func (m *dueMember) Deliver(batch []eventhub.Delivery) int {
	now := time.Now().UnixMilli()
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range batch {
		m.take(&batch[i], now)
	}
	m.changed.Broadcast()
	return len(batch)
}

func (m *dueMember) take(d *eventhub.Delivery, now int64) {
	number, ok := strings.CutPrefix(d.ID(), "due-")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 0 || n >= len(m.at) {
		m.blame("%s was never published", d.ID())
		return
	}
	m.refs = append(m.refs, eventhub.Ref{Lease: d.Lease})
	if m.offset[n] != 0 {
		m.again++
		if m.offset[n] != d.Offset {
			m.blame("%s is at %d and at %d", d.ID(), m.offset[n], d.Offset)
		}
		return
	}
	m.distinct++
	m.offset[n], m.late[n], m.entered[n] = d.Offset, now-m.at[n], d.Record.CommitTime()-m.at[n]
	if m.late[n] < 0 || m.entered[n] < 0 {
		m.blame("%s was due at %d, entered the log at %d and came at %d", d.ID(), m.at[n], d.Record.CommitTime(), now)
	}
}

// blame keeps the first few.
func (m *dueMember) blame(format string, args ...any) {
	if len(m.wrong) < 20 {
		m.wrong = append(m.wrong, fmt.Sprintf(format, args...))
	}
}

func (m *dueMember) Ended(error) {}

// ack acks what has come, all at once, until it is stopped. What can not be acked
// because the hub is away comes again.
func (m *dueMember) ack(t *testing.T, sub eventhub.Subscription) {
	for {
		m.mu.Lock()
		for len(m.refs) == 0 && !m.stopped {
			m.changed.Wait()
		}
		refs, stopped := m.refs, m.stopped
		m.refs = nil
		m.mu.Unlock()
		if stopped {
			return
		}
		_, _ = sub.Settle(t.Context(), eventhub.Settlement{Refs: refs})
	}
}

func (m *dueMember) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = true
	m.changed.Broadcast()
}

// await waits until so many events have been delivered.
func (m *dueMember) await(t *testing.T, n int) {
	t.Helper()
	gaveUp := false
	limit := time.AfterFunc(*dueLead+*dueSpread+10*watchdog, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		gaveUp = true
		m.changed.Broadcast()
	})
	defer limit.Stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.distinct < n && !gaveUp {
		m.changed.Wait()
	}
	if gaveUp {
		t.Fatalf("%d events have come; %d must", m.distinct, n)
	}
}

func (m *dueMember) check(t *testing.T, hub *hubProcess) {
	t.Helper()
	for _, what := range m.wrong {
		t.Error(what)
	}
	topic, err := hub.admin(t).Topic(t.Context(), dueTopic)
	if err != nil || topic.Head != uint64(len(m.at)) {
		t.Errorf("%d events were published; the log has %d, %v", len(m.at), topic.Head, err)
	}
	waiting, err := hub.admin(t).Scheduled(t.Context(), admin.ScheduleQuery{Topic: dueTopic})
	if err != nil || len(waiting) != 0 {
		t.Errorf("%d events still wait, %v", len(waiting), err)
	}
	if *dueKills <= 1 && m.again != 0 {
		t.Errorf("%d deliveries were of what had been delivered", m.again)
	}
	t.Logf("%d events delivered, %d of them again after %d kills", m.distinct, m.again, *dueKills)
	t.Logf("entered the log after deliver_at: %s", percentiles(m.entered))
	t.Logf("delivered after deliver_at: %s", percentiles(m.late))
	if p99 := time.Duration(part(m.late, 99)) * time.Millisecond; *dueLate != 0 && p99 > *dueLate {
		t.Errorf("one in a hundred comes more than %s late; %s is allowed", p99, *dueLate)
	}
}

var _ eventhub.Receiver = (*dueMember)(nil)
