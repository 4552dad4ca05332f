package ws

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gws "github.com/gobwas/ws"

	"eventhub"
	"eventhub/internal/bubble"
	"eventhub/wire"
)

// inBubble runs a test with fake time over in-memory connections. Everything that
// the gateway started has ended when it is done, or synctest says so.
func inBubble(t *testing.T, change func(*Config), test func(t *testing.T, f *fixture)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t, change)
		test(t, f)
		if err := f.gw.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// deliverUntilRefused offers events of n bytes one by one and returns how many
// were taken.
func deliverUntilRefused(t *testing.T, sub *fakeSubscription, from uint64, n int) (taken int) {
	t.Helper()
	for {
		if sub.receiver.Deliver([]eventhub.Delivery{delivery(from+uint64(taken), n)}) == 0 {
			return taken
		}
		if taken++; taken > 100_000 {
			t.Fatal("deliveries are never refused")
		}
	}
}

func (s *session) queuedNow() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.queued()
}

// onlySession returns the one session of the gateway.
func (f *fixture) onlySession(t *testing.T) *session {
	t.Helper()
	open := f.gw.open()
	if len(open) != 1 {
		t.Fatalf("%d sessions are open; want 1", len(open))
	}
	return open[0]
}

// expectEvents reads the EVENTs of offsets from on, in order.
func (c *client) expectEvents(from uint64, n int) {
	c.t.Helper()
	for i := range n {
		op, payload := c.read()
		var m struct {
			Op    string
			Event struct{ Offset uint64 }
		}
		if err := json.Unmarshal(payload, &m); err != nil || op != gws.OpText || m.Op != "EVENT" || m.Event.Offset != from+uint64(i) {
			c.t.Fatalf("got %x %.120q (%v); want the event at offset %d", op, payload, err, from+uint64(i))
		}
	}
}

// TestBackpressure: a client that does not read is delivered what fits and no
// more; when it reads again, the group is notified and everything arrives.
func TestBackpressure(t *testing.T) {
	// What fits a small buffer, a large one, and is more than either.
	for _, most := range []int{20_000, 1 << 20, 3 << 20} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			inBubble(t, func(c *Config) { c.OutboundBytes = most }, func(t *testing.T, f *fixture) {
				testBackpressure(t, f, most)
			})
		})
	}
}

func testBackpressure(t *testing.T, f *fixture, most int) {
	c := f.pipe(t)
	c.auth()
	sub := c.subscribe(f)
	synctest.Wait()
	taken := deliverUntilRefused(t, sub, 1, 1000)
	if queued := f.onlySession(t).queuedNow(); queued > most || queued < most-1500 {
		t.Errorf("%d bytes are queued; want nearly %d", queued, most)
	}
	synctest.Wait()
	select {
	case <-sub.ready:
		t.Fatal("Ready was called without room")
	default:
	}
	c.expectEvents(1, taken)
	<-sub.ready
	again := deliverUntilRefused(t, sub, uint64(taken)+1, 1000)
	if again < taken/2 {
		t.Errorf("%d deliveries were taken after Ready; want about %d", again, taken)
	}
	c.expectEvents(uint64(taken)+1, again)
	c.conn.Close()
	<-f.log.closed
}

// TestLittleWaitsWhereMemoryIsTight: a client that does not read holds less while there is little memory, is told of room all the same, and
// gets as much as before when there is memory again.
func TestLittleWaitsWhereMemoryIsTight(t *testing.T) {
	var tight atomic.Bool
	tight.Store(true)
	inBubble(t, func(c *Config) { c.OutboundBytes, c.TightBytes, c.Tight = 1<<20, 20_000, tight.Load }, func(t *testing.T, f *fixture) {
		c := f.pipe(t)
		c.auth()
		sub := c.subscribe(f)
		synctest.Wait()
		next := uint64(1)
		for _, most := range []int{20_000, 20_000, 1 << 20, 20_000} {
			tight.Store(most == 20_000)
			taken := deliverUntilRefused(t, sub, next, 1000)
			if queued := f.onlySession(t).queuedNow(); queued > most || queued < most/2-1500 {
				t.Errorf("%d bytes are queued; want some %d", queued, most)
			}
			c.expectEvents(next, taken)
			<-sub.ready
			synctest.Wait() // until what was written last is not queued any more
			next += uint64(taken)
		}
		c.conn.Close()
		<-f.log.closed
	})
}

