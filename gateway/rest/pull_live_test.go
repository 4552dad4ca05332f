package rest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/internal/testsize"
)

var pullEvents = testsize.Int("pull.events", 5_000, 1_000, "how many events TestPullWorkers sends")

const (
	pullWorkers = 50
	pullMembers = 4 // over WebSocket
	jobOptions  = `{"from":"earliest","ack_timeout_ms":1000,"max_attempts":1000,"backoff":{"min_ms":1,"max_ms":50}}`
)

// tally counts, for each event, the acks that had an effect.
type tally struct {
	all func() // called when every event has been acked

	mu        sync.Mutex
	acked     map[string]int
	delivered int
	stale     int
}

func (c *tally) note(id string, applied bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !applied {
		c.stale++
		return
	}
	c.acked[id]++
	if len(c.acked) == *pullEvents {
		c.all()
	}
}

// pulled is an answer to a pull.
type pulled struct {
	Deliveries []struct {
		Event struct {
			ID string `json:"id"`
		} `json:"event"`
		Ctx struct {
			Lease string `json:"lease"`
		} `json:"ctx"`
	} `json:"deliveries"`
}

// results is an answer to an ack.
type results struct {
	Results []struct {
		Lease string `json:"lease"`
		Stale bool   `json:"stale"`
	} `json:"results"`
}

// post sends a request of a worker and decodes the answer.
func post(ctx context.Context, url, body string, into any) error {
	r, err := http.NewRequestWithContext(ctx, "POST", url, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != 200 {
		return fmt.Errorf("answered %d %s", answer.StatusCode, b)
	}
	return json.Unmarshal(b, into)
}

// work pulls and acks until ctx ends. One time in five it crashes: with a request
// under way, with deliveries it has not acked, or after an ack that it repeats when
// it is back.
func work(ctx context.Context, base string, c *tally) error {
	for ctx.Err() == nil {
		crash := rand.IntN(15)
		pulling, cancel := context.WithCancel(ctx)
		if crash == 0 {
			time.AfterFunc(time.Duration(rand.IntN(20_000))*time.Microsecond, cancel)
		}
		var got pulled
		err := post(pulling, fmt.Sprintf("%s/pull?max=%d&wait_ms=200", base, 1+rand.IntN(20)), jobOptions, &got)
		crashed := pulling.Err() != nil
		cancel()
		if crashed {
			continue
		}
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.delivered += len(got.Deliveries)
		c.mu.Unlock()
		leases := make([]string, 0, len(got.Deliveries))
		for _, d := range got.Deliveries {
			leases = append(leases, d.Ctx.Lease)
		}
		if crash == 1 {
			leases = leases[:len(leases)/2]
		}
		if len(leases) == 0 {
			continue
		}
		body, err := json.Marshal(map[string]any{"leases": leases})
		if err != nil {
			return err
		}
		for range 1 + crash/14 { // at times twice
			var answer results
			// An ack is not given up: nobody would know what it did.
			if err := post(context.WithoutCancel(ctx), base+"/ack", string(body), &answer); err != nil {
				return err
			}
			for i, result := range answer.Results {
				if result.Lease != leases[i] {
					return fmt.Errorf("result %d is of lease %s; want %s", i, result.Lease, leases[i])
				}
				c.note(got.Deliveries[i].Event.ID, !result.Stale)
			}
		}
	}
	return nil
}

// member is one of the same group over WebSocket, which acks what it gets one by
// one, and loses its connection now and then.
type member struct {
	got chan eventhub.Delivery
}

func (m *member) Deliver(batch []eventhub.Delivery) int {
	for i, d := range batch {
		d.Record = bytes.Clone(d.Record)
		select {
		case m.got <- d:
		default:
			return i
		}
	}
	return len(batch)
}

func (m *member) Ended(error) {}

func join(ctx context.Context, addr string, c *tally) error {
	for ctx.Err() == nil {
		err := joinOnce(ctx, addr, c, 20+rand.IntN(200))
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func joinOnce(ctx context.Context, addr string, c *tally, most int) error {
	conn, err := client.Dial(ctx, "ws://"+addr)
	if err != nil {
		return err
	}
	defer conn.Close() // with what it has not acked
	m := &member{make(chan eventhub.Delivery, 20)}
	sub, err := conn.Subscribe(ctx, eventhub.GroupOptions{
		Topic: "jobs", Group: "g", MaxInFlight: 20, AckTimeout: time.Second,
	}, m)
	if err != nil {
		return err
	}
	for range most {
		var d eventhub.Delivery
		select {
		case d = <-m.got:
		case <-ctx.Done():
			return nil
		}
		outcomes, err := sub.Settle(context.WithoutCancel(ctx), eventhub.Settlement{Refs: []eventhub.Ref{{Lease: d.Lease}}})
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.delivered++
		c.mu.Unlock()
		c.note(d.ID(), outcomes[0] == eventhub.Applied)
		sub.Ready()
	}
	return nil
}

// TestPullWorkers: workers over HTTP that crash all the time, and members over
// WebSocket that do too, share a group: each event is acked once, and none is lost.
func TestPullWorkers(t *testing.T) {
	h := startHub(t, hub.MemoryStore)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := &tally{acked: make(map[string]int), all: cancel}
	base := "http://" + h.HTTPAddr() + "/v1/topics/jobs/groups/g"
	if err := post(ctx, base+"/pull", jobOptions, &pulled{}); err != nil {
		t.Fatal(err) // makes the group
	}
	var all sync.WaitGroup
	failed := make(chan error, pullWorkers+pullMembers)
	for range pullWorkers {
		all.Go(func() { failed <- work(ctx, base, c) })
	}
	for range pullMembers {
		all.Go(func() { failed <- join(ctx, h.WSAddr(), c) })
	}
	for left := *pullEvents; left > 0; {
		n := min(left, 100)
		events := make([]eventhub.Event, n)
		for i := range events {
			events[i] = eventhub.Event{Topic: "jobs", ID: fmt.Sprintf("job-%d", left-i), Payload: json.RawMessage("1")}
		}
		if _, err := h.Bus().Publish(context.WithoutCancel(ctx), events...); err != nil {
			t.Fatal(err)
		}
		left -= n
	}
	all.Wait()
	for range pullWorkers + pullMembers {
		if err := <-failed; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	for id, times := range c.acked {
		if times != 1 {
			t.Errorf("%s was acked %d times", id, times)
		}
	}
	info, err := h.Bus().Group(t.Context(), "jobs", "g")
	if err != nil || info.Lag != 0 || len(c.acked) != *pullEvents {
		t.Errorf("%d of %d events are acked, %d are not done, %v", len(c.acked), *pullEvents, info.Lag, err)
	}
	if _, err := h.Bus().Topic(t.Context(), eventhub.DeadLetterTopic("jobs")); eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		t.Errorf("there are dead letters: %v", err)
	}
	if c.delivered <= *pullEvents || c.stale == 0 {
		t.Errorf("%d deliveries and %d stale acks; without crashes this proves nothing", c.delivered, c.stale)
	}
	t.Logf("%d deliveries, %d stale acks", c.delivered, c.stale)
}
