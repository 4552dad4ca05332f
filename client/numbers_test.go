package client_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gws "github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"eventhub"
	"eventhub/client"
	"eventhub/wire"
)

// hubSide is a hub that a test plays itself: it reads each request and says each answer.
type hubSide struct {
	t    *testing.T
	conn net.Conn
	d    wire.Decoder
}

func (h *hubSide) next() wire.Request {
	h.t.Helper()
	_ = h.conn.SetReadDeadline(time.Now().Add(time.Minute))
	message, err := wsutil.ReadClientText(h.conn)
	if err != nil {
		h.t.Fatalf("reading a request: %v", err)
	}
	var r wire.Request
	if err := h.d.Decode(message, &r); err != nil {
		h.t.Fatalf("%s: %v", message, err)
	}
	r.Event.Payload = slices.Clone(r.Event.Payload)
	return r
}

func (h *hubSide) say(format string, args ...any) {
	h.t.Helper()
	if err := wsutil.WriteServerText(h.conn, fmt.Appendf(nil, format, args...)); err != nil {
		h.t.Fatal(err)
	}
}

// signIn answers an AUTH, which has to have a producer or not; with an empty producer in its OK there
// is none.
func (h *hubSide) signIn(wantProducer bool, producer string) (id string) {
	h.t.Helper()
	r := h.next()
	if r.Op != wire.OpAuth || (r.Producer.ID != "") != wantProducer || r.Producer.Epoch != 0 {
		h.t.Fatalf("%+v; want an AUTH, with a producer: %v", r, wantProducer)
	}
	if producer != "" {
		producer = `,"producer":` + strings.ReplaceAll(producer, "ID", r.Producer.ID)
	}
	corr := ""
	if r.HasCorr {
		corr = fmt.Sprintf(`,"corr":%q`, r.Corr)
	}
	h.say(`{"op":"OK","hub":"played","version":"1","protocol":1%s%s}`, producer, corr)
	return r.Producer.ID
}

// publish reads a PUBLISH with that number and payload. Without a number it has an id.
func (h *hubSide) publish(seq uint64, payload string) wire.Request {
	h.t.Helper()
	r := h.next()
	if r.Op != wire.OpPublish || r.Seq != seq || string(r.Event.Payload) != payload || (r.Event.ID != "") != (seq == 0) {
		h.t.Fatalf("%s with seq %d, id %q and %s; want a PUBLISH with seq %d and %s", r.Op, r.Seq, r.Event.ID, r.Event.Payload, seq, payload)
	}
	return r
}

func (h *hubSide) ok(r wire.Request, offset int, duplicate bool) {
	h.t.Helper()
	h.say(`{"op":"OK","corr":%q,"id":"id-%d","offset":%d,"duplicate":%v}`, r.Corr, offset, offset, duplicate)
}

// played starts a client with a hub that the test plays: each connection of the client comes out of the channel.
func played(t *testing.T) (*client.Client, func() *hubSide) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn, 10)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := gws.Upgrade(conn); err == nil {
				accepted <- conn
			}
		}
	})
	t.Cleanup(serving.Wait)
	t.Cleanup(func() { l.Close() })
	connect := func() *hubSide {
		h := &hubSide{t: t, conn: await(t, "connection", accepted)}
		t.Cleanup(func() { h.conn.Close() })
		return h
	}
	dialed := make(chan *client.Client, 1)
	serving.Go(func() {
		dialed <- dial(t, l.Addr().String(), client.WithReconnect(time.Millisecond, 10*time.Millisecond))
	})
	first := connect()
	first.signIn(false, "")
	c := await(t, "client", dialed)
	return c, func() *hubSide {
		if h := first; h != nil {
			first = nil
			return h
		}
		return connect()
	}
}

// outcome of a publish.
type outcome struct {
	receipt eventhub.Receipt
	err     error
}

func publishLater(ctx context.Context, c *client.Client, payload string) <-chan outcome {
	over := make(chan outcome, 1)
	pubs := []eventhub.Publication{{Events: []eventhub.Event{event("t", payload)}}}
	c.Enqueue(ctx, pubs, func(pubs []eventhub.Publication) {
		var o outcome
		if o.err = pubs[0].Err; o.err == nil {
			o.receipt = pubs[0].Receipts[0]
		}
		over <- o
	})
	return over
}

func wantReceipt(t *testing.T, over <-chan outcome, offset int) {
	t.Helper()
	o := await(t, "receipt", over)
	if want := (eventhub.Receipt{ID: fmt.Sprint("id-", offset), Offset: uint64(offset)}); o.err != nil || o.receipt != want {
		t.Errorf("%+v; want %+v", o, want)
	}
}

