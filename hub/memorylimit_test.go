package hub

import (
	"context"
	"io"
	"io/fs"
	"math"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/internal/bubble"
)

// TestMemoryLimit: the limit is what is asked for, or GOMEMLIMIT, or nine tenths of the least that
// the cgroups allow; the garbage collector is told.
func TestMemoryLimit(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	two := fstest.MapFS{"proc/self/cgroup": file("0::/a/b\n"), "sys/fs/cgroup/memory.max": file("max\n"), "sys/fs/cgroup/a/memory.max": file("1000000000\n"), "sys/fs/cgroup/a/b/memory.max": file("2000000000\n")}
	for name, tt := range map[string]struct {
		files fs.FS
		mib   int
		env   int64 // GOMEMLIMIT
		want  int64
	}{
		"asked for":           {two, 100, 1 << 30, 100 << 20},
		"GOMEMLIMIT":          {two, 0, 1 << 30, 1 << 30},
		"version 2":           {two, 0, math.MaxInt64, 900000000},
		"in a container":      {fstest.MapFS{"proc/self/cgroup": file("0::/../x\n"), "sys/fs/cgroup/memory.max": file("1000\n")}, 0, math.MaxInt64, 900},
		"version 1":           {fstest.MapFS{"proc/self/cgroup": file("5:cpu:/x\n4:memory,hugetlb:/d/e\n"), "sys/fs/cgroup/memory/d/e/memory.limit_in_bytes": file("5000\n"), "sys/fs/cgroup/memory/memory.limit_in_bytes": file("9223372036854771712\n")}, 0, math.MaxInt64, 4500},
		"no limit, version 1": {fstest.MapFS{"proc/self/cgroup": file("4:memory:/\n"), "sys/fs/cgroup/memory/memory.limit_in_bytes": file("9223372036854771712\n")}, 0, math.MaxInt64, 0},
		"no limit, version 2": {fstest.MapFS{"proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/memory.max": file("max\n")}, 0, math.MaxInt64, 0},
		"no Linux":            {fstest.MapFS{}, 0, math.MaxInt64, 0},
	} {
		debug.SetMemoryLimit(tt.env)
		if got := LimitMemory(tt.mib, tt.files); got != tt.want {
			t.Errorf("%s: %d; want %d", name, got, tt.want)
		}
		if now := debug.SetMemoryLimit(-1); tt.want > 0 && now != tt.want || tt.want == 0 && now != tt.env {
			t.Errorf("%s: the collector has %d", name, now)
		}
	}
}

// TestLiveMemory: the runtime has what is asked of it.
func TestLiveMemory(t *testing.T) {
	_, before := liveMemory()
	runtime.GC()
	if n, collections := liveMemory(); n < 1<<10 || collections <= before {
		t.Errorf("%d bytes are live after %d collections, and %d before", n, collections, before)
	}
}

// TestOverloadInOrder: as memory runs out new connections are refused, then publishes, with a time to
// try again; acks, reads and operators never are; and all of it goes on when there is memory again.
func TestOverloadInOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPressure(1000 << 20)
		var live int64
		collections := uint64(0)
		p.live = func() (int64, uint64) { collections++; return live << 20, collections }
		engine := &countingPublisher{}
		pub := p.publisher(engine)
		publish := func() error {
			_, err := pub.Publish(t.Context(), eventhub.Event{})
			return err
		}
		enqueue := func() (err error) {
			pub.Enqueue(t.Context(), make([]eventhub.Publication, 1), func(pubs []eventhub.Publication) { err = pubs[0].Err })
			return err
		}
		for _, tt := range []struct {
			live                 int64
			connections, publish bool
		}{{0, true, true}, {800, true, true}, {801, false, true}, {900, false, true}, {901, false, false}, {2000, false, false}, {850, false, true}, {10, true, true}} {
			live = tt.live
			time.Sleep(lookEvery)
			had := engine.n
			for _, ask := range []struct {
				err  error
				want bool
			}{{p.connection(), tt.connections}, {publish(), tt.publish}, {enqueue(), tt.publish}} {
				switch {
				case (ask.err == nil) != ask.want:
					t.Errorf("%d MiB: %v; want it: %t", tt.live, ask.err, ask.want)
				case ask.err != nil && (eventhub.ErrorCode(ask.err) != eventhub.CodeOverloaded || eventhub.AsError(ask.err).RetryAfter <= 0):
					t.Errorf("%d MiB: %v", tt.live, ask.err)
				}
			}
			if got := engine.n - had; (got == 2) != tt.publish || got == 1 {
				t.Errorf("%d MiB: the engine got %d publishes", tt.live, got)
			}
		}
		if none := newPressure(0); none.connection() != nil || none.publisher(engine) != eventhub.Publisher(engine) {
			t.Error("something is refused without a limit")
		}
	})
}

