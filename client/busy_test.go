package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus"
	"eventhub/client"
	"eventhub/gateway/ws"
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/wire"
)

var busyHistories = testsize.Int("busy.histories", 25, 5, "how many TestBusyHistories plays")

// TestBusyHistories: handlers stay for longer than their leases, with much that waits
// after them, while connections are cut and stalled and the hub is started again. It is
// played in a bubble, so that leases run out in no time, or do not. As long as
// connections stay no lease runs out, whatever handlers do: an event has no more attempts
// than there were losses, and is never with two handlers of one client. In the end every
// group has handled every event, each tail has had each once in order, and nothing is a
// dead letter.
func TestBusyHistories(t *testing.T) {
	s := drawSeed(t)
	for i := range *busyHistories {
		one := s + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", one), func(t *testing.T) {
			client.EmptyPools()
			defer client.EmptyPools()
			bubble.Test(t, func(t *testing.T) { playBusy(t, one) })
		})
	}
}

// pipes is a listener whose connections are in memory.
type pipes struct {
	come  chan net.Conn
	over  chan struct{}
	close func()
}

func newPipes() *pipes {
	p := &pipes{come: make(chan net.Conn), over: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.over) })
	return p
}

func (p *pipes) dial() (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.come <- theirs:
		return ours, nil
	case <-p.over:
		return nil, errors.New("nobody listens")
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.come:
		return c, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.close(); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// busy is one run.
type busy struct {
	t       *testing.T
	r       *rand.Rand
	ctx     context.Context
	store   store.Store
	bus     *bus.Bus
	gateway *ws.Gateway
	server  *http.Server
	door    *pipes // of the hub
	proxy   *proxy
	options []client.Option

	mu      sync.Mutex
	events  int
	losses  int
	stalled bool                      // leases ran out while handlers had them
	expired uint64                    // leases
	had     map[string]map[string]int // by consumer, then by event: how often it was begun
	under   map[string]bool           // by client and event: it is with a handler
	order   map[string]uint64         // by tail and topic: the last offset
}

func playBusy(t *testing.T, seed uint64) {
	ctx, end := context.WithCancel(context.Background())
	w := &busy{t: t, r: rand.New(rand.NewPCG(seed, 3)), ctx: ctx, store: memory.Open(memory.Options{MaxTopics: 100}),
		had: make(map[string]map[string]int), under: make(map[string]bool), order: make(map[string]uint64)}
	w.start()
	front := newPipes()
	w.proxy = proxyBetween(t, front, "", func(string) (net.Conn, error) {
		w.mu.Lock()
		door := w.door
		w.mu.Unlock()
		return door.dial()
	})
	w.options = []client.Option{client.WithReconnect(time.Millisecond, 50*time.Millisecond),
		client.WithNetDial(func(context.Context, string, string) (net.Conn, error) { return front.dial() })}
	var clients sync.WaitGroup
	for i := range 2 {
		w.consumer(&clients, "group", i)
		w.consumer(&clients, "steps", i)
	}
	w.consumer(&clients, "", 0)
	for range 12 {
		w.step()
	}
	w.settle()
	end()
	clients.Wait()
	w.stop()
	w.proxy.stop()
	if err := w.store.Close(); err != nil {
		t.Error(err)
	}
}

func (w *busy) start() {
	var err error
	if w.bus, err = bus.New(bus.Options{Store: w.store}); err != nil {
		w.t.Fatal(err)
	}
	b := w.bus
	w.gateway, err = ws.New(ws.Config{Authenticate: func(context.Context, string, bool) (ws.Access, error) {
		return ws.Access{Publisher: b, Subscriber: b, Name: "tester"}, nil
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	door := newPipes()
	w.server = &http.Server{Handler: w.gateway, ReadHeaderTimeout: time.Minute}
	go w.server.Serve(door) // until it is closed
	w.mu.Lock()
	defer w.mu.Unlock()
	w.door = door
}

func (w *busy) stop() {
	w.countExpired()
	for _, stop := range []func() error{w.door.Close, func() error { return w.gateway.Shutdown(context.Background()) }, w.server.Close, w.bus.Close} {
		if err := stop(); err != nil {
			w.t.Error(err)
		}
	}
}

// countExpired adds the leases that ran out in this life of the hub.
func (w *busy) countExpired() {
	m, err := w.bus.Measure(context.Background())
	if err != nil {
		w.t.Error(err)
	}
	for _, g := range m.Groups {
		w.expired += g.Expired
	}
	if w.expired > 0 && !w.stalled {
		w.t.Errorf("%d leases ran out, though their members were there", w.expired)
	}
}

// consumer starts a member of a group, one that makes events of events, or a tail.
func (w *busy) consumer(clients *sync.WaitGroup, group string, i int) {
	opts := wire.SubscribeOptions{GroupOptions: earliest("t.*", group)}
	opts.MaxInFlight = 1 + w.r.IntN(20)
	opts.BatchSize = opts.MaxInFlight // which bounds what waits of a tail
	if group != "" {
		opts.AckTimeout = time.Duration(1+w.r.IntN(3)) * time.Second
		opts.MaxAttempts, opts.Backoff = 1000, eventhub.Backoff{Min: 1e6, Max: 1e6}
	}
	who := fmt.Sprint(group, i)
	opts.Concurrency = 1 + w.r.IntN(3)
	longest := time.Duration(1+w.r.IntN(12)) * time.Second
	w.had[group] = make(map[string]int)
	c, err := client.Dial(w.ctx, "ws://hub", w.options...)
	if err != nil {
		w.t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(w.r.Uint64(), 1))
	handle := func(d eventhub.Delivery) {
		stay := w.begin(who, group, &d, random, longest)
		time.Sleep(stay)
		w.done(who, &d)
	}
	clients.Go(func() {
		defer c.Close()
		var err error
		if group == "steps" {
			err = c.Transform(w.ctx, opts.GroupOptions, func(_ context.Context, d eventhub.Delivery) ([]eventhub.Event, error) {
				handle(d)
				return []eventhub.Event{event("results", `1`)}, nil
			})
		} else {
			err = receive(w.ctx, c, opts, func(_ context.Context, d eventhub.Delivery) error { handle(d); return nil })
		}
		if err != nil {
			w.t.Errorf("%s: %v", who, err)
		}
	})
}

// begin notes that a handler has an event, and says for how long it stays.
func (w *busy) begin(who, group string, d *eventhub.Delivery, random *rand.Rand, longest time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := fmt.Sprint(d.Topic, ":", d.Offset)
	w.had[group][id]++
	switch {
	case w.under[who+id]:
		w.t.Errorf("%s: %s is with two handlers", who, id)
	case group == "" && d.Offset != w.order[d.Topic]+1:
		w.t.Errorf("a tail has %s after %d", id, w.order[d.Topic])
	case d.Attempt > 1+w.losses:
		w.t.Errorf("%s: %s comes in attempt %d after %d losses", who, id, d.Attempt, w.losses)
	}
	w.under[who+id] = true
	if group == "" {
		w.order[d.Topic] = d.Offset
		return 0
	}
	return time.Duration(random.Int64N(int64(longest)))
}

func (w *busy) done(who string, d *eventhub.Delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.under[who+fmt.Sprint(d.Topic, ":", d.Offset)] = false
}

// lose counts what may be lost now: by one member, and by the other one, which gets it then.
func (w *busy) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.losses += 2
}

func (w *busy) step() {
	switch op := w.r.IntN(12); {
	case op < 5:
		w.publish(1 + w.r.IntN(30))
	case op < 7:
		w.lose()
		w.proxy.cut(w.r.Float64(), w.r)
	case op < 8:
		w.lose()
		w.proxy.breakOff(4<<10, w.r)
	case op < 9: // leases run out, and those that follow them
		w.mu.Lock()
		w.losses, w.stalled = w.losses+8, true
		w.mu.Unlock()
		goOn := w.proxy.hold([][]int{{upwards}, {downwards}, {upwards, downwards}}[w.r.IntN(3)]...)
		w.publish(1)
		time.Sleep(5 * time.Second)
		w.proxy.cut(1, nil)
		goOn()
	case op < 10:
		w.lose()
		w.stop()
		w.start()
	}
	time.Sleep(time.Duration(w.r.Int64N(int64(4 * time.Second))))
}

func (w *busy) publish(n int) {
	for range n {
		e := event(fmt.Sprint("t.", w.r.IntN(2)), `"`+strings.Repeat("x", w.r.IntN(1000))+`"`)
		if _, err := w.bus.Publish(w.ctx, e); err != nil {
			w.t.Error(err)
		}
		w.events++
	}
}

// settle lets time pass until all is done, and looks at what became of it.
func (w *busy) settle() {
	time.Sleep(time.Hour)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for group, had := range w.had {
		if len(had) != w.events {
			w.t.Errorf("%q has had %d of %d events", group, len(had), w.events)
		}
	}
	groups, err := w.bus.Groups(w.ctx, admin.GroupQuery{Limit: 100})
	for _, g := range groups {
		if g.Lag > 0 || g.InFlight > 0 || g.Waiting > 0 {
			w.t.Errorf("%d events of %s in %s are not done, %d are in flight", g.Lag, g.Group, g.Topic, g.InFlight)
		}
	}
	results, headErr := w.store.Head(w.ctx, "results")
	if int(results) != w.events && w.events > 0 {
		w.t.Errorf("there are %d results of %d events", results, w.events)
	}
	for _, topic := range []string{"t.0.dlq", "t.1.dlq"} {
		if head, err := w.store.Head(w.ctx, topic); err != nil || head > 0 {
			w.t.Errorf("%d dead letters in %s: %v", head, topic, err)
		}
	}
	if err := errors.Join(err, headErr); err != nil {
		w.t.Error(err)
	}
}
