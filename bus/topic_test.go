package bus

import (
	"testing"

	"eventhub/store"
)

// TestTailDoesNotSpeakForWhatItDoesNotKnow: an event that a group has read from
// the store before the committer told the tail of it is not gone.
func TestTailDoesNotSpeakForWhatItDoesNotKnow(t *testing.T) {
	l := newTopicLog("t")
	l.watch(&group{}, 7)
	l.add([]store.Append{{Offset: 8, Record: []byte("a")}, {Offset: 9, Record: []byte("b")}}, false)
	for _, tt := range []struct {
		from uint64
		n    int
		ok   bool
	}{{7, 0, false}, {8, 2, true}, {9, 1, true}, {10, 0, false}} {
		items, ok := l.read(nil, tt.from, 10)
		if len(items) != tt.n || ok != tt.ok {
			t.Errorf("read from %d: %d events, %v; want %d, %v", tt.from, len(items), ok, tt.n, tt.ok)
		}
	}
	l.forget(8)
	if items, ok := l.read(nil, 8, 10); ok || len(items) != 0 {
		t.Errorf("read of what was forgotten: %d events, %v", len(items), ok)
	}
}
