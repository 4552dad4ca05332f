package client

import (
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	gws "github.com/gobwas/ws"
)

// sink takes everything at once and counts the calls.
type sink struct {
	net.Conn
	writes, bytes int
}

func (s *sink) Write(p []byte) (int, error) {
	s.writes++
	s.bytes += len(p)
	return len(p), nil
}

func (*sink) SetWriteDeadline(time.Time) error { return nil }

// TestFramesGatherBeforeTheyAreSent: what callers that are woken together have to
// say leaves together, and not frame by frame.
func TestFramesGatherBeforeTheyAreSent(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const rounds, callers, frameBytes = 20, 100, 6 + 5
	to := new(sink)
	c := &Client{}
	n := &conn{net: to}
	n.wake.L = &c.mu
	c.conn = n
	n.writing.Go(func() { c.write(n) })
	for range rounds {
		answered := make(chan struct{})
		var calling sync.WaitGroup
		for range callers {
			calling.Go(func() {
				<-answered
				c.mu.Lock()
				defer c.mu.Unlock()
				n.append(gws.OpText, []byte("frame"))
			})
		}
		close(answered)
		calling.Wait()
		c.mu.Lock()
		for len(n.out.b) > 0 { // the writer has the rest of this round
			c.mu.Unlock()
			runtime.Gosched()
			c.mu.Lock()
		}
		c.mu.Unlock()
	}
	c.mu.Lock()
	n.ended = true
	n.wake.Broadcast()
	c.mu.Unlock()
	n.writing.Wait()
	if want := rounds * callers * frameBytes; to.bytes != want {
		t.Errorf("%d bytes were sent; want %d", to.bytes, want)
	}
	if most := rounds * 10; to.writes > most {
		t.Errorf("%d frames took %d writes; want at most %d", rounds*callers, to.writes, most)
	}
	t.Logf("%d frames in %d writes", rounds*callers, to.writes)
}
