package ws

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/bus"
	"eventhub/internal/bubble"
	"eventhub/store"
	"eventhub/store/memory"
)

// engine is a gateway with the real engine, in a bubble: time passes
// only when a test says so, and synctest.Wait means that both have done all they
// can.
type engine struct {
	*fixture
	t   *testing.T
	bus *bus.Bus

	store *memory.Store
}

func withEngine(t *testing.T, test func(*testing.T, *engine)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		s := memory.Open(memory.Options{MaxTopics: 1 << 20})
		b, err := bus.New(bus.Options{Store: s, TailCacheBytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		f := newFixture(t, func(c *Config) {
			c.PingEvery = 1000 * time.Hour // silence is no matter here
			c.Authenticate = func(context.Context, string, bool) (Access, error) {
				return Access{Publisher: b, Subscriber: b, Name: "tester"}, nil
			}
		})
		test(t, &engine{f, t, b, s})
		for _, close := range []func() error{func() error { return f.gw.Shutdown(t.Context()) }, b.Close, s.Close} {
			if err := close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// login connects and says AUTH.
func (e *engine) login() *client {
	e.t.Helper()
	c := e.pipe(e.t)
	c.auth()
	return c
}

// publish adds events with the ids e<first>, e<first+1>, …
func (e *engine) publish(topic string, first, n int) {
	e.t.Helper()
	events := make([]eventhub.Event, n)
	for i := range events {
		events[i] = eventhub.Event{Topic: topic, ID: fmt.Sprintf("e%d", first+i), Payload: []byte("1")}
	}
	if _, err := e.bus.Publish(context.Background(), events...); err != nil {
		e.t.Fatal(err)
	}
}

// trim removes the events of a topic below a horizon. The engine has nothing cached, and
// commits nothing meanwhile.
func (e *engine) trim(topic string, horizon uint64) {
	e.t.Helper()
	u := &store.Unit{Topics: []store.TopicChange{{Topic: topic, Horizon: horizon}}}
	if err := errors.Join(e.store.Commit(context.Background(), []*store.Unit{u}, true), u.Err); err != nil {
		e.t.Fatal(err)
	}
}

func (e *engine) cursor(topic, group string) uint64 {
	e.t.Helper()
	c, err := e.bus.Cursor(context.Background(), topic, group)
	if err != nil {
		e.t.Fatal(err)
	}
	return c.Offset
}

// ok says something and expects OK as the next frame.
func (c *client) ok(format string, args ...any) {
	c.t.Helper()
	c.send(fmt.Sprintf(format, args...))
	c.expect(map[string]any{"op": "OK"})
}

// attempts reads n EVENTs and returns "id#attempt" of each.
func (c *client) attempts(n int) (came []string) {
	c.t.Helper()
	for range n {
		m := c.expect(map[string]any{"op": "EVENT"})
		came = append(came, fmt.Sprintf("%v#%v", m["event"].(map[string]any)["id"], m["ctx"].(map[string]any)["attempt"]))
	}
	return came
}

func (c *client) wantAttempts(want ...string) {
	c.t.Helper()
	if got := c.attempts(len(want)); !slices.Equal(got, want) {
		c.t.Errorf("came %v; want %v", got, want)
	}
}

// TestPauseEndToEnd: a paused member gets nothing and keeps its leases, the
// others get what it would have had, and RESUME lets it go on.
func TestPauseEndToEnd(t *testing.T) {
	withEngine(t, func(t *testing.T, e *engine) {
		a, b := e.login(), e.login()
		a.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"from":"earliest"},"corr":"1"}`)
		a.ok(`{"op":"SUBSCRIBE","topic":"t","corr":"2"}`)
		e.publish("t", 1, 1)
		first := a.message()["group"]
		if second := a.message()["group"]; (first == nil) == (second == nil) {
			t.Fatalf("groups %v and %v; want the group's and the tail's", first, second)
		}
		for range 2 { // twice is once
			a.ok(`{"op":"PAUSE","topic":"t","group":"g","corr":"3"}`)
			a.ok(`{"op":"PAUSE","topic":"t","corr":"4"}`)
		}
		e.publish("t", 2, 2)
		synctest.Wait()
		a.ok(`{"op":"ACK","topic":"t","group":"g","id":"e1","corr":"5"}`) // and no EVENT before it
		if at := e.cursor("t", "g"); at != 1 {
			t.Errorf("the cursor is %d; want that an ack counts of a paused member", at)
		}
		b.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g","corr":"1"}`)
		b.wantAttempts("e2#1", "e3#1")
		a.send(`{"op":"RESUME","topic":"t","corr":"6"}`)
		a.expect(map[string]any{"op": "OK", "corr": "6"})
		for _, id := range []string{"e2", "e3"} {
			if m := a.expect(map[string]any{"op": "EVENT", "group": nil}); m["event"].(map[string]any)["id"] != id {
				t.Errorf("the tail goes on with %v; want %s", m, id)
			}
		}
		b.ok(`{"op":"UNSUBSCRIBE","topic":"t","group":"g","corr":"2"}`)
		synctest.Wait()
		a.ok(`{"op":"RESUME","topic":"t","group":"g","corr":"7"}`)
		a.wantAttempts("e2#1", "e3#1") // UNSUBSCRIBE gave the attempts back
	})
}

// TestOrderingEndToEnd: a group made in the order of keys keeps them, and says
// so to who wants it otherwise.
func TestOrderingEndToEnd(t *testing.T) {
	withEngine(t, func(t *testing.T, e *engine) {
		c := e.login()
		c.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"from":"earliest","ordering":"key"},"corr":"1"}`)
		for i, key := range []string{"x", "x", "y"} {
			c.ok(`{"op":"PUBLISH","topic":"other","payload":1,"corr":"p"}`)
			if _, err := e.bus.Publish(t.Context(), eventhub.Event{Topic: "t", ID: fmt.Sprint("e", i+1), Key: key, Payload: []byte("1")}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if i != 1 {
				c.wantAttempts(fmt.Sprintf("e%d#1", i+1))
			}
		}
		c.ok(`{"op":"ACK","topic":"t","group":"g","id":"e1","corr":"2"}`)
		c.wantAttempts("e2#1")
		other := e.login()
		other.send(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"ordering":"none"},"corr":"1"}`)
		m := other.expect(map[string]any{"op": "ERR", "code": "group_mismatch", "corr": "1"})
		if text := m["msg"].(string); !strings.Contains(text, "ordering") {
			t.Errorf("the message %q does not name the setting", text)
		}
		other.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g","corr":"2"}`) // what is not said does not differ
	})
}

