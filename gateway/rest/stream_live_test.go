package rest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"eventhub"
	"eventhub/hub"
	"eventhub/internal/testsize"
)

var (
	streamEvents = testsize.Int("stream.events", 10_000, 1_500, "how many events TestStreamThroughCuts sends")
	streamCut    = flag.Duration("stream.cut", 20*time.Millisecond, "how often its proxy cuts all connections")
)

// patience is how long a test waits for what must come.
const patience = 5 * time.Minute

func startHub(t *testing.T, store string) *hub.Hub {
	t.Helper()
	return startHubAs(t, hub.Config{Store: store})
}

func startHubAs(t *testing.T, cfg hub.Config) *hub.Hub {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	cfg.WSAddr, cfg.HTTPAddr, cfg.OpsAddr = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	h, err := hub.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := h.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		goleak.VerifyNone(t, leaks)
	})
	return h
}

// scissors is a proxy in front of a hub that cuts all connections every so often,
// and each one after some bytes besides, wherever in an event that is.
type scissors struct {
	listener net.Listener
	target   string
	cuts     chan struct{} // one token for each time
	all      sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
	lost  int // connections that were cut
}

func cut(t *testing.T, target string, every time.Duration) *scissors {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &scissors{listener: l, target: target, cuts: make(chan struct{}), conns: make(map[net.Conn]bool)}
	ctx, stop := context.WithCancel(context.Background())
	p.all.Go(p.accept)
	p.all.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.cutAll()
			case <-ctx.Done():
				return
			}
			select {
			case p.cuts <- struct{}{}:
			default:
			}
		}
	})
	t.Cleanup(func() {
		stop()
		l.Close()
		p.cutAll()
		p.all.Wait()
	})
	return p
}

func (p *scissors) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			return
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		p.all.Go(func() { p.pipe(server, client, 1<<40) })
		p.all.Go(func() { p.pipe(client, server, rand.Int64N(120_000)) })
	}
}

// pipe copies up to so many bytes and cuts then.
func (p *scissors) pipe(to, from net.Conn, most int64) {
	_, _ = io.CopyN(to, from, most)
	to.Close()
	from.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns[to] {
		p.lost++
	}
	delete(p.conns, to)
	delete(p.conns, from)
}

func (p *scissors) cutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

// sse is an event of a stream.
type sse struct{ id, kind, data string }

// readStream reads a stream as a browser does and calls got for every event that is
// there whole, until the connection ends or got says so. It returns the last id.
func readStream(body io.Reader, last string, got func(sse) (more bool)) string {
	in := bufio.NewReaderSize(body, 64<<10)
	e, id := sse{}, last
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return last
		}
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			last = id
			if e.data != "" {
				e.id = id
				if !got(e) {
					return last
				}
			}
			e = sse{}
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "id":
			id = value
		case "event":
			e.kind = value
		case "data":
			e.data += value
		}
	}
}

// follow reads a stream to its end over any number of connections.
func follow(ctx context.Context, url string, got func(sse) (more bool)) (connections int, _ error) {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport}
	more := true
	for last := ""; more; {
		r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
		if err != nil {
			return 0, err
		}
		if last != "" {
			r.Header.Set("Last-Event-ID", last)
		}
		answer, err := client.Do(r)
		if ctx.Err() != nil {
			return connections, ctx.Err()
		}
		if err != nil {
			continue // cut before the answer
		}
		if answer.StatusCode != 200 {
			b, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			return connections, fmt.Errorf("answered %d %s to Last-Event-ID %q", answer.StatusCode, b, last)
		}
		connections++
		last = readStream(answer.Body, last, func(e sse) bool {
			more = got(e)
			return more
		})
		answer.Body.Close()
	}
	return connections, nil
}

// ledger checks that the numbers of each topic come one by one.
type ledger struct {
	next map[string]int
	sum  int
}

func (l *ledger) note(e sse) error {
	var event struct {
		Topic   string
		Payload int
	}
	if err := json.Unmarshal([]byte(e.data), &event); err != nil || e.kind != "" {
		return fmt.Errorf("event %q of kind %q: %w", e.data, e.kind, err)
	}
	if want := l.next[event.Topic]; event.Payload != want {
		return fmt.Errorf("event %d of %s came instead of %d", event.Payload, event.Topic, want)
	}
	l.next[event.Topic]++
	l.sum++
	return nil
}

// TestStreamThroughCuts: a client that goes on from the last id it saw misses
// nothing and gets nothing twice, whenever it is cut off: of one topic, of a
// pattern, and of topics that are created while it is away.
func TestStreamThroughCuts(t *testing.T) {
	for _, tt := range []struct {
		name, target string
		topics       int
	}{
		{"one topic", "/v1/topics/s.0/stream", 1},
		{"a pattern", "/v1/topics/s.*/stream?from=earliest", 15},
		{"a pattern from now on", "/v1/topics/s.*/stream", 15},
	} {
		t.Run(tt.name, func(t *testing.T) { testStreamThroughCuts(t, tt.target, tt.topics) })
	}
}

