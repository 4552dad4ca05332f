package rest

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/bubble"
	"eventhub/internal/cloudevents"
	"eventhub/internal/testsize"
	"eventhub/internal/transfer"
)

// serveLoopback serves the API over real connections.
func serveLoopback(t *testing.T, access Access) (*API, *httptest.Server) {
	t.Helper()
	api, h := mount(t, access)
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return api, s
}

// fetch makes a request as it is, with no header of its own, and reads the answer.
func fetch(t *testing.T, method, url string, body io.Reader, header ...string) (*http.Response, []byte, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	answer, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	return answer, got, err
}

// TestExport: whatever the form, the events are those that are stored, the checksum is
// that of their lines, and both come after the last byte.
func TestExport(t *testing.T) {
	events := chronicle(5000, `{"n": 1.0, "text": "`+strings.Repeat("x", 200)+`"}`)
	lines := linesOf(events)
	array := "[\n" + strings.ReplaceAll(strings.TrimSuffix(lines, "\n"), "\n", ",\n") + "\n]\n"
	p := &past{events: events}
	_, s := serveLoopback(t, p.access())
	for _, tt := range []struct {
		name, query              string
		header                   []string
		kind, coding, want, size string
	}{
		{"ndjson", "&ndjson=1", nil, transfer.NDJSON, "", lines, ""},
		{"asked by Accept", "", []string{"Accept", "application/x-ndjson"}, transfer.NDJSON, "", lines, ""},
		{"array", "", nil, "application/json", "", array, ""},
		{"array all the same", "&ndjson=0", []string{"Accept", "application/x-ndjson"}, "application/json", "", array, ""},
		{"gzip", "&ndjson=1", []string{"Accept-Encoding", "gzip"}, transfer.NDJSON, "gzip", lines, ""},
		{"zstd", "&ndjson=1", []string{"Accept-Encoding", "gzip, zstd;q=1.0"}, transfer.NDJSON, "zstd", lines, ""},
		{"rather gzip", "", []string{"Accept-Encoding", "zstd;q=0.5, gzip"}, "application/json", "gzip", array, ""},
		{"no zstd", "", []string{"Accept-Encoding", "zstd;q=0, br"}, "application/json", "", array, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answer, body, err := fetch(t, "GET", s.URL+"/export?topic=t"+tt.query, nil, tt.header...)
			if err != nil || answer.StatusCode != 200 {
				t.Fatalf("%d, %v", answer.StatusCode, err)
			}
			if kind, coding := answer.Header.Get("Content-Type"), answer.Header.Get("Content-Encoding"); kind != tt.kind || coding != tt.coding {
				t.Errorf("it came as %q, %q", kind, coding)
			}
			if got := unpacked(t, tt.coding, body); got != tt.want {
				t.Errorf("%d bytes are not the %d wanted", len(got), len(tt.want))
			}
			if sum := answer.Trailer.Get(transfer.ChecksumTrailer); sum != sumOf(lines) {
				t.Errorf("checksum %q; the lines have %q", sum, sumOf(lines))
			}
			if count := answer.Trailer.Get(transfer.CountTrailer); count != strconv.Itoa(len(events)) {
				t.Errorf("count %q", count)
			}
			if answer.Header.Get("Cache-Control") != "no-store" || strings.Join(answer.Header.Values("Vary"), ", ") != "Origin, Accept, Accept-Encoding" {
				t.Errorf("header %v", answer.Header)
			}
		})
	}
}