// TestOnlyMembersAreToldOfRoom: not those that have left meanwhile.
func TestOnlyMembersAreToldOfRoom(t *testing.T) {
	inBubble(t, func(c *Config) { c.OutboundBytes = 5000 }, func(t *testing.T, f *fixture) {
		c := f.pipe(t)
		c.auth()
		left := c.subscribe(f)
		c.send(`{"op":"SUBSCRIBE","topic":"u","group":"g","corr":"u"}`)
		c.expect(map[string]any{"op": "OK", "corr": "u"})
		stays := <-f.sub.joined
		synctest.Wait()
		taken := deliverUntilRefused(t, left, 1, 1000)
		if n := stays.receiver.Deliver([]eventhub.Delivery{delivery(1, 1000)}); n != 0 {
			t.Fatal("the buffer is full for one subscription and not for the other")
		}
		c.send(`{"op":"UNSUBSCRIBE","topic":"t","group":"g","corr":"un"}`)
		<-left.left
		c.expectEvents(1, taken)
		c.expect(map[string]any{"op": "OK", "corr": "un"})
		<-stays.ready
		select {
		case <-left.ready:
			t.Error("the subscription that has left was notified of room")
		default:
		}
		c.conn.Close()
		<-f.log.closed
	})
}

// TestDeliverTakesWhatFits: the front of a batch is taken, the rest is not; and
// one event goes into an empty buffer however large it is.
func TestDeliverTakesWhatFits(t *testing.T) {
	inBubble(t, func(c *Config) { c.OutboundBytes = 5000 }, func(t *testing.T, f *fixture) {
		c := f.pipe(t)
		c.auth()
		sub := c.subscribe(f)
		synctest.Wait()
		if n := sub.receiver.Deliver([]eventhub.Delivery{delivery(1, 8000), delivery(2, 10)}); n != 1 {
			t.Errorf("%d of a large and a small event were taken; want 1", n)
		}
		c.expectEvents(1, 1)
		<-sub.ready
		batch := []eventhub.Delivery{delivery(2, 1000), delivery(3, 1000), delivery(4, 1000), delivery(5, 3000), delivery(6, 10)}
		if n := sub.receiver.Deliver(batch); n != 3 {
			t.Errorf("%d deliveries were taken; want the 3 that fit", n)
		}
		c.expectEvents(2, 3)
		<-sub.ready
		c.conn.Close()
		<-f.log.closed
	})
}

// TestReaderSpeaksOnce: nothing that a read asks for is sent before all of the
// read is handled.
func TestReaderSpeaksOnce(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		ours, theirs := net.Pipe()
		if why := f.gw.take(); why != "" {
			t.Fatal(why)
		}
		s := newSession(f.gw, ours, ours.RemoteAddr().String())
		s.in.preload(cat(text("x", `{"op":"NOPE"}`), frame(gws.OpPing, true, ""), text("y")))
		if !s.handleRead() || s.out.flushing || s.queuedNow() == 0 {
			t.Errorf("after the frames a flush is under way: %v, with %d bytes queued", s.out.flushing, s.queuedNow())
		}
		c := newClient(t, theirs)
		go s.run()
		for range 2 {
			c.expect(map[string]any{"op": "ERR"})
		}
		c.read()
		c.expect(map[string]any{"op": "ERR"})
		c.conn.Close()
		<-f.log.closed
	})
}

