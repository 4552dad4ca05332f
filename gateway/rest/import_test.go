package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"eventhub"
	"eventhub/internal/bubble"
	"eventhub/internal/transfer"
)

// TestImport: events come in order, as they were, in chunks of at most 1,000, however
// they are packed; the checksum is that of the export.
func TestImport(t *testing.T) {
	events := chronicle(2500, `{"n": 1.0}`)
	lines := linesOf(events)
	for _, tt := range []struct {
		name   string
		body   string
		header []string
	}{
		{"plain", lines, nil},
		{"as a file of curl's", lines, []string{"Content-Type", "application/x-www-form-urlencoded"}},
		{"no last newline, empty lines, CRLF", "\n\r\n" + strings.ReplaceAll(strings.TrimSuffix(lines, "\n"), "\n", "\r\n\n"), []string{"Content-Type", "application/x-ndjson; charset=utf-8"}},
		{"gzip", packed(t, "gzip", lines), []string{"Content-Encoding", "gzip"}},
		{"zstd", packed(t, "zstd", lines), []string{"Content-Encoding", "ZSTD"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &past{}
			_, h := mount(t, p.access())
			status, answer, _ := do(h, "/v1/import", tt.body, tt.header...)
			want := fmt.Sprintf(`{"count":2500,"added":2500,"duplicates":0,"checksum":%q}`+"\n", sumOf(lines))
			if status != 200 || answer != want {
				t.Fatalf("answered %d %s; want %s", status, answer, want)
			}
			var sizes []int
			i := 0
			for _, chunk := range p.chunks {
				sizes = append(sizes, len(chunk))
				for _, e := range chunk {
					wanted, err := events[i].Event()
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(wanted, e); diff != "" {
						t.Fatalf("event %d: %s", i, diff)
					}
					i++
				}
			}
			if diff := cmp.Diff([]int{1000, 1000, 500}, sizes); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func packed(t *testing.T, coding, text string) string {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&b)
	if coding == "zstd" {
		z, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		w = z
	}
	_, err := io.WriteString(w, text)
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestImportChunksAreBounded in bytes too, and what was there already is counted as
// such.
func TestImportChunksAreBounded(t *testing.T) {
	events := chronicle(10, `"`+strings.Repeat("x", eventhub.MaxPayloadBytes-2)+`"`)
	events[3].Record = record("t", "again", "1")
	p := &past{}
	_, h := mount(t, p.access())
	status, answer, _ := do(h, "/v1/import", linesOf(events))
	if status != 200 || !strings.HasPrefix(answer, `{"count":10,"added":9,"duplicates":1,`) {
		t.Fatalf("answered %d %s", status, answer)
	}
	for i, chunk := range p.chunks {
		size := 0
		for _, e := range chunk {
			size += len(e.Payload)
		}
		if size > importChunkBytes+eventhub.MaxPayloadBytes {
			t.Errorf("chunk %d has %d bytes", i, size)
		}
	}
	if len(p.chunks) != 3 {
		t.Errorf("%d chunks", len(p.chunks))
	}
	if status, answer, _ := do(h, "/v1/import", ""); status != 200 || !strings.HasPrefix(answer, `{"count":0,"added":0,"duplicates":0,"checksum":"sha256=e3b0`) {
		t.Errorf("nothing is answered as %d %s", status, answer)
	}
}

// TestImportProblems: what is wrong is reported with its line, and how far the import
// came; nothing of the chunk that it is in is added.
func TestImportProblems(t *testing.T) {
	good := linesOf(chronicle(1500, "1"))
	event := func(members string) string {
		return `{"offset":1,"ts":1723140000000,"id":"x","topic":"t"` + members + `}` + "\n"
	}
	for _, tt := range []struct {
		name, body     string
		header         []string
		status         int
		code, says     string
		line, imported int
	}{
		{"broken JSON", good + `{"offset":` + "\n" + good, nil, 400, "bad_json", "line 1501: ", 1501, 1000},
		{"half a line", good + `{"offset":7,"id":"x","topic":"t","payload":{"a`, nil, 400, "bad_json", "line 1501: the input ends in the middle of it", 1501, 1000},
		{"somebody else's", `{"time":"now","level":"info","msg":"x"}` + "\n", nil, 400, "bad_request", "line 1: /time", 1, 0},
		{"somebody else's events", `{"topic":"t","payload":1}` + "\n" + good, nil, 400, "bad_event", "line 1: id is missing; an import takes what was exported", 1, 0},
		{"no topic", `{"id":"x","payload":1}`, nil, 400, "bad_event", "line 1: topic is missing", 1, 0},
		{"no payload", "\n" + event(""), nil, 400, "bad_event", "line 2: payload is missing", 2, 0},
		{"a JSON export", "[]\n" + good, nil, 400, "bad_request", "line 1: the value can not be an array", 1, 0},
		{"bad topic", strings.Replace(event(`,"payload":1`), `"t"`, `"a b"`, 1), nil, 400, "bad_topic", `line 1: topic "a b"`, 1, 0},
		{"bad id", strings.Replace(event(`,"payload":1`), `"x"`, `"a b"`, 1), nil, 400, "bad_event", `line 1: id "a b"`, 1, 0},
		{"bad key", event(`,"payload":1,"key":"` + strings.Repeat("k", 1025) + `"`), nil, 400, "bad_event", "line 1: key", 1, 0},
		{"offset too high", strings.Replace(event(`,"payload":1`), `:1,`, `:9007199254740992,`, 1), nil, 400, "bad_event", "line 1: offset is 9007199254740992", 1, 0},
		{"committed in the future", event(`,"payload":1,"committed_ts":9999999999999`), nil, 400, "bad_event", "line 1: committed_ts is 9999999999999", 1, 0},
		{"ts in the future", strings.Replace(event(`,"payload":1`), "1723140000000", "9999999999999", 1), nil, 400, "bad_event", "line 1: ts is 9999999999999", 1, 0},
		{"payload too large", event(`,"payload":"` + strings.Repeat("x", eventhub.MaxPayloadBytes) + `"`), nil, 413, "too_large", "line 1: payload has", 1, 0},
		{"line too long", good + event(`,"payload":"`+strings.Repeat("x", transfer.MaxLine)+`"`), nil, 413, "too_large", "line 1501: it has more than 1310720 bytes", 1501, 1000},
		{"one line without an end", strings.Repeat("x", transfer.MaxLine+2), nil, 413, "too_large", "line 1: it has more than", 1, 0},
		{"no gzip", good, []string{"Content-Encoding", "gzip"}, 400, "bad_request", "not encoded as it says, after line 0", 0, 0},
		{"no zstd", good, []string{"Content-Encoding", "zstd"}, 400, "bad_request", "not encoded as it says, after line 0", 0, 0},
		{"half of a gzip", half(packed(t, "gzip", good)), []string{"Content-Encoding", "gzip"}, 400, "bad_request", "breaks off, or is not encoded", -1, -1},
		{"half of a zstd", half(packed(t, "zstd", good)), []string{"Content-Encoding", "zstd"}, 400, "bad_request", "breaks off, or is not encoded", -1, -1},
		{"nothing as gzip", "", []string{"Content-Encoding", "gzip"}, 400, "bad_request", "after line 0", 0, 0},
		{"unknown encoding", good, []string{"Content-Encoding", "br"}, 415, "bad_request", `Content-Encoding "br"`, -1, -1},
		{"two encodings", good, []string{"Content-Encoding", "gzip, zstd"}, 415, "bad_request", `"gzip, zstd"`, -1, -1},
		{"wrong type", good, []string{"Content-Type", "application/json"}, 415, "bad_request", `Content-Type "application/json"`, -1, -1},
		{"no type", good, []string{"Content-Type", "/"}, 415, "bad_request", `Content-Type "/"`, -1, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &past{}
			_, h := mount(t, p.access())
			status, answer, header := do(h, "/v1/import", tt.body, tt.header...)
			var got struct {
				problem
				Line     int
				Imported *int
			}
			if err := json.Unmarshal([]byte(answer), &got); err != nil {
				t.Fatalf("%d %s: %v", status, answer, err)
			}
			if status != tt.status || string(got.Code) != tt.code || !strings.Contains(got.Detail, tt.says) {
				t.Errorf("answered %d %+v; want %d %s with %q", status, got.problem, tt.status, tt.code, tt.says)
			}
			if tt.line >= 0 && (got.Imported == nil || got.Line != tt.line || *got.Imported != tt.imported) {
				t.Errorf("it came so far: %s", answer)
			}
			if n := p.count(); got.Imported != nil && n != *got.Imported || got.Imported == nil && n != 0 {
				t.Errorf("%d events were added; answered %s", n, answer)
			}
			if (header.Get("Accept-Encoding") != "") != strings.Contains(tt.says, "Content-Encoding") && tt.status == 415 && tt.name != "two encodings" {
				t.Errorf("header %v", header)
			}
		})
	}
}

func half(s string) string { return s[:len(s)/2] }

// TestImportIsRefused: the hub's answer about a chunk names the lines of the chunk, and the
// chunks before it stay.
func TestImportIsRefused(t *testing.T) {
	for _, tt := range []struct {
		err    error
		status int
		want   string
	}{
		{eventhub.Errorf(eventhub.CodeOverloaded, "the disk is full"), 503,
			`"detail":"lines 1001 to 1500, which are added together: the disk is full","code":"overloaded","line":1001,"imported":1000,"added":999,"duplicates":1}`},
		{errors.New("disk on fire"), 500, `"code":"internal","line":1001,"imported":1000,"added":999,"duplicates":1}`},
	} {
		p := &past{refuse: map[int]error{1: tt.err}}
		_, h := mount(t, p.access())
		events := chronicle(1500, "1")
		events[9].Record = record("t", "again", "1")
		status, answer, _ := do(h, "/v1/import", linesOf(events))
		if status != tt.status || !strings.Contains(answer, tt.want) || strings.Contains(answer, "fire") {
			t.Errorf("answered %d %s", status, answer)
		}
	}
}

// TestImportTakesDeadLetters: topics of the hub's own, and payloads that hold a whole
// event.
func TestImportTakesDeadLetters(t *testing.T) {
	p := &past{}
	_, h := mount(t, p.access())
	line := string(record("t.dlq", "dl-1", `{"event":"`+strings.Repeat("x", eventhub.MaxPayloadBytes)+`"}`).AppendJSON(nil, 1))
	if status, answer, _ := do(h, "/v1/import", line); status != 200 || p.count() != 1 {
		t.Errorf("answered %d %.200s", status, answer)
	}
}

// counted counts what is read of it, until its end.
type counted struct {
	text  string
	times int
	read  int
}

func (c *counted) Read(p []byte) (int, error) {
	if c.read >= c.times*len(c.text) {
		return 0, io.EOF
	}
	n := copy(p, c.text[c.read%len(c.text):])
	c.read += n
	return n, nil
}

// TestImportHoldsBackItsClient: while a chunk is being added, nothing more is taken
// than buffers hold.
func TestImportHoldsBackItsClient(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &past{hold: make(chan struct{})}
		_, client := servePipes(t, p.access())
		body := &counted{text: linesOf(chronicle(1000, `"`+strings.Repeat("x", 1000)+`"`)), times: 10}
		answered := make(chan int)
		go func() {
			answer, err := client.Post("http://hub/v1/import", transfer.NDJSON, body)
			if err != nil {
				t.Error(err)
				close(answered)
				return
			}
			answer.Body.Close()
			answered <- answer.StatusCode
		}()
		synctest.Wait()
		if most := len(body.text) + 512<<10; body.read > most {
			t.Errorf("%d bytes were taken before the first chunk of %d was added", body.read, len(body.text))
		}
		time.Sleep(3 * stallTime) // the store's time is not the client's
		close(p.hold)
		if status := <-answered; status != 200 || p.count() != 10_000 {
			t.Errorf("answered %d, %d events", status, p.count())
		}
	})
}

// TestImportOfASlowClient goes on as long as something comes, and ends when nothing
// does.
func TestImportOfASlowClient(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &past{}
		_, client := servePipes(t, p.access())
		r, w := io.Pipe()
		var sending sync.WaitGroup
		defer sending.Wait()
		sending.Go(func() {
			for _, e := range chronicle(20, "1") {
				_, _ = w.Write(append(e.Record.AppendJSON(nil, e.Offset), '\n'))
				time.Sleep(stallTime * 9 / 10)
			}
			time.Sleep(2 * stallTime)
			w.Close()
		})
		answer, err := client.Post("http://hub/v1/import", transfer.NDJSON, r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != 400 || !strings.Contains(string(b), "no event came for 1m0s after line 20") || p.count() != 0 {
			t.Errorf("%d %s, %v; %d events", answer.StatusCode, b, err, p.count())
		}
	})
}

