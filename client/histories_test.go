package client_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/pebble"
)

var (
	histories    = testsize.Int("histories", 2, 1, "how many TestClientHistories plays")
	historySteps = flag.Int("history.steps", 50, "steps of each of them")
)

// TestClientHistories: clients of every kind work through a proxy that cuts and stalls
// at random, with a hub that is stopped and started again, killed with an image of its
// disk, restored from an earlier copy of its store, or replaced by an empty one at the
// same address; topics are deleted and made again. Where its OKs do not wait for the disk
// a kill may lose events. In the end each
// event of the log was handled by every group, keys in order; every tail and stream has
// had it once, conflated ones the newest of each key; each has one result; and no member had an event more often than
// connections were lost. Who learned that a group has acked an event learned the truth.
func TestClientHistories(t *testing.T) {
	s := drawSeed(t)
	for i := range *histories {
		one := s + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", one), func(t *testing.T) { t.Parallel(); playHistory(t, one) })
	}
}

// history is one run.
type history struct {
	t     *testing.T
	r     *rand.Rand
	ctx   context.Context
	proxy *proxy
	addr  string     // of the hub, for good
	disk  *vfs.MemFS // of its store
	hub   *hub.Hub
	copy  *vfs.MemFS // an earlier one
	kept  []string
	// durability of the hub, in all its lives.
	durability string

	publisher *client.Client
	under     sync.WaitGroup // publishes that are not answered
	comer     *client.Client // of a tail that is left and made again
	coming    eventhub.Subscription

	mu        sync.Mutex
	changed   sync.Cond
	log       []string        // ids that the hub has said OK to and has not lost since
	gone      map[string]bool // that were deleted with their topic
	losses    int             // how often connections may have been lost
	life      int             // of the hub's log
	forgotten int             // how many acknowledged events kills have lost
	before    map[string]bool // what the log had left when it last lost events
	next      int
	steps     []string
	handled   int // by handlers with short leases
	staying   int // which of them stays
	seen      map[string]*reader
}

func playHistory(t *testing.T, seed uint64) {
	ctx, end := context.WithCancel(context.Background())
	h := &history{t: t, r: rand.New(rand.NewPCG(seed, 7)), ctx: ctx, disk: vfs.NewCrashableMem(), seen: make(map[string]*reader), gone: make(map[string]bool)}
	h.changed.L = &h.mu
	h.staying = h.r.IntN(100)
	h.durability = []string{store.DurabilitySync, hub.DurabilityInterval}[h.r.IntN(2)]
	h.start("127.0.0.1:0")
	h.addr = h.hub.WSAddr()
	h.proxy = startProxy(t, h.addr)
	h.publisher = dial(t, h.proxy.addr())
	h.comer = dial(t, h.proxy.addr())
	h.comeAgain()
	var clients sync.WaitGroup
	h.consumers(&clients)
	for range *historySteps {
		h.step()
	}
	h.settle()
	h.check()
	end()
	clients.Wait()
	h.publisher.Close()
	h.comer.Close()
	if err := h.hub.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

func (h *history) start(addr string) {
	var err error
	open := func(fatal func(error)) (store.Store, error) {
		s, err := pebble.Open(pebble.Options{Dir: "store", FS: h.disk, Logger: slog.New(slog.DiscardHandler), Fatal: fatal})
		if err != nil {
			return nil, err // and not a nil *pebble.Store in a store.Store
		}
		return s, nil
	}
	if h.hub, err = hub.Start(hub.Config{OpenStore: open, Durability: h.durability, WSAddr: addr, HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0"}); err != nil {
		h.t.Fatal(err)
	}
}

func (h *history) stop() {
	h.lose()
	if err := h.hub.Stop(h.ctx); err != nil {
		h.t.Fatal(err)
	}
}

// lose counts that connections are about to be lost.
func (h *history) lose() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.losses++
}

func (h *history) step() {
	op := h.r.IntN(56)
	h.steps = append(h.steps, fmt.Sprint(op))
	switch {
	case op < 20:
		h.publish()
	case op < 24:
		h.post()
	case op < 27:
		h.lose()
		h.proxy.cut(h.r.Float64(), h.r)
	case op < 32:
		h.lose()
		h.proxy.breakOff(8<<10, h.r)
	case op < 37:
		h.stall()
	case op < 40: // publishes are under way
		h.stop()
		h.start(h.addr)
	case op < 42:
		h.under.Wait()
		h.stop()
		h.copy, h.kept = h.image(h.disk, 100), slices.Clone(h.log)
		h.start(h.addr)
	case op < 44:
		h.anotherLog()
	case op < 48:
		h.kill()
	case op < 51:
		h.deleteTopic()
	default:
		for range 5 { // while the past is on its way to the one before
			h.coming.Drop(0)
			h.comeAgain()
		}
	}
}

// stall holds up one direction or both, and cuts in the middle of what waits, or not.
func (h *history) stall() {
	goOn := h.proxy.hold([][]int{{upwards}, {downwards}, {upwards, downwards}}[h.r.IntN(3)]...)
	defer goOn()
	h.publish()
	await(h.t, "a word of a client", h.proxy.spoke)
	if h.r.IntN(2) == 0 {
		h.lose()
		h.proxy.cut(0.7, h.r)
	}
}

// deleteTopic takes away a topic with all its events. A copy from before would bring back
// what no tail is owed.
func (h *history) deleteTopic() {
	h.under.Wait()
	topic := "h." + string("abc"[h.r.IntN(3)])
	if err := h.hub.Bus().DeleteTopic(h.ctx, topic); err != nil && eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		h.t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.copy, h.kept = nil, nil
	h.log = slices.DeleteFunc(h.log, func(id string) bool {
		deleted := strings.HasPrefix(id, topic+"-")
		h.gone[id] = h.gone[id] || deleted
		return deleted
	})
}

// anotherLog goes on with an earlier store, or an empty one.
func (h *history) anotherLog() {
	h.under.Wait()
	h.stop()
	kept := []string(nil)
	if h.copy != nil && h.r.IntN(3) > 0 {
		h.disk, kept = h.image(h.copy, 100), slices.Clone(h.kept)
	} else {
		h.disk, h.copy, h.kept = vfs.NewCrashableMem(), nil, nil
	}
	h.mu.Lock()
	h.log = kept
	h.lost()
	h.mu.Unlock()
	h.start(h.addr)
}

// image returns the disk with so much of what was not synced.
func (h *history) image(of *vfs.MemFS, percent int) *vfs.MemFS {
	return of.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: h.r})
}