// TestDeliveriesOfOneTurnAreOneWrite: what gathers while a write is under way
// leaves together.
func TestDeliveriesOfOneTurnAreOneWrite(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	sub := c.subscribe(f)
	before := f.writes.Load()
	var batch []eventhub.Delivery
	for i := range uint64(50) {
		batch = append(batch, delivery(i+1, 10))
	}
	if n := sub.receiver.Deliver(batch); n != 50 {
		t.Fatalf("took %d of 50", n)
	}
	c.expectEvents(1, 50)
	if n := f.writes.Load() - before; n != 1 {
		t.Errorf("50 deliveries took %d writes; want 1", n)
	}
}

// TestSlowConsumer: a peer that takes nothing for WriteWait is closed with 1013,
// after the frame that it had begun to take. The time counts from the last byte that it
// took, to a tenth more.
func TestSlowConsumer(t *testing.T) {
	for _, took := range []time.Duration{0, 8500 * time.Millisecond} {
		t.Run(took.String(), func(t *testing.T) { testSlowConsumer(t, took) })
	}
}

func testSlowConsumer(t *testing.T, took time.Duration) {
	inBubble(t, func(c *Config) { c.CloseWait = time.Minute }, func(t *testing.T, f *fixture) {
		c := f.pipe(t)
		c.auth()
		sub := c.subscribe(f)
		synctest.Wait()
		start := time.Now()
		deliver := []eventhub.Delivery{delivery(1, 100), delivery(2, 100), delivery(3, 100)}
		if n := sub.receiver.Deliver(deliver); n != 3 {
			t.Fatalf("took %d of 3", n)
		}
		time.Sleep(took)
		begun := make([]byte, 300) // ends in the second event
		if _, err := io.ReadFull(c.conn, begun); err != nil {
			t.Fatal(err)
		}
		if how := <-sub.left; how != "drop" {
			t.Errorf("left by %s; want drop", how)
		}
		if sub.unsent != 2 {
			t.Errorf("%d deliveries were not sent; want the one that was begun and the last", sub.unsent)
		}
		if waited := time.Since(start) - took; waited < 10*time.Second || waited > 11*time.Second {
			t.Errorf("closed %s after the last byte; want 10s, or a tenth more", waited)
		}
		c.r.Reset(io.MultiReader(strings.NewReader(string(begun)), c.conn))
		c.expectEvents(1, 2)
		c.expectClose(wire.CloseTryAgain)
		if entry := <-f.log.closed; entry["code"] != int64(wire.CloseTryAgain) {
			t.Errorf("logged %v; want code 1013", entry)
		}
	})
}

// TestSlowButSteady: whoever takes a byte now and then is not slow.
func TestSlowButSteady(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		c := f.pipe(t)
		c.auth()
		sub := c.subscribe(f)
		sub.receiver.Deliver([]eventhub.Delivery{delivery(1, 100)})
		var begun []byte
		for range 20 {
			time.Sleep(6 * time.Second)
			b := make([]byte, 1)
			if _, err := c.conn.Read(b); err != nil {
				t.Fatalf("closed after %d bytes: %v", len(begun), err)
			}
			begun = append(begun, b...)
			if _, err := c.conn.Write(frame(gws.OpPong, true, "")); err != nil { // alive
				t.Fatal(err)
			}
		}
		c.r.Reset(io.MultiReader(strings.NewReader(string(begun)), c.conn))
		c.expectEvents(1, 1)
		c.conn.Close()
		<-f.log.closed
	})
}

// TestSlowConsumerThatNeverReads: nobody reads the close frame either; the session
// ends after CloseWait.
func TestSlowConsumerThatNeverReads(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		c := f.pipe(t)
		c.auth()
		sub := c.subscribe(f)
		synctest.Wait()
		start := time.Now()
		sub.receiver.Deliver([]eventhub.Delivery{delivery(1, 100)})
		<-f.log.closed
		if waited := time.Since(start); waited != 11*time.Second {
			t.Errorf("ended after %s; want WriteWait and CloseWait, 11s", waited)
		}
	})
}