func unpacked(t *testing.T, coding string, body []byte) string {
	t.Helper()
	var r io.Reader = strings.NewReader(string(body))
	switch coding {
	case "gzip":
		g, err := gzip.NewReader(r)
		if err != nil {
			t.Fatal(err)
		}
		r = g
	case "zstd":
		d, err := zstd.NewReader(r)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		r = d
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestExportOfNothing: it is empty, whole, and of its form.
func TestExportOfNothing(t *testing.T) {
	_, s := serveLoopback(t, (&past{}).access())
	for query, want := range map[string]string{"&ndjson=1": "", "": "[]\n"} {
		for _, coding := range []string{"", "gzip", "zstd"} {
			answer, body, err := fetch(t, "GET", s.URL+"/export?topic=t"+query, nil, "Accept-Encoding", coding)
			if err != nil || answer.StatusCode != 200 || unpacked(t, coding, body) != want || answer.Trailer.Get(transfer.CountTrailer) != "0" || answer.Trailer.Get(transfer.ChecksumTrailer) != sumOf("") {
				t.Errorf("%q, %q: %d %q %v, %v", query, coding, answer.StatusCode, body, answer.Trailer, err)
			}
		}
	}
}

// TestExportAsks: the parameters are the query, and HEAD reads nothing.
func TestExportAsks(t *testing.T) {
	for query, want := range map[string]admin.ReplayQuery{
		"topic=a.**":                 {Topic: "a.**", Start: eventhub.Earliest},
		"topic=t&from_ts=5&to_ts=7":  {Topic: "t", Start: eventhub.Start{Kind: eventhub.StartTime, TS: 5}, ToTS: 7},
		"topic=t&after_id=x&limit=9": {Topic: "t", Start: eventhub.Start{Kind: eventhub.StartAfterID, AfterID: "x"}, Limit: 9},
		"topic=t&offset=5":           {Topic: "t", Start: eventhub.Start{Kind: eventhub.StartOffset, Offset: 5}},
	} {
		p := &past{}
		_, h := mount(t, p.access())
		if status, answer, _ := request(h, "GET", "/export?"+query, ""); status != 200 {
			t.Errorf("%s: %d %s", query, status, answer)
		}
		if diff := cmp.Diff([]admin.ReplayQuery{want}, p.asked); diff != "" {
			t.Errorf("%s: %s", query, diff)
		}
	}
	p := &past{events: chronicle(1, "1")}
	_, h := mount(t, p.access())
	status, body, header := request(h, "HEAD", "/export?topic=t&ndjson=1", "")
	if status != 200 || body != "" || header.Get("Content-Type") != transfer.NDJSON || len(p.asked) != 0 {
		t.Errorf("HEAD was answered by %d %q %v, and %d replays", status, body, header, len(p.asked))
	}
}

// TestExportAsCloudEvents: an array of them, whose lines the checksum is of.
func TestExportAsCloudEvents(t *testing.T) {
	_, s := serveLoopback(t, (&past{events: chronicle(2, "1")}).access())
	answer, body, err := fetch(t, "GET", s.URL+"/export?topic=t", nil, "Accept", "application/cloudevents-batch+json")
	var events []json.RawMessage
	if err := errors.Join(err, json.Unmarshal(body, &events)); err != nil || len(events) != 2 || answer.Header.Get("Content-Type") != "application/cloudevents-batch+json" {
		t.Fatalf("%s: %v, %v", body, answer.Header, err)
	}
	if sum := sumOf(string(events[0]) + "\n" + string(events[1]) + "\n"); answer.Trailer.Get(transfer.ChecksumTrailer) != sum {
		t.Errorf("trailer %v; want %s", answer.Trailer, sum)
	}
}

// TestExportBreaksOff: a failure in the middle is no end, in whatever coding.
func TestExportBreaksOff(t *testing.T) {
	for _, coding := range []string{"", "gzip", "zstd"} {
		p := &past{events: chronicle(5000, `"`+strings.Repeat("x", 200)+`"`), err: errors.New("disk on fire")}
		api, s := serveLoopback(t, p.access())
		answer, body, err := fetch(t, "GET", s.URL+"/export?topic=t&ndjson=1", nil, "Accept-Encoding", coding)
		if coding == "" && (answer.StatusCode != 200 || len(body) == 0) {
			t.Errorf("%d and %d bytes came", answer.StatusCode, len(body))
		}
		if answer.StatusCode == 200 && (!errors.Is(err, io.ErrUnexpectedEOF) || answer.Trailer.Get(transfer.ChecksumTrailer) != "") {
			t.Errorf("%q ended with %v, %v", coding, err, answer.Trailer)
		}
		s.Close()
		if got := api.Measure().Requests; len(got) != 1 || got[0].Route != "GET /export" || got[0].Count != 1 {
			t.Errorf("counted as %+v", got)
		}
	}
}

// TestExportSaysWhyItEnds: the last line of what was sent is the problem, whatever the coding,
// and there is no trailer; where nothing was sent the problem is the answer.
func TestExportSaysWhyItEnds(t *testing.T) {
	gone := eventhub.Errorf(eventhub.CodeGone, "it begins at offset 7")
	problem := `{"type":"about:blank","title":"Gone","status":410,"detail":"it begins at offset 7","code":"gone"}` + "\n"
	for _, coding := range []string{"", "gzip", "zstd"} {
		events := chronicle(5000, `"`+strings.Repeat("x", 200)+`"`)
		_, s := serveLoopback(t, (&past{events: events, err: gone}).access())
		answer, body, err := fetch(t, "GET", s.URL+"/export?topic=t&ndjson=1", nil, "Accept-Encoding", coding)
		if answer.StatusCode == 200 {
			if !errors.Is(err, io.ErrUnexpectedEOF) || len(answer.Trailer.Get(transfer.ChecksumTrailer)) > 0 {
				t.Errorf("%q ended with %v, %v", coding, err, answer.Trailer)
			}
			if got := unpacked(t, coding, body); got != linesOf(events)+problem {
				t.Errorf("%q: the last of %d bytes are %q", coding, len(got), got[max(0, len(got)-300):])
			}
		} else if answer.StatusCode != 410 || coding == "" {
			t.Errorf("%q is answered by %d", coding, answer.StatusCode)
		}
		s.Close()
	}
	for _, kind := range []string{"application/json", cloudevents.BatchType} {
		events := chronicle(5000, `"`+strings.Repeat("x", 200)+`"`)
		_, s := serveLoopback(t, (&past{events: events, err: gone}).access())
		answer, body, err := fetch(t, "GET", s.URL+"/export?topic=t", nil, "Accept", kind)
		if answer.StatusCode != 200 || !errors.Is(err, io.ErrUnexpectedEOF) || !strings.HasSuffix(string(body), "},\n"+problem) || json.Valid(body) {
			t.Errorf("%s: %d, %v; the last of %d bytes are %q", kind, answer.StatusCode, err, len(body), body[max(0, len(body)-300):])
		}
		s.Close()
	}
	_, s := serveLoopback(t, (&past{events: chronicle(3, "1"), err: gone}).access())
	defer s.Close()
	if answer, body, err := fetch(t, "GET", s.URL+"/export?topic=t&ndjson=1", nil); answer.StatusCode != 410 || string(body) != problem || err != nil {
		t.Errorf("answered by %d %s, %v", answer.StatusCode, body, err)
	}
	if answer, body, _ := fetch(t, "GET", s.URL+"/replay?topic=t", nil); answer.StatusCode != 410 || string(body) != problem {
		t.Errorf("a page is answered by %d %s", answer.StatusCode, body)
	}
}

// TestExportWaitsForItsClient: a client that takes nothing gets no more read for it
// than the buffer holds, keeps its place as long as it takes something, however
// slowly, and loses it when it takes nothing for too long.
func TestExportWaitsForItsClient(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const each = 100 << 10
		p := &past{events: chronicle(1, `"`+strings.Repeat("x", each)+`"`), again: 9999}
		_, client := servePipes(t, p.access())
		answer, err := client.Get("http://hub/export?topic=t&ndjson=1")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		synctest.Wait()
		if n := p.visits(); n > 2*exportBuffer/each {
			t.Errorf("%d events of %d bytes were read for a client that takes none", n, each)
		}
		taken := 0
		chunk := make([]byte, exportBuffer)
		for began := time.Now(); time.Since(began) < 10*stallTime; time.Sleep(stallTime / 2) {
			n, err := io.ReadFull(answer.Body, chunk)
			if err != nil {
				t.Fatalf("cut off after %s: %v", time.Since(began), err)
			}
			taken += n
		}
		synctest.Wait()
		if n := p.visits() * each; n > taken+3*exportBuffer {
			t.Errorf("%d bytes were read for a client that took %d", n, taken)
		}
		time.Sleep(stallTime + time.Second)
		n, err := io.Copy(io.Discard, answer.Body)
		if !errors.Is(err, io.ErrUnexpectedEOF) || n > 3*exportBuffer {
			t.Errorf("%d bytes more, %v", n, err)
		}
	})
}

