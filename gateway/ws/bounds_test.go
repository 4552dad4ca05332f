package ws

import (
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"weak"
)

// idleSession is one that nobody reads and writes for.
func idleSession(t *testing.T, f *fixture) *session {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	s := newSession(f.gw, ours, ours.RemoteAddr().String())
	t.Cleanup(s.cancel)
	s.access, s.authed = Access{Publisher: f.pub, Subscriber: f.sub}, true
	s.out.flushing = true
	return s
}

// TestIdleConnectionHoldsNoFrame: the buffer of what a connection said last goes,
// also where it was large, and so does the memory for the events in it.
func TestIdleConnectionHoldsNoFrame(t *testing.T) {
	f := newFixture(t, nil)
	s := idleSession(t, f)
	many := strings.Repeat(`{"topic":"t","payload":1},`, 5000) + `{"topic":"t","payload":2}]`
	for name, message := range map[string]string{
		"a large payload":    `{"op":"PUBLISH","topic":"t","payload":"` + strings.Repeat("x", 500_000) + `"}`,
		"many events":        `{"op":"PUBLISH","events":[` + many + `}`,
		"an ack-and-publish": `{"op":"ACK","topic":"t","group":"g","lease":"1-2-3","publish":[` + many + `}`,
		"many ids":           `{"op":"ACK","topic":"t","group":"g","lease":["1-2-3"` + strings.Repeat(`,"1-2-3"`, 999) + `]}`,
		"no JSON":            `{"op":"PUBLISH","topic":"t","payload":"` + strings.Repeat("x", 500_000),
	} {
		t.Run(name, func(t *testing.T) {
			buffer := new([1 << 20]byte)
			held := weak.Make(buffer)
			n := copy(buffer[:], message)
			s.handle(buffer[:n:n])
			s.flushBatches()
			buffer = nil
			runtime.GC()
			if held.Value() != nil {
				t.Error("the connection still holds the frame")
			}
			if n := cap(s.req.Events); n > keptEvents {
				t.Errorf("the connection keeps memory for %d events", n)
			}
		})
	}
	if n := len(f.take()); n != 4 {
		t.Errorf("%d of 4 frames arrived", n)
	}
	runtime.KeepAlive(s)
}

// TestWaitingIsBoundedByAcks: a publish of many events that waits for many groups
// weighs more than its frame does.
func TestWaitingIsBoundedByAcks(t *testing.T) {
	f := serve(t, nil)
	f.pub.hold = make(chan func(), 100)
	c := f.login(t)
	const events, groups = 1024, 16
	frame := `{"op":"PUBLISH","corr":"w","events":[` + strings.TrimSuffix(strings.Repeat(`{"topic":"t","payload":1},`, events), ",") +
		`],"opts":{"wait_for":["g0"`
	for i := range groups - 1 {
		frame += fmt.Sprintf(`,"g%d"`, i+1)
	}
	frame += `]}}`
	const most = maxAwaited / events / groups
	for range most + 1 {
		c.send(frame)
	}
	m := c.expect(map[string]any{"op": "ERR", "code": "overloaded", "corr": "w"})
	if !strings.HasPrefix(m["msg"].(string), fmt.Sprint(most)) {
		t.Errorf("refused with %v; want the message to name %d", m, most)
	}
	receive(t, "call", f.pub.hold)()
	c.expect(map[string]any{"op": "OK", "corr": "w"})
	c.send(frame) // there is room for one again
	for range most {
		receive(t, "call", f.pub.hold)()
		c.expect(map[string]any{"op": "OK", "corr": "w"})
	}
	s := f.onlySession(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.out.awaited; n != 0 {
		t.Errorf("in the end %d acks are waited for", n)
	}
}

// TestLargeWaitAlone: one publish may wait for more acks than that, if no other does.
func TestLargeWaitAlone(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	c.send(`{"op":"PUBLISH","corr":"w","events":[` + strings.TrimSuffix(strings.Repeat(`{"topic":"t","payload":1},`, 10_000), ",") +
		`],"opts":{"wait_for":["a","b","c","d","e","f","g"]}}`)
	c.expect(map[string]any{"op": "OK", "corr": "w"})
}

// TestHubOnlyTopicInABatch is refused by its place, in a PUBLISH and in an ACK.
func TestHubOnlyTopicInABatch(t *testing.T) {
	withEngine(t, func(t *testing.T, e *engine) {
		c := e.login()
		e.publish("in", 1, 1)
		c.ok(`{"op":"SUBSCRIBE","topic":"in","group":"g","opts":{"from":"earliest"}}`)
		c.attempts(1)
		const list = `[{"topic":"t","payload":1},{"topic":"t.dlq","payload":1}]`
		c.send(`{"op":"PUBLISH","corr":"1","events":`+list+`}`, `{"op":"ACK","corr":"2","topic":"in","group":"g","id":"e1","publish":`+list+`}`)
		const why = `[1]: topic "t.dlq" is published by the hub alone`
		got := []string{}
		for range 2 {
			m := c.expect(map[string]any{"op": "ERR", "code": "forbidden"})
			got = append(got, fmt.Sprint(m["corr"], " ", m["msg"]))
		}
		slices.Sort(got)
		if want := []string{"1 events" + why, "2 publish" + why}; !slices.Equal(got, want) {
			t.Errorf("refused with %q; want %q", got, want)
		}
	})
}
