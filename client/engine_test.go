package client_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/hub"
	"eventhub/wire"
)

// TestChainOverCutConnections: two transformations in a row, by several clients
// whose connections are cut again and again: every event comes to one result of each
// step, in one piece.
func TestChainOverCutConnections(t *testing.T) {
	const total, members = 2000, 2
	r := rand.New(rand.NewPCG(drawSeed(t), 4))
	h := startHub(t, hub.Config{})
	p := startProxy(t, h.WSAddr())
	ctx, stop := context.WithCancel(bounded(t))
	defer stop()
	var cutting sync.Mutex
	step := func(topic string) eventhub.Transformer {
		return func(_ context.Context, d eventhub.Delivery) ([]eventhub.Event, error) {
			e, err := d.Event()
			cutting.Lock()
			if r.IntN(300) == 0 {
				p.cut(0.5, r)
			}
			cutting.Unlock()
			return []eventhub.Event{{Topic: topic, Payload: e.Payload}, {Topic: topic + ".copy", Payload: e.Payload}}, err
		}
	}
	var transforming sync.WaitGroup
	for _, way := range [][2]string{{"in", "between"}, {"between", "out"}} {
		for range members {
			c := dial(t, p.addr())
			opts := earliest(way[0], "chain")
			opts.MaxAttempts = 1000
			transforming.Go(func() {
				if err := c.Transform(ctx, atOnce(2, opts), step(way[1])); err != nil {
					t.Error(err)
				}
			})
		}
	}
	for at := 0; at < total; at += 100 {
		var batch []eventhub.Event
		for i := range 100 {
			batch = append(batch, event("in", fmt.Sprint(at+i)))
		}
		if _, err := h.Bus().Publish(ctx, batch...); err != nil {
			t.Fatal(err)
		}
	}
	for _, topic := range []string{"between", "between.copy", "out", "out.copy"} {
		seen := make(map[string]int)
		reading, enough := context.WithCancel(ctx)
		if err := eventhub.Consume(reading, h.Bus(), earliest(topic, "checker"), func(_ context.Context, d eventhub.Delivery) error {
			e, err := d.Event()
			if seen[string(e.Payload)]++; len(seen) == total {
				enough()
			}
			if len(e.CausedBy) != 1 {
				t.Errorf("%s at %d is caused by %v", topic, d.Offset, e.CausedBy)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		enough()
		for payload, n := range seen {
			if n != 1 {
				t.Errorf("%s has %s %d times", topic, payload, n)
			}
		}
		if len(seen) != total {
			t.Errorf("%s has %d of %d results", topic, len(seen), total)
		}
	}
	stop()
	transforming.Wait()
	for _, topic := range []string{"between", "out"} {
		if info, err := h.Bus().Topic(bounded(t), topic); err != nil || info.Head < total {
			t.Errorf("%+v, %v", info, err)
		}
	}
	t.Logf("%d connections were cut", p.cuts)
	if p.cuts == 0 {
		t.Error("nothing was cut: the test shows nothing")
	}
}

// TestPatternsAndFilters: one member has several topics, also such as are created
// later, and gets what its filter lets pass; verdicts find their topics.
func TestPatternsAndFilters(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	ctx, stop := context.WithCancel(bounded(t))
	tagged := func(topic string) eventhub.Event {
		e := event(topic, `1`)
		e.Tags = []string{"#duck"}
		return e
	}
	if _, err := c.Publish(ctx, tagged("a.b"), event("a.b", `2`), tagged("x")); err != nil {
		t.Fatal(err)
	}
	opts := earliest("a.**", "g")
	opts.Topics, opts.Filter = []string{"x"}, &eventhub.Filter{Tags: []string{"#duck"}}
	came := make(chan string, 9)
	ended := make(chan error, 1)
	go func() {
		ended <- c.Consume(ctx, atOnce(2, opts), func(_ context.Context, d eventhub.Delivery) error {
			came <- fmt.Sprint(d.Topic, d.Offset)
			return nil
		})
	}()
	got := []string{await(t, "an event", came), await(t, "an event", came)}
	if _, err := c.Publish(ctx, event("a.c.d", `1`), tagged("a.c.d")); err != nil {
		t.Fatal(err)
	}
	got = append(got, await(t, "an event of the new topic", came))
	slices.Sort(got)
	if want := []string{"a.b1", "a.c.d2", "x1"}; !slices.Equal(got, want) {
		t.Errorf("%v came; want %v", got, want)
	}
	stop()
	if err := await(t, "the end", ended); err != nil {
		t.Error(err)
	}
	for topic, want := range map[string]uint64{"a.b": 2, "x": 1, "a.c.d": 2} {
		if cursor, err := h.Bus().Cursor(bounded(t), topic, "g"); err != nil || cursor.Offset != want {
			t.Errorf("cursor %+v, %v; want %d", cursor, err, want)
		}
	}
}

// TestTailOverTopicsOverCutConnections: every event of every topic comes once and
// in the order of its topic.
func TestTailOverTopicsOverCutConnections(t *testing.T) {
	const topics, total = 7, 1500
	r := rand.New(rand.NewPCG(drawSeed(t), 5))
	h := startHub(t, hub.Config{})
	p := startProxy(t, h.WSAddr())
	c := dial(t, p.addr())
	ctx, stop := context.WithCancel(bounded(t))
	defer stop()
	name := func(i int) string { return fmt.Sprintf("many.t%d", i%topics) }
	if _, err := h.Bus().Publish(ctx, event(name(0), `1`)); err != nil {
		t.Fatal(err)
	}
	handled := make(chan struct{}, 2*total)
	for range 200 {
		handled <- struct{}{}
	}
	var publishing sync.WaitGroup
	defer publishing.Wait()
	publishing.Go(func() {
		for i := 1; i < total; i++ {
			// Not with ctx: an event may be handled before its publisher has the receipt.
			if _, err := h.Bus().Publish(bounded(t), event(name(i), `1`)); err != nil {
				t.Error(err)
				return
			}
			await(t, "a handler", handled)
		}
	})
	cutAt := r.IntN(100)
	last, n := make(map[string]uint64), 0
	err := c.Follow(ctx, tailFrom("many.*"), func(_ context.Context, d eventhub.Delivery) error {
		if d.Offset != last[d.Topic]+1 {
			t.Errorf("offset %d of %s is handled after %d", d.Offset, d.Topic, last[d.Topic])
		}
		last[d.Topic] = d.Offset
		handled <- struct{}{}
		if n%100 == cutAt {
			p.cut(1, nil)
		}
		if n++; n == total {
			stop()
		}
		return nil
	})
	if err != nil || n != total || len(last) != topics {
		t.Errorf("%d events of %d topics were handled: %v", n, len(last), err)
	}
	if p.accepted() < 5 {
		t.Errorf("only %d connections were made", p.accepted())
	}
}

// TestWaitForGroups: answered when they have acked, or with who has not.
func TestWaitForGroups(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	ctx, stop := context.WithCancel(bounded(t))
	defer stop()
	if _, err := c.Publish(ctx, event("t", `0`)); err != nil {
		t.Fatal(err)
	}
	proceed := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- c.Consume(ctx, earliest("t", "g"), func(ctx context.Context, d eventhub.Delivery) error {
			if d.Offset == 2 {
				<-proceed
			}
			return nil
		})
	}()
	// The group is there when the first is acked.
	outcome := make(chan eventhub.Publication, 1)
	publish := func(upTo time.Duration, groups ...string) {
		pubs := []eventhub.Publication{{Events: []eventhub.Event{event("t", `1`)}, WaitFor: groups, WaitUpTo: upTo}}
		c.Enqueue(ctx, pubs, func(pubs []eventhub.Publication) { outcome <- pubs[0] })
	}
	publish(time.Second, "nobody")
	wantCode(t, await(t, "the refusal", outcome).Err, eventhub.CodeNotSubscribed)
	for {
		if _, err := h.Bus().Group(ctx, "t", "g"); err == nil {
			break
		}
		if _, err := c.Publish(ctx, event("pause", `1`)); err != nil { // and time goes by
			t.Fatal(err)
		}
	}
	publish(10*time.Millisecond, "g")
	late := await(t, "the timeout", outcome)
	wantCode(t, late.Err, eventhub.CodeWaitTimeout)
	if len(late.Receipts) != 1 || late.Receipts[0].ID == "" || late.Receipts[0].Offset != 2 {
		t.Errorf("%+v", late.Receipts)
	}
	publish(patience, "g")
	close(proceed)
	if p := await(t, "the receipt", outcome); p.Err != nil || p.Receipts[0].Offset != 3 {
		t.Errorf("%+v", p)
	}
	receipts, err := c.PublishAndWait(ctx, []string{"g"}, patience, event("t", `2`), event("t", `3`))
	if info, looked := h.Bus().Group(ctx, "t", "g"); err != nil || looked != nil || len(receipts) != 2 || info.Cursor != receipts[1].Offset {
		t.Errorf("%+v, %v; the group is %+v, %v", receipts, err, info, looked)
	}
	_, err = c.PublishAndWait(ctx, []string{"nobody"}, 0, event("t", `4`))
	wantCode(t, err, eventhub.CodeNotSubscribed)
	gone, give := context.WithCancel(ctx)
	give()
	if _, err := eventhub.PublishAndWait(gone, h.Bus(), []string{"g"}, patience, event("t", `5`)); err == nil {
		t.Error("waited without a context")
	}
	stop()
	if err := await(t, "the end", ended); err != nil {
		t.Error(err)
	}
}

// TestLaterAndCancelled: a scheduled event has a time and no offset, and what is
// taken back never comes.
func TestLaterAndCancelled(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	ctx := bounded(t)
	soon, never := event("t", `"soon"`), event("t", `"never"`)
	soon.Delay, never.Delay = 20*time.Millisecond, time.Hour
	before := time.Now().UnixMilli()
	got, err := c.Publish(ctx, never, event("t", `"now"`), soon)
	if err != nil {
		t.Fatal(err)
	}
	if got[0].DeliverAt.UnixMilli() < before+time.Hour.Milliseconds() || got[0].Offset != 0 || got[1].Offset != 1 || !got[1].DeliverAt.IsZero() || got[2].DeliverAt.IsZero() {
		t.Errorf("the receipts are %+v", got)
	}
	if err := c.Cancel(ctx, "t", got[0].ID); err != nil {
		t.Error(err)
	}
	wantCode(t, c.Cancel(ctx, "t", got[0].ID), eventhub.CodeUnknownID)
	wantCode(t, c.Cancel(ctx, "t", got[1].ID), eventhub.CodeUnknownID)
	r := newCollector(9)
	if _, err := c.Subscribe(ctx, earliest("t", "g"), r); err != nil {
		t.Fatal(err)
	}
	wantOffsets(t, r, 1, 2)
	if e, err := h.Bus().Event(ctx, "t", got[2].ID); err != nil || e.Offset != 2 {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestWaitsOutOfRange are refused before anything is sent.
func TestWaitsOutOfRange(t *testing.T) {
	c := dial(t, startScripted(t, func(*wire.Request) ([]string, bool) { panic("it was sent") }))
	for _, wait := range []time.Duration{-1, eventhub.MaxWait + 1} {
		_, err := c.PublishAndWait(bounded(t), []string{"g"}, wait, event("t", `1`))
		wantCode(t, err, eventhub.CodeBadRequest)
	}
}