// endings are the ways in which a request that lasts ends without its client: each has the code
// that it is told, and what makes it happen after a time.
var endings = map[eventhub.Code]func(access *Access, after time.Duration) (stop func(*API)){
	eventhub.CodeJWTInvalid: func(access *Access, after time.Duration) func(*API) {
		access.Expires = time.Now().Add(after)
		return func(*API) {}
	},
	eventhub.CodeBadToken: func(access *Access, after time.Duration) func(*API) {
		revoked, revoke := context.WithCancel(context.Background())
		time.AfterFunc(after, revoke)
		access.Revoked = revoked
		return func(*API) {}
	},
	eventhub.CodeShuttingDown: func(_ *Access, after time.Duration) func(*API) {
		return func(api *API) { time.AfterFunc(after, api.Stop) }
	},
}

// TestExportEndsInOrder: whenever and however an export is ended while its client reads, what came
// is whole events and then the problem that says why; there is no trailer.
func TestExportEndsInOrder(t *testing.T) {
	events := chronicle(300, "1")
	for i := range events {
		text := make([]byte, 6000)
		rand.Read(text) // which no coding makes small
		events[i].Record = record("t", fmt.Sprint(i), fmt.Sprintf("%q", base64.StdEncoding.EncodeToString(text)))
	}
	all := linesOf(events)
	for code, ending := range endings {
		for _, coding := range []string{"", "gzip", "zstd"} {
			for i := 0; i < 12; i += testsize.Of(1, 5) {
				bubble.Test(t, func(t *testing.T) {
					p := &past{events: events}
					access := p.access()
					stop := ending(&access, time.Duration(1+37*i)*time.Millisecond)
					api, client := servePipes(t, access)
					stop(api)
					r, err := http.NewRequestWithContext(t.Context(), "GET", "http://hub/export?topic=t&ndjson=1", nil)
					if err != nil {
						t.Fatal(err)
					}
					r.Header.Set("Accept-Encoding", coding)
					answer, err := client.Do(r)
					if err != nil {
						t.Fatal(err)
					}
					defer answer.Body.Close()
					var body []byte
					for chunk := make([]byte, 3000); err == nil; time.Sleep(time.Millisecond) {
						var n int
						n, err = answer.Body.Read(chunk)
						body = append(body, chunk[:n]...)
					}
					text := unpacked(t, coding, body)
					lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
					last := lines[len(lines)-1]
					if !errors.Is(err, io.ErrUnexpectedEOF) || answer.Trailer.Get(transfer.ChecksumTrailer) != "" || !strings.Contains(last, fmt.Sprintf(`"code":%q`, code)) {
						t.Errorf("%s, %q, %d: %v; the last line is %.300s", code, coding, i, err, last)
					}
					if sent := text[:strings.LastIndex(text, last)]; len(lines) < 2 || !strings.HasPrefix(all, sent) {
						t.Errorf("%s, %q, %d: the %d lines before it are no events", code, coding, i, len(lines)-1)
					}
				})
			}
		}
	}
}

