package rest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"eventhub/internal/bubble"
	"eventhub/internal/budget"
)

// TestBodiesHaveABudget: what has come of the bodies of all requests is counted, what
// is beyond is refused, whatever the path, and all of it is given back.
func TestBodiesHaveABudget(t *testing.T) { bubble.Test(t, testBodiesHaveABudget) }

func testBodiesHaveABudget(t *testing.T) {
	api, h := mount(t, Access{Publisher: new(log)})
	memory := budget.New(1 << 20)
	api.cfg.Memory = memory
	half := strings.Repeat(" ", 400_000)
	send := func(path string) (*io.PipeWriter, chan *httptest.ResponseRecorder) {
		r, w := io.Pipe()
		answered := make(chan *httptest.ResponseRecorder, 1)
		go func() {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, path, r))
			r.Close()
			answered <- rec
		}()
		_, _ = io.WriteString(w, half) // refused in the middle where there is no memory
		synctest.Wait()
		return w, answered
	}
	first, one := send("/publish/t")
	second, two := send("/v1/publish")
	if used := memory.Used(); used != 2*len(half) {
		t.Errorf("%d bytes are taken by two bodies; want %d", used, 2*len(half))
	}
	for _, path := range []string{"/publish/t", "/v1/publish", "/v1/topics/t/groups/g/ack"} {
		_, refused := send(path)
		rec := <-refused
		if body := rec.Body.String(); rec.Code != 503 || !strings.Contains(body, `"code":"overloaded"`) || rec.Header().Get("Retry-After") != "1" {
			t.Errorf("POST %s without memory: %d %s", path, rec.Code, body)
		}
	}
	if used := memory.Used(); used != 2*len(half) {
		t.Errorf("%d bytes are taken after others were refused; want %d", used, 2*len(half))
	}
	io.WriteString(first, "1")
	first.Close()
	synctest.Wait() // the fake publisher has no lock
	io.WriteString(second, `{"events":[{"topic":"t","payload":1}]}`)
	second.Close()
	for _, answered := range []chan *httptest.ResponseRecorder{one, two} {
		if rec := <-answered; rec.Code != 200 {
			t.Errorf("a body that was begun: %d %s", rec.Code, rec.Body)
		}
	}
	if used := memory.Used(); used != 0 {
		t.Errorf("%d bytes are taken in the end", used)
	}
}

// TestRequestsStayAsTheyAre: a handler in front of the API finds the request as it was,
// and what it reads of a body then is not counted: nobody would give it back.
func TestRequestsStayAsTheyAre(t *testing.T) {
	api, h := mount(t, Access{Publisher: new(log)})
	memory := budget.New(1 << 20)
	api.cfg.Memory = memory
	for _, path := range []string{"/publish/t", "/publish/no topic", "/v1/nothing", "/v1/import"} {
		body := io.NopCloser(strings.NewReader(`{"n":1}`))
		r := httptest.NewRequest(http.MethodPost, strings.ReplaceAll(path, " ", "%20"), body)
		was := r.Body
		h.ServeHTTP(httptest.NewRecorder(), r)
		if r.Body != was {
			t.Errorf("POST %s: the request has another body, a %T", path, r.Body)
		}
		if _, err := io.ReadAll(r.Body); err != nil {
			t.Errorf("POST %s: the rest of the body: %v", path, err)
		}
		if used := memory.Used(); used != 0 {
			t.Errorf("POST %s: %d bytes are taken in the end", path, used)
		}
	}
}

// TestImportsAreFew: each holds a lot, and nobody needs many.
func TestImportsAreFew(t *testing.T) {
	_, h := mount(t, new(past).access())
	var open []*io.PipeWriter
	answered := make(chan *httptest.ResponseRecorder, maxImports)
	for range maxImports {
		r, w := io.Pipe()
		go func() {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/v1/import", r))
			answered <- rec
		}()
		io.WriteString(w, "\n")
		open = append(open, w)
	}
	if status, body, _ := do(h, "/v1/import", ""); status != 503 || !strings.Contains(body, `"code":"overloaded"`) {
		t.Errorf("one more: %d %s", status, body)
	}
	for _, w := range open {
		w.Close()
		if rec := <-answered; rec.Code != 200 {
			t.Errorf("an import: %d %s", rec.Code, rec.Body)
		}
	}
	if status, body, _ := do(h, "/v1/import", ""); status != 200 {
		t.Errorf("and then: %d %s", status, body)
	}
}

// stuck is a client that takes no byte of an answer before it is let go.
type stuck struct {
	*httptest.ResponseRecorder
	letGo chan struct{}
}

