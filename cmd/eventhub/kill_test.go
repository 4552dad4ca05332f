package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"eventhub"
	"eventhub/client"
	"eventhub/internal/testsize"
)

var (
	fixedSeed  = flag.Uint64("seed", 0, "seed of tests that print one; 0: any")
	killRounds = testsize.Int("kill.rounds", 10, 3, "how often TestKillDashNine kills the hub")
)

func drawSeed(t *testing.T) uint64 {
	seed := cmp.Or(*fixedSeed, rand.Uint64())
	t.Logf("seed %d", seed)
	return seed
}

const (
	killPublishers = 4
	killInFlight   = 32
)

// TestKillDashNine kills the real hub, again and again, in the middle of four
// pipelining publishers, a group in order of offsets, one in order of keys and one
// whose members die too, and then looks at the log and the groups: every event that
// got its OK is there once, under its offset; the groups went on where they were
// and end with every event; nothing was given up.
func TestKillDashNine(t *testing.T) {
	seed := drawSeed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	acked := make(map[string]uint64) // offset by id, of events that got their OK
	member := &ackingMember{}
	ordered := newLogMember("keys", map[string]any{"from": "earliest", "ordering": "key", "max_attempts": 1000})
	dying := newLogMember("dying", map[string]any{"from": "earliest", "max_attempts": 1000})
	dying.rng = rand.New(rand.NewPCG(seed, 1))
	var starts []time.Duration
	for round := range *killRounds {
		began := time.Now()
		hub := startPatientHub(t, "--store", dir)
		starts = append(starts, time.Since(began))
		member.join(t, hub, round)
		var wg sync.WaitGroup
		wg.Go(func() { ordered.follow(t, hub) })
		wg.Go(func() { dying.follow(t, hub) })
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
	slices.Sort(starts)
	t.Logf("%d events got their OK in %d rounds; starts took %s at the 99th percentile, %s at most; a member died %d times",
		len(acked), *killRounds, starts[(len(starts)*99+99)/100-1], starts[len(starts)-1], dying.deaths)
	if dying.deaths == 0 {
		t.Error("no member died")
	}
	checkLog(t, dir, acked, ordered, dying)
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
			"opts": map[string]any{"id": id, "key": fmt.Sprint("key-", sent%5)}})
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

// checkLog reads the whole topic through a group of its own and compares. The
// members then take what is left of it for their groups.
func checkLog(t *testing.T, dir string, acked map[string]uint64, members ...*logMember) {
	t.Helper()
	hub := startPatientHub(t, "--store", dir)
	c := dial(t, hub.ws, "")
	// A last event marks the end.
	c.say(map[string]any{"op": "PUBLISH", "topic": "kill.log", "payload": nil, "opts": map[string]any{"id": "the-end"}})
	end := c.hear()
	if end.Op != "OK" {
		t.Fatalf("PUBLISH was answered by %+v", end)
	}
	c.say(map[string]any{"op": "SUBSCRIBE", "topic": "kill.log", "group": "check", "corr": "s",
		"opts": map[string]any{"from": "earliest", "manual_ack": false}})
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
	for _, m := range members {
		m.finish(t, hub, end.Offset)
	}
	if topic, err := hub.admin(t).Topic(context.Background(), "kill.log.dlq"); eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		t.Errorf("events were given up: %+v, %v", topic, err)
	}
	if code := hub.stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM:\n%s", code, hub.logged())
	}
}

// logMember is a member that notes all it gets. It acks at once; with rng it dies
// now and then instead, by the loss of its connection, and comes back.
type logMember struct {
	group string
	opts  map[string]any
	rng   *rand.Rand

	got    map[uint64]bool
	deaths int
}

func newLogMember(group string, opts map[string]any) *logMember {
	return &logMember{group: group, opts: opts, got: make(map[uint64]bool)}
}

// follow is the member's life with one hub.
func (m *logMember) follow(t *testing.T, hub *hubProcess) {
	for {
		c, err := join(t, hub, "kill.log", m.group, m.opts)
		if err != nil || !m.serve(c) {
			return
		}
		m.deaths++
	}
}

