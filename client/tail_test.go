package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/internal/testsize"
	"eventhub/wire"
)

// tailEvent is the EVENT of a live tail of t; its payload has n bytes.
func tailEvent(offset, n int) string {
	return fmt.Sprintf(`{"op":"EVENT","topic":"t","event":{"offset":%d,"ts":1723140000000,"id":"e-%d","topic":"t","payload":"%s"}}`,
		offset, offset, strings.Repeat("x", n))
}

func tailEvents(from, to, n int) (frames []string) {
	for offset := from; offset <= to; offset++ {
		frames = append(frames, tailEvent(offset, n))
	}
	return frames
}

// startText writes where a SUBSCRIBE asks to start.
func startText(o *wire.SubscribeOptions) string {
	text := fmt.Sprintf("%d %s %d", o.Start.Kind, o.Start.AfterID, o.Start.Offset)
	for _, p := range o.Places {
		text += fmt.Sprintf(" %s:%d:%d", p.Topic, p.Offset, p.TS)
	}
	return text
}

// wantOffsets takes offsets from the collector.
func wantOffsets(t *testing.T, r *collector, from, to uint64) {
	t.Helper()
	for want := from; want <= to; want++ {
		if got := await(t, fmt.Sprintf("event %d", want), r.came); got != want {
			t.Fatalf("offset %d came; want %d", got, want)
		}
	}
}

// tailing answers a SUBSCRIBE with events and ends the connection at a PUBLISH,
// which comes again on the next.
func tailing(starts chan<- string, events ...string) scripted {
	return func(r *wire.Request) ([]string, bool) {
		if r.Op != wire.OpSubscribe {
			return nil, false
		}
		starts <- startText(&r.Subscribe)
		return append([]string{ok(r)}, events...), true
	}
}

// TestTailGoesOn: over lost connections a tail continues after what came last,
// or as asked where nothing came.
func TestTailGoesOn(t *testing.T) {
	starts := make(chan string, 9)
	addr := startScripted(t,
		tailing(starts),
		tailing(starts, tailEvents(5, 7, 3)...),
		tailing(starts, tailEvents(8, 9, 3)...),
		tailing(starts, tailEvent(20, 3)),
		func(r *wire.Request) ([]string, bool) {
			if r.Op == wire.OpSubscribe {
				starts <- startText(&r.Subscribe)
			}
			return []string{fmt.Sprintf(`{"op":"OK","corr":%q,"id":"x","offset":21}`, r.Corr)}, true
		},
	)
	c := dial(t, addr)
	r := newCollector(1 << 20)
	opts := eventhub.TailOptions{Topic: "t", Start: eventhub.Start{Kind: eventhub.StartOffset, Offset: 5}}
	if _, err := c.Tail(bounded(t), opts, r); err != nil {
		t.Fatal(err)
	}
	_, err := c.Tail(bounded(t), opts, r)
	wantCode(t, err, eventhub.CodeAlreadySubscribed)
	if _, err := c.Publish(bounded(t), event("t", `1`)); err != nil { // over all connections
		t.Fatal(err)
	}
	const asked = "4  5"
	for i, want := range []string{asked, asked, asked + " t:7:1723140000000", asked + " t:9:1723140000000", asked + " t:20:1723140000000"} {
		if got := await(t, "a SUBSCRIBE", starts); got != want {
			t.Errorf("SUBSCRIBE %d began at %q; want %q", i+1, got, want)
		}
	}
	wantOffsets(t, r, 5, 9)
	wantOffsets(t, r, 20, 20)
	c.Close()
	if err := await(t, "the end", r.ended); !errors.Is(err, client.ErrClosed) {
		t.Errorf("the tail ended with %v", err)
	}
	for _, d := range r.leases {
		if !d.IsZero() {
			t.Errorf("a tail has the lease %s", d)
		}
	}
}