func testStreamThroughCuts(t *testing.T, target string, topics int) {
	h := startHub(t, hub.MemoryStore)
	proxy := cut(t, h.HTTPAddr(), *streamCut)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	began, followed := make(chan struct{}), make(chan error, 1)
	seen := ledger{next: make(map[string]int)}
	connections := 0
	go func() {
		var wrong error
		n, err := follow(ctx, "http://"+proxy.listener.Addr().String()+target, func(e sse) bool {
			if strings.Contains(e.data, `"payload":-1`) {
				select {
				case <-began:
				default:
					close(began)
				}
				return true
			}
			wrong = seen.note(e)
			return wrong == nil && seen.sum < *streamEvents
		})
		connections = n
		if err == nil {
			err = wrong
		}
		followed <- err
	}()

	// What is published while nobody listens yet is not asked for by all: knock
	// until the stream has begun.
	knock := func(topic string) {
		if _, err := h.Bus().Publish(ctx, eventhub.Event{Topic: topic, Payload: json.RawMessage("-1")}); err != nil {
			t.Error(err)
		}
	}
	for waiting := true; waiting; {
		knock("s.0")
		select {
		case <-began:
			waiting = false
		case <-proxy.cuts:
		case err := <-followed:
			t.Fatal(err)
		}
	}
	publishInTurns(ctx, t, h, proxy, topics)
	if err := <-followed; err != nil {
		t.Fatalf("after %d events: %v", seen.sum, err)
	}
	if connections < 20 {
		t.Errorf("the stream had %d connections; that proves little", connections)
	}
	t.Logf("%d events of %d topics over %d connections", seen.sum, len(seen.next), connections)
}

// publishInTurns publishes a part of the events after each cut; topics are created
// one after the other.
func publishInTurns(ctx context.Context, t *testing.T, h *hub.Hub, proxy *scissors, topics int) {
	const turns = 100
	next := make([]int, topics)
	for turn := range turns {
		select {
		case <-proxy.cuts:
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
		there := min(topics, 1+topics*turn/(turns/2))
		events := make([]eventhub.Event, *streamEvents/turns)
		for i := range events {
			of := rand.IntN(there)
			events[i] = eventhub.Event{Topic: fmt.Sprintf("s.%d", of), Payload: json.RawMessage(fmt.Sprint(next[of]))}
			next[of]++
		}
		for len(events) > 0 {
			n := min(1+rand.IntN(50), len(events))
			if _, err := h.Bus().Publish(ctx, events[:n]...); err != nil {
				t.Fatal(err)
			}
			events = events[n:]
		}
	}
}

// TestStreamHasTopicsThatCameWhileItWasAway: who comes back with the id that it saw last
// gets the topics that are new since it began from their first event on, whatever the
// times of that, and nothing of the others that lies before it.
func TestStreamHasTopicsThatCameWhileItWasAway(t *testing.T) {
	for _, target := range []string{"/v1/topics/s.*/stream", "/v1/topics/s.*/stream?from=ts&ts=1500000000000", "/v1/topics/s.two/stream?from=ts&ts=1500000000000"} {
		t.Run(target, func(t *testing.T) {
			h := startHub(t, hub.MemoryStore)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			imports := func(topic string) {
				old := eventhub.Event{Topic: topic, Offset: 1, ID: "old", TS: 1_000_000_000_000, Payload: json.RawMessage("1")}
				if _, err := h.Bus().Import(ctx, old); err != nil {
					t.Fatal(err)
				}
			}
			last := ""
			// visit reads until so many events came, none for the beginning alone.
			visit := func(events int) (topics []string) {
				r, err := http.NewRequestWithContext(ctx, "GET", "http://"+h.HTTPAddr()+target, nil)
				if err != nil {
					t.Fatal(err)
				}
				if last != "" {
					r.Header.Set("Last-Event-ID", last)
				}
				answer, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				defer answer.Body.Close()
				if answer.StatusCode != 200 {
					t.Fatalf("answered %s to Last-Event-ID %q", answer.Status, last)
				}
				in := bufio.NewReader(answer.Body)
				for blocks := 0; blocks <= events; { // the first has the place alone
					line, err := in.ReadString('\n')
					if err != nil {
						t.Fatal(err)
					}
					name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
					switch name {
					case "":
						blocks++
					case "id":
						last = value
					case "data":
						var e eventhub.Event
						if err := json.Unmarshal([]byte(value), &e); err != nil {
							t.Fatal(err)
						}
						topics = append(topics, fmt.Sprint(e.Topic, ":", e.Offset))
					}
				}
				return topics
			}
			imports("s.one")
			visit(0)
			imports("s.two")
			if got := fmt.Sprint(visit(1)); got != "[s.two:1]" {
				t.Errorf("came %s", got)
			}
			if !strings.Contains(target, "*") {
				return
			}
			imports("s.three")
			if got := fmt.Sprint(visit(1)); got != "[s.three:1]" {
				t.Errorf("came %s, and the id is %s", got, last)
			}
		})
	}
}
