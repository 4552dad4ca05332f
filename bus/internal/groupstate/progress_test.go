package groupstate

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"eventhub/admin"
	"eventhub/store"
	"eventhub/store/memory"
)

// TestProgressSurvives writes what a group knows of its events, part by part as
// it changes, reads it back, and compares offset by offset; again and again, with
// only a part of the window read again each time.
func TestProgressSurvives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		s := memory.Open(memory.Options{})
		state := store.GroupState{Epoch: 1, Cursor: chunkSize - 6}
		write := func(ch store.GroupChange) {
			ch.Topic, ch.Group, ch.State = "t", "g", state
			u := &store.Unit{Groups: []store.GroupChange{ch}}
			if err := s.Commit(ctx, []*store.Unit{u}, true); err != nil || u.Err != nil {
				t.Fatal(err, u.Err)
			}
		}
		write(store.GroupChange{Create: true})
		want := make(map[uint64]uint64) // standing by offset
		for range rapid.IntRange(1, 4).Draw(t, "runs of the engine") {
			stored, err := s.GroupParts(ctx, "t", "g")
			if err != nil {
				t.Fatal(err)
			}
			p, err := Load("g", stored, state.Cursor)
			if err != nil {
				t.Fatal(err)
			}
			var w window
			w.reset(state.Cursor)
			read := w.next + uint64(rapid.IntRange(0, 12).Draw(t, "read"))
			for offset := w.next; offset < read; offset++ {
				e := w.add(offset)
				switch standing := p.standing(offset); {
				case standing != want[offset]:
					t.Fatalf("%d is restored as %d; want %d", offset, standing, want[offset])
				case standing == acked:
					w.settle(e)
				case standing > acked:
					e.attempts = uint16(standing - withAttempts)
				}
			}
			for range rapid.IntRange(0, 20).Draw(t, "changes") {
				offset := state.Cursor + 1 + uint64(rapid.IntRange(0, 11).Draw(t, "offset"))
				e := w.find(offset)
				if e == nil || e.state == Done {
					continue
				}
				p.mark(offset)
				if rapid.Bool().Draw(t, "ack") {
					want[offset] = acked
					w.settle(e)
				} else {
					e.attempts++
					want[offset] = withAttempts + uint64(e.attempts)
				}
				if rapid.IntRange(0, 3).Draw(t, "write") == 0 {
					state.Cursor = w.cursor()
					var ch store.GroupChange
					ch.Parts, ch.Reset = p.parts(&w, state.Cursor)
					write(ch)
				}
			}
			state.Cursor = w.cursor()
			var ch store.GroupChange
			ch.Parts, ch.Reset = p.parts(&w, state.Cursor)
			write(ch)
		}
	})
}

// TestBrokenProgress: bytes that no engine wrote are refused, not guessed at.
func TestBrokenProgress(t *testing.T) {
	for _, b := range [][]byte{{1}, {0, 1}, {0x80}, {5, 0x80}, {0x81, 0x20, 1}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1}, {0x80, 0x20, 1, 1, 1}} {
		if runs, ok := decodeRuns(3, b); ok {
			t.Errorf("decodeRuns(%x) = %v", b, runs)
		}
	}
	runs, ok := decodeRuns(3, encodeRuns([]run{{3 * chunkSize, 4*chunkSize - 1, 7}}, 3))
	if !ok || len(runs) != 1 || runs[0] != (run{3 * chunkSize, 4*chunkSize - 1, 7}) {
		t.Errorf("a whole chunk comes back as %v, %t", runs, ok)
	}
}

// TestHistoryIsBounded: of an event that failed very often the last attempts are
// shown.
func TestHistoryIsBounded(t *testing.T) {
	p := newProgress()
	for i := range 100 {
		p.note(7, admin.Attempt{Attempt: i + 1})
	}
	for range maxHistory {
		p.note(8, admin.Attempt{Reason: strings.Repeat("\x00", 1<<10)}) // six bytes each in JSON
	}
	p.mark(8)
	var w window
	parts, _ := p.parts(&w, 0)
	for _, part := range parts {
		var h []admin.Attempt
		if len(part.Value) > store.MaxPartBytes || json.Unmarshal(part.Value, &h) != nil || len(h) < 5 {
			t.Errorf("part %c %d has %d bytes, %d attempts", part.Kind, part.Offset, len(part.Value), len(h))
		}
	}
	if h := p.history[7]; len(h) != maxHistory || h[0].Attempt != 81 || h[maxHistory-1].Attempt != 100 {
		t.Errorf("history %+v", h)
	}
}

// TestRewriteOverAGap: a group that writes all it knows again looks at the chunks in
// which there is something, and not at those in between.
func TestRewriteOverAGap(t *testing.T) {
	p := newProgress()
	var w window
	w.reset(0)
	w.add(1)
	w.add(1 << 30)
	p.rewrite(&w)
	if n := len(p.chunks); n != 2 {
		t.Errorf("%d chunks are written again for two events", n)
	}
}
