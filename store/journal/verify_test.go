package journal_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"eventhub/store/journal"
	"eventhub/store/journal/memory"
)

// TestVerify: what a journal has is counted, also where its beginning is trimmed in the middle of a
// commit; each kind of damage is found at its place, and what is before it is counted.
func TestVerify(t *testing.T) {
	j := memory.New(memory.Options{EntryBytes: 200})
	h := j.Open()
	log := journal.New(h)
	ctx := context.Background()
	if tally, err := log.Verify(ctx, nil); err != nil || tally != (journal.Tally{}) {
		t.Errorf("an empty journal: %+v, %v", tally, err)
	}
	a, err := log.Lead(ctx, journal.Position{}, "a", 1)
	if err != nil {
		t.Fatal(err)
	}
	large := make([]byte, 300) // three pieces
	for i, data := range [][]byte{[]byte("one"), large, []byte("two")} {
		if _, err := a.Append(data, int64(1000+i))(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Release()(); err != nil {
		t.Fatal(err)
	}
	at := a.Position()
	_ = a.Close()
	b, err := log.Lead(ctx, at, "b", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	last, err := b.Append([]byte("three"), 2000)()
	if err != nil {
		t.Fatal(err)
	}
	limits, err := h.Limits(ctx)
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	tally, err := log.Verify(ctx, func(*journal.Tally) { calls++ })
	if err != nil || tally.First != 1 || tally.Last != last.Seq || tally.Places != last.Seq || tally.Bytes != limits.Used || tally.Commits != 4 || tally.Leads != 2 ||
		tally.Epoch != 2 || tally.Hub != "b" || tally.LastMS != 2000 || calls != int(last.Seq) {
		t.Errorf("Verify = %+v, %v; %d calls", tally, err, calls)
	}
	for upTo := uint64(1); upTo < last.Seq; upTo++ { // through the pieces, and to the lead of b
		if err := h.Trim(ctx, upTo); err != nil {
			t.Fatal(err)
		}
		tally, err := log.Verify(ctx, nil)
		if err != nil || tally.First != upTo+1 || tally.Last != last.Seq || tally.Epoch != 2 {
			t.Errorf("trimmed up to %d: %+v, %v", upTo, tally, err)
		}
	}
	for i := range 10 {
		if last, err = b.Append([]byte{byte(i)}, 3000)(); err != nil {
			t.Fatal(err)
		}
	}
	j.Flip(last.Seq-3, 300)
	tally, err = log.Verify(ctx, nil)
	if !errors.Is(err, journal.ErrDiverged) || !strings.Contains(err.Error(), "checksum") || tally.Last != last.Seq-4 {
		t.Errorf("a bit that was flipped: %+v, %v", tally, err)
	}
	j.Rollback(4)
	entry, err := h.Read(ctx, last.Seq-6)
	if err != nil {
		t.Fatal(err)
	}
	j.Put(entry) // whole, and not the next one
	if tally, err = log.Verify(ctx, nil); !errors.Is(err, journal.ErrDiverged) || tally.Last != last.Seq-4 {
		t.Errorf("an entry that comes again: %+v, %v", tally, err)
	}
}