// TestOneSlowPeerHoldsUpNobody: while one client does not read, another on the
// same gateway publishes and consumes.
func TestOneSlowPeerHoldsUpNobody(t *testing.T) {
	f := serve(t, func(c *Config) { c.OutboundBytes = 50_000 })
	slow := f.login(t)
	_ = slow.conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	blocked := slow.subscribe(f)
	for range 10 { // past what the kernel takes
		deliverUntilRefused(t, blocked, 1, 1000)
	}
	fast := f.login(t)
	sub := fast.subscribe(f)
	for i := range uint64(100) {
		if n := sub.receiver.Deliver([]eventhub.Delivery{delivery(i+1, 1000)}); n != 1 {
			t.Fatalf("delivery %d was refused", i+1)
		}
		fast.expectEvents(i+1, 1)
		fast.send(pub("p", int(i)))
		fast.expect(map[string]any{"op": "OK", "corr": "p"})
	}
}

// TestAnswersAreBounded: a client that asks and never reads is not read either.
func TestAnswersAreBounded(t *testing.T) {
	const most = 10_000
	inBubble(t, func(c *Config) { c.OutboundBytes = most }, func(t *testing.T, f *fixture) {
		c := f.pipe(t)
		c.auth()
		const asked = 2000
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for range asked {
				if _, err := c.conn.Write(text(`{"op":"NOPE"}`)); err != nil {
					return
				}
			}
		}()
		synctest.Wait() // until the client can not write any more
		select {
		case <-sent:
			t.Fatal("everything was read although no answer was taken")
		default:
		}
		if queued := f.onlySession(t).queuedNow(); queued > most+200 {
			t.Errorf("%d bytes are queued; want at most one answer above %d", queued, most)
		}
		for range asked {
			c.expect(map[string]any{"op": "ERR", "code": "unsupported_op"})
		}
		<-sent
		c.conn.Close()
		<-f.log.closed
	})
}

// TestUnansweredPublishesAreBounded: a publisher that does not answer is not
// handed more and more.
func TestUnansweredPublishesAreBounded(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.pub.hold = make(chan func(), 10_000)
		c := f.pipe(t)
		c.auth()
		const asked = maxUnanswered + 1000
		go func() {
			var b []byte
			for i := range asked {
				b = append(b, text(pub("p", i))...)
			}
			c.conn.Write(b)
		}()
		synctest.Wait()
		if f.pub.open > maxUnanswered || f.pub.open < maxUnanswered-maxBatch {
			t.Errorf("%d publishes are unanswered; want nearly %d", f.pub.open, maxUnanswered)
		}
		go func() {
			for range asked {
				c.expect(map[string]any{"op": "OK", "corr": "p"})
			}
			c.conn.Close()
		}()
		for closed := false; !closed; {
			select {
			case answer := <-f.pub.hold:
				answer()
			case <-f.log.closed:
				closed = true
			}
		}
		if f.pub.most > maxUnanswered {
			t.Errorf("there were %d unanswered publishes; at most %d are allowed", f.pub.most, maxUnanswered)
		}
		if f.pub.next != asked {
			t.Errorf("%d of %d were published", f.pub.next, asked)
		}
	})
}

func TestAuthDeadline(t *testing.T) {
	for name, busy := range map[string]bool{"silent": false, "busy": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				start := time.Now()
				c := f.pipe(t)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					for busy && time.Since(start) < 20*time.Second {
						if _, err := c.conn.Write(frame(gws.OpPong, true, "busy")); err != nil {
							return
						}
						time.Sleep(time.Second)
					}
				}()
				op, payload := c.read()
				if code, _ := gws.ParseCloseFrameData(payload); op != gws.OpClose || code != wire.ClosePolicy {
					t.Fatalf("got %x %q; want a close with 1008", op, payload)
				}
				if waited := time.Since(start); waited != 5*time.Second {
					t.Errorf("closed after %s; want 5s", waited)
				}
				<-f.log.closed
				c.conn.Close()
				<-ended
			})
		})
	}
}

