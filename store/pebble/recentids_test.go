package pebble

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"eventhub/internal/testsize"
	"eventhub/store"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"
)

var recentRounds = testsize.Int("recent.rounds", 4000, 400, "units of the random history of new ids")

// uuid7At is a UUID of version 7 of a time, in milliseconds.
func uuid7At(ms int64, rng *rand.Rand) string {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:], uint64(ms)<<16|7<<12|uint64(rng.IntN(1<<12)))
	binary.BigEndian.PutUint64(id[8:], 2<<62|rng.Uint64()>>2)
	return id.String()
}

// TestNewIDsCostNoLookUp: a UUID of version 7 that its publisher has just made is not looked up; one that was
// there is, whatever became of its unit, and so is all that the window does not know.
func TestNewIDsCostNoLookUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	o := onMem(t, vfs.NewMem())
	o.Now = time.Now // that of the random ids that the store makes
	s := mustOpen(t, o)
	defer mustClose(t, s)
	now := s.now()
	fresh := uuid7At(now, rng)
	looked := func(what string, want int, ids ...string) {
		t.Helper()
		u := &store.Unit{}
		for _, id := range ids {
			u.Appends = append(u.Appends, given("t", id))
		}
		if err := s.Commit(context.Background(), []*store.Unit{u}, true); err != nil || u.Err != nil {
			t.Fatal(err, u.Err)
		}
		if got := len(s.commit.given.pending); got != want {
			t.Errorf("%s: %d ids were looked up; want %d", what, got, want)
		}
	}
	own := mustCommit(t, s, true, made("t"))[0].ID
	looked("new ids, out of order", 0, fresh, uuid7At(now+5, rng), uuid7At(now-5, rng))
	looked("one that is there", 1, fresh, uuid7At(now+9, rng))
	future := uuid7At(now+2*windowAhead.Milliseconds(), rng)
	looked("text, another version and the future", 3, "text", "c0ffee00-0000-4abc-bdef-0123456789ab", future)
	looked("new after one of the future", 0, uuid7At(now+1, rng))
	refused := uuid7At(now+2, rng)
	u := &store.Unit{Appends: []store.Append{given("t", refused)}, Groups: []store.GroupChange{{Topic: "t", Group: "none"}}}
	if err := s.Commit(context.Background(), []*store.Unit{u}, true); err != nil || u.Err == nil {
		t.Fatalf("the unit is taken, %v", err)
	}
	looked("one of a refused unit", 1, refused)
	if a := mustCommit(t, s, true, given("t", own))[0]; !a.Duplicate {
		t.Errorf("%s, which the store has made, is at %d again", own, a.Offset)
	}
	large := made("t") // its id does not tell its place, so it is in the index
	large.KeepOffset = 1 << placeOffsetBits
	large = mustCommit(t, s, true, large)[0]
	if a := mustCommit(t, s, true, given("t", large.ID))[0]; !a.Duplicate || a.Offset != large.Offset {
		t.Errorf("%s of offset %d is at %d again", large.ID, large.Offset, a.Offset)
	}
}

// TestRandomNewIDs publishes ids around the clock and repeats them, while events and their ids go, the clock moves
// to and fro, windows end and the store is opened again: what the store has is a duplicate, and all else
// is not.
func TestRandomNewIDs(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	mem := vfs.NewCrashableMem()
	ms := fixedTime().UnixMilli()
	open := func() *Store {
		o := onMem(t, mem)
		o.Now = func() time.Time { return time.UnixMilli(ms) }
		s := mustOpen(t, o)
		s.commit.given.recent.most = 1 + rng.IntN(60)
		return s
	}
	s := open()
	topics := []string{"a", "b"}
	there := make(map[string]uint64) // offsets by topic and id
	var ids []string
	news, olds := 0, 0
	for range *recentRounds {
		u := &store.Unit{}
		for range 1 + rng.IntN(8) {
			id := uuid7At(ms+int64(rng.IntN(7)-3), rng)
			if rng.IntN(40) == 0 { // and then windows know little until the clock has moved on
				id = uuid7At(ms+int64([]int{-5000, 5000, 50_000, 70_000, 3_600_000}[rng.IntN(5)]), rng)
			}
			if len(ids) > 0 && rng.IntN(3) == 0 {
				id = ids[len(ids)-1-rng.IntN(min(len(ids), 30))]
			}
			ids = append(ids, id)
			u.Appends = append(u.Appends, given(topics[rng.IntN(2)], id))
		}
		if err := s.Commit(context.Background(), []*store.Unit{u}, rng.IntN(2) == 0); err != nil || u.Err != nil {
			t.Fatal(err, u.Err)
		}
		for i := range u.Appends {
			a := &u.Appends[i]
			at, known := there[a.Topic+a.ID]
			if a.Duplicate != known || known && a.Offset != at {
				t.Fatalf("%s in %s is at %d, duplicate: %v; it was at %d: %v", a.ID, a.Topic, a.Offset, a.Duplicate, at, known)
			}
			if there[a.Topic+a.ID] = a.Offset; known {
				olds++
			} else {
				news++
			}
		}
		switch rng.IntN(20) {
		case 0:
			ms += int64(rng.IntN(100_000)) - 30_000
		case 1:
			mustClose(t, s)
			s = open()
		case 2:
			id := ids[rng.IntN(len(ids))]
			if offset := there["a"+id]; offset != 0 {
				mustRemove(t, s, store.TopicChange{Topic: "a", Erase: []uint64{offset}, ForgetIDs: true})
				sweepAll(t, s)
				delete(there, "a"+id)
			}
		default:
			ms += int64(rng.IntN(20))
		}
	}
	checkIndexes(t, s)
	mustClose(t, s)
	t.Logf("%d new ids, %d duplicates", news, olds)
	if news < 100 || olds < 100 {
		t.Error("too few to show anything")
	}
}
