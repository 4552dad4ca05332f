package client_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"eventhub"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/store"
	"eventhub/store/pebble"
)

var (
	histories    = flag.Int("histories", 2, "how many TestClientHistories plays")
	historySteps = flag.Int("history.steps", 50, "steps of each of them")
)

// TestClientHistories: clients of every kind work through a proxy that cuts and stalls
// at random, with a hub that is stopped and started again, killed with an image of its
// disk, restored from an earlier copy of its store, or replaced by an empty one at the
// same address. Where its OKs do not wait for the disk a kill may lose events. In the end each
// event of the log was handled by every group, keys in order; every tail and stream has
// had it once; each has one result; and no member had an event more often than
// connections were lost.
func TestClientHistories(t *testing.T) {
	s := drawSeed(t)
	for i := range *histories {
		one := s + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", one), func(t *testing.T) { playHistory(t, one) })
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
	log       []string // ids that the hub has said OK to and has not lost since
	losses    int      // how often connections may have been lost
	life      int      // of the hub's log
	forgotten int      // how many acknowledged events kills have lost
	next      int
	handled   int // by handlers with short leases
	staying   int // which of them stays
	seen      map[string]*reader
}

// reader is what one consumer has had.
type reader struct {
	times map[string]int // by id
	order []string       // ids, each once
	lives map[string]int // in which life it came first
	once  bool           // each event at most once
	topic string         // the only one that it has, or empty
}

// awaits reports whether the reader is to have the event.
func (r *reader) awaits(id string) bool {
	return r.times[id] == 0 && strings.HasPrefix(id, r.topic)
}

func playHistory(t *testing.T, seed uint64) {
	ctx, end := context.WithCancel(context.Background())
	h := &history{t: t, r: rand.New(rand.NewPCG(seed, 7)), ctx: ctx, disk: vfs.NewCrashableMem(), seen: make(map[string]*reader)}
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

// consumers starts one of each kind. The topics are h.a, h.b, h.c and those of results.
func (h *history) consumers(clients *sync.WaitGroup) {
	consume := func(name string, opts eventhub.SubscribeOptions, once bool) {
		c, note := dial(h.t, h.proxy.addr()), h.reader(name, once)
		clients.Go(func() {
			concurrency := 2
			if once { // its order is looked at
				concurrency = 1
			}
			if err := c.Consume(h.ctx, opts, concurrency, func(_ context.Context, d eventhub.Delivery) error {
				attempt := d.Attempt
				if opts.AckTimeout == eventhub.MinAckTimeout {
					attempt = 1 // it may run out where the machine is busy
					if h.stays() {
						time.Sleep(opts.AckTimeout * 3 / 2) // it is extended, or runs out where the connection is lost
					}
				}
				note(d.ID(), attempt)
				return nil
			}); err != nil {
				h.t.Errorf("%s: %v", name, err)
			}
			c.Close()
		})
	}
	group := earliest("h.*", "pattern")
	group.MaxAttempts, group.MaxInFlight = 1000, 8
	keys := group
	keys.Group, keys.Ordering = "keys", eventhub.OrderingKey
	consume("group by key", keys, false)
	group.AckTimeout, group.Backoff = eventhub.MinAckTimeout, eventhub.Backoff{Min: 1e6, Max: 1e6}
	consume("group by pattern", group, false)
	consume("tail by pattern", earliest("h.*", ""), true)
	one := earliest("h.a", "")
	one.Topics = []string{"h.b", "h.c"}
	consume("tail of a list", one, true)
	consume("tail of a topic", earliest("h.a", ""), true)
	h.seen["tail of a topic"].topic = "h.a"
	c, step := dial(h.t, h.proxy.addr()), group
	step.Group = "steps"
	clients.Go(func() {
		if err := c.Transform(h.ctx, step, 2, func(_ context.Context, d eventhub.Delivery) ([]eventhub.Event, error) {
			return []eventhub.Event{event("results", `"`+d.ID()+`"`)}, nil
		}); err != nil {
			h.t.Errorf("transform: %v", err)
		}
		c.Close()
	})
	clients.Go(h.stream)
	clients.Go(h.pull)
}

// stays reports whether a handler is to stay longer than its lease: one a history does.
func (h *history) stays() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.handled++
	return h.handled == h.staying
}

// reader makes a reader, and what notes its events.
func (h *history) reader(name string, once bool) (note func(id string, attempt int)) {
	r := &reader{times: make(map[string]int), lives: make(map[string]int), once: once}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[name] = r
	return func(id string, attempt int) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if r.times[id]++; r.times[id] == 1 {
			r.order = append(r.order, id)
			r.lives[id] = h.life
		} else if once {
			h.t.Errorf("%s: %s came %d times", name, id, r.times[id])
		}
		if attempt > 1+h.losses {
			h.t.Errorf("%s: %s came in attempt %d after %d losses", name, id, attempt, h.losses)
		}
		h.changed.Broadcast()
	}
}