// kill takes an image of the disk while the hub is at work, and goes on with that.
// Nothing that the hub says after it reaches anybody.
func (h *history) kill() {
	if h.durability == hub.DurabilityInterval {
		h.under.Wait() // what is acknowledged is known, and may be lost
	}
	h.lose()
	defer h.proxy.hold(upwards, downwards)()
	h.disk = h.image(h.disk, []int{0, 20, 50, 80, 100}[h.r.IntN(5)])
	h.proxy.cut(1, nil)
	h.stop()
	h.start(h.addr)
	h.proxy.cut(1, nil) // those that came to the one before
	if h.durability == hub.DurabilityInterval {
		h.forget()
	}
}

// forget takes out of the log what the hub has lost: the newest events.
func (h *history) forget() {
	left := make(map[string]bool)
	for _, topic := range []string{"h.a", "h.b", "h.c"} {
		for _, e := range h.read(h.ctx, topic) {
			left[e.ID] = true
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	before := len(h.log)
	h.log = slices.DeleteFunc(h.log, func(id string) bool { return !left[id] })
	h.forgotten += before - len(h.log)
	if before > len(h.log) {
		h.lost()
	}
}

// lost notes that the log has lost events. They may have replaced what is left of their
// keys before that was handed over to those that conflate. h.mu is held.
func (h *history) lost() {
	h.life++
	h.before = make(map[string]bool)
	for _, id := range h.log {
		h.before[id] = true
	}
}

// publish enqueues some events, each by itself or all at once. Some wait for a group.
func (h *history) publish() {
	var pubs []eventhub.Publication
	for range 1 + h.r.IntN(6) {
		var pub eventhub.Publication
		for range 1 + h.r.IntN(3) {
			pub.Events = append(pub.Events, h.make())
		}
		if h.r.IntN(4) == 0 {
			pub.WaitFor, pub.WaitUpTo = []string{"keys"}, eventhub.MaxWait
		}
		pubs = append(pubs, pub)
	}
	h.under.Add(1)
	h.publisher.Enqueue(h.ctx, pubs, func(pubs []eventhub.Publication) {
		defer h.under.Done()
		for _, pub := range pubs {
			if len(pub.WaitFor) > 0 && eventhub.ErrorCode(pub.Err) == eventhub.CodeNotSubscribed {
				continue // another log does not have the group yet: nothing was published
			}
			if pub.Err != nil {
				h.t.Errorf("publish: %v", pub.Err)
			}
			for _, r := range pub.Receipts {
				h.acknowledged(r.ID, pub.WaitFor...)
			}
		}
	})
}

// acknowledged notes what the hub has said OK to, also of groups that have acked it.
func (h *history) acknowledged(id string, groups ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log = append(h.log, id)
	if len(groups) > 0 && h.seen["group by key"].times[id] == 0 {
		h.t.Errorf("%s is said to be acked by %s, which has not handled it", id, groups)
	}
}

// settle waits until every consumer has had all of the log.
func (h *history) settle() {
	h.under.Wait()
	over := make(chan struct{})
	stop := context.AfterFunc(bounded(h.t), func() {
		close(over)
		h.changed.Broadcast()
	})
	defer stop()
	newest := h.newest()
	expired := func() bool {
		select {
		case <-over:
			return true
		default:
			return false
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, r := range h.seen {
		due := h.log
		if r.newest {
			due = newest
		}
		for !expired() && slices.ContainsFunc(due, r.awaits) {
			h.changed.Wait()
		}
		missing := slices.DeleteFunc(slices.Clone(due), func(id string) bool { return !r.awaits(id) })
		if len(missing) > 0 {
			h.t.Errorf("%s has not had %d of %d events: %v", name, len(missing), len(due), missing[:min(9, len(missing))])
		}
	}
}

// newest lists the newest event of each topic and key, if it came after the last loss.
func (h *history) newest() (ids []string) {
	for _, topic := range []string{"h.a", "h.b", "h.c"} {
		last := make(map[string]string)
		for _, e := range h.read(bounded(h.t), topic) {
			last[e.Key] = e.ID
		}
		for _, id := range last {
			if !h.before[id] {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// check compares the log with what was acknowledged, and what came of it.
func (h *history) check() {
	ctx := bounded(h.t)
	inLog, offset := make(map[string]string), make(map[string]uint64)
	for _, topic := range []string{"h.a", "h.b", "h.c"} {
		for _, e := range h.read(ctx, topic) {
			if inLog[e.ID] != "" {
				h.t.Errorf("%s is in the log twice", e.ID)
			}
			inLog[e.ID], offset[e.ID] = topic+" "+e.Key, e.Offset
		}
	}
	for _, id := range h.log {
		if inLog[id] == "" {
			h.t.Errorf("%s was acknowledged and is not in the log", id)
		}
	}
	if len(inLog) != len(h.log) {
		h.t.Errorf("%d events are in the log; %d were acknowledged", len(inLog), len(h.log))
	}
	for _, name := range []string{"group by key", "tail by pattern", "tail of a list", "tail of a topic", "tail that comes again",
		"stream", "stream of a topic", "conflated stream", "conflated tail"} {
		h.checkOrder(name, inLog, offset)
	}
	for _, topic := range []string{"h.a.dlq", "h.b.dlq", "h.c.dlq"} {
		for _, e := range h.read(ctx, topic) {
			h.t.Errorf("a dead letter: %s", e.Payload)
		}
	}
	h.checkResults(ctx, inLog)
	h.t.Logf("steps %s", strings.Join(h.steps, " "))
	h.t.Logf("%d events, %d in the log, %d losses, %d logs, %s: %d forgotten", h.next, len(h.log), h.losses, h.life+1, h.durability, h.forgotten)
}

// checkOrder: of a topic and key the events that are in the log came first in the order
// of their offsets.
func (h *history) checkOrder(name string, line map[string]string, offset map[string]uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := make(map[string]string)
	for _, id := range h.seen[name].order {
		of := line[id]
		if of == "" {
			continue // of a log that is gone
		}
		if before := last[of]; before != "" && offset[before] > offset[id] {
			h.t.Errorf("%s: %s of %s came after %s", name, id, of, before)
		}
		last[of] = id
	}
}

// checkResults: each event has one result. Those that are not there yet are on their
// way, so the log of the results is followed.
func (h *history) checkResults(ctx context.Context, inLog map[string]string) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	results := make(map[string]int)
	if err := eventhub.Follow(ctx, h.hub.Bus(), tailFrom("results"), func(_ context.Context, d eventhub.Delivery) error {
		e, err := d.Event()
		id := strings.Trim(string(e.Payload), `"`)
		if h.gone[id] {
			return err
		}
		if results[id]++; results[id] > 1 || inLog[id] == "" {
			h.t.Errorf("%s has %d results; in the log: %v", id, results[id], inLog[id] != "")
		}
		if len(results) >= len(inLog) {
			stop()
		}
		return err
	}); err != nil {
		h.t.Error(err)
	}
	if len(results) != len(inLog) {
		h.t.Errorf("%d of %d events have results", len(results), len(inLog))
	}
}

// read reads a topic.
func (h *history) read(ctx context.Context, topic string) (events []eventhub.Event) {
	q := admin.ReplayQuery{Topic: topic, Start: eventhub.Earliest}
	if err := h.hub.Bus().Replay(ctx, q, func(_ string, item eventhub.Item) error {
		e, err := item.Event()
		events = append(events, e)
		return err
	}); err != nil {
		h.t.Fatal(err)
	}
	return events
}