// TestImportWithoutEvents ends: space between lines, and a coding of nothing, do not keep its place.
func TestImportWithoutEvents(t *testing.T) {
	empty := packed(t, "gzip", "")
	for coding, sign := range map[string]string{"": "\n", "gzip": empty} {
		t.Run(coding, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p := &past{}
				_, client := servePipes(t, p.access())
				body, w := io.Pipe()
				var sending sync.WaitGroup
				defer sending.Wait()
				sending.Go(func() {
					for range 20 {
						if _, err := io.WriteString(w, sign); err != nil {
							return
						}
						time.Sleep(stallTime * 5 / 12)
					}
					w.Close()
				})
				r, err := http.NewRequestWithContext(t.Context(), "POST", "http://hub/v1/import", body)
				if err != nil {
					t.Fatal(err)
				}
				if coding != "" {
					r.Header.Set("Content-Encoding", coding)
				}
				began := time.Now()
				answer, err := client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				defer answer.Body.Close()
				b, err := io.ReadAll(answer.Body)
				if err != nil || answer.StatusCode != 400 || !strings.Contains(string(b), "no event came for 1m0s") {
					t.Errorf("%q: %d %s, %v", coding, answer.StatusCode, b, err)
				}
				if took := time.Since(began); took < stallTime || took > stallTime*3/2 {
					t.Errorf("%q: it took %s", coding, took)
				}
			})
		})
	}
}

