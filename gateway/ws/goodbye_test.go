package ws

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	gws "github.com/gobwas/ws"

	"eventhub/wire"
)

// TestPublishesAreAnsweredBeforeTheCloseFrame whoever ends the conversation: the peer
// by its own close frame, the peer by breaking a rule, or the hub that stops.
func TestPublishesAreAnsweredBeforeTheCloseFrame(t *testing.T) {
	for name, tt := range map[string]struct {
		last []byte
		code gws.StatusCode
	}{
		"close":           {closing(1000, ""), 1000},
		"no code":         {frame(gws.OpClose, true, ""), 0},
		"bad close":       {frame(gws.OpClose, true, "x"), wire.CloseProtocolError},
		"violation":       {rawHeader(0x83, 0, 1), wire.CloseProtocolError},
		"binary":          {frame(gws.OpBinary, true, "x"), wire.CloseUnsupported},
		"a hub that ends": {nil, wire.CloseGoingAway},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				f.pub.hold = make(chan func(), 10)
				c := f.pipe(t)
				c.auth()
				var said []byte
				for i := range 10 {
					said = append(said, text(pub(fmt.Sprint(i), i))...)
				}
				c.write(append(said, tt.last...))
				synctest.Wait()
				stopped := make(chan error, 1)
				if tt.last == nil {
					go func() { stopped <- f.gw.Shutdown(t.Context()) }()
					synctest.Wait()
				}
				time.Sleep(f.gw.cfg.CloseWait / 2) // a commit takes its time
				(<-f.pub.hold)()
				for i := range 10 {
					c.expect(map[string]any{"op": "OK", "corr": fmt.Sprint(i)})
				}
				op, payload := c.read()
				code := gws.StatusCode(0)
				if len(payload) > 0 {
					code, _ = gws.ParseCloseFrameData(payload)
				}
				if op != gws.OpClose || code != tt.code {
					t.Errorf("got %x %q; want a close frame with %d", op, payload, tt.code)
				}
				c.conn.Close()
				<-f.log.closed
				if tt.last == nil {
					if err := <-stopped; err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// TestCloseDoesNotWaitForEver: what is not answered within CloseWait gets no answer.
func TestCloseDoesNotWaitForEver(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.pub.hold = make(chan func(), 1)
		c := f.pipe(t)
		c.auth()
		start := time.Now()
		c.write(append(text(pub("a", 1)), closing(1000, "")...))
		c.expectClose(1000)
		if waited := time.Since(start); waited != f.gw.cfg.CloseWait {
			t.Errorf("closed after %s; want %s", waited, f.gw.cfg.CloseWait)
		}
		<-f.log.closed
		(<-f.pub.hold)()
	})
}

// TestWaitsForGroupsAreAnsweredBeforeTheCloseFrame: a publish that waits for groups
// is in the log, and its publisher gets that answer when nobody can wait any more.
func TestWaitsForGroupsAreAnsweredBeforeTheCloseFrame(t *testing.T) {
	const waits = `{"op":"PUBLISH","corr":"w","topic":"t","payload":1,"opts":{"wait_for":["g"],"wait_ms":60000}}`
	for name, last := range map[string][]byte{"stop": nil, "close": closing(1000, ""), "violation": rawHeader(0x83, 0, 1)} {
		t.Run(name, func(t *testing.T) {
			withEngine(t, func(t *testing.T, e *engine) {
				c := e.login()
				c.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g"}`)
				c.ok(`{"op":"UNSUBSCRIBE","topic":"t","group":"g"}`)
				start := time.Now()
				c.write(append(text(waits), last...))
				synctest.Wait()
				if last == nil {
					go e.gw.Shutdown(t.Context())
				}
				m := c.expect(map[string]any{"op": "ERR", "corr": "w", "code": "shutting_down"})
				why := map[string]string{"stop": "The hub is shutting down: ", "violation": "use of reserved op code: "}[name]
				if m["msg"] != why+"gave up waiting for the groups; the events are published" {
					t.Errorf("the message is %q", m["msg"])
				}
				if op, _ := c.read(); op != gws.OpClose {
					t.Errorf("got %x; want a close frame", op)
				}
				if waited := time.Since(start); waited != 0 {
					t.Errorf("that took %s; nothing of it is a matter of time", waited)
				}
				c.conn.Close()
				<-e.log.closed
			})
		})
	}
}
