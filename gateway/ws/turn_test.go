package ws

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"eventhub"
)

// TestTurns: a connection that was told when to publish again is refused here until then, slowly, and not read any more
// once it has sent more than can have been under way. What else it says is done, and afterwards all is as before.
func TestTurns(t *testing.T) {
	var busy atomic.Bool
	inBubble(t, func(c *Config) { c.Busy = busy.Load }, func(t *testing.T, f *fixture) {
		c := f.pipe(t)
		c.auth()
		refuse := func(*eventhub.Event) error {
			e := eventhub.Errorf(eventhub.CodeOverloaded, "too much")
			e.RetryAfter = time.Second
			return e
		}
		publish := func(n int) {
			c.send(fmt.Sprintf(`{"op":"PUBLISH","topic":"t","payload":%d,"corr":"%d"}`, n, n))
		}
		f.pub.fail = refuse // of one topic, as while it is indexed
		publish(1)
		c.expect(map[string]any{"op": "ERR", "code": "overloaded", "corr": "1", "retry_after_ms": 1000.0})
		f.pub.fail = nil
		publish(2)
		c.expect(map[string]any{"op": "OK", "corr": "2"}) // nobody else has to wait

		busy.Store(true)
		f.pub.fail = refuse
		publish(3)
		c.expect(map[string]any{"op": "ERR", "code": "overloaded", "corr": "3", "retry_after_ms": 1000.0})
		f.pub.fail = nil
		f.take()
		time.Sleep(400 * time.Millisecond)
		publish(4)
		c.expect(map[string]any{"op": "ERR", "code": "overloaded", "corr": "4", "retry_after_ms": 600.0})
		if got := f.take(); len(got) != 0 {
			t.Errorf("the engine was asked for %q", got)
		}
		time.Sleep(600 * time.Millisecond)
		publish(5)
		c.expect(map[string]any{"op": "OK", "corr": "5"})

		f.pub.fail = func(*eventhub.Event) error {
			e := eventhub.Errorf(eventhub.CodeOverloaded, "too much")
			e.RetryAfter = 10 * time.Second
			return e
		}
		publish(6)
		c.expect(map[string]any{"op": "ERR", "code": "overloaded", "corr": "6"})
		f.pub.fail = nil
		told := time.Now()
		for n := range maxUnanswered + 1 {
			publish(n)
			c.expect(map[string]any{"op": "ERR", "code": "overloaded"})
			if took, want := time.Since(told), time.Duration(n/hastyStep)*hastyPause; took != want {
				t.Errorf("publish %d was refused after %s; want %s", n, took, want)
			}
		}
		go publish(7)
		c.expect(map[string]any{"op": "OK", "corr": "7"})
		if took := time.Since(told); took != 10*time.Second {
			t.Errorf("it was read again after %s; want 10s", took)
		}
	})
}

// TestNobodyIsWelcome: a hub that has too much to do refuses the first AUTH of a connection, before it looks at
// the token, and no later one.
func TestNobodyIsWelcome(t *testing.T) {
	full := eventhub.Errorf(eventhub.CodeOverloaded, "too much")
	full.RetryAfter = 2 * time.Second
	var welcome, asked atomic.Int64
	f := serve(t, func(c *Config) {
		was := c.Authenticate
		c.Authenticate = func(ctx context.Context, token string, has bool) (Access, error) {
			asked.Add(1)
			return was(ctx, token, has)
		}
		c.Welcome = func() error {
			if welcome.Load() == 0 {
				return full
			}
			return nil
		}
	})
	c := f.dial(t)
	c.send(`{"op":"AUTH","corr":"1"}`)
	c.expect(map[string]any{"op": "ERR", "code": "overloaded", "corr": "1", "retry_after_ms": 2000.0})
	if asked.Load() != 0 {
		t.Error("the token was looked at")
	}
	welcome.Store(1)
	c.auth()
	welcome.Store(0)
	c.send(`{"op":"AUTH","token":"` + goodToken + `","corr":"3"}`)
	c.expect(map[string]any{"op": "OK", "corr": "3"})
}
