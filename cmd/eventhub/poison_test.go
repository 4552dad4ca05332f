package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	"eventhub/internal/testsize"
)

var poisonEvents = testsize.Int("poison.events", 1000, 250, "events that TestPoison publishes")

const (
	poisonRestarts = 4
	poisonAttempts = 4
	poisonTopic    = "poison.log"
)

// TestPoison: one event in a hundred makes whoever gets it die, by the loss of its
// connection and with all that it has in flight. The hub is restarted in between.
// In each group every one of them ends as one dead letter, and every other event is
// acked once and never comes again.
func TestPoison(t *testing.T) {
	seed := drawSeed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	poison := make(map[uint64]bool)
	tables := []*table{newTable("g", "none"), newTable("k", "key")}
	for part := range poisonRestarts + 1 {
		hub := startPatientHub(t, "--store", dir)
		head := publishPoisoned(t, hub, *poisonEvents/(poisonRestarts+1), part, rng, poison)
		var seats sync.WaitGroup
		for _, table := range tables {
			table.open(t, hub, &seats)
		}
		for _, table := range tables {
			if part == poisonRestarts {
				awaitGroup(t, hub, poisonTopic, table.group, head)
			} else {
				table.awaitDeaths(len(poison) / 2) // some of it is under way
			}
		}
		if part == poisonRestarts {
			checkPoison(t, hub, tables, poison, head)
		}
		if code := hub.stop(); code != exitDone {
			t.Errorf("exit code %d after SIGTERM:\n%s", code, hub.logged())
		}
		seats.Wait()
	}
}

// publishPoisoned publishes n events and notes which of them are poison. It
// returns the last offset.
func publishPoisoned(t *testing.T, hub *hubProcess, n, part int, rng *rand.Rand, poison map[uint64]bool) (head uint64) {
	c := dial(t, hub.ws, "")
	for i := range n {
		isPoison := rng.IntN(100) == 0 || i == n/2
		c.say(map[string]any{"op": "PUBLISH", "topic": poisonTopic, "payload": isPoison, "opts": map[string]any{"key": fmt.Sprint(i % 50)}})
		f := c.hear()
		if f.Op != "OK" {
			t.Fatalf("PUBLISH was answered by %+v", f)
		}
		head = f.Offset
		if isPoison {
			poison[head] = true
		}
	}
	return head
}

// table is a group and what its members say to each other.
type table struct {
	group string
	opts  map[string]any

	mu     sync.Mutex
	moved  sync.Cond
	sent   map[uint64]bool // acks
	acked  map[uint64]bool // acks that got their OK
	deaths int
}

func newTable(group, ordering string) *table {
	tb := &table{group: group, sent: make(map[uint64]bool), acked: make(map[uint64]bool), opts: map[string]any{"from": "earliest", "ordering": ordering,
		"max_attempts": poisonAttempts, "max_in_flight": 10, "backoff": map[string]any{"min_ms": 1, "max_ms": 10}}}
	tb.moved.L = &tb.mu
	return tb
}

// open seats two members, until the hub stops.
func (tb *table) open(t *testing.T, hub *hubProcess, seats *sync.WaitGroup) {
	for range 2 {
		seats.Go(func() {
			for {
				c, err := join(t, hub, poisonTopic, tb.group, tb.opts)
				if err != nil || !tb.sit(c) {
					return
				}
			}
		})
	}
}

// sit takes events until the member dies, or the hub is gone.
func (tb *table) sit(c *conn) (died bool) {
	defer c.Close()
	for {
		f, err := c.next()
		if err != nil || f.Op == "ERR" {
			return false // the hub stops
		}
		if tb.take(c.t, f) {
			return true
		}
		if f.Op == "EVENT" && c.settle("ACK", f, fmt.Sprint(f.Event.Offset)) != nil {
			return false
		}
	}
}

// take notes what the hub says, and reports whether that is deadly.
func (tb *table) take(t *testing.T, f frame) (deadly bool) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	if f.Op == "OK" {
		offset, err := strconv.ParseUint(f.Corr, 10, 64)
		if err != nil || tb.acked[offset] {
			t.Errorf("group %s: an ack was answered by %+v", tb.group, f)
		}
		tb.acked[offset] = true
		return false
	}
	if tb.acked[f.Event.Offset] {
		t.Errorf("group %s gets %d, which is acked, as attempt %d", tb.group, f.Event.Offset, f.Ctx.Attempt)
	}
	if deadly = string(f.Event.Payload) == "true"; deadly {
		tb.deaths++
		tb.moved.Broadcast()
		return true
	}
	tb.sent[f.Event.Offset] = true
	return false
}

// awaitDeaths waits until so many members have died at the table.
func (tb *table) awaitDeaths(n int) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	for tb.deaths < n {
		tb.moved.Wait()
	}
}

func checkPoison(t *testing.T, hub *hubProcess, tables []*table, poison map[uint64]bool, head uint64) {
	deaths := 0
	for _, tb := range tables {
		tb.mu.Lock()
		deaths += tb.deaths
		for offset := uint64(1); offset <= head; offset++ {
			if tb.sent[offset] == poison[offset] {
				t.Errorf("group %s: %d was acked: %v; it is poison: %v", tb.group, offset, tb.sent[offset], poison[offset])
			}
		}
		tb.mu.Unlock()
	}
	letters := make(map[string]int) // by group and offset
	c := dial(t, hub.ws, "")
	c.say(map[string]any{"op": "SUBSCRIBE", "topic": poisonTopic + ".dlq", "group": "look", "corr": "s", "opts": map[string]any{"from": "earliest", "manual_ack": false}})
	if f := c.hear(); f.Op != "OK" {
		t.Fatalf("SUBSCRIBE was answered by %+v", f)
	}
	for range len(tables) * len(poison) {
		var letter struct {
			Group    string
			Offset   uint64
			Attempts int
		}
		if err := json.Unmarshal(c.hear().Event.Payload, &letter); err != nil {
			t.Fatal(err)
		}
		if letter.Attempts != poisonAttempts || !poison[letter.Offset] {
			t.Errorf("a dead letter says %+v; poison: %v", letter, poison[letter.Offset])
		}
		letters[fmt.Sprint(letter.Group, letter.Offset)]++
	}
	topic, err := hub.admin(t).Topic(t.Context(), poisonTopic+".dlq")
	if err != nil || int(topic.Head) != len(tables)*len(poison) || len(letters) != int(topic.Head) {
		t.Errorf("%d events were poison; there are %d dead letters, of %d events: %v", len(poison), topic.Head, len(letters), err)
	}
	t.Logf("%d events, %d of them poison, %d deaths, %d dead letters", head, len(poison), deaths, len(letters))
}