// TestGarbageOfWhatIsRefused: who is refused makes no garbage, so that the runtime has no reason to collect what others have left.
// The hub does then, and lets the next one in; it does not where the runtime does, nor all the time.
func TestGarbageOfWhatIsRefused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPressure(1000 << 20)
		const takes = time.Second
		var live, found, collections, own atomic.Int64
		live.Store(900)
		found.Store(900)
		collections.Store(1)
		p.live = func() (int64, uint64) { return found.Load() << 20, uint64(collections.Load()) }
		collect := func() {
			found.Store(live.Load())
			collections.Add(1)
		}
		p.collect = func() {
			time.Sleep(takes)
			own.Add(1)
			collect()
		}
		ask := func(d time.Duration, want int64) error {
			t.Helper()
			var err error
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(lookEvery) {
				err = p.connection()
			}
			if synctest.Wait(); own.Load() != want {
				t.Errorf("%d collections of its own; want %d", own.Load(), want)
			}
			return err
		}
		if err := ask(staleAfter, 0); err == nil {
			t.Error("900 of 1000 MiB are no reason to refuse")
		}
		live.Store(700)
		if err := ask(2*takes, 1); err != nil {
			t.Error(err)
		}
		live.Store(900)
		for range 10 { // the runtime does
			collect()
			_ = ask(staleAfter/2, 1)
		}
		_ = ask(staleAfter+2*takes, 2) // it does not, and all of it is needed
		_ = ask(staleCollecting*takes/2, 2)
		_ = ask(staleCollecting*takes, 3)
		live.Store(100)
		collect()
		if err := ask(time.Minute, 3); err != nil {
			t.Error(err)
		}
	})
}

// TestOverloadOfAHub: the same of a running one, by both transports.
func TestOverloadOfAHub(t *testing.T) {
	h, err := Start(Config{Store: MemoryStore, WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0", MemoryLimit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		http.DefaultClient.CloseIdleConnections()
		_ = h.Stop(t.Context())
	}()
	ask := func(method, addr, path string, header ...string) (int, string, http.Header) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, strings.NewReader("1"))
		if err != nil {
			t.Fatal(err)
		}
		if method == http.MethodGet {
			r.Body, r.ContentLength = nil, 0
		}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(body), answer.Header
	}
	if status, body, _ := ask("POST", h.HTTPAddr(), "/publish/a"); status != http.StatusOK && status != http.StatusCreated {
		t.Fatalf("%d %s", status, body)
	}
	h.pressure.seen.Store(950 << 20)
	h.pressure.looked.Store(math.MaxInt64 / 2) // nobody looks again
	for _, tt := range []struct {
		method, addr, path string
		header             []string
		want               int
	}{
		{"POST", h.HTTPAddr(), "/publish/a", nil, 503},
		{"GET", h.WSAddr(), "/ws", []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version", "13"}, 503},
		{"GET", h.HTTPAddr(), "/v1/topics/a/stream", nil, 503},
		{"GET", h.HTTPAddr(), "/replay?topic=a&from=earliest", nil, 200},
		{"POST", h.HTTPAddr(), "/v1/topics/a/trim?dry_run=true", nil, 0},
		{"GET", h.OpsAddr(), "/metrics", nil, 200},
		{"GET", h.OpsAddr(), "/readyz", nil, 200},
	} {
		status, body, got := ask(tt.method, tt.addr, tt.path, tt.header...)
		if tt.want != 0 && status != tt.want || tt.want == 0 && status == 503 {
			t.Errorf("%s %s: %d %s; want %d", tt.method, tt.path, status, body, tt.want)
		}
		if tt.want == 503 && (got.Get("Retry-After") == "" || !strings.Contains(body, `"code":"overloaded"`)) {
			t.Errorf("%s %s: %v %s", tt.method, tt.path, got, body)
		}
	}
}

// countingPublisher takes everything.
type countingPublisher struct {
	eventhub.Publisher
	n int
}

func (c *countingPublisher) Publish(_ context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	c.n++
	return make([]eventhub.Receipt, len(events)), nil
}

func (c *countingPublisher) Enqueue(_ context.Context, pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	c.n += len(pubs)
	done(pubs)
}