// TestStopEndsImports: at once, also where nothing comes, and says how far it came.
func TestStopEndsImports(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &past{}
		api, client := servePipes(t, p.access())
		r, w := io.Pipe()
		go func() { _, _ = io.WriteString(w, linesOf(chronicle(1500, "1"))) }()
		time.AfterFunc(time.Second, api.Stop)
		began := time.Now()
		answer, err := client.Post("http://hub/v1/import", transfer.NDJSON, r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		b, _ := io.ReadAll(answer.Body)
		if answer.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(b), `"code":"shutting_down"`) || !strings.Contains(string(b), `"imported":1000`) || time.Since(began) != time.Second {
			t.Errorf("%d %s after %s", answer.StatusCode, b, time.Since(began))
		}
		w.Close()
	})
}

// stopAndCut is a body in the middle of which the API is stopped and its connection cut.
type stopAndCut struct{ api *API }

func (s *stopAndCut) Read([]byte) (int, error) {
	s.api.Stop()
	return 0, os.ErrDeadlineExceeded
}

// TestStopCutsImports: a server that stops cuts bodies, and may do it before the request's own
// context knows of the stop.
func TestStopCutsImports(t *testing.T) {
	for range 20 {
		p := &past{}
		api, h := mount(t, p.access())
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest("POST", "/v1/import", io.MultiReader(strings.NewReader(linesOf(chronicle(1500, "1"))), &stopAndCut{api})))
		if rec.Code != 503 || !strings.Contains(rec.Body.String(), `"code":"shutting_down"`) || !strings.Contains(rec.Body.String(), `"imported":1000`) {
			t.Fatalf("answered %d %s", rec.Code, rec.Body)
		}
	}
}

