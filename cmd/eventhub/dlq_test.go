package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
)

var (
	redriveEvents = flag.Int("redrive.events", 2000, "events that TestBulkRedrive has redriven")
	redriveRate   = flag.Int("redrive.rate", 5000, "how many a second")
)

// An interrupt says how far a redrive went, or that nobody knows.
func TestRedriveIsInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	for _, tt := range []struct {
		apply bool
		done  admin.RedriveResult
		want  string
	}{
		{true, admin.RedriveResult{}, "interrupted before the hub, which does so each second, has said how far it is; what was given back stays, and the same command goes on"},
		{true, admin.RedriveResult{Matched: 12, Redriven: 10, After: 12}, "interrupted; 10 events at least were redriven, up to dead letter 12. To go on: redrive orders --apply"},
		{false, admin.RedriveResult{}, "interrupted"},
	} {
		cmd := &cobra.Command{Use: "redrive"}
		cmd.SetContext(ctx)
		q := admin.RedriveQuery{Apply: tt.apply}
		q.Topic = "orders"
		if err := redriveError(cmd, &q, &tt.done, context.Canceled); err.Error() != tt.want {
			t.Errorf("%t, %+v: %q; want %q", tt.apply, tt.done, err, tt.want)
		}
	}
}

// cmdDeadLetter is a member of a group that gives up all there is: deadletter TOPIC GROUP REASON
func cmdDeadLetter(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), watchdog)
	defer cancel()
	c, err := client.Dial(ctx, ts.Getenv("EVENTHUB_URL"))
	ts.Check(err)
	defer c.Close()
	g := &terminator{reason: args[2], joined: make(chan struct{})}
	g.sub, err = c.Subscribe(ctx, eventhub.GroupOptions{Topic: args[0], Group: args[1], Start: eventhub.Earliest}, g)
	ts.Check(err)
	close(g.joined)
	untilGroup(ts, args[0], args[1], func(i admin.GroupInfo) bool { return i.Lag == 0 && i.Redriven == 0 })
	ts.Check(g.sub.Unsubscribe(ctx))
	g.all.Wait()
}

// terminator gives up all it gets.
type terminator struct {
	reason string
	sub    eventhub.Subscription
	joined chan struct{} // closed when sub is there
	all    sync.WaitGroup
}

func (g *terminator) Deliver(batch []eventhub.Delivery) int {
	var refs []eventhub.Ref
	for _, d := range batch {
		refs = append(refs, eventhub.Ref{Lease: d.Lease})
	}
	g.all.Go(func() {
		<-g.joined
		for some := range slices.Chunk(refs, 100) {
			// What is lost comes again.
			_, _ = g.sub.Settle(context.Background(), eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true, Reason: g.reason, Refs: some})
		}
	})
	return len(batch)
}

func (*terminator) Ended(error) {}

const redriveTopic = "bulk.log"

// TestBulkRedrive redrives many dead letters at a capped rate: each comes to its group
// once, and has one mark. How fast that went is logged; how many they are is judged.
func TestBulkRedrive(t *testing.T) {
	hub := startHub(t, "--store", t.TempDir())
	c, adm := connect(t, hub.ws), hub.admin(t)
	publishBulk(t, c)
	g := &terminator{reason: "broken", joined: make(chan struct{})}
	var err error
	g.sub, err = c.Subscribe(t.Context(), bulkOptions(), g)
	if err != nil {
		t.Fatal(err)
	}
	close(g.joined)
	awaitGroup(t, hub, redriveTopic, "g", uint64(*redriveEvents))
	if err := g.sub.Unsubscribe(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.all.Wait()

	progress, began, before := 0, time.Now(), hub.metric(t, "process_cpu_seconds_total")
	q := admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: redriveTopic}, Apply: true, Rate: *redriveRate,
		Progress: func(r admin.RedriveResult) {
			if r.Redriven < progress {
				t.Errorf("%d were redriven after %d", r.Redriven, progress)
			}
			progress = r.Redriven
		}}
	done, err := adm.Redrive(t.Context(), q)
	took := time.Since(began)
	if err != nil || done.Matched != *redriveEvents || done.Redriven != *redriveEvents || done.After != uint64(*redriveEvents) || len(done.Skipped) != 0 {
		t.Fatalf("redriven: %+v, %v", done, err)
	}
	rate := float64(done.Redriven) / took.Seconds()
	t.Logf("%d events in %s: %.0f a second, %.1f %% of the cap of %d; %.1f s of the hub's processor time", done.Redriven, took.Round(time.Millisecond), rate,
		100*rate/float64(*redriveRate), *redriveRate, hub.metric(t, "process_cpu_seconds_total")-before)

	m := &redriveMember{refs: make(chan []eventhub.Ref, *redriveEvents), times: make(map[uint64]int), wanted: *redriveEvents}
	sub, err := c.Subscribe(t.Context(), bulkOptions(), m)
	if err != nil {
		t.Fatal(err)
	}
	m.ack(t, sub)
	for offset, n := range m.times {
		if n != 1 {
			t.Errorf("the event at %d came %d times", offset, n)
		}
	}
	if info, err := adm.Group(t.Context(), redriveTopic, "g"); err != nil || info.Redriven != 0 || info.Lag != 0 {
		t.Errorf("the group is %+v, %v", info, err)
	}
	checkMarks(t, adm)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if code := hub.stop(); code != exitDone {
		t.Errorf("exit code %d after SIGTERM:\n%s", code, hub.logged())
	}
}