// TestSoughtEndToEnd: the first EVENT that a member gets after a seek says so; it has the
// epoch of the group, as the very first one has.
func TestSoughtEndToEnd(t *testing.T) {
	withEngine(t, func(t *testing.T, e *engine) {
		c := e.login()
		c.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"from":"earliest"},"corr":"1"}`)
		e.publish("t", 1, 2)
		cursor, err := e.bus.Cursor(t.Context(), "t", "g")
		if err != nil {
			t.Fatal(err)
		}
		for i, sought := range []any{nil, true} {
			epoch := any(float64(cursor.Epoch) + float64(i))
			for range 2 {
				m := c.expect(map[string]any{"op": "EVENT"})
				ctx := m["ctx"].(map[string]any)
				if ctx["sought"] != sought || ctx["epoch"] != epoch {
					t.Errorf("sought is %v and epoch %v in %v; want %v and %v", ctx["sought"], ctx["epoch"], m, sought, epoch)
				}
				sought, epoch = nil, nil // of the first one only
			}
			if _, err := e.bus.SeekGroup(t.Context(), "t", "g", eventhub.Earliest, true); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestUnsentGivesAttemptsBack: of what a lost connection was leased, that counts
// as an attempt which a write had taken; what never left the hub comes as if it
// had not been tried.
func TestUnsentGivesAttemptsBack(t *testing.T) {
	for how, end := range map[string]func(*engine, *client){
		"cut off":            func(_ *engine, c *client) { c.conn.Close() },
		"closed by the peer": func(_ *engine, c *client) { c.write(closing(1000, "")) },
		"taking nothing": func(e *engine, c *client) {
			time.Sleep(time.Hour)
			c.conn.Close()
		},
	} {
		t.Run(how, func(t *testing.T) { testUnsent(t, end) })
	}
}

func testUnsent(t *testing.T, end func(*engine, *client)) {
	withEngine(t, func(t *testing.T, e *engine) {
		c := e.login()
		c.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"from":"earliest"},"corr":"1"}`)
		c.ok(`{"op":"SUBSCRIBE","topic":"t","group":"gg","opts":{"from":"earliest"},"corr":"2"}`)
		c.ok(`{"op":"PAUSE","topic":"t","group":"gg","corr":"3"}`)
		e.publish("t", 1, 2)
		c.wantAttempts("e1#1", "e2#1")
		e.publish("t", 3, 1) // the write that takes it never ends
		synctest.Wait()
		c.send(`{"op":"SUBSCRIBE","topic":"t","corr":"4"}`, // answers and tails in between do not count
			`{"op":"RESUME","topic":"t","group":"gg","corr":"5"}`)
		e.publish("t", 4, 50)
		synctest.Wait()
		end(e, c)
		<-e.log.closed
		synctest.Wait()

		want := []string{"e1#2", "e2#2"} // nothing of e3 was taken
		var all []string
		for i := 1; i <= 53; i++ {
			all = append(all, fmt.Sprintf("e%d#1", i))
		}
		again := e.login()
		again.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g","corr":"1"}`)
		got := again.attempts(53)
		slices.SortFunc(got, byNumber)
		if want := append(want, all[2:]...); !slices.Equal(got, want) {
			t.Errorf("the group that was sent two gets\n%v; want\n%v", got, want)
		}
		again.ok(`{"op":"SUBSCRIBE","topic":"t","group":"gg","corr":"2"}`)
		got = again.attempts(53)
		slices.SortFunc(got, byNumber)
		if !slices.Equal(got, all) {
			t.Errorf("the group that was sent none gets\n%v; want\n%v", got, all)
		}
	})
}

// byNumber orders e1#1, e2#1, …, e10#1.
func byNumber(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}
