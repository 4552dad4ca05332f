package record

import (
	"bytes"
	"encoding/json"
	"testing"

	"eventhub"
	"eventhub/internal/record/layout"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

func TestAppendLayout(t *testing.T) {
	for _, tt := range []struct {
		name  string
		event eventhub.Event
		want  string
	}{
		{"least", eventhub.Event{ID: "a", Topic: "t.x", Payload: []byte(` { "n" : 1.0 } `)},
			`{"ts":1723140000123,"id":"a","topic":"t.x","payload":{"n":1.0}}`},
		{"all", eventhub.Event{ID: "a:b", TS: 5, Topic: "t", Key: "k\"", SID: "s",
			Headers: map[string]string{"b": "2", "a": "1"}, Tags: []string{"#duck", "é"}, CausedBy: []string{"x", "y"},
			Payload: []byte(`null`)},
			`{"committed_ts":1723140000123,"id":"a:b","ts":5,"topic":"t","partition":8,"key":"k\"","sid":"s",` +
				`"headers":{"a":"1","b":"2"},"tags":["#duck","é"],"caused_by":["x","y"],"payload":null}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := Append([]byte("x"), &tt.event)
			if err != nil {
				t.Fatal(err)
			}
			rec := eventhub.Record(out[1:])
			layout.SetCommitTime(rec, 1723140000123)
			if diff := cmp.Diff(tt.want, string(rec)); diff != "" {
				t.Errorf("record differs (-want +got):\n%s", diff)
			}
			if got := rec.CommitTime(); got != 1723140000123 {
				t.Errorf("CommitTime() = %d", got)
			}
			if got := string(rec.ID()); got != tt.event.ID {
				t.Errorf("ID() = %q; want %q", got, tt.event.ID)
			}
			if got := string(rec.Key()); got != tt.event.Key {
				t.Errorf("Key() = %q; want %q", got, tt.event.Key)
			}
		})
	}
}

func TestAppendRefusesBadPayload(t *testing.T) {
	out, err := Append([]byte("x"), &eventhub.Event{ID: "a", Topic: "t", Payload: []byte(`{"a":1,"a":2}`)})
	if eventhub.ErrorCode(err) != eventhub.CodeBadJSON || string(out) != "x" {
		t.Errorf("Append = %q, %v; want dst untouched and bad_json", out, err)
	}
}

func TestCommitTimeBefore2001IsStillJSON(t *testing.T) {
	out, err := Append(nil, &eventhub.Event{ID: "a", Topic: "t", Payload: []byte(`1`)})
	if err != nil {
		t.Fatal(err)
	}
	rec := eventhub.Record(out)
	for _, ms := range []int64{0, 7, 946684800000, 9999999999999} {
		layout.SetCommitTime(rec, ms)
		e, err := rec.Event(3)
		if err != nil || e.TS != ms || rec.CommitTime() != ms || string(rec.ID()) != "a" {
			t.Errorf("commit time %d: read %d and %d from %s, %v", ms, e.TS, rec.CommitTime(), rec, err)
		}
	}
}

// TestRoundTrip: what goes in comes out, whatever the text.
func TestRoundTrip(t *testing.T) {
	text := rapid.StringN(0, 20, 80)
	rapid.Check(t, func(t *rapid.T) {
		in := eventhub.Event{
			ID:       rapid.StringMatching(`[A-Za-z0-9._:-]{1,64}`).Draw(t, "id"),
			TS:       rapid.Int64Range(0, 1<<41).Draw(t, "ts"),
			Topic:    rapid.StringMatching(`[a-z_-]{1,8}(\.[A-Z0-9]{1,8}){0,3}`).Draw(t, "topic"),
			Key:      text.Draw(t, "key"),
			SID:      text.Draw(t, "sid"),
			Tags:     rapid.SliceOfN(text, 0, 3).Draw(t, "tags"),
			CausedBy: rapid.SliceOfN(rapid.StringMatching(`[a-z0-9]{1,8}`), 0, 3).Draw(t, "caused_by"),
			Headers:  rapid.MapOfN(rapid.StringMatching(`[a-z-]{1,8}`), text, 0, 3).Draw(t, "headers"),
		}
		payload, err := json.Marshal(text.Draw(t, "payload"))
		if err != nil {
			t.Fatal(err)
		}
		in.Payload = payload
		out, err := Append(nil, &in)
		if err != nil {
			t.Fatal(err)
		}
		rec := eventhub.Record(out)
		layout.SetCommitTime(rec, 1723140000000)
		if got := string(rec.Key()); got != in.Key {
			t.Fatalf("Key() = %q of %s", got, rec)
		}
		whole := rec.AppendJSON(nil, 42)
		var got eventhub.Event
		if err := json.Unmarshal(whole, &got); err != nil {
			t.Fatalf("%s: %v", whole, err)
		}
		want := in
		want.Offset = 42
		if want.TS == 0 {
			want.TS = 1723140000000
		} else {
			want.CommittedTS = 1723140000000
		}
		if want.Key != "" {
			p := Partition(want.Key, eventhub.DefaultPartitions)
			want.Partition = &p
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }),
			cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("came back otherwise (-in +out):\n%s", diff)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	e := eventhub.Event{ID: "01989c3e-0000-7000-8000-000000000000", Topic: "heartbeat.received",
		Payload: append(append([]byte(`{"data":"`), bytes.Repeat([]byte("x"), 244)...), `"}`...)}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if buf, err = Append(buf[:0], &e); err != nil {
			b.Fatal(err)
		}
	}
}
