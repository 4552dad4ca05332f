package input

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"eventhub"
)

// read collects every line, in chunks.
func read(t *testing.T, in io.Reader) (chunks [][]Line, end error) {
	t.Helper()
	r := NewReader(in)
	for {
		c := r.Next()
		if len(c.Lines) > 0 {
			chunks = append(chunks, c.Lines)
		}
		if c.Err != nil {
			return chunks, c.Err
		}
	}
}

func TestLines(t *testing.T) {
	huge := strings.Repeat("x", MaxLine)
	for _, tt := range []struct {
		name, in string
		want     []Line
	}{
		{"none", "", nil},
		{"one without an end", "a", []Line{{1, []byte("a"), false}}},
		{"empty ones", "\n\na\r\n\n", []Line{{1, []byte{}, false}, {2, []byte{}, false}, {3, []byte("a"), false}, {4, []byte{}, false}}},
		{"as long as allowed", huge + "\nb", []Line{{1, []byte(huge), false}, {2, []byte("b"), false}}},
		{"too long", "a\n" + huge + "y\nb\n", []Line{{1, []byte("a"), false}, {2, []byte{}, true}, {3, []byte("b"), false}}},
		{"too long without an end", "a\n" + huge + "yy", []Line{{1, []byte("a"), false}, {2, []byte{}, true}}},
	} {
		for how, in := range map[string]io.Reader{"whole": strings.NewReader(tt.in), "halved": iotest.HalfReader(strings.NewReader(tt.in))} {
			t.Run(tt.name+", "+how, func(t *testing.T) {
				chunks, err := read(t, in)
				if !errors.Is(err, io.EOF) {
					t.Errorf("ended by %v", err)
				}
				var got []Line
				for _, c := range chunks {
					got = append(got, c...)
				}
				same := func(a, b Line) bool {
					return a.Number == b.Number && a.TooLong == b.TooLong && bytes.Equal(a.Text, b.Text)
				}
				if !slices.EqualFunc(tt.want, got, same) {
					t.Errorf("%d lines are not the %d wanted", len(got), len(tt.want))
				}
			})
		}
	}
}

// TestLinesAreHandedOnAtOnce: what a slow writer has said does not wait for more,
// and what a fast one says comes many lines at a time, within bounds.
func TestLinesAreHandedOnAtOnce(t *testing.T) {
	in, out := io.Pipe()
	r := NewReader(in)
	go io.WriteString(out, "first\nsec")
	if c := r.Next(); len(c.Lines) != 1 || string(c.Lines[0].Text) != "first" || c.Err != nil {
		t.Errorf("got %v, %v", c.Lines, c.Err)
	}
	go io.WriteString(out, "ond\nthird\n")
	if c := r.Next(); len(c.Lines) != 2 || string(c.Lines[0].Text) != "second" || c.Lines[1].Number != 3 {
		t.Errorf("got %v", c.Lines)
	}
	broken := errors.New("broken")
	go out.CloseWithError(broken)
	if c := r.Next(); !errors.Is(c.Err, broken) || len(c.Lines) != 0 {
		t.Errorf("got %v, %v; want the reader's error", c.Lines, c.Err)
	}
	chunks, _ := read(t, strings.NewReader(strings.Repeat("x\n", 1000)))
	if len(chunks) != 4 || len(chunks[0]) != chunkLines {
		t.Errorf("1000 lines came in %d chunks, %d in the first", len(chunks), len(chunks[0]))
	}
	chunks, _ = read(t, strings.NewReader(strings.Repeat(strings.Repeat("x", 200<<10)+"\n", 8)))
	for _, c := range chunks {
		if len(c) > 2 {
			t.Errorf("%d lines of 200 KiB in a chunk", len(c))
		}
	}
}

// TestLinesKeepTheirText: a chunk is good after the next one was read.
func TestLinesKeepTheirText(t *testing.T) {
	r := NewReader(strings.NewReader(strings.Repeat("a\n", chunkLines) + strings.Repeat("b\n", chunkLines)))
	first := r.Next()
	r.Next()
	for _, l := range first.Lines {
		if string(l.Text) != "a" {
			t.Fatalf("line %d became %q", l.Number, l.Text)
		}
	}
}

func TestPayload(t *testing.T) {
	for _, tt := range []struct {
		in       string
		asString bool
		want     string // "" for an error
	}{
		{` { "a" : 1.0 } `, false, `{"a":1.0}`},
		{`null`, false, `null`},
		{``, false, ``},
		{`1 2`, false, ``},
		{"\"\xff\"", false, ``},
		{`{"a":1,"a":2}`, false, ``},
		{`say "hi" <b>`, true, `"say \"hi\" <b>"`},
		{``, true, `""`},
		{"ok\xff", true, ``},
	} {
		got, err := Payload([]byte(tt.in), tt.asString)
		if (err != nil) != (tt.want == "") || err == nil && string(got) != tt.want {
			t.Errorf("Payload(%q, %v) = %q, %v; want %q", tt.in, tt.asString, got, err, tt.want)
		}
	}
	if _, err := Payload([]byte("é\xff"), true); err == nil || !strings.Contains(err.Error(), "byte 2") {
		t.Errorf("the place of invalid UTF-8 is reported as %v", err)
	}
}

