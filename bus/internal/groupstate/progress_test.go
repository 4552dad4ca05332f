package groupstate

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"slices"
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
					e.attempts, e.since = uint16(standing-withAttempts), givenBefore
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
					e.since = 1
					e.attempts += uint16(rapid.IntRange(0, 1).Draw(t, "counts"))
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

// TestGivenIsFreshToEarlierVersions: a hub of before the standing of what was given, and given back,
// reads such an event as fresh, and all others as they are.
func TestGivenIsFreshToEarlierVersions(t *testing.T) {
	b := encodeRuns([]run{{3, 4, withAttempts}, {5, 5, acked}, {6, 6, withAttempts + 3}, {9, 9, withAttempts}}, 0)
	var got []uint64
	for len(b) > 0 { // as they did
		length, n := binary.Uvarint(b)
		standing, m := binary.Uvarint(b[n:])
		for range length {
			got = append(got, standing)
		}
		b = b[n+m:]
	}
	if want := []uint64{0, 0, 0, 0, 0, 1, 4, 0, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("the standings are %d; want %d", got, want)
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

// TestHistoriesOfAWriteAreBounded: many long histories are written in several writes, none of them larger than
// what a journal keeps free for groups, and all of them are.
func TestHistoriesOfAWriteAreBounded(t *testing.T) {
	p := newProgress()
	const events = 500
	for offset := range uint64(events) {
		for range maxHistory {
			p.note(offset+1, admin.Attempt{Reason: strings.Repeat("x", 1<<10)})
		}
	}
	var w window
	has := make(map[uint64]bool)
	for writes := 1; len(p.noted) > 0; writes++ {
		parts, _ := p.parts(&w, 0)
		bytes := 0
		for _, part := range parts {
			bytes += len(part.Value)
			has[part.Offset] = true
		}
		if bytes > writeHistoryBytes+store.MaxPartBytes || len(parts) == 0 {
			t.Fatalf("write %d has %d parts of %d bytes", writes, len(parts), bytes)
		}
	}
	if len(has) != events {
		t.Errorf("%d histories are written of %d", len(has), events)
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

// TestDoneAndGone: what was acked before a start and is gone stays acked, over any number of starts, however
// reading passes it, also where the commit is refused that would have moved the cursor past it.
func TestDoneAndGone(t *testing.T) {
	const gone = chunkSize + 7 // in a chunk where nothing else is
	for name, pass := range map[string]func(g *Group){
		"read":      func(g *Group) { g.Read(2*chunkSize, nil, true, 0) },
		"skipped":   func(g *Group) { g.SkipTo(2 * chunkSize) },
		"overtaken": func(g *Group) { g.Overtaken(2 * chunkSize) },
	} {
		for _, refused := range []bool{false, true} {
			h := &single{}
			stored := []store.GroupPart{{Kind: PartProgress, Offset: 1, Value: encodeRuns([]run{{gone - 1, gone, acked}}, 1)}}
			for start := range 3 {
				p, err := Load("g", stored, 0)
				if err != nil {
					t.Fatal(err)
				}
				g := new(Group)
				g.Restore(h, Config{MaxAttempts: 5, Backoff: func(int) int64 { return 1 }}, p, 0, 1, 0, 1)
				e := g.Read(1, nil, true, 0)
				g.Deliver(e, &Holder{Member: h}, []byte(`{"ts":1,"id":"e1","topic":"t","payload":1}`), 1, 0)
				pass(g)
				if refused {
					x := g.BeginAcks([]*Entry{e})
					if !g.Enter(&x) {
						t.Fatal("the step does not stand")
					}
					g.Parts(g.CursorAfterCommit())
					g.Withdraw(&x, 1)
				} else {
					g.progress.mark(gone)
				}
				var parts []store.GroupPart
				if parts, _, _ = g.Parts(g.Cursor()); !slices.ContainsFunc(parts, func(p store.GroupPart) bool { return p.Kind == PartProgress && p.Offset == 1 }) {
					t.Errorf("%s, refused %t, start %d: the chunk is not written", name, refused, start)
				}
				slices.SortFunc(parts, func(a, b store.GroupPart) int {
					return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Offset, b.Offset))
				})
				known, err := Load("g", parts, 0)
				if err != nil || !known.IsAcked(gone-1) || !known.IsAcked(gone) || known.IsAcked(gone+1) {
					t.Errorf("%s, refused %t, start %d: %d is not acked any more: %+v, %v", name, refused, start, gone, known.restored, err)
				}
				stored = parts
			}
		}
	}
}