// serve runs until the connection is lost, and reports whether the member died
// before.
func (m *logMember) serve(c *conn) (died bool) {
	defer c.Close()
	t := c.t
	last := make(map[string]uint64) // by key
	for {
		f, err := c.next()
		if err != nil {
			return false
		}
		if f.Op != "EVENT" {
			t.Errorf("a member of %s got %+v", m.group, f)
			return false
		}
		if m.opts["ordering"] == "key" && f.Event.Offset <= last[f.Event.Key] {
			t.Errorf("key %s: offset %d comes after %d", f.Event.Key, f.Event.Offset, last[f.Event.Key])
		}
		last[f.Event.Key] = f.Event.Offset
		if m.rng != nil && m.rng.IntN(200) == 0 {
			return true
		}
		m.got[f.Event.Offset] = true
		if c.settle("ACK", f) != nil {
			return false
		}
	}
}

// finish takes the rest, up to the end of the log.
func (m *logMember) finish(t *testing.T, hub *hubProcess, end uint64) {
	m.rng = nil
	c, err := join(t, hub, "kill.log", m.group, m.opts)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.serve(c)
	}()
	awaitGroup(t, hub, "kill.log", m.group, end)
	c.Close()
	<-ended
	if len(m.got) != int(end) {
		t.Errorf("group %s got %d events; the log has %d", m.group, len(m.got), end)
	}
}

// join connects and becomes a member. An error means that the hub is gone.
func join(t *testing.T, hub *hubProcess, topic, group string, opts map[string]any) (*conn, error) {
	return connectAs(t, hub,
		map[string]any{"op": "AUTH", "corr": "auth"},
		map[string]any{"op": "SUBSCRIBE", "topic": topic, "group": group, "corr": "subscribe", "opts": opts})
}

// connectAs connects and asks one thing after the other; each has to be answered
// by OK. An error means that the hub is gone.
func connectAs(t *testing.T, hub *hubProcess, asks ...map[string]any) (*conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), watchdog)
	defer cancel()
	nc, _, _, err := ws.Dial(ctx, "ws://"+hub.ws+"/")
	if err != nil {
		return nil, err
	}
	c := &conn{t, nc}
	for _, ask := range asks {
		var f frame
		if err = c.trySay(ask); err == nil {
			f, err = c.next()
		}
		if err != nil {
			nc.Close()
			return nil, err
		}
		if f.Op != "OK" {
			t.Errorf("%v was answered by %+v", ask, f)
		}
	}
	return c, nil
}

// trySay is say where the hub may be gone.
func (c *conn) trySay(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return wsutil.WriteClientText(c.Conn, b)
}

// settle gives a verdict on what f delivers. With a corr it is answered.
func (c *conn) settle(op string, f frame, corr ...string) error {
	verdict := map[string]any{"op": op, "topic": f.Topic, "group": f.Group, "id": f.Event.ID}
	for _, corr := range corr {
		verdict["corr"] = corr
	}
	return c.trySay(verdict)
}

// admin is the administration of the hub, over HTTP.
func (p *hubProcess) admin(t *testing.T) *client.Admin {
	t.Helper()
	adm, err := client.NewAdmin("http://" + p.http)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { adm.Close() })
	return adm
}

// awaitGroup waits until a group has done everything up to end; how long that takes is
// the machine's business, as long as the group goes on. No hub says when it is so,
// so it is asked.
func awaitGroup(t *testing.T, hub *hubProcess, topic, group string, end uint64) {
	t.Helper()
	awaitCursor(t, hub.admin(t), topic, group, end)
}

// awaitCursor is awaitGroup over a connection that the test has already.
func awaitCursor(t *testing.T, adm *client.Admin, topic, group string, end uint64) {
	t.Helper()
	at, moved := uint64(0), time.Now()
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), watchdog)
		g, err := adm.Group(ctx, topic, group)
		cancel()
		switch {
		case err == nil && g.Cursor >= end:
			return
		case err == nil && g.Cursor > at:
			at, moved = g.Cursor, time.Now()
		case time.Since(moved) > watchdog:
			t.Fatalf("group %s does not come to %d, and has been at %d for %s: %+v, %v", group, end, at, watchdog, g, err)
		}
		<-time.After(wait)
	}
}