func TestEvent(t *testing.T) {
	delivered := `{"offset":7,"committed_ts":9,"id":"i","ts":5,"topic":"t","partition":2,"key":"k","sid":"s","headers":{"a":"b"},"tags":["x"],"caused_by":["c"],"payload":{"n":1.0}}`
	got, err := Event([]byte(delivered))
	want := eventhub.Event{ID: "i", TS: 5, Topic: "t", Key: "k", SID: "s", Headers: map[string]string{"a": "b"}, Tags: []string{"x"}, CausedBy: []string{"c"}, Payload: []byte(`{"n":1.0}`)}
	if err != nil || !bytes.Equal(got.Payload, want.Payload) {
		t.Errorf("%+v, %v", got, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if e, err := Event([]byte(` {"payload":null} `)); err != nil || string(e.Payload) != "null" {
		t.Errorf("null is a payload: %+v, %v", e, err)
	}
	for text, want := range map[string]eventhub.Event{
		`{"payload":1,"delay_ms":1500}`:        {Delay: 1500 * time.Millisecond},
		`{"payload":1,"delay_ms":31536000000}`: {Delay: eventhub.MaxDelay},
		`{"payload":1,"deliver_at":5}`:         {DeliverAt: time.UnixMilli(5)},
		`{"payload":1,"delay_ms":null}`:        {},
	} {
		if e, err := Event([]byte(text)); err != nil || e.Delay != want.Delay || e.DeliverAt != want.DeliverAt {
			t.Errorf("Event(%s) = %+v, %v", text, e, err)
		}
	}
	for _, bad := range []string{`{"payload":1,"delay_ms":-1}`, `{"payload":1,"delay_ms":31536000001}`, `{"payload":1,"delay_ms":9223372036854775807}`,
		`{"payload":1,"delay_ms":0,"deliver_at":5}`, `{"payload":1,"delay_ms":"5s"}`} {
		if e, err := Event([]byte(bad)); err == nil || !strings.Contains(err.Error(), "delay_ms") {
			t.Errorf("Event(%s) = %+v, %v", bad, e, err)
		}
	}
	for _, bad := range []string{``, `[1]`, `1`, `{}`, `{"topic":"t"}`, `{"payload":1,"extra":2}`, `{"payload":1,"payload":2}`, `{"payload":1}x`, `{"payload":1,"key":5}`, "{\"payload\":\"\xff\"}"} {
		if e, err := Event([]byte(bad)); err == nil {
			t.Errorf("Event(%q) = %+v", bad, e)
		}
	}
}

func TestStart(t *testing.T) {
	now := time.UnixMilli(1_000_000_000_000)
	at := func(ms int64) eventhub.Start { return eventhub.Start{Kind: eventhub.StartTime, TS: ms} }
	for in, want := range map[string]eventhub.Start{
		"latest":                    {},
		"earliest":                  {Kind: eventhub.StartEarliest},
		"offset:12":                 {Kind: eventhub.StartOffset, Offset: 12},
		"after:a.b:c":               {Kind: eventhub.StartAfterID, AfterID: "a.b:c"},
		"1700000000000":             at(1_700_000_000_000),
		"0":                         at(0),
		"2001-09-09T01:46:40Z":      at(1_000_000_000_000),
		"2001-09-09T03:46:40+02:00": at(1_000_000_000_000),
		"1h":                        at(now.Add(-time.Hour).UnixMilli()),
		"1h30m ago":                 at(now.Add(-90 * time.Minute).UnixMilli()),
		"2d":                        at(now.Add(-48 * time.Hour).UnixMilli()),
		"1d12h ago":                 at(now.Add(-36 * time.Hour).UnixMilli()),
		"0s":                        at(now.UnixMilli()),
	} {
		if got, err := Start(in, now); err != nil || got != want {
			t.Errorf("Start(%q) = %+v, %v; want %+v", in, got, err, want)
		}
	}
	for _, bad := range []string{"", "Latest", "offset:", "offset:-1", "offset:9007199254740992", "after:", "after:a b", "yesterday",
		"-1h", "-5", "5", "1700000000", "1d-30h", "99999999999d", "300000d", "ago", "1h before", "2001-09-09"} {
		if got, err := Start(bad, now); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("Start(%q) = %+v, %v; want an error that names it", bad, got, err)
		}
	}
}

func TestHeaders(t *testing.T) {
	got, err := Headers([]string{"a=1", "b=x=y", "c="})
	if diff := cmp.Diff(map[string]string{"a": "1", "b": "x=y", "c": ""}, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	for _, bad := range [][]string{{"a"}, {"a=1", "a=1"}} {
		if got, err := Headers(bad); err == nil {
			t.Errorf("Headers(%q) = %v", bad, got)
		}
	}
}
