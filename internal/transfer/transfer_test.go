package transfer_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"eventhub"
	"eventhub/internal/transfer"
)

// TestGaps: a list is read as it was sent. One of many topics stays short, and its last gap says
// no less than those that it stands for.
func TestGaps(t *testing.T) {
	for _, n := range []int{0, 1, 7, 8, 1000} {
		list, all := transfer.NewGaps("long.**"), make([]eventhub.Gap, n)
		for i := range all {
			name := fmt.Sprintf("long.%d.%s", i, strings.Repeat("x", 200))
			first := uint64(eventhub.MaxOffset-10_000) + uint64(i*7919%1000)
			all[i] = eventhub.Gap{Topic: name, After: first - 1, First: first, Compacted: first + 1}
			list.Add(all[i])
			all[i].Compacted, all[i].Tombstones = first+3, first+2 // compacted further
			list.Add(all[i])
		}
		text := list.String()
		got, err := transfer.ParseGaps(text)
		if err != nil || len(got) > n || len(text) > 3000 {
			t.Errorf("of %d gaps %d are read of %d bytes, %v", n, len(got), len(text), err)
			continue
		}
		if n <= 7 {
			if len(got) != n || n > 0 && !reflect.DeepEqual(got, all) {
				t.Errorf("read %+v; want %+v", got, all)
			}
			continue
		}
		last := got[len(got)-1]
		if !reflect.DeepEqual(got[:len(got)-1], all[:len(got)-1]) || last.Topic != "long.**" {
			t.Errorf("of %d gaps these are read: %+v", n, got)
		}
		for _, g := range all[len(got)-1:] {
			if last.After > g.After || last.First > g.First || last.Compacted < g.Compacted || last.Tombstones < g.Tombstones {
				t.Errorf("%+v says less than %+v", last, g)
			}
		}
	}
	for _, text := range []string{"{", "{}", "[1]", `[{"topic":1}]`} {
		if _, err := transfer.ParseGaps(text); err == nil {
			t.Errorf("%s is taken for a list", text)
		}
	}
}
