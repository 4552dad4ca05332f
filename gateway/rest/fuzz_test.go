package rest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"eventhub"
	"eventhub/internal/transfer"
)

// wantSafe expects of an error that it is one of the protocol, and fit for a log and an answer.
func wantSafe(t *testing.T, err error) {
	t.Helper()
	var e *eventhub.Error
	if !errors.As(err, &e) || !e.Code.Known() || e.Code == eventhub.CodeInternal {
		t.Fatalf("the error is %T %v", err, err)
	}
	if len(e.Message) > 4096 || !utf8.ValidString(e.Message) || strings.ContainsFunc(e.Message, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		t.Fatalf("the message is %q", e.Message)
	}
}

// FuzzBodies reads what may be no batch, as a list and as lines: what passes is JSON for the
// standard library too, and a line alone is read as one event is.
func FuzzBodies(f *testing.F) {
	for _, s := range []string{
		`{"events":[{"topic":"t","payload":{"a":1}},{"topic":"u","payload":null,"key":"k","headers":{"a":"b"},"tags":["x"],"delay_ms":5}]}`,
		`{"topic":"t","payload":1,"expect":{"key_offset":1}}` + "\n\n" + `{"topic":"u","payload":"\ud83d\ude00","deliver_at":"2030-01-01T00:00:00Z"}`,
		`{"topic":"t","payload":1,"delay_ms":1e99}`, `{"events":null}`, `{"events":[[[[`, "\xff", `{"topic":"\u0000","payload":"\ud800"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		events, where, err := decodeBatch(body)
		lined, whereLined, lineErr := decodeLines(body)
		one, oneErr := decodeEvent(body)
		for _, err := range []error{err, lineErr, oneErr} {
			if err != nil {
				wantSafe(t, err)
			}
		}
		if err == nil && !json.Valid(body) {
			t.Errorf("a batch passed that is no JSON")
		}
		for i, e := range events {
			wantPayload(t, &e)
			_ = where(i)
		}
		for i, e := range lined {
			wantPayload(t, &e)
			_ = whereLined(i)
		}
		if single := bytes.TrimSpace(body); !bytes.ContainsAny(single, "\n") && len(single) > 0 {
			if (lineErr == nil) != (oneErr == nil) || oneErr == nil && !reflect.DeepEqual(lined, []eventhub.Event{one}) {
				t.Errorf("as a line: %+v, %v; as an event: %+v, %v", lined, lineErr, one, oneErr)
			}
		}
	})
}

func wantPayload(t *testing.T, e *eventhub.Event) {
	t.Helper()
	if !json.Valid(e.Payload) || e.Topic == "" {
		t.Errorf("an event passed with topic %q and payload %q", e.Topic, e.Payload)
	}
}

// FuzzLastEventID reads what may be no place of a stream. What passes is written as it was, or as
// what reads the same.
func FuzzLastEventID(f *testing.F) {
	for _, s := range []string{
		"orders:1042:lzll2dc0", "orders:1042", "@1723140000000:b4-3w5e11264sgsf-lzll2ck8,orders:1042:lzll2dc0,orders.eu:17:lzll2d2s",
		"@5", "@-1", "@9223372036854775807,", "orders:18446744073709551615", "orders:1:zzzzzzzzzzzzzzzzz", "@1,orders:1,orders:2", "orders:1\r\n",
	} {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, text string, many bool) {
		name := "orders"
		if many {
			name = "orders.**"
		}
		p, err := eventhub.ParsePattern(name)
		if err != nil {
			t.Fatal(err)
		}
		patterns := []eventhub.Pattern{p}
		read := func(text string) (*places, error) {
			return lastEventID(&http.Request{Header: http.Header{"Last-Event-Id": {text}}}, patterns)
		}
		first, err := read(text)
		if err != nil {
			wantSafe(t, err)
			return
		}
		if first == nil {
			return
		}
		list := first.list()
		if len(list) == 0 && first.one {
			return // no event has such an id
		}
		written := string(first.append(nil))
		again, err := read(written)
		if err == nil && first.one && len(list) > 0 {
			again.since, again.known = first.since, first.known // of no account: the one topic has a place
		}
		if err != nil || !reflect.DeepEqual(again.list(), list) || again.since != first.since || again.known != first.known {
			t.Errorf("%q was written as %q, which reads %+v, %v; want %+v", text, written, again, err, first)
		}
	})
}

// FuzzQuery asks for pages by queries that may be anything: what the handlers get is what the
// standard library reads, under one name each.
func FuzzQuery(f *testing.F) {
	for _, s := range []string{"after=a&limit=7", "limit=1&limit=2", "correlationId=a&correlation_id=b", "%zz", "after=%00%0d%0a", "a;b", "limit=9999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		given, err := parameters(&http.Request{URL: &url.URL{RawQuery: raw}}, "after", "limit", "from", "correlation_id")
		if err != nil {
			wantSafe(t, err)
			return
		}
		slow, err := url.ParseQuery(raw)
		if err != nil {
			t.Fatalf("%q passed: %v", raw, err)
		}
		for name, value := range given {
			if want := slow[name]; name != "correlation_id" && !(name == "limit" && want == nil) && (len(want) != 1 || want[0] != value) {
				t.Errorf("%s is %q; want %q", name, value, want)
			}
		}
		if n, err := pageLimit(given["limit"]); err != nil {
			wantSafe(t, err)
		} else if n < 1 {
			t.Errorf("a page of %d", n)
		}
		if _, err := momentOf("from", given["from"]); err != nil {
			wantSafe(t, err)
		}
		if err := optional("after", given["after"], eventhub.ValidateStoredTopic); err != nil {
			wantSafe(t, err)
		}
	})
}

// FuzzImportLines reads what may be no export: each line that passes is an event that a hub could
// have exported, and all of them are counted.
func FuzzImportLines(f *testing.F) {
	f.Add([]byte(`{"offset":1,"ts":1795186432801,"id":"a","topic":"t","committed_ts":1795186432801,"payload":{"a":1}}` + "\n\n" + `{"id":"b","topic":"t.dlq","payload":"x"}`))
	f.Add([]byte(`{"offset":9223372036854775808,"id":"a","topic":"t","payload":1}`))
	f.Add([]byte("\r\n \t\n{\"id\":\"a\"}\n"))
	f.Add([]byte(`{"id":"a","topic":"t","payload":1`))
	now := time.UnixMilli(1_800_000_000_000)
	f.Fuzz(func(t *testing.T, input []byte) {
		i := importer{in: bufio.NewReaderSize(bytes.NewReader(input), 16), sum: transfer.NewSum(), now: now}
		for n := 1; ; n++ {
			line, end := i.line()
			if end != nil && end != io.EOF {
				t.Fatal(end)
			}
			if len(line) > 0 {
				if err := i.add(line, end); err != nil {
					wantSafe(t, err)
					if !strings.Contains(err.Error(), fmt.Sprintf("line %d: ", n)) {
						t.Errorf("line %d: %v", n, err)
					}
					return
				}
				e := &i.events[len(i.events)-1]
				if !json.Valid(line) || checkImported(e, now) != nil || i.number != n {
					t.Errorf("line %d, as %d: %q passed", n, i.number, line)
				}
			}
			if end == io.EOF {
				return
			}
		}
	})
}

// FuzzBearer reads headers that may have no token: it is a part of what was given, and nothing
// that an answer shows has it.
func FuzzBearer(f *testing.F) {
	for _, s := range []string{"Bearer abc", "bearer  abc ", "Basic abc", "Bearer", "Bearer a b", "Bearer \x00", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header["Authorization"] = []string{header}
		token, given, err := bearer(r)
		switch {
		case err != nil:
			wantSafe(t, err)
		case given && !strings.Contains(header, token):
			t.Errorf("%q has the token %q", header, token)
		}
	})
}
