package pebble

import (
	"context"
	"errors"
	"strings"
	"testing"

	"eventhub/internal/faultfs"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
)

// TestGroupHeaders holds the bytes of headers: those written before groups could
// be paused are read as what they were, and what is none is refused.
func TestGroupHeaders(t *testing.T) {
	for _, tt := range []struct {
		name, bytes string
		want        store.GroupState
	}{
		{"no settings", "\x03\x81\x01", store.GroupState{Epoch: 3, Cursor: 129}},
		{"settings", "\x03\x07{}", store.GroupState{Epoch: 3, Cursor: 7, Settings: []byte("{}")}},
		{"cursor 1 and settings", "\x00\x01[]", store.GroupState{Cursor: 1, Settings: []byte("[]")}},
		{"paused", "\x03\x07\x01", store.GroupState{Epoch: 3, Cursor: 7, Paused: true}},
		{"paused with settings", "\x03\x07\x01 1", store.GroupState{Epoch: 3, Cursor: 7, Paused: true, Settings: []byte(" 1")}},
	} {
		got, err := decodeGroupValue([]byte(tt.bytes))
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v, (-want +got):\n%s", tt.name, err, diff)
		}
		if again := string(appendGroupValue(nil, &tt.want)); again != tt.bytes {
			t.Errorf("%s is written as %q; want %q", tt.name, again, tt.bytes)
		}
	}
	for _, bad := range []string{"", "\x80", "\x03", "\x03\x80", "\x03\x07\x00", "\x03\x07\x02{}", "\x03\x07\x01\x01{}", "\x03\x07\x1f"} {
		if got, err := decodeGroupValue([]byte(bad)); err == nil {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
}

// TestDamagedPartKey: a key that no part has is an error, not a part.
func TestDamagedPartKey(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	mustCommitGroup(t, s, store.GroupChange{Topic: "t", Group: "g", Create: true})
	key := appendPartKey(nil, s.topics.get("t").id, "g", 1, 1)
	if err := s.db.Set(key[:len(key)-1], []byte("x"), pdb.Sync); err != nil {
		t.Fatal(err)
	}
	if parts, err := s.GroupParts(context.Background(), "t", "g"); err == nil || !strings.Contains(err.Error(), `group "g" of topic "t"`) {
		t.Errorf("GroupParts = %v, %v; want an error that names the group", parts, err)
	}
}

func mustCommitGroup(t testing.TB, s *Store, ch store.GroupChange) {
	t.Helper()
	u := &store.Unit{Groups: []store.GroupChange{ch}}
	if err := s.Commit(context.Background(), []*store.Unit{u}, true); err != nil || u.Err != nil {
		t.Fatalf("Commit: %v, %v", err, u.Err)
	}
}

func oneByte(kind byte) []store.GroupPart { return []store.GroupPart{{Kind: kind, Value: []byte("x")}} }

// TestNothingStaysBehind: a group's end, and its reset, leave no key of a part,
// nor do parts that are removed.
func TestNothingStaysBehind(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	for _, last := range []store.GroupChange{
		{Delete: true},
		{Reset: true},
		{Parts: []store.GroupPart{{Kind: 1}}},
	} {
		name := "g"
		if !last.Delete {
			name = "h"
		}
		mustCommitGroup(t, s, store.GroupChange{Topic: "t", Group: name, Create: s.groupMissing(t, name), Parts: oneByte(1)})
		last.Topic, last.Group = "t", name
		mustCommitGroup(t, s, last)
		scan(t, s, tagPart, func(key, _ []byte) { t.Errorf("after %+v the key %q is there", last, key) })
	}
}

func (s *Store) groupMissing(t testing.TB, group string) bool {
	t.Helper()
	_, err := s.Group(context.Background(), "t", group)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	return err != nil
}

// TestPartsOfFailedCommit: what a commit that failed may have left in Pebble is
// never shown; the parts of other groups are.
func TestPartsOfFailedCommit(t *testing.T) {
	fault := &failing{match: isWALSync}
	o := onMem(t, faultfs.Wrap(vfs.NewMem(), fault))
	o.Fatal = func(error) {}
	s := mustOpen(t, o)
	mustCommitGroup(t, s, store.GroupChange{Topic: "t", Group: "changed", Create: true, Parts: oneByte(1)})
	mustCommitGroup(t, s, store.GroupChange{Topic: "t", Group: "other", Create: true, Parts: oneByte(2)})
	fault.on.Store(true)
	u := &store.Unit{Groups: []store.GroupChange{{Topic: "t", Group: "changed", Parts: oneByte(3)}}}
	if err := s.Commit(context.Background(), []*store.Unit{u}, true); !errors.Is(err, store.ErrBroken) {
		t.Fatalf("Commit: %v; want store.ErrBroken", err)
	}
	if parts, err := s.GroupParts(context.Background(), "t", "changed"); !errors.Is(err, store.ErrBroken) || parts != nil {
		t.Errorf("parts that a failed commit changed: %v, %v; want store.ErrBroken", parts, err)
	}
	parts, err := s.GroupParts(context.Background(), "t", "other")
	if diff := cmp.Diff(oneByte(2), parts); err != nil || diff != "" {
		t.Errorf("parts of the other group: %v, (-want +got):\n%s", err, diff)
	}
	if err := s.Close(); err != nil && !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("close: %v; want nothing but the injected error", err)
	}
}

// TestPartsOfOthersDoNotWait: a commit under way holds up the readers of the
// groups it changes alone.
func TestPartsOfOthersDoNotWait(t *testing.T) {
	hold := new(syncHold)
	s := mustOpen(t, onMem(t, faultfs.Wrap(vfs.NewMem(), hold)))
	defer mustClose(t, s)
	mustCommitGroup(t, s, store.GroupChange{Topic: "t", Group: "g", Create: true, Parts: oneByte(1)})
	reached, release := hold.arm()
	done := make(chan error, 1)
	go func() {
		u := &store.Unit{Groups: []store.GroupChange{{Topic: "t", Group: "h", Create: true, Parts: oneByte(2)}}}
		done <- s.Commit(context.Background(), []*store.Unit{u}, true)
	}()
	<-reached
	parts, err := s.GroupParts(context.Background(), "t", "g")
	if diff := cmp.Diff(oneByte(1), parts); err != nil || diff != "" {
		t.Errorf("parts of the group at rest: %v, (-want +got):\n%s", err, diff)
	}
	if iter, changing, err := s.quietParts(groupKey{"t", "h"}); iter != nil || !changing || err != nil {
		t.Errorf("the group under change: iterator %v, changing %v, %v", iter != nil, changing, err)
	}
	release()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestSpace: the disk's room where there is a disk, none where there is no
// bound, and what a test says.
func TestSpace(t *testing.T) {
	space := func(o Options) (store.Space, error) {
		t.Helper()
		s := mustOpen(t, o)
		defer mustClose(t, s)
		return s.Space()
	}
	if got, err := space(onDisk(t, t.TempDir())); err != nil || got.Free == 0 || got.Total < got.Free {
		t.Errorf("on a disk: %+v, %v", got, err)
	}
	if got, err := space(onMem(t, vfs.NewMem())); err != nil || got != (store.Space{}) {
		t.Errorf("in memory: %+v, %v; want none", got, err)
	}
	o := onMem(t, vfs.NewMem())
	want, refused := store.Space{Free: 1, Total: 2}, errors.New("refused")
	o.Space = func() (store.Space, error) { return want, refused }
	if got, err := space(o); got != want || !errors.Is(err, refused) {
		t.Errorf("as written: %+v, %v", got, err)
	}
}