// TestTailBehindWhatIsGone: a tail to which nothing came, and whose beginning a restored
// hub does not have any more, leaves nothing out.
func TestTailBehindWhatIsGone(t *testing.T) {
	starts := make(chan string, 9)
	addr := startScripted(t, tailing(starts), func(r *wire.Request) ([]string, bool) {
		switch {
		case r.Op != wire.OpSubscribe:
			return []string{fmt.Sprintf(`{"op":"OK","corr":%q,"id":"x","offset":21}`, r.Corr)}, true
		case r.Subscribe.Start.Kind == eventhub.StartAfterID:
			starts <- startText(&r.Subscribe)
			return []string{refusal(r, eventhub.CodeUnknownID)}, true
		}
		starts <- startText(&r.Subscribe)
		return append([]string{ok(r)}, tailEvents(1, 3, 1)...), true
	})
	c := dial(t, addr)
	r := newCollector(1 << 20)
	opts := eventhub.TailOptions{Topic: "t", Start: eventhub.Start{Kind: eventhub.StartAfterID, AfterID: "e-9"}}
	if _, err := c.Tail(bounded(t), opts, r); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Publish(bounded(t), event("t", `1`)); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"3 e-9 0", "3 e-9 0", "1  0"} {
		if got := await(t, "a SUBSCRIBE", starts); got != want {
			t.Errorf("SUBSCRIBE %d began at %q; want %q", i+1, got, want)
		}
	}
	wantOffsets(t, r, 1, 3)
}

// TestTailWithoutRoom: a receiver that takes nothing makes the client say stop,
// and go on when everything that came was taken, be that before or after the hub
// has stopped; nothing is left out.
func TestTailWithoutRoom(t *testing.T) {
	for _, order := range []string{"stopped first", "taken first"} {
		t.Run(order, func(t *testing.T) { testTailWithoutRoom(t, order == "taken first") })
	}
}

func testTailWithoutRoom(t *testing.T, takenFirst bool) {
	const size, first, late, again = 64 << 10, 100, 3, 5
	asked, proceed := make(chan string, 9), make(chan struct{})
	addr := startScripted(t, func(r *wire.Request) ([]string, bool) {
		if r.Op == wire.OpPublish {
			return []string{fmt.Sprintf(`{"op":"OK","corr":%q,"id":"x","offset":999}`, r.Corr)}, true
		}
		asked <- fmt.Sprint(r.Op, " ", startText(&r.Subscribe))
		switch {
		case r.Op == wire.OpUnsubscribe && r.Group == "": // more was on its way
			<-proceed
			return append(tailEvents(first+1, first+late, size), ok(r)), true
		case len(r.Subscribe.Places) == 0:
			return append([]string{ok(r)}, tailEvents(1, first, size)...), true
		}
		return append([]string{ok(r)}, tailEvents(first+late+1, first+late+again, size)...), true
	})
	c := dial(t, addr)
	r := newCollector(1)
	sub, err := c.Tail(bounded(t), tailFrom("t"), r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"SUBSCRIBE 1  0", "UNSUBSCRIBE 0  0"} {
		if got := await(t, "a request", asked); got != want {
			t.Errorf("the client said %s; want %s", got, want)
		}
	}
	await(t, "a refusal", r.refused)
	wantOffsets(t, r, 1, 1)
	if !takenFirst {
		close(proceed)
		if _, err := c.Publish(bounded(t), event("t", `1`)); err != nil { // answered after it
			t.Fatal(err)
		}
	}
	if len(asked) != 0 {
		t.Errorf("the client goes on while nothing is taken: %s", <-asked)
	}
	r.open()
	sub.Ready()
	wantOffsets(t, r, 2, first)
	if takenFirst {
		close(proceed)
	}
	wantOffsets(t, r, first+1, first+late+again)
	if got, want := await(t, "a SUBSCRIBE", asked), fmt.Sprintf("SUBSCRIBE 1  0 t:%d:1723140000000", first+late); got != want {
		t.Errorf("the client said %s; want %s", got, want)
	}
}

