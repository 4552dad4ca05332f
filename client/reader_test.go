package client

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	gws "github.com/gobwas/ws"

	"eventhub"
)

// trickle gives a random part of what is asked for.
type trickle struct {
	from io.Reader
	r    *rand.Rand
}

func (t trickle) Read(p []byte) (int, error) { return t.from.Read(p[:1+t.r.IntN(len(p))]) }

// TestFramesComeWhole: messages of all sizes, some in fragments with a ping
// between them, read in parts of any size.
func TestFramesComeWhole(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var sent bytes.Buffer
	var want []string
	frame := func(op gws.OpCode, fin bool, payload string) {
		if err := gws.WriteFrame(&sent, gws.NewFrame(op, fin, []byte(payload))); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 300 {
		text := fmt.Sprint(i, strings.Repeat("x", 1<<r.IntN(18)))
		if i == 299 {
			text = strings.Repeat("x", 1<<20)
		}
		if r.IntN(3) > 0 {
			frame(gws.OpText, true, text)
		} else {
			cut := r.IntN(len(text))
			frame(gws.OpText, false, text[:cut])
			if r.IntN(2) == 0 {
				frame(gws.OpPing, true, "p")
				want = append(want, "p")
			}
			frame(gws.OpContinuation, true, text[cut:])
		}
		want = append(want, text)
	}
	f := newFrameReader()
	f.grow()
	in := trickle{&sent, r}
	for i := 0; i < len(want); {
		_, payload, ok, err := f.next()
		if err == nil && !ok {
			err = f.fill(in)
		} else if ok {
			if string(payload) != want[i] {
				t.Fatalf("message %d has %d bytes; want %d", i, len(payload), len(want[i]))
			}
			i++
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	_ = f.fill(strings.NewReader("x"))
	if len(f.Buf) != keptReadBytes {
		t.Errorf("the buffer has %d bytes in the end; want %d", len(f.Buf), keptReadBytes)
	}
}

func TestViolationsOfAHub(t *testing.T) {
	for name, frame := range map[string]gws.Frame{
		"masked":       gws.MaskFrame(gws.NewTextFrame([]byte("x"))),
		"binary":       gws.NewBinaryFrame([]byte("x")),
		"continuation": gws.NewFrame(gws.OpContinuation, true, []byte("x")),
		"too long":     gws.NewTextFrame(make([]byte, maxMessage+1)),
		"long ping":    gws.NewFrame(gws.OpPing, true, make([]byte, 126)),
	} {
		f := newFrameReader()
		b, err := gws.CompileFrame(frame)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.fill(bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
		if op, _, ok, err := f.next(); err == nil || ok {
			t.Errorf("%s passes as %v", name, op)
		}
	}
}

func event1(topic string) eventhub.Event { return eventhub.Event{Topic: topic, Payload: []byte(`1`)} }

// TestLimitOfTheHub: a frame that the hub would close the connection for is not
// sent.
func TestLimitOfTheHub(t *testing.T) {
	c := &Client{}
	c.limit.Store(200)
	e := newExchange(publish)
	for n, want := range map[int]eventhub.Code{10: "", 300: eventhub.CodeTooLarge} {
		event := eventhub.Event{Topic: "t", Payload: fmt.Appendf(nil, `"%s"`, strings.Repeat("x", n))}
		pub := eventhub.Publication{Events: []eventhub.Event{event}}
		if got := eventhub.ErrorCode(e.addPublish(c, &pub)); got != want {
			t.Errorf("%d bytes: %q; want %q", n, got, want)
		}
	}
	small := event1("t")
	if err := e.addPublish(c, &eventhub.Publication{Events: []eventhub.Event{small, small, small, small}}); eventhub.ErrorCode(err) != eventhub.CodeTooLarge {
		t.Errorf("four events above the limit: %v", err)
	}
	if len(e.ends) != 1 || len(e.receipts) != 1 || len(e.made) != 1 || e.items() != 1 || len(e.frames) > 200 {
		t.Errorf("what was refused is in the exchange: %d frames of %d bytes, %d receipts", len(e.ends), len(e.frames), len(e.receipts))
	}
}

// TestBackoffOfSeveral: who has several hubs waits less for one, unless the program says otherwise.
func TestBackoffOfSeveral(t *testing.T) {
	for _, tt := range []struct {
		options []Option
		want    time.Duration
	}{
		{nil, DefaultMaxBackoff},
		{[]Option{WithURLs("ws://b:1", "ws://c:1")}, DefaultMaxBackoffOfSeveral},
		{[]Option{WithReconnect(time.Second, 5*time.Second), WithURLs("ws://b:1")}, 5 * time.Second},
		{[]Option{WithURLs("ws://b:1"), WithReconnect(time.Second, DefaultMaxBackoff)}, DefaultMaxBackoff},
	} {
		c := defaults("ws://a:1")
		for _, option := range tt.options {
			option(&c)
		}
		if err := c.validate(); err != nil || c.maxBackoff != tt.want {
			t.Errorf("%d options: up to %s, %v; want %s", len(tt.options), c.maxBackoff, err, tt.want)
		}
	}
}

// TestBackoffDoublesWithinItsBounds also where the shift would overflow.
func TestBackoffDoublesWithinItsBounds(t *testing.T) {
	c := defaults("")
	for attempt, most := 0, c.minBackoff; attempt < 100; attempt++ {
		for range 20 {
			if d := c.backoff(attempt); d < most/2 || d > most {
				t.Fatalf("attempt %d waits %s; want %s to %s", attempt, d, most/2, most)
			}
		}
		most = min(2*most, c.maxBackoff)
	}
}
