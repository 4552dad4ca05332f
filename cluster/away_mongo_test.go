package cluster

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"eventhub"
	"eventhub/internal/mongotest"
)

// TestServerAwayOnMongo: while the server of a journal is away, by refusing connections or without a word, publishes wait until
// the hub that leads serves nobody. From then on each is answered not_active, with a time to come again, and is not in the log. What
// waited is there or not, and nothing is half there. When the server is back the hub goes on by itself, the documents too.
func TestServerAwayOnMongo(t *testing.T) {
	t.Parallel()
	r, server := startMongoRig(t)
	r.lead = r.active(nil)
	a := startAsking(t, r.hubs)
	for _, one := range []struct {
		name        string
		leave, back func()
	}{
		{"killed", server.Kill, func() {
			if err := server.Restart(); err != nil {
				t.Fatal(err)
			}
		}},
		{"silent", func() { holdAll(r, true) }, func() { holdAll(r, false) }},
	} {
		if one.name == "killed" && mongotest.Real() || one.name == "silent" && server.target == "" {
			continue // which is not the test's to kill, or has no proxy before it
		}
		a.await(t, 20)
		before := r.lead.resident()
		one.leave()
		r.lead.await("the journal of this hub has not answered")
		a.away.Store(true)
		a.upgrade(t, r.lead)
		time.Sleep(*outage)
		if grown := r.lead.resident() - before; grown > 64<<20 {
			t.Errorf("%s: the hub has %d MiB more", one.name, grown>>20)
		}
		a.away.Store(false)
		one.back()
		r.lead = r.active(nil)
	}
	a.await(t, 20)
	a.stop()
	a.check(t, r.lead)
	awaitSame(t, r.lead, server.db(t))
}

func holdAll(r *rig, held bool) {
	for _, h := range r.hubs {
		r.hold(h, held)
	}
}

// asking publishes over HTTP, each event once whatever comes of it, and notes what is answered.
type asking struct {
	hubs  []*hub
	away  atomic.Bool // nobody serves
	ended sync.WaitGroup
	over  chan struct{}

	mu      sync.Mutex
	n       int
	answers map[string]string // by payload: a code, "ok", or nothing where there was no answer
	oks     int
	wrong   []string
}

func startAsking(t *testing.T, hubs []*hub) *asking {
	a := &asking{hubs: hubs, over: make(chan struct{}), answers: make(map[string]string)}
	for i := range 8 {
		a.ended.Go(func() { a.ask(hubs[i%len(hubs)]) })
	}
	t.Cleanup(a.stop)
	return a
}

func (a *asking) stop() {
	a.mu.Lock()
	select {
	case <-a.over:
	default:
		close(a.over)
	}
	a.mu.Unlock()
	a.ended.Wait()
}

// ask publishes to one hub, one event after the other: a hundred a second, and one where an hour has to pass.
func (a *asking) ask(h *hub) {
	pause := max(10*time.Millisecond, *outage/3600)
	c := http.Client{Timeout: 2 * within}
	defer c.CloseIdleConnections()
	for {
		select {
		case <-a.over:
			return
		case <-time.After(pause):
		}
		a.mu.Lock()
		a.n++
		payload := fmt.Sprintf(`"%d"`, a.n)
		a.mu.Unlock()
		away := a.away.Load()
		code, again := publishOnce(&c, h, payload)
		a.mu.Lock()
		a.answers[payload] = code
		if code == "ok" {
			a.oks++
		}
		if away && a.away.Load() && (code != string(eventhub.CodeNotActive) || again == "" && strings.Contains(h.readyText(), "has not answered")) {
			a.wrong = append(a.wrong, fmt.Sprintf("%s was answered %q, Retry-After %q", payload, code, again))
		}
		a.mu.Unlock()
	}
}

func (h *hub) readyText() string {
	_, text := h.ready()
	return text
}

func publishOnce(c *http.Client, h *hub, payload string) (code, again string) {
	resp, err := c.Post(fmt.Sprintf("http://127.0.0.1:%d/publish/%s", h.http, events), "application/json", strings.NewReader(payload))
	if err != nil {
		return "", ""
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 == 2 {
		return "ok", ""
	}
	return codeOf(resp.Body), resp.Header.Get("Retry-After")
}

func codeOf(body io.Reader) string {
	var problem struct{ Code string }
	_ = json.NewDecoder(body).Decode(&problem)
	return problem.Code
}

// upgrade wants a WebSocket of a hub that serves nobody.
func (a *asking) upgrade(t *testing.T, h *hub) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/ws", h.ws), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="} {
		req.Header.Set(name, value)
	}
	c := http.Client{Timeout: within}
	defer c.CloseIdleConnections()
	resp, err := c.Do(req)
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	if code := codeOf(resp.Body); resp.StatusCode != http.StatusServiceUnavailable || code != string(eventhub.CodeNotActive) || resp.Header.Get("Retry-After") == "" {
		t.Errorf("a WebSocket is answered %d, %q, Retry-After %q", resp.StatusCode, code, resp.Header.Get("Retry-After"))
	}
}

// await waits for so many more OKs.
func (a *asking) await(t *testing.T, more int) {
	t.Helper()
	oks := func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.oks
	}
	want := oks() + more
	for end := time.Now().Add(within); oks() < want; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d publishes were answered; want %d", oks(), want)
		}
	}
}

// check holds the log against what was answered.
func (a *asking) check(t *testing.T, h *hub) {
	t.Helper()
	at := (&load{t: t}).log(h, events)
	counts := make(map[string]int)
	for payload, code := range a.answers {
		counts[code]++
		switch _, there := at[payload]; {
		case code == "ok" && !there:
			t.Errorf("%s has an OK, and is not in the log", payload)
		case code != "ok" && code != "" && there:
			t.Errorf("%s was answered %s, and is in the log", payload, code)
		}
		if code != "" && code != "ok" && code != string(eventhub.CodeNotActive) && code != string(eventhub.CodeOverloaded) {
			t.Errorf("%s was answered %s", payload, code)
		}
	}
	for payload := range at {
		if _, asked := a.answers[payload]; !asked {
			t.Errorf("%s is in the log, and nobody has published it", payload)
		}
	}
	if len(a.wrong) > 0 {
		t.Errorf("%d answers while nobody served: %.1000s", len(a.wrong), strings.Join(a.wrong, "; "))
	}
	if counts[string(eventhub.CodeNotActive)] == 0 {
		t.Error("nothing was answered not_active")
	}
	t.Logf("answers (without any: \"\"): %v", counts)
}