// TestNothingIsLeftOutOfWhatWaits: a receiver without room makes the hub wait, be
// it a tail's or a group's whose events count as acked when sent; in the end every
// event came, once and in order.
func TestNothingIsLeftOutOfWhatWaits(t *testing.T) {
	total := testsize.Of(300, 120) // of 64 KiB: several times what a client holds
	h := startHub(t, hub.Config{})
	payload := `"` + strings.Repeat("x", 64<<10) + `"`
	for range total {
		if _, err := h.Bus().Publish(bounded(t), event("t", payload)); err != nil {
			t.Fatal(err)
		}
	}
	for _, group := range []string{"", "g"} {
		c := dial(t, h.WSAddr())
		r := newCollector(3)
		opts := wire.SubscribeOptions{GroupOptions: earliest("t", group)}
		opts.AutoAck = true
		sub, err := join(bounded(t), c, opts, r)
		if err != nil {
			t.Fatal(err)
		}
		await(t, "a refusal", r.refused)
		for range 3 { // there is time for more to come
			if _, err := c.Publish(bounded(t), event("u", `1`)); err != nil {
				t.Fatal(err)
			}
		}
		r.open()
		sub.Ready()
		wantOffsets(t, r, 1, uint64(total))
		if err := sub.Unsubscribe(bounded(t)); err != nil {
			t.Error(err)
		}
		if len(r.came) != 0 {
			t.Errorf("group %q: event %d came as well", group, <-r.came)
		}
	}
}

