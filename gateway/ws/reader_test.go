package ws

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	gws "github.com/gobwas/ws"

	"eventhub/internal/budget"
	"eventhub/internal/testsize"
)

// chopped reads from b in pieces of random size, the way a network does.
type chopped struct {
	b   []byte
	rnd *rand.Rand
}

func (c *chopped) Read(p []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	most := min(len(p), len(c.b))
	n := most
	if c.rnd.IntN(3) > 0 {
		n = 1 + c.rnd.IntN(min(most, 1+c.rnd.IntN(1<<c.rnd.IntN(18))))
	}
	copy(p, c.b[:n])
	c.b = c.b[n:]
	return n, nil
}

// TestFrameReaderSeesWhatWasSent sends random conversations in random pieces.
func TestFrameReaderSeesWhatWasSent(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for range testsize.Of(300, 60) {
		var sent []byte
		var want []string
		for range 1 + rnd.IntN(20) {
			size := rnd.IntN(1 << rnd.IntN(18))
			message := strings.Repeat(string(rune('a'+rnd.IntN(26))), size)
			op := gws.OpText
			for rnd.IntN(3) == 0 {
				cut := rnd.IntN(len(message) + 1)
				sent = append(sent, frame(op, false, message[:cut])...)
				message, op = message[cut:], gws.OpContinuation
				if rnd.IntN(3) == 0 {
					sent = append(sent, frame(gws.OpPing, true, "ping")...)
					want = append(want, "ping")
				}
			}
			sent = append(sent, frame(op, true, message)...)
			want = append(want, fmt.Sprintf("%d bytes", size))
		}
		got := readAll(t, &chopped{sent, rnd})
		if strings.Join(got, ",") != strings.Join(want, ",") {
			t.Fatalf("got %v; want %v", got, want)
		}
	}
}

// readAll cuts everything that r gives into messages, named by their length,
// and checks the reader's promises about its buffer on the way.
func readAll(t *testing.T, r io.Reader) []string {
	t.Helper()
	f := newFrameReader(1<<20, budget.New(1<<30))
	var got []string
	for {
		f.memory.Take(f.lacks())
		f.took(f.lacks())
		err := f.fill(r)
		if err == io.EOF {
			break
		}
		for {
			op, payload, ok, err := f.next()
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			if op == gws.OpPing {
				got = append(got, string(payload))
			} else {
				got = append(got, fmt.Sprintf("%d bytes", len(payload)))
				if len(payload) > 0 && bytes.Count(payload, payload[:1]) != len(payload) {
					t.Fatalf("%d bytes are not what was sent: %.40q…", len(payload), payload)
				}
			}
		}
		if (f.burst != nil) != (len(f.Buf) == burstBytes) {
			t.Fatalf("the burst is borrowed: %v, with a buffer of %d", f.burst != nil, len(f.Buf))
		}
	}
	// A read that filled the buffer was followed by a large one, which found nothing.
	if _ = f.fill(r); len(f.Buf) != baseBytes || f.burst != nil {
		t.Fatalf("the idle reader holds %d bytes", len(f.Buf))
	}
	return got
}

// TestHeaderAlonePinsNothing: memory follows what came, not what was announced.
func TestHeaderAlonePinsNothing(t *testing.T) {
	f := newFrameReader(1<<20, budget.New(1<<30))
	feed := func(b []byte) {
		t.Helper()
		for r := bytes.NewReader(b); r.Len() > 0; {
			if err := f.fill(r); err != nil {
				t.Fatal(err)
			}
			if _, _, ok, err := f.next(); ok || err != nil {
				t.Fatalf("got %v, %v from an incomplete frame", ok, err)
			}
		}
		_ = f.fill(strings.NewReader("")) // what it waits with
	}
	feed(rawHeader(0x81, 1<<20, 8))
	if len(f.Buf) > 2*burstBytes {
		t.Errorf("a header made the reader hold %d bytes", len(f.Buf))
	}
	feed(make([]byte, 100_000))
	if len(f.Buf) > 4*100_000 {
		t.Errorf("100,000 bytes made the reader hold %d", len(f.Buf))
	}
}

// TestTextsAreCheckedEach: what was checked of the fragments of one message is not of the next.
func TestTextsAreCheckedEach(t *testing.T) {
	for name, bad := range map[string][]byte{
		"whole":        text("\xff"),
		"in fragments": cat(frame(gws.OpText, false, "\xff"), frame(gws.OpContinuation, true, "b")),
	} {
		f := newFrameReader(100, budget.New(1<<20))
		for i, b := range [][]byte{frame(gws.OpText, false, "aaa"), frame(gws.OpContinuation, true, "é"), bad} {
			_ = f.fill(bytes.NewReader(b))
			_, payload, ok, err := f.next()
			if got, want := fmt.Sprint(string(payload), ok, err != nil), []string{"false false", "aaaétrue false", "false true"}[i]; got != want {
				t.Errorf("%s: step %d: %s; want %s", name, i, got, want)
			}
		}
	}
}
