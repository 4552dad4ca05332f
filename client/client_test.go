package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"eventhub"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/internal/bubble"
)

func TestPublishAndConsume(t *testing.T) {
	h := startHub(t, hub.Config{Version: "1.2.3"})
	c := dial(t, h.WSAddr())
	if info := c.Info(); info.Version != "1.2.3" || info.Durability != "none" || info.Limits.MaxSubscriptions == 0 {
		t.Errorf("the hub says of itself %+v", info)
	}
	ctx := bounded(t)
	events := []eventhub.Event{
		{Topic: "a.b", Payload: []byte(`{ "n": 1 }`), ID: "mine", Key: "k", SID: "s", Headers: map[string]string{"x-a": "b"}, Tags: []string{"#t"}, CausedBy: []string{"c1"}, TS: 1723140000000},
		event("a.b", `"two\n"`),
		event("a.b", `null`),
	}
	receipts, err := c.Publish(ctx, events...)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range receipts {
		if r.Offset != uint64(i+1) || r.ID == "" || r.Duplicate {
			t.Errorf("receipt %d is %+v", i, r)
		}
	}
	if events[1].ID != "" {
		t.Error("Publish wrote an id into the caller's event")
	}
	again, err := c.Publish(ctx, events[0])
	if err != nil || again[0] != (eventhub.Receipt{ID: "mine", Offset: 1, Duplicate: true}) {
		t.Errorf("the same id again: %+v, %v", again, err)
	}
	var got []eventhub.Event
	consuming, stop := context.WithCancel(ctx)
	err = c.Consume(consuming, earliest("a.b", "g"), func(_ context.Context, d eventhub.Delivery) error {
		e, err := d.Event()
		if got = append(got, e); len(got) == 3 {
			stop()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := events[0]
	want.Offset, want.CommittedTS, want.Partition, want.Payload = 1, got[0].CommittedTS, got[0].Partition, []byte(`{"n":1}`)
	if got[0].CommittedTS == 0 || fmt.Sprintf("%+v", got[0]) != fmt.Sprintf("%+v", want) {
		t.Errorf("got  %+v\nwant %+v", got[0], want)
	}
	if string(got[1].Payload) != `"two\n"` || string(got[2].Payload) != `null` || got[1].ID != receipts[1].ID {
		t.Errorf("got %+v and %+v", got[1], got[2])
	}
	// Verdicts stand before the end of Consume.
	if cursor, err := h.Bus().Cursor(ctx, "a.b", "g"); err != nil || cursor.Offset != 3 {
		t.Errorf("cursor %+v, %v; want 3", cursor, err)
	}
}

func TestEnqueueReportsEachForItself(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	place := make([]eventhub.Receipt, 0, 1)
	pubs := []eventhub.Publication{
		{Events: []eventhub.Event{event("t", `1`)}, Receipts: place},
		{Events: []eventhub.Event{event("t", `{`)}},
		{Events: []eventhub.Event{event("system.x", `3`)}},
		{Events: []eventhub.Event{event("t", `4`), event("t", `5`)}},
	}
	done := make(chan []eventhub.Publication, 1)
	c.Enqueue(bounded(t), pubs, func(p []eventhub.Publication) { done <- p })
	p := await(t, "the outcome", done)
	if p[0].Err != nil || place[:1][0].Offset != 1 {
		t.Errorf("the first: %+v, in place %+v", p[0], place[:1])
	}
	wantCode(t, p[1].Err, eventhub.CodeBadJSON)
	if p[2].Err == nil || eventhub.ErrorCode(p[2].Err) == eventhub.CodeInternal {
		t.Errorf("a publish to a topic of the hub: %v", p[2].Err)
	}
	if p[3].Err != nil || len(p[3].Receipts) != 2 || p[3].Receipts[1].Offset != 3 {
		t.Errorf("the last: %+v", p[3])
	}
	all := []eventhub.Publication{{Events: []eventhub.Event{event("", `1`)}}}
	c.Enqueue(bounded(t), all, func(p []eventhub.Publication) { done <- p })
	wantCode(t, await(t, "the outcome", done)[0].Err, eventhub.CodeBadTopic)
}

// TestRefusedWithoutSending: what the client can judge costs no connection.
func TestRefusedWithoutSending(t *testing.T) {
	c := dial(t, startHub(t, hub.Config{}).WSAddr())
	ctx := bounded(t)
	for _, tt := range []struct {
		e    eventhub.Event
		code eventhub.Code
	}{
		{event("bad topic", `1`), eventhub.CodeBadTopic},
		{event("t", ``), eventhub.CodeBadRequest},
		{event("t", `1,"group":"x"`), eventhub.CodeBadJSON},
		{event("t", `1}{`), eventhub.CodeBadJSON},
		{event("t", `{"a":1,"a":2}`), eventhub.CodeBadJSON},
		{eventhub.Event{Topic: "t", Key: "\xff", Payload: []byte(`1`)}, eventhub.CodeBadEvent},
		{eventhub.Event{Topic: "t", TS: time.Now().Add(time.Hour).UnixMilli(), Payload: []byte(`1`)}, eventhub.CodeBadEvent},
		{event("t", `"`+strings.Repeat("x", eventhub.MaxPayloadBytes)+`"`), eventhub.CodeTooLarge},
	} {
		_, err := c.Publish(ctx, tt.e)
		wantCode(t, err, tt.code)
	}
	_, err := c.Publish(ctx, event("t", `1`), event("system.y", `2`), event("t", `3`))
	if e := eventhub.AsError(err); e == nil || !strings.Contains(e.Message, "system.y") || e.Index == nil || *e.Index != 1 {
		t.Errorf("a batch with a bad event: %v", err)
	}
	_, err = c.Publish(ctx, event("t", `1`), event("t", `2`), event("t", ``))
	if e := eventhub.AsError(err); e == nil || e.Code != eventhub.CodeBadRequest || e.Index == nil || *e.Index != 2 || !strings.Contains(e.Message, "events[2]: payload") {
		t.Errorf("a batch with a bad event: %v", err)
	}
	big := event("t", `"`+strings.Repeat("x", eventhub.MaxPayloadBytes-2)+`"`)
	r, err := c.Publish(ctx, big)
	if err != nil || r[0].Offset != 1 { // of the batches nothing was published
		t.Fatalf("the largest payload: %+v, %v", r, err)
	}
	var got int
	consuming, stop := context.WithCancel(ctx)
	if err := c.Consume(consuming, earliest("t", "g"), func(_ context.Context, d eventhub.Delivery) error {
		got = len(d.Record)
		stop()
		return nil
	}); err != nil || got <= eventhub.MaxPayloadBytes {
		t.Errorf("the largest payload came with %d bytes, %v", got, err)
	}
}

func TestDialErrors(t *testing.T) {
	ctx := bounded(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := l.Addr().String()
	l.Close()
	_, err = client.Dial(ctx, "ws://"+dead)
	if !errors.Is(err, client.ErrUnreachable) || !strings.Contains(err.Error(), dead) {
		t.Errorf("nobody listens: %v", err)
	}
	h := startHub(t, hub.Config{AuthToken: "s3cret"})
	url := "ws://" + h.WSAddr()
	for _, tt := range []struct {
		opts []client.Option
		code eventhub.Code
	}{
		{nil, eventhub.CodeNoToken},
		{[]client.Option{client.WithToken("wrong")}, eventhub.CodeBadToken},
		{[]client.Option{client.WithToken("wrong"), client.WithURLs("ws://" + dead)}, eventhub.CodeBadToken},
	} {
		_, err := client.Dial(ctx, url, tt.opts...)
		wantCode(t, err, tt.code)
		if errors.Is(err, client.ErrUnreachable) {
			t.Errorf("a denial counts as unreachable: %v", err)
		}
	}
	broken := errors.New("no token today")
	_, err = client.Dial(ctx, url, client.WithTokenSource(func(context.Context) (string, error) { return "", broken }))
	if !errors.Is(err, broken) || !errors.Is(err, client.ErrUnreachable) {
		t.Errorf("without a token: %v", err)
	}
	_, err = client.Dial(ctx, "ftp://x", client.WithMaxPending(0), client.WithReconnect(2, 1), client.WithLogger(nil))
	for _, part := range []string{"ftp", "max pending", "reconnect", "logger"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not speak of %s", err, part)
		}
	}
	c, err := client.Dial(ctx, "ws://"+dead, client.WithURLs(url), client.WithToken("s3cret"))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := client.Dial(over, url); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}

func TestNackComesAgainWithItsReason(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	ctx := bounded(t)
	if _, err := c.Publish(ctx, event("t", `1`)); err != nil {
		t.Fatal(err)
	}
	opts := earliest("t", "g")
	opts.MaxAttempts, opts.Backoff = 2, eventhub.Backoff{Min: time.Millisecond, Max: time.Millisecond}
	consuming, stop := context.WithCancel(ctx)
	var attempts []int
	var consumed sync.WaitGroup
	consumed.Go(func() {
		_ = c.Consume(consuming, opts, func(_ context.Context, d eventhub.Delivery) error {
			attempts = append(attempts, d.Attempt)
			return errors.New("not today")
		})
	})
	letters := make(chan string, 1)
	err := c.Consume(consuming, earliest(eventhub.DeadLetterTopic("t"), "g"), func(_ context.Context, d eventhub.Delivery) error {
		letters <- string(d.Record)
		stop()
		return nil
	})
	consumed.Wait()
	if letter := await(t, "the dead letter", letters); err != nil || !strings.Contains(letter, "not today") {
		t.Errorf("the dead letter is %s, %v", letter, err)
	}
	if !slices.Equal(attempts, []int{1, 2}) {
		t.Errorf("attempts %v", attempts)
	}
}

// TestSlowHandlerIsExtended: a handler, and what waits for it, outlive the
// lease without being delivered again.
func TestSlowHandlerIsExtended(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		client.EmptyPools()
		defer client.EmptyPools()
		h, network := pipedHub(t, hub.Config{})
		ctx := t.Context()
		c, err := client.Dial(ctx, "ws://"+h.WSAddr(), client.WithNetDial(network.Dial))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Publish(ctx, event("t", `1`), event("t", `2`)); err != nil {
			t.Fatal(err)
		}
		opts := earliest("t", "g")
		opts.AckTimeout = eventhub.MinAckTimeout
		consuming, stop := context.WithCancel(ctx)
		var attempts []int
		err = c.Consume(consuming, opts, func(ctx context.Context, d eventhub.Delivery) error {
			if attempts = append(attempts, d.Attempt); d.Offset == 2 {
				stop()
				return nil
			}
			time.Sleep(5 * eventhub.MinAckTimeout / 2)
			return ctx.Err()
		})
		if err != nil || !slices.Equal(attempts, []int{1, 1}) {
			t.Errorf("attempts %v, %v; want each event once", attempts, err)
		}
		if cursor, err := h.Bus().Cursor(ctx, "t", "g"); err != nil || cursor.Offset != 2 {
			t.Errorf("cursor %+v, %v", cursor, err)
		}
		if err := errors.Join(c.Close(), h.Stop(context.Background())); err != nil {
			t.Error(err)
		}
	})
}

func TestTypedHelpers(t *testing.T) {
	c := dial(t, startHub(t, hub.Config{}).WSAddr())
	ctx := bounded(t)
	type reading struct {
		Host string  `json:"host"`
		Load float64 `json:"load"`
	}
	want := reading{"a<b>", 0.25}
	r, err := client.PublishJSON(ctx, c, eventhub.Event{Topic: "t", Key: "k"}, want)
	if err != nil || r.Offset != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, err := client.PublishJSON(ctx, c, eventhub.Event{Topic: "t"}, make(chan int)); err == nil {
		t.Error("a channel became a payload")
	}
	if r, err := client.PublishJSON(ctx, c, eventhub.Event{Topic: "no topic"}, 1); err == nil || r.Offset != 0 {
		t.Errorf("a bad topic: %+v, %v", r, err)
	}
	if _, err := c.Publish(ctx, event("t", `"no reading"`)); err != nil {
		t.Fatal(err)
	}
	opts := earliest("t", "g")
	consuming, stop := context.WithCancel(ctx)
	var got []reading
	var consumed sync.WaitGroup
	consumed.Go(func() {
		if err := client.ConsumeJSON(consuming, c, opts, func(_ context.Context, v reading, d eventhub.Delivery) error {
			got = append(got, v)
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
	if err := client.ConsumeJSON(consuming, c, earliest("t.dlq", "g"), func(_ context.Context, v json.RawMessage, d eventhub.Delivery) error {
		if !strings.Contains(string(v), "no reading") || !strings.Contains(string(v), `"attempts":1,`) {
			t.Errorf("the dead letter is %s", v)
		}
		stop()
		return nil
	}); err != nil {
		t.Error(err)
	}
	consumed.Wait()
	if !slices.Equal(got, []reading{want}) {
		t.Errorf("got %+v", got)
	}
}

// TestAutoAck: handed over is done; there are no leases and no verdicts.
func TestAutoAck(t *testing.T) {
	h := startHub(t, hub.Config{})
	log := new(logBuffer)
	c := dial(t, h.WSAddr(), client.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	ctx := bounded(t)
	if _, err := c.Publish(ctx, event("t", `"secret"`), event("t", `"secret"`)); err != nil {
		t.Fatal(err)
	}
	opts := earliest("t", "g")
	opts.AutoAck = true
	consuming, stop := context.WithCancel(ctx)
	var got []eventhub.Lease
	if err := c.Consume(consuming, opts, func(_ context.Context, d eventhub.Delivery) error {
		if got = append(got, d.Lease); len(got) == 2 {
			stop()
		}
		return errors.New("nobody asks")
	}); err != nil {
		t.Error(err)
	}
	if text := log.String(); strings.Count(text, "nobody asks") != 2 || !strings.Contains(text, "offset=2") || strings.Contains(text, "secret") {
		t.Errorf("the log is %s", text)
	}
	if !slices.Equal(got, make([]eventhub.Lease, 2)) {
		t.Errorf("leases %v; want two empty ones", got)
	}
	if cursor, err := h.Bus().Cursor(ctx, "t", "g"); err != nil || cursor.Offset != 2 {
		t.Errorf("cursor %+v, %v", cursor, err)
	}
}

func TestSubscriptionSettles(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	ctx := bounded(t)
	if _, err := c.Publish(ctx, event("t", `1`), event("t", `2`), event("t", `3`)); err != nil {
		t.Fatal(err)
	}
	r := newCollector(2)
	opts := earliest("t", "g")
	sub, err := c.Subscribe(ctx, opts, r)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Subscribe(ctx, opts, newCollector(0))
	wantCode(t, err, eventhub.CodeAlreadySubscribed)
	// The third is refused, kept, and handed over when there is room.
	await(t, "the refusal", r.refused)
	r.open()
	sub.Ready()
	for want := uint64(1); want <= 3; want++ {
		if got := await(t, "a delivery", r.came); got != want {
			t.Errorf("offset %d came; want %d", got, want)
		}
	}
	refs := []eventhub.Ref{{Lease: r.leases[0]}, {Lease: r.leases[1]}}
	for _, want := range []eventhub.Outcome{eventhub.Applied, eventhub.Stale} {
		got, err := sub.Settle(ctx, eventhub.Settlement{Refs: refs})
		if err != nil || !slices.Equal(got, []eventhub.Outcome{want, want}) {
			t.Errorf("ack: %v, %v; want %v", got, err, want)
		}
	}
	extend := eventhub.Settlement{Verdict: eventhub.Extend, By: time.Minute, Refs: []eventhub.Ref{{Lease: r.leases[2]}, {Lease: r.leases[0]}}}
	if got, err := sub.Settle(ctx, extend); err != nil || !slices.Equal(got, []eventhub.Outcome{eventhub.Applied, eventhub.Unknown}) {
		t.Errorf("extend: %v, %v", got, err)
	}
	_, err = c.Settle(ctx, "t", "nobody", eventhub.Settlement{Refs: refs})
	wantCode(t, err, eventhub.CodeNotSubscribed)
	if err := sub.Unsubscribe(ctx); err != nil {
		t.Error(err)
	}
	if err := sub.Unsubscribe(ctx); err != nil {
		t.Errorf("a second time: %v", err)
	}
	// The lease that was held is free at once, its attempt given back.
	again := newCollector(1)
	if _, err := c.Subscribe(ctx, opts, again); err != nil {
		t.Fatal(err)
	}
	if got := await(t, "the third", again.came); got != 3 {
		t.Errorf("offset %d came; want 3", got)
	}
	mismatch := opts
	mismatch.MaxAttempts = 77
	_, err = dial(t, h.WSAddr()).Subscribe(ctx, mismatch, newCollector(0))
	wantCode(t, err, eventhub.CodeGroupMismatch)
	if len(r.ended) != 0 {
		t.Error("Ended was called after Unsubscribe")
	}
}

// TestSettleAboveTheLimit: a name that no frame holds is refused, and costs neither the
// connection nor the next one.
func TestSettleAboveTheLimit(t *testing.T) {
	h := startHub(t, hub.Config{})
	p := startProxy(t, h.WSAddr())
	c := dial(t, p.addr())
	ctx := bounded(t)
	huge := strings.Repeat("x", 2<<20)
	for _, tt := range []struct{ topic, id string }{{"t", huge}, {huge, "x"}} {
		for _, verdict := range []eventhub.Verdict{eventhub.Ack, eventhub.Extend} {
			_, err := c.Settle(ctx, tt.topic, "g", eventhub.Settlement{Verdict: verdict, Refs: []eventhub.Ref{{ID: "a"}, {ID: tt.id}}})
			wantCode(t, err, eventhub.CodeTooLarge)
		}
	}
	if _, err := c.Publish(ctx, event("t", `1`)); err != nil || p.accepted() != 1 {
		t.Errorf("%v, over %d connections", err, p.accepted())
	}
}

// TestEnqueueInACallback: a callback that has to wait for room gets it, because the
// answers that make room are read meanwhile.
func TestEnqueueInACallback(t *testing.T) {
	const bound, total = 8, 200
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr(), client.WithMaxPending(bound))
	ctx := bounded(t)
	over := make(chan error, 1)
	var sent, answered atomic.Int64
	var done func(pubs []eventhub.Publication)
	enqueue := func(n int) {
		pubs := make([]eventhub.Publication, n)
		for i := range pubs {
			pubs[i].Events = []eventhub.Event{event("t", `1`)}
		}
		c.Enqueue(ctx, pubs, done)
	}
	done = func(pubs []eventhub.Publication) {
		for _, pub := range pubs {
			if pub.Err != nil {
				over <- pub.Err
				return
			}
		}
		for range pubs { // two for each: more than there is room for
			for range 2 {
				if sent.Add(1) <= total {
					enqueue(1)
				}
			}
		}
		if answered.Add(int64(len(pubs))) == total {
			over <- nil
		}
	}
	sent.Add(bound)
	enqueue(bound)
	if err := await(t, "the last answer", over); err != nil {
		t.Error(err)
	}
}