// stream follows a stream of events as a browser does.
func (h *history) stream() {
	note, last := h.reader("stream", true), ""
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	for h.ctx.Err() == nil {
		r, err := http.NewRequestWithContext(h.ctx, "GET", "http://"+h.proxy.addr()+"/v1/topics/h.*/stream?from=earliest", nil)
		if err != nil {
			h.t.Error(err)
			return
		}
		if last != "" {
			r.Header.Set("Last-Event-ID", last)
		}
		answer, err := transport.RoundTrip(r)
		if err != nil {
			continue
		}
		for in, id := bufio.NewReaderSize(answer.Body, 64<<10), ""; ; {
			line, err := in.ReadString('\n')
			if err != nil {
				break
			}
			if value, ok := strings.CutPrefix(line, "id: "); ok {
				id = strings.TrimSpace(value)
			}
			var e struct{ ID string }
			if data, ok := strings.CutPrefix(line, "data: "); ok && json.Unmarshal([]byte(data), &e) == nil && e.ID != "" {
				note(e.ID, 1)
			}
			if line == "\n" {
				last = id
			}
		}
		answer.Body.Close()
	}
}

// pull takes events over HTTP and acks them.
func (h *history) pull() {
	note := h.reader("pull", false)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	post := func(path, body string) []byte {
		r, err := http.NewRequestWithContext(h.ctx, "POST", "http://"+h.proxy.addr()+"/v1/topics/h.*/groups/pull/"+path, strings.NewReader(body))
		if err != nil {
			h.t.Error(err)
			return nil
		}
		answer, err := transport.RoundTrip(r)
		if err != nil {
			return nil
		}
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != 200 {
			return nil
		}
		return b
	}
	for h.ctx.Err() == nil {
		var got struct {
			Deliveries []struct {
				Event struct{ ID string }
				Ctx   struct {
					Attempt int
					Lease   string
				}
			}
		}
		b := post("pull?max=7&wait_ms=1000", `{"from":"earliest","maxAttempts":1000,"ackTimeoutMs":1000,"backoff":{"minMs":1,"maxMs":1}}`)
		if b == nil || json.Unmarshal(b, &got) != nil || len(got.Deliveries) == 0 {
			continue
		}
		var leases []string
		for _, d := range got.Deliveries {
			note(d.Event.ID, 1) // its leases run out where the ack is lost
			leases = append(leases, d.Ctx.Lease)
		}
		body, err := json.Marshal(map[string]any{"leases": leases})
		if err != nil {
			h.t.Error(err)
			return
		}
		post("ack", string(body))
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
	switch op := h.r.IntN(48); {
	case op < 24:
		h.publish()
	case op < 30:
		h.lose()
		h.proxy.cut(h.r.Float64(), h.r)
	case op < 33: // and then cut in the middle of what waits, or not
		h.proxy.stall.Lock()
		h.publish()
		await(h.t, "a word of a client", h.proxy.spoke)
		if h.r.IntN(2) == 0 {
			h.lose()
			h.proxy.cut(0.7, h.r)
		}
		h.proxy.stall.Unlock()
	case op < 36: // publishes are under way
		h.stop()
		h.start(h.addr)
	case op < 38:
		h.under.Wait()
		h.stop()
		h.copy, h.kept = h.image(h.disk, 100), slices.Clone(h.log)
		h.start(h.addr)
	case op < 40:
		h.anotherLog()
	case op < 44:
		h.kill()
	default:
		for range 5 { // while the past is on its way to the one before
			h.coming.Drop(0)
			h.comeAgain()
		}
	}
}

// noting is a Receiver that has room for all.
type noting func(id string, attempt int)

func (n noting) Deliver(batch []eventhub.Delivery) int {
	for i := range batch {
		n(batch[i].ID(), batch[i].Attempt)
	}
	return len(batch)
}

func (noting) Ended(error) {}

// comeAgain makes a tail that has all of the past, like the one before it.
func (h *history) comeAgain() {
	var err error
	if h.coming, err = h.comer.Subscribe(h.ctx, earliest("h.*", ""), noting(h.reader("tail that comes again", true))); err != nil {
		h.t.Fatal(err)
	}
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
	h.life++
	h.mu.Unlock()
	h.start(h.addr)
}

// image returns the disk with so much of what was not synced.
func (h *history) image(of *vfs.MemFS, percent int) *vfs.MemFS {
	return of.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: h.r})
}