// TestImportOfALostClient adds nothing of the chunk that did not come whole.
func TestImportOfALostClient(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &past{}
		_, client := servePipes(t, p.access())
		r, w := io.Pipe()
		go func() {
			_, _ = io.WriteString(w, linesOf(chronicle(1500, "1")))
			synctest.Wait()
			w.CloseWithError(errors.New("pulled the plug"))
		}()
		if answer, err := client.Post("http://hub/v1/import", transfer.NDJSON, r); err == nil {
			answer.Body.Close()
			t.Errorf("answered %d", answer.StatusCode)
		}
		synctest.Wait()
		if p.count() != 1000 {
			t.Errorf("%d events were added", p.count())
		}
	})
}

// endless is an input that is never over; it counts what was read of it.
type endless struct {
	text string
	read atomic.Int64
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		n += copy(p[n:], e.text)
	}
	e.read.Add(int64(n))
	return n, nil
}

// TestImportOfNothing: an input of empty lines, however well it is compressed, is
// refused before it has cost much, and so is one with an event now and then.
func TestImportOfNothing(t *testing.T) {
	event := linesOf(chronicle(1, "1"))
	for name, text := range map[string]string{
		"newlines": strings.Repeat("\n", 4096), "spaces": strings.Repeat(strings.Repeat(" ", 100)+"\r\n", 50),
		"and an event": strings.Repeat("\n", 1<<16) + event,
	} {
		t.Run(name, func(t *testing.T) {
			_, h := mount(t, new(past).access())
			body := &endless{text: text}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // it would never end
			defer cancel()
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/v1/import", body))
			if got := w.Body.String(); w.Code != 400 || !strings.Contains(got, "empty lines") {
				t.Errorf("%d %s", w.Code, got)
			}
			if read := body.read.Load(); read > 2<<20 {
				t.Errorf("%d bytes were read", read)
			}
		})
	}
}

// lastWord calls then when the last of what it reads was read.
type lastWord struct {
	r    *strings.Reader
	then func()
}

func (l *lastWord) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.r.Len() == 0 {
		l.then()
	}
	return n, err
}

// TestImportEndsWithItsClient also where what is left of its input has come, and is
// still to be unpacked.
func TestImportEndsWithItsClient(t *testing.T) {
	const events = 20_000
	p := new(past)
	_, h := mount(t, p.access())
	ctx, cancel := context.WithCancel(t.Context())
	body := &lastWord{strings.NewReader(packed(t, "gzip", strings.Repeat(linesOf(chronicle(1, "1")), events))), cancel}
	r := httptest.NewRequestWithContext(ctx, "POST", "/v1/import", body)
	r.Header.Set("Content-Encoding", "gzip")
	h.ServeHTTP(httptest.NewRecorder(), r)
	if ctx.Err() == nil {
		t.Fatal("the input was not read to its end")
	}
	if n := p.count(); n == events {
		t.Errorf("all %d events were imported for a client that was gone", n)
	}
}