func (s *stuck) Write(p []byte) (int, error) {
	<-s.letGo
	return s.ResponseRecorder.Write(p)
}

// TestPagesHaveABudget: pages that nobody takes are counted, others are refused as soon
// as there is no memory for more, small ones are not, and all of it is given back.
func TestPagesHaveABudget(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &past{events: chronicle(10, `"`+strings.Repeat("x", 100_000)+`"`)}
		api, h := mount(t, p.access())
		memory := budget.New(2_500_000)
		api.cfg.Answers = memory
		letGo := make(chan struct{})
		var taking sync.WaitGroup
		var answers []*stuck
		for range 2 {
			w := &stuck{httptest.NewRecorder(), letGo}
			answers = append(answers, w)
			taking.Go(func() { h.ServeHTTP(w, httptest.NewRequest("GET", "/replay?topic=orders", nil)) })
		}
		synctest.Wait()
		if used := memory.Used(); used < 2_000_000 || used > 2_010_000 {
			t.Errorf("%d bytes are taken by two pages of 1 MB", used)
		}
		if status, body, _ := request(h, "GET", "/replay?topic=orders", ""); status != 503 || !strings.Contains(body, `"code":"overloaded"`) {
			t.Errorf("one more: %d %.200s", status, body)
		}
		if status, body, _ := request(h, "GET", "/replay?topic=orders&limit=2", ""); status != 200 {
			t.Errorf("a small one: %d %.200s", status, body)
		}
		close(letGo)
		taking.Wait()
		for _, w := range answers {
			if n := w.Body.Len(); w.Code != 200 || n < 1_000_000 {
				t.Errorf("a page that was refused to nobody: %d, %d bytes", w.Code, n)
			}
		}
		if used := memory.Used(); used != 0 {
			t.Errorf("%d bytes are taken in the end", used)
		}
	})
}

// TestExportsHaveABudget: what exports hold for clients that do not take it is counted, others are refused as soon as there is no
// memory for more, also those that are compressed and hold more, and all of it is given back.
func TestExportsHaveABudget(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &past{events: chronicle(10, `"`+strings.Repeat("x", 100_000)+`"`)}
		api, h := mount(t, p.access())
		memory := budget.New(2*exportMemory + encoderMemory)
		api.cfg.Answers = memory
		letGo := make(chan struct{})
		var taking sync.WaitGroup
		for range 2 {
			w := &stuck{httptest.NewRecorder(), letGo}
			taking.Go(func() { h.ServeHTTP(w, httptest.NewRequest("GET", "/export?topic=orders", nil)) })
		}
		synctest.Wait()
		if used := memory.Used(); used != 2*exportMemory {
			t.Errorf("%d bytes are taken by two exports", used)
		}
		r := httptest.NewRequest("GET", "/export?topic=orders", nil)
		r.Header.Set("Accept-Encoding", "zstd")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 503 || !strings.Contains(w.Body.String(), `"code":"overloaded"`) || w.Header().Get("Content-Encoding") != "" || w.Header().Get("Retry-After") == "" {
			t.Errorf("one more, compressed: %d %.200s, %v", w.Code, w.Body, w.Header())
		}
		if status, body, _ := request(h, "GET", "/export?topic=orders", ""); status != 200 {
			t.Errorf("one more: %d %.200s", status, body)
		}
		close(letGo)
		taking.Wait()
		if used := memory.Used(); used != 0 {
			t.Errorf("%d bytes are taken in the end", used)
		}
	})
}

// TestStreamsAreBounded: the next one is refused, and the place of one that ends is free.
func TestStreamsAreBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newTails()
		api, conn, server, in := openStream(t, f)
		wantFrame(t, in, "retry: 1000\nid: a:5\n\n")
		for range maxStreams - 1 {
			api.streams <- struct{}{}
		}
		mux := http.NewServeMux()
		api.Register(mux)
		status, answer, header := request(mux, "GET", "/v1/topics/a/stream", "")
		if status != http.StatusServiceUnavailable || header.Get("Retry-After") != "1" || !strings.Contains(answer, `"code":"overloaded"`) || !strings.Contains(answer, "10000 event streams") {
			t.Errorf("one too many: %d, Retry-After %q: %s", status, header.Get("Retry-After"), answer)
		}
		conn.Close()
		<-f.dropped
		synctest.Wait()
		if n := len(api.streams); n != maxStreams-1 {
			t.Errorf("%d streams are counted; want %d", n, maxStreams-1)
		}
		server.Close()
	})
}
