package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"eventhub"
)

type thing struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
}

var columns = []Column[thing]{
	{Name: "NAME", Cell: func(t thing) string { return t.Name }},
	{Name: "COUNT", Right: true, Cell: func(t thing) string { return Count(t.Count) }},
	{Name: "NOTE", Dim: true, Cell: func(t thing) string { return strings.Repeat("!", t.Count%3) }},
}

func list(things ...thing) func(func(thing, error) bool) {
	return func(yield func(thing, error) bool) {
		for _, t := range things {
			if !yield(t, nil) {
				return
			}
		}
	}
}

func TestList(t *testing.T) {
	things := []thing{{"é", 1234567}, {"longer <x>", 3}}
	for _, tt := range []struct {
		format Format
		color  bool
		things []thing
		want   string
	}{
		{Table, false, things, "NAME            COUNT  NOTE\né           1,234,567  !\nlonger <x>          3\n"},
		{Table, true, things[1:], bold + "NAME" + plain + "        " + bold + "COUNT" + plain + "  " + bold + "NOTE" + plain + "\nlonger <x>      3\n"},
		{Table, false, nil, "NAME  COUNT  NOTE\n"},
		{NDJSON, true, things, "{\"name\":\"é\",\"count\":1234567}\n{\"name\":\"longer <x>\",\"count\":3}\n"},
		{NDJSON, false, nil, ""},
		{JSON, false, things, "[\n  {\n    \"name\": \"é\",\n    \"count\": 1234567\n  },\n  {\n    \"name\": \"longer <x>\",\n    \"count\": 3\n  }\n]\n"},
		{JSON, false, nil, "[]\n"},
	} {
		var b bytes.Buffer
		if err := List(&b, tt.format, tt.color, append([]Column[thing]{}, columns...), list(tt.things...)); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(tt.want, b.String()); diff != "" {
			t.Errorf("%s of %d: %s", tt.format, len(tt.things), diff)
		}
		if tt.format == JSON && !json.Valid(b.Bytes()) {
			t.Error("not one JSON document")
		}
	}
}

// TestListEndsWithItsError: nothing pretends to be a whole listing.
func TestListEndsWithItsError(t *testing.T) {
	broken := errors.New("broken")
	for _, f := range []Format{Table, JSON, NDJSON} {
		err := List(&bytes.Buffer{}, f, false, append([]Column[thing]{}, columns...), func(yield func(thing, error) bool) {
			_ = yield(thing{"a", 1}, nil) && yield(thing{}, broken)
		})
		if !errors.Is(err, broken) {
			t.Errorf("%s: %v", f, err)
		}
	}
}

func TestFields(t *testing.T) {
	var b bytes.Buffer
	if err := Fields(&b, false, []Field{{"A", "1"}, {"Long", "2"}, {"None", ""}}); err != nil {
		t.Fatal(err)
	}
	if want := "A:     1\nLong:  2\nNone:\n"; b.String() != want {
		t.Errorf("got %q; want %q", b.String(), want)
	}
}

// TestClosedReader: a pipe that nobody reads is distinguished from other failures,
// by the write, and without one.
func TestClosedReader(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	out := NewResults(writer)
	if out.Terminal || out.Color {
		t.Error("a pipe is no terminal")
	}
	gone := make(chan struct{})
	out.OnHangup(func() { close(gone) })
	if _, err := out.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-gone:
		t.Error("called although the reader is there")
	default:
	}
	reader.Close()
	<-gone
	if _, err := out.Write([]byte("x")); !errors.Is(err, ErrClosed) || !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a write to nobody: %v", err)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if _, err := NewResults(full).Write([]byte("x")); err == nil || errors.Is(err, ErrClosed) {
		t.Errorf("a write to a full disk: %v", err)
	}
}

func TestHuman(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1000: "-1,000", -999: "-999", 1234567: "1,234,567"} {
		if got := Count(n); got != want {
			t.Errorf("Count(%d) = %s", n, got)
		}
	}
	if got := Things(1, "event") + " " + Things(0, "event") + " " + Things(uint64(2000), "event"); got != "1 event 0 events 2,000 events" {
		t.Error(got)
	}
	now := time.UnixMilli(10_000_000_000)
	for ms, want := range map[int64]string{
		0: "-", 9_999_999_999: "1 ms ago", 10_000_000_000: "0 ms ago", 9_999_998_999: "1 s ago", 9_999_940_000: "1 min ago",
		9_996_400_000: "1 h ago", 9_828_000_000: "47 h ago", 9_827_200_000: "2 days ago", 10_000_005_000: "in 5 s",
	} {
		if got := Ago(now, ms); got != want {
			t.Errorf("Ago(%d) = %s; want %s", ms, got, want)
		}
	}
	for in, want := range map[string]string{
		"plain é 漢": "plain é 漢", "a\x1b[2Jb\n": `a\x1b[2Jb\n`, "\u202eevil\u0085": `\u202eevil\u0085`, "a\xffb": `a\xffb`, "": "",
	} {
		if got := Safe(in); got != want {
			t.Errorf("Safe(%q) = %s; want %s", in, got, want)
		}
	}
}

