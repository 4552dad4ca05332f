package layout

import (
	"strings"
	"testing"
)

func TestWithTS(t *testing.T) {
	for _, tt := range []struct{ name, record, want string }{
		{"the hub's ts", `{"ts":1723140000000,"id":"a","topic":"t","payload":1}`,
			`{"committed_ts":1723140000000,"id":"a","ts":5,"topic":"t","payload":1}`},
		{"the publisher's ts", `{"committed_ts":1723140000000,"id":"a","ts":7,"topic":"t","payload":1}`,
			`{"committed_ts":1723140000000,"id":"a","ts":7,"topic":"t","payload":1}`},
		{"no record", `{"topic":"t"}`, `{"topic":"t"}`},
	} {
		if got := string(WithTS([]byte(tt.record), 5)); got != tt.want {
			t.Errorf("%s: %s; want %s", tt.name, got, tt.want)
		}
	}
}

// TestSetID writes into the place that IDRoom keeps, and into no other.
func TestSetID(t *testing.T) {
	record := []byte(`{"ts":1723140000000,"id":"` + IDRoom + `","topic":"t","payload":1}`)
	id := strings.Repeat("7", len(IDRoom))
	SetID(record, id)
	if got := string(ID(record)); got != id {
		t.Errorf("the id is %q; want %q", got, id)
	}
	for _, other := range []string{"", "a", id + "7"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("the id %q was written", other)
				}
			}()
			SetID(record, other)
		}()
	}
}

// TestNoRecord: bytes that do not start as a record have no field, however short.
func TestNoRecord(t *testing.T) {
	whole := `{"committed_ts":1723140000000,"id":"a`
	for n := range whole {
		for _, text := range []string{whole[:n], whole[1 : n+1], `{"ts":` + strings.Repeat("1", n%16)} {
			record := []byte(text)
			if id, key := ID(record), Key(record); id != nil || key != nil {
				t.Errorf("%q has the id %q and the key %q", text, id, key)
			}
			if timeAt(record) < 0 && CommitTime(record) != 0 {
				t.Errorf("%q has the commit time %d", text, CommitTime(record))
			}
		}
	}
}
