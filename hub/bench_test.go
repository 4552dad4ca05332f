package hub_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"eventhub/hub"
)

// BenchmarkWebSocketPublish is the durable publish as clients see it: a real
// hub on a real disk with an fsync before every OK, connections over loopback,
// single PUBLISH frames of 256 B payloads, each connection with so many in
// flight. The load runs in this process too: it answers as many OKs as one read
// brings with as many frames in one write, and looks at nothing but the OKs'
// number.
func BenchmarkWebSocketPublish(b *testing.B) {
	for _, inFlight := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("connections=16/inflight=%d", inFlight), func(b *testing.B) {
			h, err := hub.Start(hub.Config{Store: b.TempDir(), WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0"})
			if err != nil {
				b.Fatal(err)
			}
			defer h.Stop(context.Background())
			load(b, h.WSAddr(), 16, inFlight)
		})
	}
}

func load(b *testing.B, addr string, connections, inFlight int) {
	payload := fmt.Appendf(nil, `"%s"`, bytes.Repeat([]byte("x"), 254))
	frame := masked(fmt.Appendf(nil, `{"op":"PUBLISH","topic":"bench.ws","payload":%s}`, payload))
	frames := bytes.Repeat(frame, inFlight)
	var left atomic.Int64
	left.Store(int64(b.N))
	var conns []net.Conn
	for range connections {
		conns = append(conns, connect(b, addr))
	}
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for _, conn := range conns {
		wg.Go(func() {
			defer conn.Close()
			if err := publishLoop(conn, frames, len(frame), inFlight, &left); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// publishLoop keeps up to inFlight publishes under way until left is used up.
func publishLoop(conn net.Conn, frames []byte, size, inFlight int, left *atomic.Int64) error {
	open, room := 0, inFlight
	buf := make([]byte, 64<<10)
	for {
		if room > 0 {
			n := int(min(int64(room), max(0, left.Add(-int64(room))+int64(room))))
			if _, err := conn.Write(frames[:n*size]); err != nil {
				return err
			}
			open += n
			room = 0
		}
		if open == 0 {
			return nil
		}
		n, err := conn.Read(buf)
		if err != nil {
			return err
		}
		// Every answer is one object without objects inside.
		room = bytes.Count(buf[:n], []byte{'}'})
		if bytes.Contains(buf[:n], []byte(`"ERR"`)) {
			return fmt.Errorf("the hub said %s", buf[:n])
		}
		open -= room
	}
}

func dial(tb testing.TB, addr string) net.Conn {
	tb.Helper()
	conn, _, _, err := ws.Dial(context.Background(), "ws://"+addr)
	if err != nil {
		tb.Fatal(err)
	}
	return conn
}

// connect dials and says AUTH.
func connect(tb testing.TB, addr string) net.Conn {
	tb.Helper()
	conn := dial(tb, addr)
	if _, err := conn.Write(masked([]byte(`{"op":"AUTH"}`))); err != nil {
		tb.Fatal(err)
	}
	if _, err := wsutil.ReadServerText(conn); err != nil {
		tb.Fatal(err)
	}
	return conn
}

func masked(text []byte) []byte {
	frame, err := ws.CompileFrame(ws.MaskFrame(ws.NewTextFrame(text)))
	if err != nil {
		panic(err)
	}
	return frame
}
