package client_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/internal/testsize"
	"eventhub/internal/transfer"
)

// openHub starts a hub over memory, or over a directory, that the test ends.
func openHub(t *testing.T, store string) string {
	t.Helper()
	h, err := hub.Start(hub.Config{Store: store, WSAddr: "127.0.0.1:0", HTTPAddr: "localhost:0", OpsAddr: "127.0.0.2:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return "http://" + h.HTTPAddr()
}

func adminOf(t *testing.T, url string) *client.Admin {
	t.Helper()
	adm, err := client.NewAdmin(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { adm.Close() })
	return adm
}

// chronicle is n lines as an export has them, over some topics.
func chronicle(n int) string {
	var b strings.Builder
	for _, topic := range []string{"a.b", "a.b.dlq", "c"} {
		for i := range n {
			fmt.Fprintf(&b, `{"offset":%d,"ts":1723140000%03d,"id":"%s-%d","topic":%q,"partition":4,"key":"k \u0001é","headers":{"x-h":"v"},"tags":["t"],"caused_by":["x"],"payload":{"n": 1.0}}`+"\n",
				3*i+1, i%1000, topic, i, topic)
		}
	}
	return b.String()
}

// TestMoveAHub: what was exported, imported into an empty hub and exported again is the
// same, byte for byte, however it was packed between; a second import changes nothing.
func TestMoveAHub(t *testing.T) {
	for name, store := range map[string]func() string{"memory": func() string { return hub.MemoryStore }, "disk": t.TempDir} {
		t.Run(name, func(t *testing.T) {
			n := testsize.Of(1500, 300)
			from, to := adminOf(t, openHub(t, store())), adminOf(t, openHub(t, store()))
			ctx := t.Context()
			if _, err := from.ImportFrom(ctx, strings.NewReader(chronicle(n))); err != nil {
				t.Fatal(err)
			}
			everything := admin.ReplayQuery{Topic: "**"}
			var exported, again bytes.Buffer
			sent, err := from.ExportTo(ctx, everything, &exported)
			if err != nil || sent.Events != int64(2*n) || sent.Bytes != int64(exported.Len()) {
				t.Fatalf("%+v, %v", sent, err)
			}
			dead, err := from.ExportTo(ctx, admin.ReplayQuery{Topic: "*.*.dlq"}, &exported)
			if err != nil || dead.Events != int64(n) {
				t.Fatalf("%+v, %v", dead, err)
			}
			for i, pack := range []func(*testing.T, string) string{plain, gzipped, zstded} {
				got, err := to.ImportFrom(ctx, strings.NewReader(pack(t, exported.String())))
				want := client.Imported{Events: int64(3 * n), Added: int64(3 * n), Checksum: checksum(exported.String())}
				if i > 0 {
					want.Added, want.Duplicates = 0, int64(3*n)
				}
				if err != nil || got != want {
					t.Errorf("%+v, %v; want %+v", got, err, want)
				}
			}
			for _, q := range []admin.ReplayQuery{everything, {Topic: "*.*.dlq"}} {
				if _, err := to.ExportTo(ctx, q, &again); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(exported.Bytes(), again.Bytes()) {
				t.Error("the export of the import is not the export")
			}
		})
	}
}

func plain(_ *testing.T, s string) string { return s }

func gzipped(t *testing.T, s string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := io.WriteString(w, s)
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func zstded(t *testing.T, s string) string {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(w.EncodeAll([]byte(s), nil))
}

func checksum(s string) string {
	sum := transfer.NewSum()
	_, _ = io.WriteString(sum, s)
	return sum.String()
}

// TestReplayOverHTTP: events come with their topic, offset and record, from where they
// were asked for, and the visitor's error ends it.
func TestReplayOverHTTP(t *testing.T) {
	adm := adminOf(t, openHub(t, hub.MemoryStore))
	if _, err := adm.ImportFrom(t.Context(), strings.NewReader(chronicle(10))); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		q    admin.ReplayQuery
		want string // topic and offset of each
	}{
		{admin.ReplayQuery{Topic: "a.**", Limit: 2}, "a.b 1, a.b 4, "},
		{admin.ReplayQuery{Topic: "c", Start: eventhub.Start{Kind: eventhub.StartAfterID, AfterID: "c-7"}}, "c 25, c 28, "},
		{admin.ReplayQuery{Topic: "c", Start: eventhub.Start{Kind: eventhub.StartOffset, Offset: 26}}, "c 28, "},
		{admin.ReplayQuery{Topic: "**", Start: eventhub.Start{Kind: eventhub.StartTime, TS: 1723140000004}, ToTS: 1723140000006}, "a.b 13, a.b 16, c 13, c 16, "},
		{admin.ReplayQuery{Topic: "nothing"}, ""},
	} {
		got := ""
		err := adm.Replay(t.Context(), tt.q, func(topic string, item eventhub.Item) error {
			e, err := item.Event()
			if err != nil || e.Topic != topic || e.Key != "k \x01é" || string(e.Payload) != `{"n":1.0}` {
				t.Errorf("%s: %+v, %v", topic, e, err)
			}
			got += fmt.Sprintf("%s %d, ", topic, item.Offset)
			return nil
		})
		if err != nil || got != tt.want {
			t.Errorf("%+v: %s, %v; want %s", tt.q, got, err, tt.want)
		}
	}
	enough := errors.New("enough")
	if err := adm.Replay(t.Context(), admin.ReplayQuery{Topic: "c"}, func(string, eventhub.Item) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("the visitor's error came as %v", err)
	}
	for q, code := range map[*admin.ReplayQuery]eventhub.Code{
		{Topic: "c", Start: eventhub.Start{Kind: eventhub.StartAfterID, AfterID: "gone"}}: eventhub.CodeUnknownID,
		{Topic: "a b"}: eventhub.CodeBadTopic,
		{Topic: "c", Filter: &eventhub.Filter{Tags: []string{""}}}: eventhub.CodeBadRequest,
		{Topic: "c", Life: 1}: eventhub.CodeUnsupportedOp,
	} {
		if err := adm.Replay(t.Context(), *q, nil); eventhub.ErrorCode(err) != code {
			t.Errorf("%+v: %v; want %s", q, err, code)
		}
	}
}

// TestImportIsRefusedOverHTTP: how far it went comes with the refusal, and an input
// that cannot be read is distinguished from a hub that cannot be reached.
func TestImportIsRefusedOverHTTP(t *testing.T) {
	adm := adminOf(t, openHub(t, hub.MemoryStore))
	lines := chronicle(500)
	got, err := adm.ImportFrom(t.Context(), strings.NewReader(lines[:len(lines)-5]))
	if want := (client.Imported{Events: 1000, Added: 1000, Line: 1500}); eventhub.ErrorCode(err) != eventhub.CodeBadJSON || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	broken := errors.New("a scratch on the disk")
	in := io.MultiReader(strings.NewReader(lines), iotest.ErrReader(broken))
	if got, err := adm.ImportFrom(t.Context(), in); !errors.Is(err, broken) || errors.Is(err, client.ErrUnreachable) || got != (client.Imported{}) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := adminOf(t, "http://127.0.0.1:1").ImportFrom(t.Context(), strings.NewReader(lines)); !errors.Is(err, client.ErrUnreachable) {
		t.Errorf("nobody there: %v", err)
	}
}

// TestTransfersThatAreNotWhole: whatever comes, what has not all come is an error, and
// never one that another URL is tried for.
func TestTransfersThatAreNotWhole(t *testing.T) {
	line := `{"offset":1,"ts":1723140000000,"id":"x","topic":"t","payload":1}` + "\n"
	for _, tt := range []struct {
		name, says string
		serve      func(w http.ResponseWriter)
	}{
		{"cut", "broke off after", func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, line)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}},
		{"no checksum", "no checksum came", func(w http.ResponseWriter) { _, _ = io.WriteString(w, line) }},
		{"another checksum", "the hub has sent sha256=0", func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, line)
			w.Header().Set(http.TrailerPrefix+transfer.ChecksumTrailer, "sha256=0")
		}},
		{"another count", `the hub has sent "2"`, func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, line)
			w.Header().Set(http.TrailerPrefix+transfer.ChecksumTrailer, checksum(line))
			w.Header().Set(http.TrailerPrefix+transfer.CountTrailer, "2")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked := 0
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked++
				w.Header().Set("Content-Type", transfer.NDJSON)
				_ = http.NewResponseController(w).Flush() // a short answer has no trailers
				tt.serve(w)
			}))
			defer s.Close()
			adm, err := client.NewAdmin(s.URL, client.WithURLs(s.URL+"/other"))
			if err != nil {
				t.Fatal(err)
			}
			defer adm.Close()
			var got bytes.Buffer
			_, err = adm.ExportTo(t.Context(), admin.ReplayQuery{Topic: "t"}, &got)
			if err == nil || !strings.Contains(err.Error(), tt.says) || errors.Is(err, client.ErrUnreachable) {
				t.Errorf("%v; want %q", err, tt.says)
			}
			if asked != 1 || got.String() != line {
				t.Errorf("asked %d times, and got %q", asked, &got)
			}
		})
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", transfer.NDJSON)
		_, _ = io.WriteString(w, line+`{"type":"about:blank","status":410,"detail":"it begins at offset 7","code":"gone"}`+"\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer s.Close()
	visited := 0
	err := adminOf(t, s.URL).Replay(t.Context(), admin.ReplayQuery{Topic: "t"}, func(string, eventhub.Item) error { visited++; return nil })
	if eventhub.ErrorCode(err) != eventhub.CodeGone || visited != 1 || !strings.Contains(err.Error(), "ended after 1 events: gone: it begins at offset 7") {
		t.Errorf("a hub that says why it can not go on: %v after %d events", err, visited)
	}
	full := errors.New("disk full")
	adm := adminOf(t, openHub(t, hub.MemoryStore))
	if _, err := adm.ImportFrom(t.Context(), strings.NewReader(line)); err != nil {
		t.Fatal(err)
	}
	if _, err := adm.ExportTo(t.Context(), admin.ReplayQuery{Topic: "t"}, failingWriter{full}); !errors.Is(err, full) {
		t.Errorf("a full disk is reported as %v", err)
	}
	if _, err := adm.BackupTo(t.Context(), io.Discard); eventhub.ErrorCode(err) != eventhub.CodeUnsupportedOp {
		t.Errorf("a backup of memory: %v", err)
	}
}

type failingWriter struct{ err error }

func (f failingWriter) Write([]byte) (int, error) { return 0, f.err }
