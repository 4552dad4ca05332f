package groupstate

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestWindow compares the window with a map of what was read and is not done.
func TestWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w window
		cursor := uint64(rapid.IntRange(0, 5).Draw(t, "cursor"))
		w.reset(cursor)
		next := cursor + 1
		read := make(map[uint64]bool) // offset → done
		undone := func() (offsets []uint64) {
			for offset, done := range read {
				if !done {
					offsets = append(offsets, offset)
				}
			}
			slices.Sort(offsets)
			return offsets
		}
		settle := func(offset uint64) {
			before := w.cursor()
			if moved := w.settle(w.find(offset)); moved != (w.cursor() != before) {
				t.Fatalf("settle of %d says %t; the cursor went from %d to %d", offset, moved, before, w.cursor())
			}
			read[offset] = true
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0: // read some, with gaps
				for range rapid.SampledFrom([]int{1, 3, 20, 700}).Draw(t, "events") {
					next += uint64(rapid.SampledFrom([]int{0, 0, 0, 2, 1 << 40}).Draw(t, "gap"))
					w.add(next)
					read[next] = false
					next++
				}
			case 1: // settle one
				if open := undone(); len(open) > 0 {
					settle(open[rapid.IntRange(0, len(open)-1).Draw(t, "one")])
				}
			case 2: // settle a stretch, from either end
				open := undone()
				n := rapid.IntRange(0, len(open)).Draw(t, "stretch")
				if rapid.Bool().Draw(t, "from the end") {
					slices.Reverse(open)
				}
				for _, offset := range open[:n] {
					settle(offset)
				}
			case 3:
				next += uint64(rapid.IntRange(0, 2).Draw(t, "skip"))
				w.skipTo(next)
			}
			checkWindow(t, &w, read, undone(), next)
		}
	})
}

func checkWindow(t *rapid.T, w *window, read map[uint64]bool, undone []uint64, next uint64) {
	cursor := next - 1
	if len(undone) > 0 {
		cursor = undone[0] - 1
	}
	acked := 0
	for offset, done := range read {
		if done && offset > cursor {
			acked++
		}
		if e := w.find(offset); !done && (e == nil || e.offset != offset || e.state == Done) || done && e != nil && e.state != Done {
			t.Fatalf("find(%d) = %+v; done: %t", offset, e, done)
		}
	}
	if w.cursor() != cursor || w.next != next || w.acked != acked || w.size() != uint64(acked+len(undone)) {
		t.Fatalf("cursor %d, next %d, %d acked, %d in all; want %d, %d, %d, %d", w.cursor(), w.next, w.acked, w.size(), cursor, next, acked, acked+len(undone))
	}
	var open []uint64
	for e := range w.open() {
		open = append(open, e.offset)
	}
	if !slices.Equal(open, undone) {
		t.Fatalf("open yields %v; want %v", open, undone)
	}
	for _, offset := range []uint64{0, cursor, (cursor + next) / 2, next} {
		above := uint64(0)
		for o, done := range read {
			if done && o > max(cursor, offset) {
				above++
			}
		}
		if got := w.ackedAbove(offset); got != above {
			t.Fatalf("ackedAbove(%d) = %d; want %d", offset, got, above)
		}
		from, _ := slices.BinarySearch(undone, offset)
		if got := w.openFrom(offset); got != uint64(len(undone)-from) {
			t.Fatalf("openFrom(%d) = %d; not done are %v", offset, got, undone)
		}
	}
}
