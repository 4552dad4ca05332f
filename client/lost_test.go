package client_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"eventhub"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/internal/testsize"
)

var (
	seed   = flag.Uint64("seed", 0, "seed of the random tests; 0 draws one")
	events = testsize.Int("events", 20_000, 5_000, "events that go through cut connections")
)

func drawSeed(t *testing.T) uint64 {
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("-seed=%d", s)
	return s
}

// ledger counts what was published and handled, by payload.
type ledger struct {
	mu        sync.Mutex
	published map[string]eventhub.Receipt
	handled   map[string]int
	complete  chan struct{} // closed when total are handled
	total     int
}

func (l *ledger) handle(payload string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handled[payload]++; len(l.handled) == l.total && l.handled[payload] == 1 {
		close(l.complete)
	}
}

// TestCutConnections: publishers and a group whose connections are cut again and
// again, in the middle of anything. Nothing is lost, nothing is in the log twice,
// every event is handled; and when the clients are closed and the hub is gone, so
// are all goroutines, and the heap is what it was before, though the clients are
// still there.
func TestCutConnections(t *testing.T) {
	const keeps = 1 << 20 // bytes of heap, for five clients and the runtime's own
	s := drawSeed(t)
	var clients []*client.Client
	t.Run("first", func(t *testing.T) { // what is made once and for all
		clients = cutConnections(t, s, 1000)
	})
	goroutines, heap := goleak.IgnoreCurrent(), heapInUse()
	t.Run("again", func(t *testing.T) {
		clients = cutConnections(t, s, *events)
	})
	goleak.VerifyNone(t, goroutines)
	after := heapInUse()
	// A hub that is gone may still be in the timers of the runtime for a moment.
	for end := time.Now().Add(patience); after > heap+keeps && time.Now().Before(end); after = heapInUse() {
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("the heap has %d bytes, after %d before", after, heap)
	if after > heap+keeps {
		t.Errorf("the heap grew by %d bytes; want at most %d", after-heap, keeps)
	}
	runtime.KeepAlive(clients)
}

// heapInUse is what the garbage collector leaves, in bytes.
//
// The runtime keeps a stopped timer, and all that its function points to, until its time
// comes, or until more than a quarter of the timers of its processor are stopped ones and
// the scheduler looks there. So all timers are brought to one processor, and many stopped
// ones are added.
func heapInUse() uint64 {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for range 10_000 {
		time.AfterFunc(time.Hour, func() {}).Stop()
	}
	time.Sleep(time.Millisecond) // the scheduler looks
	for range 3 {                // pools let go of what they hold at the second
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// cutConnections sends n events through cut connections and returns the clients,
// which are closed when the test has ended.
func cutConnections(t *testing.T, s uint64, n int) (clients []*client.Client) {
	const publishers, members, seldom = 8, 3, 150
	h := startHub(t, hub.Config{Store: t.TempDir()})
	p := startProxy(t, h.WSAddr())
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	l := &ledger{published: make(map[string]eventhub.Receipt), handled: make(map[string]int), complete: make(chan struct{}), total: n}

	opts := earliest("cut.up", "workers")
	opts.MaxAttempts = 1000
	consuming, stop := context.WithCancel(ctx)
	var consumers sync.WaitGroup
	for range members {
		c := dial(t, p.addr())
		clients = append(clients, c)
		consumers.Go(func() {
			if err := client.ConsumeJSON(consuming, c, atOnce(4, opts), func(_ context.Context, v string, _ eventhub.Delivery) error {
				l.handle(v)
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	shared := []*client.Client{dial(t, p.addr()), dial(t, p.addr())}
	clients = append(clients, shared...)
	var publishing sync.WaitGroup
	for i := range publishers {
		r := rand.New(rand.NewPCG(s, uint64(i)))
		publishing.Go(func() {
			publishSome(t, ctx, shared[i%len(shared)], i, n/publishers, r, func() {
				if r.IntN(seldom) == 0 {
					p.cut(0.5, r)
				}
			}, l)
		})
	}
	publishing.Wait()
	p.cut(1, nil)
	select {
	case <-l.complete:
	case <-ctx.Done():
		t.Errorf("%d of %d events were handled", len(l.handled), n)
	}
	stop()
	consumers.Wait()
	checkLog(t, h, "cut.up", l)
	again := 0
	for _, n := range l.handled {
		again += n - 1
	}
	t.Logf("%d events, %d connections cut, %d handled again", len(l.published), p.cuts, again)
	if p.cuts < min(10, n/1000) {
		t.Errorf("only %d connections were cut", p.cuts)
	}
	return clients
}

// publishSome publishes n events in calls of one to eight.
func publishSome(t *testing.T, ctx context.Context, c *client.Client, who, n int, r *rand.Rand, after func(), l *ledger) {
	for made := 0; made < n; {
		var batch []eventhub.Event
		for range min(1+r.IntN(8), n-made) {
			batch = append(batch, event("cut.up", fmt.Sprintf(`"%d-%d"`, who, made)))
			made++
		}
		receipts, err := c.Publish(ctx, batch...)
		if err != nil {
			t.Errorf("publisher %d: %v", who, err)
			return
		}
		l.mu.Lock()
		for i, e := range batch {
			l.published[string(e.Payload)] = receipts[i]
			if receipts[i].Offset != receipts[0].Offset+uint64(i) {
				t.Errorf("publisher %d: a batch is at %+v: others are between its events", who, receipts)
			}
		}
		l.mu.Unlock()
		after()
	}
}

// checkLog compares the hub's log with the receipts.
func checkLog(t *testing.T, h *hub.Hub, topic string, l *ledger) {
	t.Helper()
	ctx, stop := context.WithCancel(bounded(t))
	seen := make(map[string]int)
	order := make(map[string]int) // by publisher
	end, err := h.Bus().Publish(ctx, event(topic, `"end"`))
	if err != nil {
		t.Fatal(err)
	}
	if err := eventhub.Consume(ctx, h.Bus(), earliest(topic, "checker"), func(_ context.Context, d eventhub.Delivery) error {
		if d.Offset == end[0].Offset {
			stop()
			return nil
		}
		e, err := d.Event()
		text := string(e.Payload)
		seen[text]++
		if r := l.published[text]; r.Offset != e.Offset || r.ID != e.ID || r.Duplicate {
			t.Errorf("%s is at offset %d under %s; its receipt is %+v", text, e.Offset, e.ID, r)
		}
		var who, n int
		if _, err := fmt.Sscanf(text, `"%d-%d"`, &who, &n); err == nil {
			if last, ok := order[fmt.Sprint(who)]; ok && n < last {
				t.Errorf("%s comes after number %d of the same publisher", text, last)
			}
			order[fmt.Sprint(who)] = n
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for text, n := range seen {
		if n != 1 {
			t.Errorf("%s is in the log %d times", text, n)
		}
	}
	if len(seen) != l.total || len(l.published) != l.total {
		t.Errorf("%d events are in the log, %d have receipts; want %d", len(seen), len(l.published), l.total)
	}
}

// TestAnswerLost: the hub has committed, its answer does not arrive, the
// connection is cut. The publish is sent again and lands nowhere.
func TestAnswerLost(t *testing.T) {
	h := startHub(t, hub.Config{})
	p := startProxy(t, h.WSAddr())
	c := dial(t, p.addr())
	ctx := bounded(t)
	p.losing.Store(true)
	type outcome struct {
		receipts []eventhub.Receipt
		err      error
	}
	done := make(chan outcome, 1)
	go func() {
		mine := event("t", `2`)
		mine.ID = "mine"
		r, err := c.Publish(ctx, event("t", `1`), mine)
		done <- outcome{r, err}
	}()
	await(t, "the answer", p.lost)
	// Both are committed: the log goes on after them.
	if r, err := h.Bus().Publish(ctx, event("t", `3`)); err != nil || r[0].Offset != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	p.losing.Store(false)
	p.cut(1, nil)
	got := await(t, "the receipt", done)
	if got.err != nil || got.receipts[0].Offset != 1 || got.receipts[0].Duplicate {
		t.Errorf("%+v, %v; want offset 1, and no word of a duplicate", got.receipts, got.err)
	}
	if got.receipts[1] != (eventhub.Receipt{ID: "mine", Offset: 2, Duplicate: true}) {
		t.Errorf("%+v; want offset 2", got.receipts[1])
	}
	if r, err := c.Publish(ctx, event("t", `4`)); err != nil || r[0].Offset != 4 {
		t.Errorf("the next: %+v, %v", r, err)
	}
}

// TestHubRestarts: same store, same port. Subscriptions and publishes of before
// go on.
func TestHubRestarts(t *testing.T) {
	dir := t.TempDir()
	h, err := hub.Start(hub.Config{Store: dir, WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	addr := h.WSAddr()
	c := dial(t, addr)
	ctx := bounded(t)
	seen := make(chan uint64, 100)
	consuming, stop := context.WithCancel(ctx)
	consumed := make(chan error, 1)
	go func() {
		consumed <- c.Consume(consuming, earliest("t", "g"), func(_ context.Context, d eventhub.Delivery) error {
			seen <- d.Offset
			return nil
		})
	}()
	for offset := uint64(1); offset <= 3; offset++ {
		if _, err := c.Publish(ctx, event("t", `1`)); err != nil {
			t.Fatal(err)
		}
		if got := await(t, "a delivery", seen); got != offset {
			t.Errorf("offset %d was handled; want %d", got, offset)
		}
		if err := h.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		published := make(chan error, 1) // while there is no hub
		go func() {
			_, err := c.Publish(ctx, event("t", `2`))
			published <- err
		}()
		if h, err = hub.Start(hub.Config{Store: dir, WSAddr: addr, HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0"}); err != nil {
			t.Fatal(err)
		}
		if err := await(t, "the receipt", published); err != nil {
			t.Fatal(err)
		}
		offset++
		// The ack of the first may not have been on disk: it may come again.
		for got := uint64(0); got != offset; got = await(t, "a delivery", seen) {
		}
	}
	stop()
	if err := await(t, "the end", consumed); err != nil {
		t.Error(err)
	}
	if cursor, err := h.Bus().Cursor(ctx, "t", "g"); err != nil || cursor.Offset != 4 {
		t.Errorf("cursor %+v, %v", cursor, err)
	}
	if err := h.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// TestLostDeliveriesAreNotBegun: what waited for a handler when the
// connection was lost is not handled and not acked from its first delivery.
func TestLostDeliveriesAreNotBegun(t *testing.T) {
	h := startHub(t, hub.Config{})
	p := startProxy(t, h.WSAddr())
	c := dial(t, p.addr())
	ctx := bounded(t)
	if _, err := c.Publish(ctx, event("t", `1`), event("t", `2`)); err != nil {
		t.Fatal(err)
	}
	opts := earliest("t", "g")
	opts.MaxInFlight = 2
	begun, proceed := make(chan int, 10), make(chan struct{})
	consuming, stop := context.WithCancel(ctx)
	var handled []string
	consumed := make(chan error, 1)
	go func() {
		consumed <- c.Consume(consuming, opts, func(_ context.Context, d eventhub.Delivery) error {
			handled = append(handled, fmt.Sprintf("%d/%d", d.Offset, d.Attempt))
			begun <- d.Attempt
			<-proceed
			return nil
		})
	}()
	await(t, "a handler", begun)
	// Another member gets both at once when the connection is lost, and no more.
	other := newCollector(2)
	if _, err := dial(t, h.WSAddr()).Subscribe(ctx, opts, other); err != nil {
		t.Fatal(err)
	}
	back := p.hold(upwards) // or a client that is quicker than the end of its connection gets one
	p.cut(1, nil)
	for range 2 {
		await(t, "a delivery to the other", other.came)
	}
	back()
	if _, err := c.Publish(ctx, event("t", `3`)); err != nil { // connected again
		t.Fatal(err)
	}
	close(proceed)
	await(t, "the third", begun)
	stop()
	if err := await(t, "the end", consumed); err != nil || !slices.Equal(handled, []string{"1/1", "3/1"}) {
		t.Errorf("handled %v, %v; want the first and the third", handled, err)
	}
	if cursor, err := h.Bus().Cursor(ctx, "t", "g"); err != nil || cursor.Offset != 0 {
		t.Errorf("cursor %+v, %v; a lost delivery was acked", cursor, err)
	}
}

// TestVerdictsOverALoss: a verdict that waits for an answer is given again by
// its lease, before the subscription is made again.
func TestVerdictsOverALoss(t *testing.T) {
	h := startHub(t, hub.Config{})
	p := startProxy(t, h.WSAddr())
	c := dial(t, p.addr())
	ctx := bounded(t)
	if _, err := c.Publish(ctx, event("t", `1`)); err != nil {
		t.Fatal(err)
	}
	r := newCollector(100)
	sub, err := c.Subscribe(ctx, earliest("t", "g"), r)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the delivery", r.came)
	p.losing.Store(true)
	settled := make(chan error, 1)
	go func() {
		_, err := sub.Settle(ctx, eventhub.Settlement{Refs: []eventhub.Ref{{Lease: r.leases[0]}}})
		settled <- err
	}()
	await(t, "the answer", p.lost)
	p.losing.Store(false)
	p.cut(1, nil)
	if err := await(t, "the outcome", settled); err != nil {
		t.Error(err)
	}
	if cursor, err := h.Bus().Cursor(ctx, "t", "g"); err != nil || cursor.Offset != 1 {
		t.Errorf("cursor %+v, %v", cursor, err)
	}
	if len(r.ended) != 0 {
		t.Error("a lost connection ended the subscription")
	}
}

// TestFatalRefusals: what no other connection will change ends the member, or
// the client.
func TestFatalRefusals(t *testing.T) {
	ctx := bounded(t)
	first, second := startHub(t, hub.Config{}), startHub(t, hub.Config{})
	strict := earliest("t", "g")
	strict.MaxAttempts = 3
	p := startProxy(t, first.WSAddr())
	c := dial(t, p.addr())
	r := newCollector(100)
	if _, err := c.Subscribe(ctx, strict, r); err != nil {
		t.Fatal(err)
	}
	other := strict
	other.MaxAttempts = 4
	if _, err := second.Bus().Subscribe(ctx, other, newCollector(0)); err != nil {
		t.Fatal(err)
	}
	p.aim(second.WSAddr())
	p.cut(1, nil)
	err := await(t, "the end", r.ended)
	wantCode(t, err, eventhub.CodeGroupMismatch)
	if e := eventhub.AsError(err); e.Topic != "t" || e.Group != "g" {
		t.Errorf("the end says it is of %q::%q", e.Topic, e.Group)
	}
	if _, err := c.Publish(ctx, event("t", `1`)); err != nil {
		t.Errorf("the client does not go on: %v", err)
	}

	locked := startHub(t, hub.Config{AuthToken: "s3cret"})
	r = newCollector(100)
	if _, err := c.Subscribe(ctx, earliest("t", "h"), r); err != nil {
		t.Fatal(err)
	}
	p.aim(locked.WSAddr())
	p.cut(1, nil)
	wantCode(t, await(t, "the end", r.ended), eventhub.CodeNoToken)
	_, err = c.Publish(ctx, event("t", `1`))
	wantCode(t, err, eventhub.CodeNoToken)
}

func TestWithoutReconnect(t *testing.T) {
	h := startHub(t, hub.Config{})
	p := startProxy(t, h.WSAddr())
	c := dial(t, p.addr(), client.WithoutReconnect())
	r := newCollector(100)
	if _, err := c.Subscribe(bounded(t), earliest("t", "g"), r); err != nil {
		t.Fatal(err)
	}
	p.cut(1, nil)
	ended := await(t, "the end", r.ended)
	if _, err := c.Publish(bounded(t), event("t", `1`)); err == nil || errors.Is(err, client.ErrClosed) || !errors.Is(err, ended) {
		t.Errorf("Publish = %v; Ended got %v", err, ended)
	}
}

// TestSilentHubIsLost: a connection over which nothing comes any more is given
// up; one that is only idle is not.
func TestSilentHubIsLost(t *testing.T) {
	h := startHub(t, hub.Config{})
	p := startProxy(t, h.WSAddr())
	// The pong has all the time that a busy machine may take.
	c := dial(t, p.addr(), client.WithPing(time.Millisecond, time.Second))
	ctx := bounded(t)
	if _, err := c.Publish(ctx, event("t", `1`)); err != nil {
		t.Fatal(err)
	}
	r := newCollector(9)
	if _, err := c.Subscribe(ctx, earliest("t", "g"), r); err != nil {
		t.Fatal(err)
	}
	await(t, "the delivery", r.came)
	for len(p.spoke) > 0 {
		<-p.spoke
	}
	for range 5 {
		await(t, "a ping", p.spoke)
	}
	if p.accepted() != 1 {
		t.Errorf("%d connections were made by an idle client", p.accepted())
	}
	p.losing.Store(true)
	if got, err := c.Publish(ctx, event("t", `2`)); err != nil || got[0].Offset != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	if p.accepted() != 2 {
		t.Errorf("%d connections were made; want 2", p.accepted())
	}
}

// TestSecondURLServes: the client goes where a hub is.
func TestSecondURLServes(t *testing.T) {
	first, second := startHub(t, hub.Config{Version: "1"}), startHub(t, hub.Config{Version: "2"})
	p := startProxy(t, first.WSAddr())
	c := dial(t, p.addr(), client.WithURLs("ws://"+second.WSAddr()))
	if v := c.Info().Version; v != "1" {
		t.Errorf("first at version %s", v)
	}
	p.stop()
	if _, err := c.Publish(bounded(t), event("t", `1`)); err != nil {
		t.Fatal(err)
	}
	if v := c.Info().Version; v != "2" {
		t.Errorf("then at version %s", v)
	}
}

// TestRandomEnds closes, drains and cancels in the middle of everything; goleak
// looks at what is left.
func TestRandomEnds(t *testing.T) {
	s := drawSeed(t)
	r := rand.New(rand.NewPCG(s, 1))
	h := startHub(t, hub.Config{})
	p := startProxy(t, h.WSAddr())
	for range testsize.Of(30, 10) {
		c := dial(t, p.addr(), client.WithMaxPending(4))
		ctx, cancel := context.WithCancel(bounded(t))
		var ended atomic.Bool
		var work sync.WaitGroup
		enough := make(chan struct{})
		var once sync.Once
		var left atomic.Int64
		left.Store(1 + r.Int64N(200))
		for range 4 {
			work.Go(func() {
				for ctx.Err() == nil && !ended.Load() {
					_, err := c.Publish(ctx, event("t", `1`), event("t", `2`))
					c.Enqueue(ctx, []eventhub.Publication{{Events: []eventhub.Event{event("t", `3`)}}}, func([]eventhub.Publication) {})
					if left.Add(-1) <= 0 || err != nil {
						once.Do(func() { close(enough) })
					}
					if err != nil {
						return
					}
				}
			})
		}
		handle := func(context.Context, eventhub.Delivery) error { return nil }
		work.Go(func() { _ = c.Consume(ctx, atOnce(2, earliest("t", "g")), handle) })
		work.Go(func() { _ = c.Follow(ctx, tailFrom("t"), handle) })
		select {
		case <-enough:
		case <-time.After(patience):
			t.Fatal("nothing went on")
		}
		switch r.IntN(4) {
		case 0:
			p.cut(1, nil)
			cancel()
		case 1:
			p.cut(0.5, r)
			c.Close()
		case 2:
			_ = c.Drain(ctx) // publishers go on meanwhile: that it ends is enough
		case 3:
			cancel()
			_ = c.Drain(ctx)
		}
		ended.Store(true)
		c.Close()
		work.Wait()
		cancel()
	}
}
