package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"eventhub"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/pebble"
)

var (
	chainEvents = testsize.Int("chain.events", 20_000, 2_000, "events of TestAckAndPublishChain")
	chainStops  = testsize.Int("chain.stops", 30, 5, "how often TestAckAndPublishChain takes the engine away")
)

// TestAckAndPublishChain passes events on by ack-and-publishes, from topic a by groups to b, c
// and d, and takes the engine away at random: in order, and by a power loss that
// leaves some of what was not synced. No id is given, so nothing but the ack-and-publishes
// keeps a result from coming twice. In the end d has each result once.
func TestAckAndPublishChain(t *testing.T) {
	seed := drawSeed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	mem := vfs.NewCrashableMem()
	c := startChain(t, mem, 0)
	const batch = 1000
	for n := 0; n < *chainEvents; n += batch {
		var events []eventhub.Event
		for i := range min(batch, *chainEvents-n) {
			events = append(events, eventhub.Event{Topic: "a", ID: fmt.Sprint(n + i), Key: fmt.Sprint(i % 50), Payload: fmt.Appendf(nil, "%d", n+i)})
		}
		if _, err := c.bus.Publish(context.Background(), events...); err != nil {
			t.Fatal(err)
		}
	}
	losses := 0
	for stop := range *chainStops {
		c.pass((stop + 1) * 3 * *chainEvents / (*chainStops + 1))
		if rng.IntN(4) == 0 {
			c.close()
		} else {
			losses++
			image := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 20, 50, 80, 100}[rng.IntN(5)], RNG: rng})
			c.close() // on the old disk, which nobody sees again
			mem = image
		}
		c = startChain(t, mem, c.passed)
	}
	c.wait()
	for _, topic := range []string{"b", "c", "d"} {
		c.checkResults(topic)
	}
	for topic, group := range map[string]string{"a": "to-b", "b": "to-c", "c": "to-d"} {
		head, err := c.store.Head(context.Background(), topic)
		if cursor, cerr := c.bus.Cursor(context.Background(), topic, group); err != nil || cerr != nil || cursor.Offset < head {
			t.Errorf("%s is at %+v, %v; the head of %s is %d, %v", group, cursor, cerr, topic, head, err)
		}
	}
	c.close()
	t.Logf("%d events over 3 groups, %d power losses, %d stops in order", *chainEvents, losses, *chainStops-losses)
}

// chain is an engine with three members that hand over what they are given.
type chain struct {
	t     *testing.T
	store store.Store
	bus   *Bus

	mu     sync.Mutex
	moved  sync.Cond
	passed int // ack-and-publishes that had their receipts
	arrive int // events in d
}

// startChain starts one that goes on after so many ack-and-publishes.
func startChain(t *testing.T, mem vfs.FS, passed int) *chain {
	t.Helper()
	s, err := pebble.Open(pebble.Options{Dir: "data", FS: mem, Logger: slog.New(slog.DiscardHandler),
		Fatal: func(cause error) { t.Errorf("Fatal(%v)", cause) }})
	if err != nil {
		t.Fatal(err)
	}
	c := &chain{t: t, store: maybeUnsynced(s), passed: passed} // set before members hand over
	c.moved.L = &c.mu
	if c.bus, err = New(Options{Store: c.store}); err != nil {
		t.Fatal(err)
	}
	c.link("a", "to-b", "b", eventhub.OrderingNone)
	c.link("b", "to-c", "c", eventhub.OrderingKey)
	c.link("c", "to-d", "d", eventhub.OrderingNone)
	return c
}

func (c *chain) close() {
	if err := errors.Join(c.bus.Close(), c.store.Close()); err != nil {
		c.t.Error(err)
	}
}

// link joins a group with a member that hands over to the next topic.
func (c *chain) link(from, group, to, ordering string) {
	m := &linked{chain: c, to: to, ready: make(chan struct{})}
	sub, err := c.bus.Subscribe(context.Background(), eventhub.GroupOptions{Topic: from, Group: group, Ordering: ordering,
		Start: eventhub.Earliest, MaxInFlight: 1000, MaxAttempts: 100}, m)
	if err != nil {
		c.t.Fatal(err)
	}
	m.sub = sub
	close(m.ready)
}

// linked is a member of the chain.
type linked struct {
	chain *chain
	to    string
	ready chan struct{} // closed when sub is set
	sub   eventhub.Subscription
}

// Deliver makes an ack-and-publish of each delivery, some dozens in one call; a receiver
// must not call the subscription, so another goroutine does.
func (m *linked) Deliver(batch []eventhub.Delivery) int {
	var hs []eventhub.AckPublish
	for i := range batch {
		e, err := batch[i].Event()
		if err != nil {
			m.chain.t.Error(err)
		}
		hs = append(hs, eventhub.AckPublish{
			Refs:   []eventhub.Ref{{Lease: batch[i].Lease}},
			Events: []eventhub.Event{{Topic: m.to, Key: e.Key, CausedBy: []string{e.ID}, Payload: slices.Clone(e.Payload)}},
		})
	}
	go func() {
		<-m.ready
		m.sub.AckAndPublish(context.Background(), hs, m.done)
	}()
	return len(batch)
}

func (m *linked) done(hs []eventhub.AckPublish) {
	c := m.chain
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range hs {
		switch code := eventhub.ErrorCode(hs[i].Err); code {
		case "":
			c.passed++
			if m.to == "d" {
				c.arrive = max(c.arrive, int(hs[i].Receipts[0].Offset))
			}
		case eventhub.CodeShuttingDown, eventhub.CodeLeaseLost:
		default:
			c.t.Errorf("ack-and-publish to %s: %v", m.to, hs[i].Err)
		}
	}
	c.moved.Broadcast()
}

func (m *linked) Ended(error) {}

// pass waits until so many ack-and-publishes had their receipts.
func (c *chain) pass(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.passed < n && c.arrive < *chainEvents {
		c.moved.Wait()
	}
}

// wait waits until all has arrived in d.
func (c *chain) wait() {
	head, err := c.store.Head(context.Background(), "d")
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.arrive = max(c.arrive, int(head)); c.arrive < *chainEvents; {
		c.moved.Wait()
	}
}

// checkResults: the topic has each result once.
func (c *chain) checkResults(topic string) {
	seen := make([]int, *chainEvents)
	var batch store.Batch
	for from := uint64(1); ; from = batch.Items[len(batch.Items)-1].Offset + 1 {
		batch.Reset()
		if err := c.store.Read(context.Background(), topic, from, 1000, 1<<20, &batch); err != nil {
			c.t.Fatal(err)
		}
		if len(batch.Items) == 0 {
			break
		}
		for _, item := range batch.Items {
			e, err := item.Event()
			n, perr := strconv.Atoi(string(e.Payload))
			if err != nil || perr != nil {
				c.t.Fatal(err, perr)
			}
			seen[n]++
		}
	}
	for n, times := range seen {
		if times != 1 {
			c.t.Errorf("%s has the result of %d %d times", topic, n, times)
			return
		}
	}
}
