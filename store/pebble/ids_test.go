package pebble

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"eventhub/internal/record/layout"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// TestIDsTellPlaces: a place goes into an id and comes back, and the id is a UUIDv7 of
// its time.
func TestIDsTellPlaces(t *testing.T) {
	s, other := mustOpen(t, onMem(t, vfs.NewMem())), mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	defer mustClose(t, other)
	rapid.Check(t, func(t *rapid.T) {
		topic := rapid.Uint32().Draw(t, "topic")
		offset := rapid.Uint64Range(1, 1<<placeOffsetBits-1).Draw(t, "offset")
		ms := rapid.Int64Range(0, maxCommitTime).Draw(t, "ms")
		p := place{topic, offset}
		id := s.ids.make(p, ms)
		u, err := uuid.Parse(id)
		if err != nil || u.String() != id || u.Version() != 7 || u.Variant() != uuid.RFC4122 {
			t.Fatalf("%q is no UUIDv7: %v", id, err)
		}
		if sec, nsec := u.Time().UnixTime(); sec*1000+nsec/1e6 != ms {
			t.Errorf("the time of %q is %d.%09d; want %d ms", id, sec, nsec, ms)
		}
		if got, ok := s.ids.fresh().place(id); !ok || got != p {
			t.Errorf("%q names %v, %v; want %v", id, got, ok, p)
		}
		// Not so to another store, nor at another time.
		if again := other.ids.make(p, ms); again == id {
			t.Errorf("two stores make %q", id)
		}
		if again := s.ids.make(p, ms+1); again[14:] == id[14:] {
			t.Errorf("%q and %q differ in the time alone", id, again)
		}
	})
	for _, id := range []string{"", "x", "0190a5d2-0000-4000-8000-000000000000", "0190a5d2-0000-7000-0000-000000000000",
		"0190a5d2x0000-7000-8000-000000000000", "0190a5d200007000800000000000000000000"} {
		if got, ok := s.ids.place(id); ok {
			t.Errorf("%q names %v", id, got)
		}
	}
}

// TestIDsOfLargePlaces: what an id has no room for is in the index.
func TestIDsOfLargePlaces(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	large := given("t", "large")
	large.KeepOffset = 1<<placeOffsetBits - 2
	a := mustCommit(t, s, true, large, made("t"), made("t"))
	for i, want := range []bool{true, false} {
		m := a[i+1]
		if got, _ := s.ids.place(m.ID); (got == place{s.topics.get("t").id, m.Offset}) != want {
			t.Errorf("the id of offset %d names %v", m.Offset, got)
		}
		if offset, err := s.Find(context.Background(), "t", m.ID); offset != m.Offset {
			t.Errorf("Find: %d, %v; want %d", offset, err, m.Offset)
		}
	}
	checkIndexes(t, s)
}

// TestGivenIDsThatNamePlaces: an id that names a place belongs only to the event that has the id.
func TestGivenIDsThatNamePlaces(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	first := mustCommit(t, s, true, made("t"))[0]
	topic := s.topics.get("t").id
	for _, id := range []string{
		s.ids.make(place{topic, first.Offset}, first.CommitTime+1), // of an event that has another id
		s.ids.make(place{topic, 99}, first.CommitTime),             // of none yet
	} {
		a := mustCommit(t, s, true, given("t", id))[0]
		if a.Duplicate {
			t.Errorf("%q is a duplicate", id)
		}
		if again := mustCommit(t, s, true, given("t", id))[0]; !again.Duplicate || again.Offset != a.Offset {
			t.Errorf("%q again is at %d, duplicate %v; want %d", id, again.Offset, again.Duplicate, a.Offset)
		}
		if places, err := s.Places(context.Background(), id, 9); err != nil || len(places) != 1 || places[0] != (store.Place{Topic: "t", Offset: a.Offset}) {
			t.Errorf("%q is at %v, %v; want %d", id, places, err, a.Offset)
		}
	}
	checkIndexes(t, s)
}

// TestGivenIDAtItsPlace: what comes back to the place that its id names, as an export of
// a store into an older copy of it does, is there once, and goes whole with its topic.
func TestGivenIDAtItsPlace(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	next := s.nextTopic
	for i, topic := range []string{"created with it", "there"} {
		if i > 0 {
			mustCommit(t, s, true, given(topic, "first"))
		}
		a := given(topic, s.ids.make(place{next + uint32(i), 7}, 5))
		a.KeepOffset = 7
		if a = mustCommit(t, s, true, a)[0]; a.Duplicate || a.Offset != 7 {
			t.Fatalf("%q is at %d, duplicate %v", a.ID, a.Offset, a.Duplicate)
		}
		if again := mustCommit(t, s, true, given(topic, a.ID))[0]; !again.Duplicate || again.Offset != 7 {
			t.Errorf("%q again is at %d, duplicate %v", a.ID, again.Offset, again.Duplicate)
		}
		want := []store.Place{{Topic: topic, Offset: 7}}
		if places, err := s.Places(context.Background(), a.ID, 9); err != nil || !slices.Equal(places, want) {
			t.Errorf("%q is at %v, %v; want %v", a.ID, places, err, want)
		}
		checkIndexes(t, s)
		if err := s.DeleteTopic(context.Background(), topic); err != nil {
			t.Fatal(err)
		}
	}
	sweepAll(t, s)
	scan(t, s, tagID, func(key, _ []byte) { t.Errorf("%q is left in the index", key) })
}

// TestOpenFormerFormat: a store from when all ids were indexed is opened, and from then
// on has the present format.
func TestOpenFormerFormat(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, onDisk(t, dir))
	old := mustCommit(t, s, true, given("t", "0190a5d2-0000-7000-8000-000000000000"))[0]
	if err := s.db.Delete(metaIDSecret, pdb.Sync); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	path := filepath.Join(dir, formatFile)
	if err := os.WriteFile(path, []byte("eventhub-pebble 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var made1 store.Append
	for range 2 {
		s = mustOpen(t, onDisk(t, dir))
		if content, err := os.ReadFile(path); string(content) != formatLine {
			t.Errorf("the format reads %q, %v; want %q", content, err, formatLine)
		}
		if made1.ID == "" {
			made1 = mustCommit(t, s, true, made("t"))[0]
		}
		for _, a := range []store.Append{old, made1} {
			if offset, err := s.Find(context.Background(), "t", a.ID); offset != a.Offset {
				t.Errorf("Find(%q): %d, %v; want %d", a.ID, offset, err, a.Offset)
			}
		}
		checkIndexes(t, s)
		mustClose(t, s)
	}
}

// TestDamagedIDSecret: without its secret a store would not find its own events.
func TestDamagedIDSecret(t *testing.T) {
	o := onMem(t, vfs.NewMem())
	s := mustOpen(t, o)
	if err := s.db.Set(metaIDSecret, []byte("short"), pdb.Sync); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	_, err := Open(o)
	wantError(t, err, nil, "5 bytes")
}

func BenchmarkMakeID(b *testing.B) {
	s := mustOpen(b, onMem(b, vfs.NewMem()))
	defer mustClose(b, s)
	b.ReportAllocs()
	for i := range uint64(b.N) {
		if id := s.ids.make(place{1, i + 1}, 1723140000000); len(id) != len(layout.IDRoom) {
			b.Fatal(id)
		}
	}
}
