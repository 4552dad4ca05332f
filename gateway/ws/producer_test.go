package ws

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/bus"
	"eventhub/internal/bubble"
	"eventhub/store/memory"
)

// withProducers is withEngine for connections that may number their publishes. The token is the
// name of the principal.
func withProducers(t *testing.T, change func(*Config), test func(*testing.T, *engine)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		s := memory.Open(memory.Options{MaxTopics: 1 << 20})
		b, err := bus.New(bus.Options{Store: s, TailCacheBytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		f := newFixture(t, func(c *Config) {
			c.PingEvery = 1000 * time.Hour
			c.Authenticate = func(_ context.Context, token string, _ bool) (Access, error) {
				return Access{Publisher: b, Producers: b, Subscriber: b, Name: token}, nil
			}
			if change != nil {
				change(c)
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

// loginAs connects as a producer of a principal and returns its epoch.
func (e *engine) loginAs(principal, producer string, last float64) (*client, float64) {
	e.t.Helper()
	c := e.pipe(e.t)
	c.send(fmt.Sprintf(`{"op":"AUTH","token":%q,"producer":{"id":%q}}`, principal, producer))
	p, _ := c.expect(map[string]any{"op": "OK"})["producer"].(map[string]any)
	if p["id"] != producer || p["seq"] != last || p["window"] != float64(eventhub.ProducerWindow) {
		e.t.Fatalf("producer %v; want the last number %v", p, last)
	}
	return c, p["epoch"].(float64)
}

const numberedPublish = `{"op":"PUBLISH","corr":"%d","seq":%d,"topic":"t","payload":%d}`

func numberedFrame(seq int) string { return fmt.Sprintf(numberedPublish, seq, seq, seq) }

func TestPublishesWithNumbers(t *testing.T) {
	withProducers(t, nil, func(t *testing.T, e *engine) {
		c, epoch := e.loginAs("me", "p", 0)
		c.send(numberedFrame(1), numberedFrame(2), `{"op":"PUBLISH","corr":"3","seq":3,"events":[{"topic":"t","payload":3},{"topic":"u","payload":3}]}`)
		first := c.expect(map[string]any{"op": "OK", "corr": "1", "offset": 1.0})
		c.expect(map[string]any{"op": "OK", "corr": "2", "offset": 2.0})
		batch := c.expect(map[string]any{"op": "OK", "corr": "3"})

		// Again, on the same connection and on the next one, with a hole after it.
		c.send(numberedFrame(1))
		c.expect(map[string]any{"op": "OK", "corr": "1", "offset": 1.0, "id": first["id"], "duplicate": true})
		d, _ := e.loginAs("me", "p", 3)
		d.send(numberedFrame(2), `{"op":"PUBLISH","corr":"3","seq":3,"events":[{"topic":"t","payload":3},{"topic":"u","payload":3}]}`, numberedFrame(5), numberedFrame(4))
		d.expect(map[string]any{"op": "OK", "corr": "2", "offset": 2.0, "duplicate": true})
		again := d.expect(map[string]any{"op": "OK", "corr": "3"})
		if fmt.Sprint(again["ids"], again["offsets"]) != fmt.Sprint(batch["ids"], batch["offsets"]) || fmt.Sprint(again["duplicates"]) != "[0 1]" {
			t.Errorf("%v; the first was %v", again, batch)
		}
		if hole := d.expect(map[string]any{"op": "ERR", "corr": "5", "code": "bad_sequence"}); hole["seq"] != nil {
			t.Errorf("%v has used a number", hole)
		}
		d.expect(map[string]any{"op": "OK", "corr": "4", "offset": 4.0})

		// Who had the producer is fenced, and cannot have it back by its epoch.
		c.send(numberedFrame(5))
		if fenced := c.expect(map[string]any{"op": "ERR", "corr": "5", "code": "fenced"}); fenced["seq"] != nil {
			t.Errorf("%v has used a number", fenced)
		}
		c.send(fmt.Sprintf(`{"op":"AUTH","token":"me","producer":{"id":"p","epoch":%.0f}}`, epoch))
		c.expect(map[string]any{"op": "ERR", "code": "fenced"})
		other, _ := e.loginAs("you", "p", 0)
		other.send(numberedFrame(1))
		other.expect(map[string]any{"op": "OK", "corr": "1", "offset": 5.0})
	})
}

// Each refusal of a PUBLISH with a number uses it, wherever it is refused, and says so.
func TestRefusalsUseNumbers(t *testing.T) {
	limited := func(c *Config) { c.Meter = func() Meter { return new(secondRefused) } }
	withProducers(t, limited, func(t *testing.T, e *engine) {
		c, _ := e.loginAs("me", "p", 0)
		c.send(numberedFrame(1), numberedFrame(2), // the second is one too many
			`{"op":"PUBLISH","corr":"3","seq":3,"topic":"t","payload":3,"opts":{"keyy":"a"}}`,
			`{"op":"PUBLISH","corr":"4","seq":4,"events":[{"topic":"t","payload":1},{"topic":"t"}]}`,
			`{"op":"PUBLISH","corr":"5","seq":5,"topic":"t","payload":3,"opts":{"wait_for":["none"]}}`,
			`{"op":"PUBLISH","corr":"6","seq":6,"topic":"no topic","payload":3}`,
			numberedFrame(7))
		c.expect(map[string]any{"op": "OK", "corr": "1"})
		c.expect(map[string]any{"op": "ERR", "corr": "2", "code": "rate_limited", "seq": 2.0, "retry_after_ms": 1000.0})
		c.expect(map[string]any{"op": "ERR", "corr": "3", "code": "bad_request", "seq": 3.0})
		bad := c.expect(map[string]any{"op": "ERR", "corr": "4", "seq": 4.0, "index": 1.0})
		c.expect(map[string]any{"op": "ERR", "corr": "5", "code": "not_subscribed", "seq": 5.0})
		c.expect(map[string]any{"op": "ERR", "corr": "6", "code": "bad_topic", "seq": 6.0})
		c.expect(map[string]any{"op": "OK", "corr": "7", "offset": 2.0})

		d, _ := e.loginAs("me", "p", 7)
		d.send(numberedFrame(2), `{"op":"PUBLISH","corr":"4","seq":4,"events":[{"topic":"t","payload":1},{"topic":"t"}]}`, numberedFrame(1))
		d.expect(map[string]any{"op": "ERR", "corr": "2", "code": "rate_limited", "seq": 2.0, "retry_after_ms": 1000.0})
		d.expect(map[string]any{"op": "ERR", "corr": "4", "code": bad["code"], "msg": bad["msg"], "seq": 4.0, "index": 1.0})
		d.expect(map[string]any{"op": "OK", "corr": "1", "offset": 1.0, "duplicate": true})
	})
}

// secondRefused refuses the second publish of a connection.
type secondRefused struct{ n int }

func (m *secondRefused) Take(int, time.Time) error {
	if m.n++; m.n != 2 {
		return nil
	}
	return &eventhub.Error{Code: eventhub.CodeRateLimited, Message: "slow down", RetryAfter: time.Second}
}

func TestNumbersNeedAProducer(t *testing.T) {
	withProducers(t, nil, func(t *testing.T, e *engine) {
		c := e.login()
		c.send(numberedFrame(1))
		c.expect(map[string]any{"op": "ERR", "corr": "1", "code": "bad_request"})
		c.send(`{"op":"AUTH","token":"me","producer":{"id":"p","epoch":7}}`)
		c.expect(map[string]any{"op": "ERR", "code": "unknown_producer"})
		c.send(`{"op":"AUTH","token":"me","producer":{"id":"p"}}`)
		c.expect(map[string]any{"op": "OK"})
		c.send(numberedFrame(1))
		c.expect(map[string]any{"op": "OK", "corr": "1"})
		// A new token leaves the producer, also one of another principal: the connection is the same.
		c.send(`{"op":"AUTH","token":"me"}`, numberedFrame(2))
		c.expect(map[string]any{"op": "OK"})
		c.expect(map[string]any{"op": "OK", "corr": "2"})
		c.send(`{"op":"AUTH","token":"you"}`, numberedFrame(3))
		c.expect(map[string]any{"op": "OK"})
		c.expect(map[string]any{"op": "OK", "corr": "3"})
	})
	withEngine(t, func(t *testing.T, e *engine) {
		c := e.pipe(t)
		c.send(`{"op":"AUTH","producer":{"id":"p"}}`)
		c.expect(map[string]any{"op": "ERR", "code": "unsupported_op"})
	})
}

// A producer is kept while it is connected, and forgotten some time after it was.
func TestProducersLeave(t *testing.T) {
	withProducers(t, nil, func(t *testing.T, e *engine) {
		c, _ := e.loginAs("me", "p", 0)
		c.send(numberedFrame(1))
		c.expect(map[string]any{"op": "OK"})
		time.Sleep(2 * eventhub.DefaultProducerKept)
		c.send(numberedFrame(2))
		c.expect(map[string]any{"op": "OK", "corr": "2"})
		d, _ := e.loginAs("me", "p", 2)
		c.conn.Close()
		synctest.Wait()
		time.Sleep(2 * eventhub.DefaultProducerKept)
		d.send(numberedFrame(3))
		d.expect(map[string]any{"op": "OK", "corr": "3"})
		d.conn.Close()
		synctest.Wait()
		time.Sleep(eventhub.DefaultProducerKept + time.Second)
		synctest.Wait()
		e.loginAs("me", "p", 0)
	})
}

// A connection that has no place does not take the producer from the one that has it.
func TestRefusedAuthFencesNobody(t *testing.T) {
	s := memory.Open(memory.Options{MaxTopics: 10})
	b, err := bus.New(bus.Options{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(b.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	places := &onePlace{}
	f := serve(t, func(c *Config) {
		c.Admit = func(*http.Request) (Place, error) { return places, nil }
		c.Authenticate = func(context.Context, string, bool) (Access, error) {
			return Access{Publisher: b, Producers: b, Subscriber: b, Name: "me"}, nil
		}
	})
	c := f.dial(t)
	c.send(`{"op":"AUTH","producer":{"id":"p"}}`)
	c.expect(map[string]any{"op": "OK"})
	places.full.Store(true)
	d := f.dial(t)
	d.send(`{"op":"AUTH","producer":{"id":"p"}}`)
	d.expect(map[string]any{"op": "ERR", "code": "rate_limited"})
	c.send(numberedFrame(1))
	c.expect(map[string]any{"op": "OK", "corr": "1"})
}

// onePlace is a place that nobody gets any more when it is full.
type onePlace struct{ full atomic.Bool }

func (p *onePlace) Become(string) error {
	if p.full.Load() {
		return eventhub.Errorf(eventhub.CodeRateLimited, "no place")
	}
	return nil
}

func (p *onePlace) Leave() {}