// TestAuthDeadlineDoesNotOutliveAuth: who came in time stays, and an
// Authenticate that takes too long is cut short.
func TestAuthDeadlineDoesNotOutliveAuth(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		c := f.pipe(t)
		time.Sleep(5*time.Second - 1)
		c.auth()
		time.Sleep(20 * time.Second)
		c.send(pub("p", 1))
		c.expect(map[string]any{"op": "OK", "corr": "p"})
		c.conn.Close()
		<-f.log.closed
	})
	hang := func(c *Config) {
		c.Authenticate = func(ctx context.Context, _ string, _ bool) (Access, error) {
			<-ctx.Done()
			return Access{}, ctx.Err()
		}
	}
	inBubble(t, hang, func(t *testing.T, f *fixture) {
		start := time.Now()
		c := f.pipe(t)
		c.send(`{"op":"AUTH","corr":"a"}`)
		c.expect(map[string]any{"op": "ERR", "code": "shutting_down", "corr": "a"})
		c.expectClose(wire.ClosePolicy)
		if waited := time.Since(start); waited != 5*time.Second+strangerLinger { // for this client does not close
			t.Errorf("ended after %s; want %s", waited, 5*time.Second+strangerLinger)
		}
	})
}

// TestBeforeAuthLittleIsRead covers the limits of those who are nobody yet.
func TestBeforeAuthLittleIsRead(t *testing.T) {
	f := serve(t, nil)
	auth := `{"op":"AUTH","token":"` + goodToken + `","corr":"auth","pad":"%s"}`
	largest := fmt.Sprintf(auth, strings.Repeat("p", wire.MaxUnauthFrameBytes-len(auth)+2))

	c := f.dial(t)
	c.send(largest)
	c.expect(map[string]any{"op": "OK", "corr": "auth"})
	c.send(echoOf(100_000)) // and now more is allowed
	c.expect(map[string]any{"op": "ERR", "corr": "c"})

	c = f.dial(t)
	c.write(rawHeader(0x81, wire.MaxUnauthFrameBytes+1, 2))
	c.expectClose(wire.CloseTooBig)

	c = f.dial(t)
	go func(conn net.Conn) { // the hub closes in the middle
		for range 10 {
			_, _ = conn.Write(frame(gws.OpText, false, ""))
			_, _ = conn.Write(frame(gws.OpContinuation, true, strings.Repeat(" ", 15_000)))
		}
	}(c.conn)
	for {
		op, payload := c.read()
		if op == gws.OpText {
			continue // bad_json
		}
		if code, why := gws.ParseCloseFrameData(payload); op != gws.OpClose || code != wire.ClosePolicy || why != "Too much was sent before AUTH." {
			t.Fatalf("got %x %q; want a close with 1008 for too much", op, payload)
		}
		break
	}

	// AUTH and a large PUBLISH after it in one write.
	c = f.dial(t)
	c.send(`{"op":"AUTH","token":"`+goodToken+`","corr":"auth"}`, echoOf(100_000))
	c.expect(map[string]any{"op": "OK", "corr": "auth"})
	c.expect(map[string]any{"op": "ERR", "corr": "c"})
}

func TestKeepAlive(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		c := f.pipe(t)
		c.auth()
		start := time.Now()
		expectPing := func(at time.Duration) {
			t.Helper()
			if op, _ := c.read(); op != gws.OpPing {
				t.Fatalf("got %x; want a ping", op)
			}
			if waited := time.Since(start); waited != at {
				t.Fatalf("the ping came after %s; want %s", waited, at)
			}
		}
		expectPing(25 * time.Second)
		time.Sleep(7 * time.Second)
		c.write(frame(gws.OpPong, true, "")) // at 32 s
		expectPing(57 * time.Second)
		time.Sleep(time.Second)
		c.send(pub("p", 1)) // anything is a sign of life; at 58 s
		c.expect(map[string]any{"op": "OK", "corr": "p"})
		expectPing(83 * time.Second)
		if _, _, err := c.tryRead(); err != io.EOF {
			t.Fatalf("got %v; want the end", err)
		}
		if waited := time.Since(start); waited != 91*time.Second {
			t.Errorf("closed after %s; want 91s", waited)
		}
		entry := <-f.log.closed
		if entry["reason"] != "the peer is silent" {
			t.Errorf("logged %v", entry)
		}
	})
}