// TestStopEndsExports: in a second, with a client that takes nothing too. A backup, which could say
// nothing more, ends at once.
func TestStopEndsExports(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &past{events: chronicle(1, `"`+strings.Repeat("x", 100<<10)+`"`), again: 9999}
		api, client := servePipes(t, p.access())
		answer, err := client.Get("http://hub/export?topic=t&ndjson=1")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		synctest.Wait()
		api.Stop()
		time.Sleep(endWait)
		synctest.Wait()
		if len(api.Measure().Requests) != 1 {
			t.Error("it goes on for a client that takes nothing")
		}
		if _, err := io.Copy(io.Discard, answer.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("it ended with %v", err)
		}
	})
	t.Setenv("TMPDIR", t.TempDir())
	bubble.Test(t, func(t *testing.T) {
		p := &past{files: map[string]string{"a": strings.Repeat("y", 8<<20)}}
		api, client := servePipes(t, p.access())
		answer, err := client.Get("http://hub/v1/backup")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		synctest.Wait()
		api.Stop()
		synctest.Wait()
		if len(api.Measure().Requests) != 1 {
			t.Error("a backup goes on for a client that takes nothing")
		}
	})
}

// TestExportLeavesTheConnectionAsItWas: the next request has no deadline of the one
// before.
func TestExportLeavesTheConnectionAsItWas(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, client := servePipes(t, (&past{events: chronicle(1, "1")}).access())
		for range 3 {
			answer, err := client.Get("http://hub/export?topic=t&ndjson=1")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(answer.Body); err != nil || answer.Trailer.Get(transfer.CountTrailer) != "1" {
				t.Errorf("%v, %v", answer.Trailer, err)
			}
			answer.Body.Close()
			for range 2 { // the second comes after the deadline that the export had
				time.Sleep(stallTime * 9 / 10)
				if answer, err = client.Get("http://hub/replay?topic=t"); err != nil {
					t.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, answer.Body); err != nil {
					t.Error(err)
				}
				answer.Body.Close()
			}
		}
	})
}

