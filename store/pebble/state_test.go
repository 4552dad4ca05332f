package pebble

import (
	"context"
	"fmt"
	"testing"

	"eventhub/store"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestStateIsOfOneMoment: values are replaced, and compacted away, before the moment of a read and
// after it. Each key has one of its values all the same, of before or after, and the read says of which
// offset it is.
func TestStateIsOfOneMoment(t *testing.T) {
	for _, isAfter := range []bool{false, true} {
		o := onMem(t, vfs.NewMem())
		round, isBusy := 0, false
		var s *Store
		replace := func() {
			isBusy = true
			round++
			u := mustCommit(t, s, true, keyedEvent(fmt.Sprint("a", round), "a", `"x"`), keyedEvent(fmt.Sprint("b", round), "b", `"x"`))
			if round == 1 {
				mustIndex(t, s, "t")
			}
			mustRemove(t, s, store.TopicChange{Topic: "t", Compacted: u[1].Offset})
			for done := false; !done; {
				var err error
				if _, done, err = s.Compact(context.Background(), "t"); err != nil {
					t.Fatal(err)
				}
			}
			isBusy = false
		}
		o.reading = func(is bool) {
			if is == isAfter && round < 3 && !isBusy {
				replace()
			}
		}
		s = mustOpen(t, o)
		replace()
		var b store.Batch
		page, err := s.State(context.Background(), store.StateQuery{Topic: "t", Limit: 5, MaxBytes: 1 << 20}, &b)
		if err != nil || len(b.Items) != 2 || !page.Done || page.At < b.Compacted || b.Items[1].Offset != page.At {
			t.Errorf("replaced after the moment %v: %d items %v, %+v, compacted up to %d, %v", isAfter, len(b.Items), b.Items, page, b.Compacted, err)
		}
		// What comes before the moment has the read begin again, until it is of the head.
		if want := map[bool]int{false: 3, true: 2}[isAfter]; round != want {
			t.Errorf("replaced after the moment %v: %d rounds of values; want %d", isAfter, round, want)
		}
		mustClose(t, s)
	}
}
