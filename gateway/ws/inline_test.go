package ws

import (
	"fmt"
	"math/rand/v2"
	"testing"

	gws "github.com/gobwas/ws"

	"eventhub"
)

// TestInlineInParts: answers come whole and in order, whether the socket takes all of one at once, a
// part, or nothing.
func TestInlineInParts(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	s := f.gw.open()[0]
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random, pace := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1)) // of the session, and of the peer
	parts, all := 0, s.writeNow
	s.mu.Lock()
	s.writeNow = func(b []byte) int {
		n := min(random.IntN(2*len(b)), len(b))
		if n == 0 {
			return 0
		}
		if n < len(b) {
			parts++
		}
		return all(b[:n])
	}
	s.mu.Unlock()
	const pings = 2_000
	for sent, got := 0, 0; got < pings; got++ {
		for sent < pings && sent-got < 1+pace.IntN(5) {
			c.write(frame(gws.OpPing, true, fmt.Sprintf("%0*d", 100+sent%20, sent)))
			sent++
		}
		op, payload := c.read()
		if want := fmt.Sprintf("%0*d", 100+got%20, got); op != gws.OpPong || string(payload) != want {
			t.Fatalf("got %x %q; want the pong %s", op, payload, want)
		}
	}
	c.send(`{"op":"UNSUBSCRIBE","topic":"t","corr":"x"}`)
	c.expect(map[string]any{"op": "ERR", "corr": "x"})
	s.mu.Lock()
	defer s.mu.Unlock()
	if parts < pings/10 {
		t.Errorf("%d of %d answers were taken in parts", parts, pings)
	}
}

// TestSmallDeliveriesAreSeenSent: subscriptions learn of what was sent, also of one small delivery.
func TestSmallDeliveriesAreSeenSent(t *testing.T) {
	f := serve(t, nil)
	c := f.login(t)
	sub := c.subscribe(f)
	for i := range uint64(20) {
		sub.receiver.Deliver([]eventhub.Delivery{delivery(i+1, 10)})
		c.expectEvents(i+1, 1)
	}
	c.send(`{"op":"UNSUBSCRIBE","topic":"t","group":"g","corr":"u"}`)
	c.expect(map[string]any{"op": "OK", "corr": "u"})
	if n := sub.sent.Load(); n != 20 {
		t.Errorf("of 20 deliveries %d are known to be sent", n)
	}
}