// TestExportAllocatesNothingForAnEvent: what it takes does not grow with the events.
func TestExportAllocatesNothingForAnEvent(t *testing.T) {
	run := func(n int) float64 {
		p := &past{events: chronicle(1, `"`+strings.Repeat("x", 1000)+`"`), again: n - 1}
		return testing.AllocsPerRun(5, func() {
			e := &exporter{out: plainEncoder{io.Discard}, lines: true, add: (*exporter).addLine, sum: transfer.NewSum()}
			if err := e.run(context.Background(), p, admin.ReplayQuery{}); err != nil || e.count != n {
				t.Fatal(err, e.count)
			}
		})
	}
	if few, many := run(100), run(20_000); many > few+10 {
		t.Errorf("%v allocations for 100 events, %v for 20,000", few, many)
	}
}

func BenchmarkExport(b *testing.B) {
	p := &past{events: chronicle(1, `"`+strings.Repeat("x", 1000)+`"`), again: 199_999}
	api, err := New(Config{Authenticate: func(context.Context, string, bool) (Access, error) { return p.access(), nil }})
	if err != nil {
		b.Fatal(err)
	}
	mux := http.NewServeMux()
	api.Register(mux)
	s := httptest.NewServer(mux)
	defer s.Close()
	for _, coding := range []string{"identity", "gzip", "zstd"} {
		b.Run(coding, func(b *testing.B) {
			b.SetBytes(int64(200_000 * len(linesOf(p.events))))
			b.ReportAllocs()
			for b.Loop() {
				r, _ := http.NewRequest("GET", s.URL+"/export?topic=t&ndjson=1", nil)
				r.Header.Set("Accept-Encoding", coding)
				answer, err := http.DefaultTransport.RoundTrip(r)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, answer.Body); err != nil {
					b.Fatal(err)
				}
				answer.Body.Close()
				if answer.Trailer.Get(transfer.CountTrailer) != fmt.Sprint(200_000) {
					b.Fatal(answer.Trailer)
				}
			}
		})
	}
}
