package ws

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestWhatAsksForAPlaceWaitsForPublishes: a SUBSCRIBE and a CANCEL take effect when
// the publishes in front of them on the connection are committed; whoever sends
// nothing but publishes waits for nothing, and other connections do not wait either.
func TestWhatAsksForAPlaceWaitsForPublishes(t *testing.T) {
	for name, tt := range map[string]struct{ send, done string }{
		"SUBSCRIBE": {`{"op":"SUBSCRIBE","topic":"u","group":"g","corr":"x"}`, "subscribe u::g"},
		"a tail":    {`{"op":"SUBSCRIBE","topic":"u","corr":"x"}`, "subscribe u::"},
		"CANCEL":    {`{"op":"CANCEL","topic":"u","id":"soon","corr":"x"}`, "cancel u soon"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, schedules, func(t *testing.T, f *fixture) {
				f.pub.hold = make(chan func(), 8)
				c, other := f.pipe(t), f.pipe(t)
				c.auth()
				other.auth()
				c.send(pub("1", 1), pub("2", 2), tt.send, pub("3", 3))
				synctest.Wait()
				wantJournal(t, f, "publish 1 2")
				other.send(tt.send)
				other.expect(map[string]any{"op": "OK", "corr": "x"})
				wantJournal(t, f, tt.done)
				answer := <-f.pub.hold
				answer()
				for _, corr := range []string{"1", "2", "x"} {
					c.expect(map[string]any{"op": "OK", "corr": corr})
				}
				synctest.Wait()
				wantJournal(t, f, tt.done, "publish 3")
				(<-f.pub.hold)()
				c.expect(map[string]any{"op": "OK", "corr": "3"})
				for _, c := range []*client{c, other} {
					c.conn.Close()
					<-f.log.closed
				}
			})
		})
	}
}

// schedules lets clients say CANCEL.
func schedules(c *Config) {
	inner := c.Authenticate
	c.Authenticate = func(ctx context.Context, token string, has bool) (Access, error) {
		access, err := inner(ctx, token, has)
		if err == nil {
			access.Scheduler = &fakeScheduler{journal: access.Publisher.(*fakePublisher).journal, known: "soon"}
		}
		return access, err
	}
}

// TestSubscribeWaitsForTheCommitAlone: a publish that waits for groups holds up the
// SUBSCRIBE after it until it is committed, and not until the groups have acked: the
// member that acks may be this one.
func TestSubscribeWaitsForTheCommitAlone(t *testing.T) {
	withEngine(t, func(t *testing.T, e *engine) {
		c := e.login()
		c.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g"}`)
		c.ok(`{"op":"UNSUBSCRIBE","topic":"t","group":"g"}`)
		start := time.Now()
		c.send(`{"op":"PUBLISH","corr":"a","topic":"t","payload":1,"opts":{"id":"e1","wait_for":["g"]}}`,
			`{"op":"SUBSCRIBE","corr":"late","topic":"t","group":"h","opts":{"from":"after_id","after_id":"e1"}}`,
			`{"op":"SUBSCRIBE","corr":"sub","topic":"t","group":"g"}`)
		c.expect(map[string]any{"op": "OK", "corr": "late"})
		c.expect(map[string]any{"op": "OK", "corr": "sub"})
		c.attempts(1)
		c.send(`{"op":"ACK","topic":"t","group":"g","id":"e1"}`)
		c.expect(map[string]any{"op": "OK", "corr": "a"})
		if waited := time.Since(start); waited != 0 {
			t.Errorf("that took %s; nothing of it is a matter of time", waited)
		}
	})
}

// TestSubscribeThatWaitsEndsWithItsConnection also where the publishes are never
// answered.
func TestSubscribeThatWaitsEndsWithItsConnection(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.pub.hold = make(chan func(), 1)
		c := f.pipe(t)
		c.auth()
		c.send(pub("1", 1), `{"op":"SUBSCRIBE","topic":"u","group":"g"}`)
		synctest.Wait()
		f.onlySession(t).cut()
		<-f.log.closed
		wantJournal(t, f, "publish 1")
		(<-f.pub.hold)()
		c.conn.Close()
	})
}