func bulkOptions() eventhub.GroupOptions {
	return eventhub.GroupOptions{Topic: redriveTopic, Group: "g", Start: eventhub.Earliest,
		MaxInFlight: 10_000, BatchSize: 1000, AckTimeout: time.Hour}
}

// publishBulk publishes what is to be given up.
func publishBulk(t *testing.T, c *client.Client) {
	t.Helper()
	for first := 0; first < *redriveEvents; first += 500 {
		var events []eventhub.Event
		for i := first; i < min(first+500, *redriveEvents); i++ {
			events = append(events, eventhub.Event{Topic: redriveTopic, Key: fmt.Sprint("k", i%50), Payload: strconv.AppendInt(nil, int64(i), 10)})
		}
		if _, err := c.Publish(t.Context(), events...); err != nil {
			t.Fatal(err)
		}
	}
}

// checkMarks: every dead letter has one mark.
func checkMarks(t *testing.T, adm *client.Admin) {
	t.Helper()
	letters := 0
	err := adm.DeadLetters(t.Context(), admin.DeadLetterQuery{Topic: redriveTopic, All: true}, func(d *admin.DeadLetter) error {
		if letters++; len(d.Marks) != 1 || d.Marks[0].Redriven != 1 || d.Marks[0].Offset != d.Event {
			t.Errorf("dead letter %d, of event %d, has the marks %+v", d.Offset, d.Event, d.Marks)
		}
		return nil
	})
	if err != nil || letters != *redriveEvents {
		t.Errorf("%d dead letters, %v; want %d", letters, err, *redriveEvents)
	}
}

// redriveMember acks what comes, and counts how often.
type redriveMember struct {
	refs   chan []eventhub.Ref
	wanted int

	mu    sync.Mutex
	times map[uint64]int // by offset
	wrong int
}

func (m *redriveMember) Deliver(batch []eventhub.Delivery) int {
	refs := make([]eventhub.Ref, len(batch))
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range batch {
		refs[i].Lease = batch[i].Lease
		m.times[batch[i].Offset]++
		if batch[i].Redriven != 1 || batch[i].Attempt != 1 {
			m.wrong++
		}
	}
	select {
	case m.refs <- refs:
		return len(batch)
	default:
		panic("more deliveries than events")
	}
}

func (*redriveMember) Ended(error) {}

// ack acks until every event was acked.
func (m *redriveMember) ack(t *testing.T, sub eventhub.Subscription) {
	t.Helper()
	late := time.After(10 * watchdog)
	for acked := 0; acked < m.wanted; {
		select {
		case refs := <-m.refs:
			outcomes, err := sub.Settle(t.Context(), eventhub.Settlement{Refs: refs})
			if err != nil || slices.ContainsFunc(outcomes, func(o eventhub.Outcome) bool { return o != eventhub.Applied }) {
				t.Fatalf("acks were answered by %v, %v", outcomes, err)
			}
			acked += len(refs)
		case <-late:
			t.Fatalf("%d events have come; %d must", acked, m.wanted)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wrong != 0 || len(m.times) != m.wanted {
		t.Errorf("%d events came; %d deliveries did not say that they were redriven once", len(m.times), m.wrong)
	}
}
