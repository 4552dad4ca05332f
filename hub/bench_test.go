package hub_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	b.ReportAllocs()
	b.ResetTimer()
	loadAs(b, addr, "", connections, inFlight, b.N)
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// loadAs publishes n events by connections that bring a token, and returns how long that took
// once they were there.
func loadAs(b *testing.B, addr, token string, connections, inFlight, n int) time.Duration {
	payload := fmt.Appendf(nil, `"%s"`, bytes.Repeat([]byte("x"), 254))
	frame := masked(fmt.Appendf(nil, `{"op":"PUBLISH","topic":"bench.ws","payload":%s}`, payload))
	frames := bytes.Repeat(frame, inFlight)
	var left atomic.Int64
	left.Store(int64(n))
	var conns []net.Conn
	for range connections {
		conns = append(conns, connectAs(b, addr, token))
	}
	began := time.Now()
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
	return time.Since(began)
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
func connect(tb testing.TB, addr string) net.Conn { return connectAs(tb, addr, "") }

// connectAs is connect with a token.
func connectAs(tb testing.TB, addr, token string) net.Conn {
	tb.Helper()
	conn := dial(tb, addr)
	if _, err := conn.Write(masked(fmt.Appendf(nil, `{"op":"AUTH","token":%q}`, token))); err != nil {
		tb.Fatal(err)
	}
	if said, err := wsutil.ReadServerText(conn); err != nil || !bytes.Contains(said, []byte(`"OK"`)) {
		tb.Fatalf("AUTH: %s, %v", said, err)
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

// BenchmarkWebSocketPublishByRights is BenchmarkWebSocketPublish with 64 in flight for full
// rights, which no guard checks, and for a token of ten scopes, the last of which counts. The
// two are measured in turn in one run, on one machine in one state, in short stretches.
func BenchmarkWebSocketPublishByRights(b *testing.B) {
	h, err := hub.Start(hub.Config{Store: b.TempDir(), JWTSecret: jwtSecret, WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0"})
	if err != nil {
		b.Fatal(err)
	}
	defer h.Stop(context.Background())
	exp := time.Now().Add(time.Hour).Unix()
	tokens := [2]string{full(exp), tenScopes(exp)}
	inTurns(b, [2]string{"full/s", "limited/s"}, func(kind, n int) time.Duration {
		return loadAs(b, h.WSAddr(), tokens[kind], 16, 64, n)
	})
}

// tenScopes returns a token of ten scopes, the last of which counts.
func tenScopes(exp int64) string {
	var scopes []string
	for i := range 9 {
		scopes = append(scopes, fmt.Sprintf("publish:team%d.**", i))
	}
	return mint(`{"alg":"HS256"}`, fmt.Sprintf(`{"exp":%d,"scope":"%s publish:bench.*"}`, exp, strings.Join(scopes, " ")))
}

// BenchmarkWebSocketPublishByLimits is the same for a file of limits that has none, and for one with
// all that there are, which are never reached. It is one hub, which reads the file again: two
// stores differ by more than limits cost.
func BenchmarkWebSocketPublishByLimits(b *testing.B) {
	publishWithLimits(b, [2]string{"free/s", "limited/s"}, [2]string{staticToken, staticToken})
}

// BenchmarkWebSocketPublishGuarded is the same for a static token with full rights and no limits,
// and for a JSON Web Token of ten scopes with all limits.
func BenchmarkWebSocketPublishGuarded(b *testing.B) {
	publishWithLimits(b, [2]string{"free/s", "guarded/s"}, [2]string{staticToken, tenScopes(time.Now().Add(time.Hour).Unix())})
}

// staticToken has full rights.
const staticToken = "0123456789"

// publishWithLimits measures the first token without limits, and the second one with limits.
func publishWithLimits(b *testing.B, units, tokens [2]string) {
	file := filepath.Join(b.TempDir(), "limits.yaml")
	limits := [2]string{"publish: {}", "publish: {connection: {per_second: 1e9}, principal: {per_second: 1e9}, topics: {'**': {per_second: 1e9}}}"}
	write := func(kind int) {
		if err := os.WriteFile(file, []byte(limits[kind]), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	write(0)
	h, err := hub.Start(hub.Config{
		Store: b.TempDir(), AuthToken: staticToken, JWTSecret: jwtSecret, LimitsFile: file,
		WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0",
	})
	if err != nil {
		b.Fatal(err)
	}
	defer h.Stop(context.Background())
	inTurns(b, units, func(kind, n int) time.Duration {
		write(kind)
		h.Look()
		return loadAs(b, h.WSAddr(), tokens[kind], 16, 64, n)
	})
}

// inTurns measures two kinds of load in turn, and how the second compares. Each load says how long
// it took.
func inTurns(b *testing.B, units [2]string, load func(kind, n int) time.Duration) {
	var took [2]time.Duration
	n := max(b.N/rightsStretches, 1)
	for i := range rightsWarmUp { // a new store is faster than it is later
		load(i%2, n)
	}
	for i := range 2 * rightsStretches {
		kind := (i + i/2) % 2 // 0 1 1 0 0 1 …
		took[kind] += load(kind, n)
	}
	rate := func(kind int) float64 { return float64(n*rightsStretches) / took[kind].Seconds() }
	b.ReportMetric(rate(0), units[0])
	b.ReportMetric(rate(1), units[1])
	b.ReportMetric(rate(1)/rate(0), "ratio")
}

const (
	// rightsStretches is how often each kind of token is measured.
	rightsStretches = 20
	// rightsWarmUp is how many stretches come before that and do not count.
	rightsWarmUp = 10
)
