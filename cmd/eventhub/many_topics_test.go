package main

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/testsize"
)

var patternTopics = testsize.Int("pattern.topics", 2_000, 1_000, "topics under the one pattern of TestPatternOfManyTopics")

// patternGoroutines is how many goroutines one connection, one member and whoever
// asks for /metrics may add. No topic may.
const patternGoroutines = 16

// TestPatternOfManyTopics: a group of one pattern over many topics, half of
// which are created while it has a member, one while it has none. Each topic's event
// comes once, every cursor goes to its head, and the hub has no goroutine for any of
// the topics, also when it is started again over them.
func TestPatternOfManyTopics(t *testing.T) {
	dir := t.TempDir()
	hub := startHub(t, "--store", dir)
	n := *patternTopics
	c := connect(t, hub.ws)
	create := func(first, last int) {
		t.Helper()
		for ; first < last; first += 500 {
			var events []eventhub.Event
			for i := first; i < min(first+500, last); i++ {
				events = append(events, eventhub.Event{Topic: fmt.Sprint("many.of.", i), Payload: []byte(`"created"`)})
			}
			if _, err := c.Publish(t.Context(), events...); err != nil {
				t.Fatal(err)
			}
		}
	}
	empty, goroutines := hub.resident(t), hub.metric(t, "go_goroutines")
	create(0, n/2)
	topics := hub.resident(t)
	options := eventhub.GroupOptions{Topic: "many.**", Group: "g", AutoAck: true, Start: eventhub.Earliest}
	m := newRollCall()
	if _, err := c.Subscribe(t.Context(), options, m); err != nil {
		t.Fatal(err)
	}
	create(n/2, n)
	m.await(t, n)
	awaitCursors(t, hub, n)
	running := hub.metric(t, "go_goroutines")
	t.Logf("hub %.0f MiB and %.0f goroutines when empty, %.0f MiB with %d topics, %.0f MiB and %.0f goroutines with %d under one pattern",
		empty, goroutines, topics, n/2, hub.resident(t), running, n)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if code := hub.stop(); code != exitDone {
		t.Errorf("exit code %d after SIGTERM:\n%s", code, hub.logged())
	}

	hub = startHub(t, "--store", dir)
	c = connect(t, hub.ws)
	create(n, n+1) // no member is there
	if _, err := c.Subscribe(t.Context(), options, m); err != nil {
		t.Fatal(err)
	}
	m.await(t, n+1)
	awaitCursors(t, hub, n+1)
	after := hub.metric(t, "go_goroutines")
	t.Logf("started again: %.0f MiB and %.0f goroutines with a member", hub.resident(t), after)
	if grown := max(running, after) - goroutines; grown > patternGoroutines {
		t.Errorf("%.0f goroutines were added", grown)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	m.check(t, n+1)
}

// rollCall is a Receiver that notes the topics that it hears of.
type rollCall struct {
	mu    sync.Mutex
	moved sync.Cond
	heard map[string]int
	late  bool
}

func newRollCall() *rollCall {
	r := &rollCall{heard: make(map[string]int)}
	r.moved.L = &r.mu
	return r
}

func (r *rollCall) Deliver(batch []eventhub.Delivery) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range batch {
		r.heard[batch[i].Topic]++
	}
	r.moved.Broadcast()
	return len(batch)
}

func (r *rollCall) Ended(error) {}

// await waits until so many topics were heard of.
func (r *rollCall) await(t *testing.T, n int) {
	t.Helper()
	limit := time.AfterFunc(2*watchdog, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.late = true
		r.moved.Broadcast()
	})
	defer limit.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.heard) < n && !r.late {
		r.moved.Wait()
	}
	if len(r.heard) < n {
		t.Fatalf("%d topics were heard of; there are %d", len(r.heard), n)
	}
}

func (r *rollCall) check(t *testing.T, n int) {
	t.Helper()
	if len(r.heard) != n {
		t.Errorf("%d topics were heard of; there are %d", len(r.heard), n)
	}
	for topic, times := range r.heard {
		if times != 1 {
			t.Errorf("%s has one event and was heard of %d times", topic, times)
		}
	}
}

// awaitCursors waits until the group has done its one event in each of n topics.
func awaitCursors(t *testing.T, hub *hubProcess, n int) {
	t.Helper()
	adm := hub.admin(t)
	for q, seen := (admin.GroupQuery{Group: "g"}), 0; seen < n; {
		groups, err := adm.Groups(t.Context(), q)
		if err != nil || len(groups) == 0 {
			t.Fatalf("the group is in %d topics; there are %d: %v", seen, n, err)
		}
		for _, g := range groups {
			if g.Cursor < 1 {
				awaitCursor(t, adm, g.Topic, g.Group, 1)
			}
		}
		seen += len(groups)
		q.AfterTopic, q.AfterGroup = groups[len(groups)-1].Topic, groups[len(groups)-1].Group
	}
}