// TestFollow: the handler gets every event in order and gives no verdicts; its error
// ends the tail.
func TestFollow(t *testing.T) {
	const n = 300 // more than the queue holds
	var ops []wire.Op
	var mu sync.Mutex
	addr := startScripted(t, func(r *wire.Request) ([]string, bool) {
		mu.Lock()
		defer mu.Unlock()
		ops = append(ops, r.Op)
		frames := []string{ok(r)}
		if r.Op == wire.OpSubscribe {
			frames = append(frames, tailEvents(1, n, 10)...)
		}
		return frames, true
	})
	c := dial(t, addr)
	ctx := bounded(t)
	enough := errors.New("enough")
	var got []uint64
	err := client.FollowJSON(ctx, c, eventhub.TailOptions{Topic: "t"}, func(_ context.Context, v string, d eventhub.Delivery) error {
		got = append(got, d.Offset)
		if d.Attempt != 1 || v != "xxxxxxxxxx" {
			t.Errorf("attempt %d of %q", d.Attempt, v)
		}
		if d.Offset == n {
			return enough
		}
		return nil
	})
	if err != enough || len(got) != n || !slices.IsSorted(got) {
		t.Errorf("%d events were handled, in order: %v; %v", len(got), slices.IsSorted(got), err)
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(ops, []wire.Op{wire.OpSubscribe, wire.OpUnsubscribe}) {
		t.Errorf("the client said %v", ops)
	}
}

// TestTailOverCutConnections: a tail whose connection is cut again and again, and
// whose handler is slow at times, sees every event once and in order.
func TestTailOverCutConnections(t *testing.T) {
	const total = 3000
	seed := drawSeed(t)
	r := rand.New(rand.NewPCG(seed, 2))
	h := startHub(t, hub.Config{})
	p := startProxy(t, h.WSAddr())
	c := dial(t, p.addr())
	ctx, stop := context.WithCancel(bounded(t))
	if _, err := h.Bus().Publish(ctx, event("t", `"first"`)); err != nil {
		t.Fatal(err)
	}
	var publishing sync.WaitGroup
	defer publishing.Wait()
	handled := make(chan struct{}, 2*total)
	for range 200 {
		handled <- struct{}{}
	}
	publishing.Go(func() { // a little ahead of what is handled, so that there is always more to come
		for range total - 1 {
			// Not with ctx: an event may be handled before its publisher has the receipt.
			if _, err := h.Bus().Publish(bounded(t), event("t", `"next"`)); err != nil {
				t.Error(err)
				return
			}
			await(t, "a handler", handled)
		}
	})
	cutAt := r.Uint64N(100)
	next := uint64(1)
	err := c.Follow(ctx, tailFrom("t"), func(_ context.Context, d eventhub.Delivery) error {
		if d.Offset != next {
			t.Errorf("offset %d is handled; want %d", d.Offset, next)
		}
		next = d.Offset + 1
		handled <- struct{}{}
		if d.Offset%100 == cutAt {
			p.cut(1, nil)
		}
		if d.Offset == total {
			stop()
		}
		return nil
	})
	if err != nil || next != total+1 {
		t.Errorf("handled up to offset %d: %v", next-1, err)
	}
	if p.accepted() < 10 {
		t.Errorf("only %d connections were made", p.accepted())
	}
}

type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// patternEvent is the EVENT of a live tail of t.*, age seconds old.
func patternEvent(topic string, offset int, now time.Time, age int64) string {
	return fmt.Sprintf(`{"op":"EVENT","topic":"t.*","event":{"offset":%d,"ts":%d,"id":"%s-%d","topic":%q,"payload":1}}`,
		offset, now.UnixMilli()-1000*age, topic, offset, topic)
}

// TestTailOverTopicsGoesOn after the last event of each topic, and where it began in
// all others, which the hub knows by what it has said; what it gives is delivered.
func TestTailOverTopicsGoesOn(t *testing.T) {
	now := time.Now()
	starts := make(chan wire.SubscribeOptions, 9)
	serving := func(events ...string) scripted {
		return func(r *wire.Request) ([]string, bool) {
			if r.Op != wire.OpSubscribe {
				return nil, false
			}
			starts <- r.Subscribe
			begun := fmt.Sprintf(`{"op":"OK","corr":%q,"known":"1-2-3"}`, r.Corr)
			return append([]string{begun}, events...), true
		}
	}
	addr := startScripted(t,
		serving(),
		serving(patternEvent("t.a", 5, now, 3), patternEvent("t.b", 5, now, 1)),
		serving(patternEvent("t.c", 1, now, 2), patternEvent("t.a", 6, now, 0)),
		serving(patternEvent("t.a", 2, now, 0)),
		func(r *wire.Request) ([]string, bool) {
			if r.Op == wire.OpSubscribe {
				starts <- r.Subscribe
			}
			return []string{fmt.Sprintf(`{"op":"OK","corr":%q,"id":"x","offset":21}`, r.Corr)}, true
		},
	)
	c := dial(t, addr)
	r := newCollector(1 << 20)
	if _, err := c.Tail(bounded(t), eventhub.TailOptions{Topic: "t.*"}, r); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Publish(bounded(t), event("t", `1`)); err != nil { // over all connections
		t.Fatal(err)
	}
	at := func(topic string, offset uint64, age int64) eventhub.Place {
		return eventhub.Place{Topic: topic, Offset: offset, TS: now.UnixMilli() - 1000*age}
	}
	for i, want := range []eventhub.TailOptions{
		{}, {Known: "1-2-3"}, {Known: "1-2-3", Places: []eventhub.Place{at("t.a", 5, 3), at("t.b", 5, 1)}},
		{Known: "1-2-3", Places: []eventhub.Place{at("t.a", 6, 0), at("t.b", 5, 1), at("t.c", 1, 2)}},
		{Known: "1-2-3", Places: []eventhub.Place{at("t.a", 2, 0), at("t.b", 5, 1), at("t.c", 1, 2)}},
	} {
		got := await(t, "a SUBSCRIBE", starts)
		slices.SortFunc(got.Places, func(a, b eventhub.Place) int { return strings.Compare(a.Topic, b.Topic) })
		if got.Start != want.Start || got.Known != want.Known || !slices.Equal(got.Places, want.Places) {
			t.Errorf("SUBSCRIBE %d begins at %+v, %q, %+v; want %+v, %q, %+v", i+1, got.Start, got.Known, got.Places, want.Start, want.Known, want.Places)
		}
	}
	c.Close()
	if want := []uint64{5, 5, 1, 6, 2}; !slices.Equal(r.offsets, want) {
		t.Errorf("offsets %v came; want %v", r.offsets, want)
	}
}

// TestTailOverTopicsReadsThePastOnce: a receiver that is slow makes the client say stop
// again and again; the hub sends each event of the past once all the same.
func TestTailOverTopicsReadsThePastOnce(t *testing.T) {
	const topics, size = 7, 64 << 10
	each := testsize.Of(100, 30) // 10 times what a client holds; in a small run 3 times
	h := startHub(t, hub.Config{})
	p := startProxy(t, h.WSAddr())
	payload := `"` + strings.Repeat("x", size) + `"`
	for i := range topics * each {
		if _, err := h.Bus().Publish(bounded(t), event(fmt.Sprint("t.", i%topics), payload)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(bounded(t))
	seen, next := 0, make(map[string]uint64)
	c := dial(t, p.addr())
	opts := tailFrom("t.*")
	opts.BatchSize = 1
	err := c.Follow(ctx, opts, func(ctx context.Context, d eventhub.Delivery) error {
		if next[d.Topic]++; d.Offset != next[d.Topic] {
			t.Errorf("offset %d of %s came; want %d", d.Offset, d.Topic, next[d.Topic])
		}
		if seen++; seen%20 == 0 { // the hub has time to send more
			if _, err := c.Publish(ctx, event("u", `1`)); err != nil {
				t.Error(err)
			}
		}
		if seen == topics*each {
			stop()
		}
		return nil
	})
	if err != nil || seen != topics*each {
		t.Errorf("%d events came: %v", seen, err)
	}
	// What a SUBSCRIBE finds on its way after an UNSUBSCRIBE is delivered too.
	if sent, most := p.down.Load(), int64(2*topics*each*size); sent > most {
		t.Errorf("the hub sent %d bytes for %d of payloads", sent, topics*each*size)
	}
	t.Logf("the hub sent %d bytes for %d of payloads", p.down.Load(), topics*each*size)
}

// TestTailAfterATail: what the hub has sent to a tail that was left does not reach the
// next one of that name, however it was left.
func TestTailAfterATail(t *testing.T) {
	ended, end := context.WithCancel(context.Background())
	end()
	for name, leave := range map[string]func(eventhub.Subscription){
		"dropped":                      func(s eventhub.Subscription) { s.Drop(0) },
		"left without waiting":         func(s eventhub.Subscription) { _ = s.Unsubscribe(ended) },
		"left before the answer comes": func(s eventhub.Subscription) { go s.Unsubscribe(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) { testTailAfterATail(t, leave) })
	}
}

func testTailAfterATail(t *testing.T, leave func(eventhub.Subscription)) {
	var left string // the corr of the UNSUBSCRIBE
	leaving := make(chan struct{})
	event := func(offset int) string {
		return fmt.Sprintf(`{"op":"EVENT","topic":"t.*","event":{"offset":%d,"ts":%d,"id":"e-%d","topic":"t.a","payload":1}}`,
			offset, time.Now().UnixMilli(), offset)
	}
	c := dial(t, startScripted(t, func(r *wire.Request) (frames []string, _ bool) {
		if r.Op == wire.OpUnsubscribe { // it is answered in front of the next answer
			left = r.Corr
			close(leaving)
			return nil, true
		}
		if left != "" {
			frames = append(frames, event(90), event(91), fmt.Sprintf(`{"op":"OK","corr":%q}`, left))
			left = ""
		}
		if r.Op == wire.OpPublish {
			return append(frames, fmt.Sprintf(`{"op":"OK","corr":%q,"id":"x","offset":1}`, r.Corr)), true
		}
		return append(frames, ok(r), event(1), event(2)), true
	}))
	ctx := bounded(t)
	opts := eventhub.TailOptions{Topic: "t.*", Start: eventhub.Earliest}
	first, second := newCollector(9), newCollector(9)
	sub, err := c.Tail(ctx, opts, first)
	if err != nil {
		t.Fatal(err)
	}
	wantOffsets(t, first, 1, 2)
	leave(sub)
	await(t, "the UNSUBSCRIBE", leaving)
	subscribed := make(chan error, 1)
	go func() {
		_, err := c.Tail(ctx, opts, second)
		subscribed <- err
	}()
	if _, err := c.Publish(ctx, eventhub.Event{Topic: "u", Payload: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	if err := await(t, "the second tail", subscribed); err != nil {
		t.Fatal(err)
	}
	wantOffsets(t, second, 1, 2)
}

// gapped is a collector that is notified of gaps.
type gapped struct {
	*collector
	gaps chan string
}

func (g gapped) Gap(gap eventhub.Gap) { g.gaps <- fmt.Sprint(gap, len(g.came)) }

// TestTailsGoOnInAnotherLog: where the hub does not have what a tail has seen, it goes on
// with what was committed later, be it of one topic or of several, and says so before.
func TestTailsGoOnInAnotherLog(t *testing.T) {
	for _, topic := range []string{"t.a", "t.*"} {
		t.Run(topic, func(t *testing.T) {
			first, second := startHub(t, hub.Config{}), startHub(t, hub.Config{})
			p := startProxy(t, first.WSAddr())
			publish := func(h *hub.Hub, n int) {
				for range n {
					if _, err := h.Bus().Publish(bounded(t), event("t.a", `1`)); err != nil {
						t.Fatal(err)
					}
				}
			}
			publish(first, 9)
			log := new(logBuffer)
			c := dial(t, p.addr(), client.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
			r := gapped{newCollector(1 << 20), make(chan string, 9)}
			if _, err := c.Tail(bounded(t), tailFrom(topic), r); err != nil {
				t.Fatal(err)
			}
			wantOffsets(t, r.collector, 1, 9)
			for was := time.Now().UnixMilli(); time.Now().UnixMilli() == was; { // times are in ms
				runtime.Gosched()
			}
			publish(second, 5)
			p.aim(second.WSAddr())
			p.cut(1, nil)
			if got, want := await(t, "the gap", r.gaps), "{t.a 9 0 0 0} 0"; got != want {
				t.Errorf("the gap is %s; want %s", got, want)
			}
			wantOffsets(t, r.collector, 1, 5)
			publish(second, 2)
			wantOffsets(t, r.collector, 6, 7)
			p.cut(1, nil)
			publish(second, 1)
			wantOffsets(t, r.collector, 8, 8)
			if text := log.String(); len(r.gaps) > 0 || strings.Count(text, "does not have what it has seen") != 1 || !strings.Contains(text, "level=WARN") {
				t.Errorf("%d more gaps; the log is %s", len(r.gaps), text)
			}
		})
	}
}

// TestGapsOfTheHub: what the OK of a tail says of removed events, and what the ctx of an event
// does, reach handlers with their events, and OnGap once.
func TestGapsOfTheHub(t *testing.T) {
	for _, group := range []bool{false, true} {
		event := func(offset int, ctx string) string {
			return fmt.Sprintf(`{"event":{"offset":%d,"ts":1723140000000,"id":"e%d","topic":"t.a","payload":1}%s}`, offset, offset, ctx)
		}
		const gap = `"gap":{"after":8,"first":20,"compacted":90,"tombstones":30}`
		hub := startScripted(t, func(r *wire.Request) ([]string, bool) {
			switch {
			case r.Op != wire.OpSubscribe:
				return []string{ok(r)}, true
			case r.Group != "":
				lease := `,"ctx":{"attempt":1,"max_attempts":5,"ack_deadline_ms":30000,"lease":"1-%d-1"` // of groups
				frames := []string{ok(r)}
				for _, e := range []string{event(8, fmt.Sprintf(lease, 8)+"}"), event(20, fmt.Sprintf(lease, 20)+","+gap+"}")} {
					frames = append(frames, `{"op":"EVENTS","topic":"t.*","group":"g","events":[`+e+`]}`)
				}
				return frames, true
			}
			return []string{fmt.Sprintf(`{"op":"OK","corr":%q,"known":"1-2-3","gaps":[{"topic":"t.a","after":4,"first":7}]}`, r.Corr),
				`{"op":"EVENTS","topic":"t.*","events":[` + event(7, "") + `,` + event(8, "") + `,` + event(20, `,"ctx":{`+gap+`}`) + `]}`}, true
		})
		c := dial(t, hub)
		enough := errors.New("enough")
		var came []string
		onGap := func(g eventhub.Gap) { came = append(came, fmt.Sprint("gap ", g)) }
		note := func(d *eventhub.Delivery) error {
			came = append(came, fmt.Sprint(d.Offset, " ", d.Gap != nil))
			if d.Offset == 20 {
				return enough
			}
			return nil
		}
		if group {
			ctx, cancel := context.WithCancel(bounded(t))
			_ = c.Consume(ctx, eventhub.GroupOptions{Topic: "t.*", Group: "g", OnGap: onGap}, func(_ context.Context, d eventhub.Delivery) error {
				if note(&d) != nil {
					cancel()
				}
				return nil
			})
			if want := []string{"8 false", "gap {t.a 8 20 90 30}", "20 true"}; !slices.Equal(came, want) {
				t.Errorf("a group: came %q; want %q", came, want)
			}
		} else {
			err := c.Follow(bounded(t), eventhub.TailOptions{Topic: "t.*", OnGap: onGap}, func(_ context.Context, d eventhub.Delivery) error { return note(&d) })
			if want := []string{"gap {t.a 4 7 0 0}", "7 true", "8 false", "gap {t.a 8 20 90 30}", "20 true"}; !errors.Is(err, enough) || !slices.Equal(came, want) {
				t.Errorf("a tail: came %q, %v; want %q", came, err, want)
			}
		}
		c.Close()
	}
}