// kill takes an image of the disk while the hub is at work, and goes on with that.
// Nothing that the hub says behind it reaches anybody.
func (h *history) kill() {
	if h.durability == hub.DurabilityInterval {
		h.under.Wait() // what is acknowledged is known, and may be lost
	}
	h.lose()
	h.proxy.stall.Lock()
	defer h.proxy.stall.Unlock()
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
		h.life++
	}
}

// publish enqueues some events, each by itself or all at once.
func (h *history) publish() {
	var pubs []eventhub.Publication
	for range 1 + h.r.IntN(6) {
		var events []eventhub.Event
		for range 1 + h.r.IntN(3) {
			h.next++
			topic := "h." + string("abc"[h.r.IntN(3)])
			e := event(topic, fmt.Sprintf(`"%s"`, bytes.Repeat([]byte("x"), h.r.IntN(3000))))
			e.ID, e.Key = fmt.Sprintf("%s-%06d", topic, h.next), fmt.Sprint("k", h.r.IntN(4))
			events = append(events, e)
		}
		pubs = append(pubs, eventhub.Publication{Events: events})
	}
	h.under.Add(1)
	h.publisher.Enqueue(h.ctx, pubs, func(pubs []eventhub.Publication) {
		defer h.under.Done()
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, pub := range pubs {
			if pub.Err != nil {
				h.t.Errorf("publish: %v", pub.Err)
			}
			for _, r := range pub.Receipts {
				h.log = append(h.log, r.ID)
			}
		}
	})
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
		for !expired() && slices.ContainsFunc(h.log, r.awaits) {
			h.changed.Wait()
		}
		missing := slices.DeleteFunc(slices.Clone(h.log), func(id string) bool { return !r.awaits(id) })
		if len(missing) > 0 {
			h.t.Errorf("%s has not had %d of %d events: %v", name, len(missing), len(h.log), missing[:min(9, len(missing))])
		}
	}
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
	for _, name := range []string{"group by key", "tail by pattern", "tail of a list", "tail of a topic", "tail that comes again", "stream"} {
		h.checkOrder(name, inLog, offset)
	}
	for _, topic := range []string{"h.a.dlq", "h.b.dlq", "h.c.dlq"} {
		for _, e := range h.read(ctx, topic) {
			h.t.Errorf("a dead letter: %s", e.Payload)
		}
	}
	h.checkResults(ctx, inLog)
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
	if err := eventhub.Consume(ctx, h.hub.Bus(), earliest("results", ""), 1, func(_ context.Context, d eventhub.Delivery) error {
		e, err := d.Event()
		id := strings.Trim(string(e.Payload), `"`)
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
	q := eventhub.ReplayQuery{Topic: topic, Start: eventhub.Start{Kind: eventhub.StartEarliest}}
	if err := h.hub.Bus().Replay(ctx, q, func(_ string, item eventhub.Item) error {
		e, err := item.Event()
		events = append(events, e)
		return err
	}); err != nil {
		h.t.Fatal(err)
	}
	return events
}