func delivery() *eventhub.Delivery {
	return &eventhub.Delivery{Topic: "t", Offset: 7, Attempt: 2, Record: eventhub.Record(
		`{"ts":1723140000000,"id":"i","topic":"t","partition":1,"key":"k\u001b","headers":{"b":"2","a":"1"},"tags":["x","y"],"payload":{"n": 1.0,"s":"\u0041"}}`)}
}

func TestEvents(t *testing.T) {
	for _, tt := range []struct {
		name   string
		render AppendEvent
		want   string
	}{
		{"ndjson", Events(NDJSON, false, nil, false), `{"offset":7,` + string(delivery().Record[1:]) + "\n"},
		{"json", Events(JSON, false, nil, false), `{"offset":7,` + string(delivery().Record[1:]) + "\n"},
		{"payload", Events(Payload, false, nil, false), `{"n": 1.0,"s":"\u0041"}` + "\n"},
		{"table", Events(Table, false, []string{"t"}, false), "TIME" + strings.Repeat(" ", len(Time(1))-4) + "    OFFSET  KEY           PAYLOAD\n" +
			Time(1723140000000) + `         7  k\x1b         {"n": 1.0,"s":"\u0041"}` + "\n"},
		{"table of two topics in a group", Events(Table, false, []string{"t", "longer"}, true), "TIME" + strings.Repeat(" ", len(Time(1))-4) +
			"  TOPIC     OFFSET  TRY  KEY           PAYLOAD\n" +
			Time(1723140000000) + `  t              7    2  k\x1b         {"n": 1.0,"s":"\u0041"}` + "\n"},
	} {
		got, err := tt.render([]byte("before|"), delivery())
		if diff := cmp.Diff("before|"+tt.want, string(got)); err != nil || diff != "" {
			t.Errorf("%s: %v %s", tt.name, err, diff)
		}
	}
	for _, f := range []Format{Table, Payload} {
		if _, err := Events(f, false, nil, false)(nil, &eventhub.Delivery{Offset: 9, Record: eventhub.Record("{garbage")}); err == nil || !strings.Contains(err.Error(), "9") {
			t.Errorf("%s of garbage: %v", f, err)
		}
	}
}

func TestTemplate(t *testing.T) {
	for format, want := range map[string]string{
		`%t|%o|%i|%T|%h|%g|%%|%s\n`: `t|7|i|1723140000000|a=1,b=2|x,y|%|{"n": 1.0,"s":"\u0041"}` + "\n",
		`%k`:                        "k\x1b",
		``:                          "",
		`é\t\r\\%%%o`:               "é\t\r\\%7",
		`\\n`:                       `\n`,
	} {
		render, err := Template(format)
		if err != nil {
			t.Errorf("%q: %v", format, err)
			continue
		}
		if got, err := render(nil, delivery()); err != nil || string(got) != want {
			t.Errorf("%q gives %q, %v; want %q", format, got, err, want)
		}
	}
	for format, at := range map[string]string{`%z`: "character 1", `é%`: "character 2", `%o\q`: "character 3", `abc\`: "character 4"} {
		if _, err := Template(format); err == nil || !strings.Contains(err.Error(), at) {
			t.Errorf("%q: %v; want it to name %s", format, err, at)
		}
	}
}

func TestChoice(t *testing.T) {
	c := Choice{Format: Table, Allowed: []Format{Table, JSON}}
	if err := c.Set("jsn"); err == nil || err.Error() != `"jsn" is not one of table, json; did you mean json?` {
		t.Errorf("jsn: %v", err)
	}
	if err := c.Set("ndjson"); err == nil || !strings.Contains(err.Error(), "table, json") || c.Format != Table {
		t.Errorf("ndjson was taken: %v", err)
	}
	if err := c.Set("json"); err != nil || c.String() != "json" {
		t.Errorf("json was not taken: %v", err)
	}
}
