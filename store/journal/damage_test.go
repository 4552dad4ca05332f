package journal_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store/journal"
	"eventhub/store/journal/memory"
)

// TestRandomDamage: whatever an engine does to what it has, a follower gets the entries that were
// written, up to the damage and no further, and a hub whose copy has more does not lead.
func TestRandomDamage(t *testing.T) {
	first := rand.Uint64()
	refused := 0
	for i := range uint64(testsize.Of(1000, 60)) {
		seed := first + i
		bubble.Test(t, func(t *testing.T) {
			if damage(t, rand.New(rand.NewPCG(seed, 0))) {
				refused++
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%d hubs did not lead", refused)
	if refused == 0 {
		t.Error("every hub leads")
	}
}

// damage is one journal. It reports whether a hub with all of it could not take over.
func damage(t *testing.T, random *rand.Rand) bool {
	engine := memory.New(small)
	j := engine.Open()
	var whole []journal.Entry
	var at journal.Position
	for hub := range 1 + random.IntN(3) {
		d := lead(t, j, at, fmt.Sprint("hub", hub))
		for range random.IntN(8) {
			put(t, d, strings.Repeat("x", random.IntN(200)))
		}
		_ = d.Close()
		at = d.Position()
	}
	_ = following(j, journal.Position{}, func(e journal.Entry) { whole = append(whole, e) })

	bad := 1 + random.Uint64N(at.Seq) // the first place that is not what it was
	kind := random.IntN(4)
	switch entry, _ := j.Read(background, bad); kind {
	case 0:
		engine.Flip(bad, random.IntN(len(entry)*8))
	case 1:
		engine.Rollback(int(at.Seq - bad + 1))
	case 3:
		engine.Remove(bad)
	case 2: // another hub wrote instead of what was lost
		engine.Rollback(int(at.Seq - bad + 1))
		for i := range 1 + random.IntN(3) {
			var before uint64
			if seq := bad + uint64(i) - 1; seq > 0 {
				last, _ := j.Read(background, seq)
				before = journal.Hash(last)
			}
			engine.Put(entryOf(journal.Header{Kind: journal.KindLead, Epoch: 9 + uint64(i), Hub: "other", Chain: before}))
		}
	}
	n := 0
	err := following(j, journal.Position{}, func(e journal.Entry) {
		if e.Hub == "other" {
			return
		}
		if n >= len(whole) || e.Position != whole[n].Position || string(e.Data) != string(whole[n].Data) {
			t.Errorf("entry %d is %+v", n, e)
		}
		n++
	})
	if n > 0 && whole[n-1].Position.Seq >= bad {
		t.Errorf("followed up to %d, and %d is bad: %v", whole[n-1].Position.Seq, bad, err)
	}
	// Who stands at the bad place; or after it, unless one bit of an entry that is not looked at is
	// all that is wrong.
	from := whole[slices.IndexFunc(whole, func(e journal.Entry) bool { return e.Position.Seq >= bad })].Position
	if from.Seq == bad || kind == 1 || kind == 2 {
		fails(t, fmt.Sprintf("following from %d of %d, and %d is bad", from.Seq, at.Seq, bad), following(j, from, func(journal.Entry) {}), journal.ErrDiverged)
	}
	if i := slices.IndexFunc(whole, func(e journal.Entry) bool { return e.Position == at }); kind == 3 && bad == at.Seq && i > 0 {
		_, err := journal.New(j).Lead(background, whole[i-1].Position, "last", 1)
		fails(t, fmt.Sprintf("leading after %d, where %d is lost", whole[i-1].Position.Seq, bad), err, journal.ErrDiverged)
	}
	d, err := journal.New(j).Lead(background, at, "last", 1)
	if err == nil {
		_ = d.Close()
		if last, _ := j.Read(background, at.Seq); journal.Hash(last) != at.Chain {
			t.Errorf("a hub leads after %d, which is another entry", at.Seq)
		}
	}
	return errors.Is(err, journal.ErrDiverged)
}
