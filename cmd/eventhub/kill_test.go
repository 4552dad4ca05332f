package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/gobwas/ws/wsutil"
)

const (
	killRounds     = 20
	killPublishers = 4
	killInFlight   = 32
)

// TestKillDashNine kills the real hub, again and again, in the middle of four
// pipelining publishers and a consumer, and then looks at the log: every event
// that got its OK is there once, under its offset, and the group went on where
// it was.
func TestKillDashNine(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	acked := make(map[string]uint64) // offset by id, of events that got their OK
	member := &ackingMember{}
	var slowest time.Duration
	for round := range killRounds {
		began := time.Now()
		hub := startHub(t, "--store", dir)
		slowest = max(slowest, time.Since(began))
		member.join(t, hub, round)
		var wg sync.WaitGroup
		var mu sync.Mutex
		enough := make(chan struct{})
		left := killPublishers
		for p := range killPublishers {
			c := dial(t, hub.ws, "")
			least := 200 + rng.IntN(400)
			wg.Go(func() {
				for id, offset := range publishUntilDead(c, fmt.Sprintf("r%d-p%d", round, p), least, func() {
					mu.Lock()
					defer mu.Unlock()
					if left--; left == 0 {
						close(enough)
					}
				}) {
					mu.Lock()
					acked[id] = offset
					mu.Unlock()
				}
			})
		}
		<-enough
		hub.kill()
		wg.Wait()
		member.wait(t)
	}
	t.Logf("%d events got their OK in %d rounds; the slowest start took %s", len(acked), killRounds, slowest)
	checkLog(t, dir, acked)
}

// publishUntilDead keeps killInFlight publishes in flight until the connection
// breaks and returns the offsets of those that were answered. After least
// answers it calls enough, once.
func publishUntilDead(c *conn, prefix string, least int, enough func()) map[string]uint64 {
	answered := make(map[string]uint64)
	sent := 0
	publish := func() error {
		id := fmt.Sprintf("%s-%06d", prefix, sent)
		sent++
		b, err := json.Marshal(map[string]any{"op": "PUBLISH", "topic": "kill.log", "corr": id, "payload": id,
			"opts": map[string]any{"id": id}})
		if err != nil {
			return err
		}
		return wsutil.WriteClientText(c.Conn, b)
	}
	for range killInFlight {
		if publish() != nil {
			break
		}
	}
	for {
		f, err := c.next()
		if err != nil {
			return answered // the hub is dead
		}
		if f.Op != "OK" || f.ID != f.Corr || f.Duplicate {
			c.t.Errorf("publish was answered by %+v", f)
			return answered
		}
		answered[f.ID] = f.Offset
		if len(answered) == least {
			enough()
		}
		if err := publish(); err != nil {
			continue // read what the hub had still answered
		}
	}
}

// ackingMember acks all it gets, in every round over a new connection, and
// checks that no offset is skipped and that the group does not go back further
// than to where the round before began.
type ackingMember struct {
	highest  uint64 // offset delivered so far
	floor    uint64 // highest of the round before the last
	previous uint64
	ended    chan struct{}
}

func (m *ackingMember) join(t *testing.T, hub *hubProcess, round int) {
	c := dial(t, hub.ws, "")
	c.say(map[string]any{"op": "SUBSCRIBE", "topic": "kill.log", "group": "g", "corr": "s",
		"opts": map[string]any{"from": "earliest"}})
	if f := c.hear(); f.Op != "OK" {
		t.Fatalf("SUBSCRIBE was answered by %+v", f)
	}
	m.floor, m.previous = m.previous, m.highest
	m.ended = make(chan struct{})
	go func() {
		defer close(m.ended)
		for first := true; ; first = false {
			f, err := c.next()
			if err != nil {
				return
			}
			if f.Op != "EVENT" {
				t.Errorf("round %d: the member got %+v", round, f)
				return
			}
			if first && f.Event.Offset <= m.floor {
				t.Errorf("round %d begins at offset %d; %d was acked two rounds ago", round, f.Event.Offset, m.floor)
			}
			if f.Event.Offset > m.highest+1 {
				t.Errorf("round %d: offset %d comes after %d", round, f.Event.Offset, m.highest)
			}
			m.highest = max(m.highest, f.Event.Offset)
			ack, err := json.Marshal(map[string]any{"op": "ACK", "topic": "kill.log", "group": "g", "id": f.Event.ID})
			if err != nil {
				t.Error(err)
				return
			}
			if wsutil.WriteClientText(c.Conn, ack) != nil {
				return
			}
		}
	}()
}

func (m *ackingMember) wait(t *testing.T) {
	t.Helper()
	<-m.ended
}

// checkLog reads the whole topic through a group of its own and compares.
func checkLog(t *testing.T, dir string, acked map[string]uint64) {
	t.Helper()
	hub := startHub(t, "--store", dir)
	c := dial(t, hub.ws, "")
	// A last event marks the end.
	c.say(map[string]any{"op": "PUBLISH", "topic": "kill.log", "payload": nil, "opts": map[string]any{"id": "the-end"}})
	end := c.hear()
	if end.Op != "OK" {
		t.Fatalf("PUBLISH was answered by %+v", end)
	}
	c.say(map[string]any{"op": "SUBSCRIBE", "topic": "kill.log", "group": "check", "corr": "s",
		"opts": map[string]any{"from": "earliest", "manualAck": false}})
	if f := c.hear(); f.Op != "OK" {
		t.Fatalf("SUBSCRIBE was answered by %+v", f)
	}
	seen := make(map[string]bool)
	last := uint64(0)
	for last < end.Offset {
		f := c.hear()
		if f.Event.Offset <= last {
			t.Fatalf("offset %d after %d", f.Event.Offset, last)
		}
		last = f.Event.Offset
		if seen[f.Event.ID] {
			t.Errorf("%s is in the log twice", f.Event.ID)
		}
		seen[f.Event.ID] = true
		if want, ok := acked[f.Event.ID]; ok && want != f.Event.Offset {
			t.Errorf("%s is at offset %d; its OK said %d", f.Event.ID, f.Event.Offset, want)
		}
	}
	for id, offset := range acked {
		if !seen[id] {
			t.Errorf("%s got its OK at offset %d and is gone", id, offset)
		}
	}
	if code := hub.stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM:\n%s", code, hub.logged())
	}
}