// withNumbers is a client that has opened its producer, which was born in epoch 8.
func withNumbers(t *testing.T) (c *client.Client, hub *hubSide, connect func() *hubSide) {
	t.Helper()
	c, connect = played(t)
	hub = connect()
	publish := func() {
		over := publishLater(bounded(t), c, `0`)
		hub.ok(hub.publish(0, `0`), 1, false)
		if o := await(t, "receipt", over); o.err != nil || o.receipt.ID == "id-1" {
			t.Fatalf("%+v; want the id that was sent", o)
		}
	}
	for range 15 {
		publish()
	}
	last := publishLater(bounded(t), c, `0`)
	if id := hub.signIn(true, `{"id":"ID","epoch":8,"born":8,"seq":0,"window":4096}`); id == "" {
		t.Fatal("no id")
	}
	hub.ok(hub.publish(0, `0`), 1, false)
	if o := await(t, "receipt", last); o.err != nil {
		t.Fatal(o.err)
	}
	return c, hub, connect
}

// Publishes get numbers when the producer is open. What has no answer is sent again with its number
// if the hub has used it, and else numbered after what it has used.
func TestNumbersAfterALoss(t *testing.T) {
	c, hub, connect := withNumbers(t)
	one := publishLater(bounded(t), c, `1`)
	hub.ok(hub.publish(1, `1`), 101, false)
	wantReceipt(t, one, 101)
	given := []eventhub.Publication{{Events: []eventhub.Event{{Topic: "t", ID: "mine", Payload: []byte(`7`)}}}}
	c.Enqueue(bounded(t), given, func([]eventhub.Publication) {})
	if r := hub.publish(0, `7`); r.Event.ID != "mine" {
		t.Errorf("id %q", r.Event.ID)
	}
	ctx, giveUp := context.WithCancel(bounded(t))
	two, three, four, five := publishLater(bounded(t), c, `2`), publishLater(ctx, c, `3`), publishLater(bounded(t), c, `4`), publishLater(bounded(t), c, `5`)
	for seq := uint64(2); seq <= 5; seq++ {
		hub.publish(seq, fmt.Sprint(seq))
	}
	giveUp()
	if o := await(t, "end", three); o.err == nil {
		t.Error("3 was answered")
	}
	hub.conn.Close()

	hub = connect() // which has used the numbers up to 2
	hub.signIn(true, `{"id":"ID","epoch":9,"born":8,"seq":2,"window":4096}`)
	if r := hub.publish(0, `7`); r.Event.ID != "mine" {
		t.Errorf("id %q", r.Event.ID)
	}
	again := hub.publish(2, `2`)
	hub.ok(hub.publish(3, `4`), 104, false)
	hub.ok(hub.publish(4, `5`), 105, false)
	hub.ok(again, 102, true)
	wantReceipt(t, two, 102) // no duplicate: it is the same publish
	wantReceipt(t, four, 104)
	wantReceipt(t, five, 105)
	six := publishLater(bounded(t), c, `6`)
	hub.ok(hub.publish(5, `6`), 106, false)
	wantReceipt(t, six, 106)
}

// A hub that has forgotten the producer, or has none for the client, knows nothing of what was
// sent: that fails, and what comes later goes on.
func TestForgottenProducers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		signIn func(*hubSide)
		next   uint64 // number
	}{
		{"made again", func(h *hubSide) { h.signIn(true, `{"id":"ID","epoch":9,"born":9,"seq":0,"window":4096}`) }, 1},
		{"a hub without producers", func(h *hubSide) { h.signIn(true, "") }, 0},
		{"too many producers", func(h *hubSide) {
			h.next()
			h.say(`{"op":"ERR","code":"overloaded","msg":"too many","retry_after_ms":900000}`)
			h.signIn(false, "")
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, hub, connect := withNumbers(t)
			lost := publishLater(bounded(t), c, `1`)
			hub.publish(1, `1`)
			hub.conn.Close()
			hub = connect()
			tt.signIn(hub)
			if o := await(t, "end", lost); eventhub.ErrorCode(o.err) != eventhub.CodeUnknownProducer {
				t.Fatalf("%+v", o)
			}
			later := publishLater(bounded(t), c, `2`)
			hub.ok(hub.publish(tt.next, `2`), 102, false)
			if o := await(t, "receipt", later); o.err != nil || o.receipt.Offset != 102 {
				t.Fatalf("%+v", o)
			}
		})
	}
}

// A number that the hub does not take costs the connection, once: the next one says where the
// hub is.
func TestNumbersThatAreRefused(t *testing.T) {
	c, hub, connect := withNumbers(t)
	over := publishLater(bounded(t), c, `1`)
	r := hub.publish(1, `1`)
	hub.say(`{"op":"ERR","code":"bad_sequence","msg":"seq is 1; 5 is next","corr":%q}`, r.Corr)
	hub = connect()
	hub.signIn(true, `{"id":"ID","epoch":9,"born":8,"seq":0,"window":4096}`)
	r = hub.publish(1, `1`)
	hub.say(`{"op":"ERR","code":"bad_sequence","msg":"seq is 1; 5 is next","corr":%q}`, r.Corr)
	if o := await(t, "end", over); eventhub.ErrorCode(o.err) != eventhub.CodeBadSequence {
		t.Fatalf("%+v", o)
	}
}
