package bus

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
	"eventhub/store/memory"
)

// TestProgressSurvives writes what a group knows of its events, part by part as
// it changes, reads it back, and compares offset by offset; again and again, with
// only a part of the window read anew each time.
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
			var p progress
			if err := p.load(ctx, s, "t", "g", state.Cursor); err != nil {
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
				if e == nil || e.state == done {
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
// told.
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

// TestOutlivedPartsAreRemoved: what a crash left behind of events that are done
// is gone soon after the group is loaded, whether or not it has anything to do.
func TestOutlivedPartsAreRemoved(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		in.ack(byLease(in.take()[0]))
		in.sub.Drop(0)
		time.Sleep(time.Second)
		r.stop()
		left := store.GroupChange{Topic: "t", Group: "g", State: r.stored("t", "g"), Parts: []store.GroupPart{
			{Kind: partHistory, Offset: 1, Value: []byte(`[]`)}, {Kind: partProgress, Offset: 0, Value: []byte{1, 0, 1, 2}}}}
		left.State.Cursor = chunkSize
		if err := r.store.Commit(context.Background(), []*store.Unit{{Groups: []store.GroupChange{left}}}, true); err != nil {
			t.Fatal(err)
		}
		r.start(Options{})
		r.subscribe(opts("t", "g"))
		time.Sleep(time.Second)
		parts, err := r.store.GroupParts(context.Background(), "t", "g")
		if err != nil || len(parts) != 0 {
			t.Errorf("parts %v, %v", parts, err)
		}
	})
}

// TestHistoryOfWhatIsDone: the commit in which an ack-and-publish acks an event leaves the event's
// history to a later one. Where the hub ends in between, the history goes after the next
// start, although the cursor has not passed the event and nobody reads it again.
func TestHistoryOfWhatIsDone(t *testing.T) {
	inBubble(t, func(r *rig) {
		s := &interposed{Store: r.store.Store}
		r.store.Store = s
		r.publish("t", 1, 3)
		in := r.subscribe(opts("t", "g"))
		first := in.take()
		in.nack(byLease(first[1]))
		time.Sleep(5 * time.Second) // longer than a backoff, shorter than a lease
		again := in.take()
		if parts := r.parts("t", "g"); len(again) != 1 || len(parts) != 2 {
			t.Fatalf("%d deliveries after a NACK, parts %v; want 1, and 2 parts", len(again), parts)
		}
		broken := errors.New("the store broke")
		s.when(behindIt, 0, func() { s.fail(broken) })
		if _, err := in.ackAndPublish([]eventhub.Ref{byLease(again[0])}, out(`1`)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		s.off()
		if err := r.bus.Close(); !errors.Is(err, broken) {
			t.Fatalf("Close: %v", err)
		}
		s.fail(nil)
		r.start(Options{})
		one := opts("t", "g")
		one.MaxInFlight = 1 // so that a turn begins at the event that is done
		in = r.subscribe(one)
		time.Sleep(time.Second)
		for range 2 {
			in.ack(byLease(in.take()[0]))
			time.Sleep(time.Second)
		}
		equal(t, "the stored cursor", r.stored("t", "g").Cursor, 3)
		if parts := r.parts("t", "g"); len(parts) != 0 {
			t.Errorf("with all done the group keeps parts %v", parts)
		}
	})
}

// parts returns what the store has of a group beside its header.
func (r *rig) parts(topic, group string) []store.GroupPart {
	r.t.Helper()
	parts, err := r.store.GroupParts(context.Background(), topic, group)
	if err != nil {
		r.t.Fatal(err)
	}
	return parts
}
