package pebble

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestStateIsOfOneMoment: values are replaced, and compacted away, before the moment of a read and
// after it. Each key has one of its values all the same, of before or after, and the read says of which
// offset it is.
func TestStateIsOfOneMoment(t *testing.T) {
	for _, isAfter := range []bool{false, true} {
		o := onMem(t, vfs.NewMem())
		round, isBusy := 0, false
		var s *Store
		replace := func() {
			isBusy = true
			round++
			u := mustCommit(t, s, true, keyedEvent(fmt.Sprint("a", round), "a", `"x"`), keyedEvent(fmt.Sprint("b", round), "b", `"x"`))
			if round == 1 {
				mustIndex(t, s, "t")
			}
			mustRemove(t, s, store.TopicChange{Topic: "t", Compacted: u[1].Offset})
			for done := false; !done; {
				var err error
				if _, done, err = s.Compact(context.Background(), "t"); err != nil {
					t.Fatal(err)
				}
			}
			isBusy = false
		}
		o.reading = func(is bool) {
			if is == isAfter && round < 3 && !isBusy {
				replace()
			}
		}
		s = mustOpen(t, o)
		replace()
		var b store.Batch
		page, err := s.State(context.Background(), store.StateQuery{Topic: "t", Limit: 5, MaxBytes: 1 << 20}, &b)
		if err != nil || len(b.Items) != 2 || !page.Done || page.At < b.Compacted || b.Items[1].Offset != page.At {
			t.Errorf("replaced after the moment %v: %d items %v, %+v, compacted up to %d, %v", isAfter, len(b.Items), b.Items, page, b.Compacted, err)
		}
		// What comes before the moment has the read begin again, until it is of the head.
		if want := map[bool]int{false: 3, true: 2}[isAfter]; round != want {
			t.Errorf("replaced after the moment %v: %d rounds of values; want %d", isAfter, round, want)
		}
		mustClose(t, s)
	}
}

// TestWalkOverAColdLog: what the pages of a walk need is read while the second one is, so those after it read nothing from
// the disk; the store can be closed meanwhile.
func TestWalkOverAColdLog(t *testing.T) {
	o := onMem(t, vfs.NewMem())
	o.tune = func(p *pdb.Options) {
		small(p)
		p.CacheSize = 16 << 20 // all that is read stays
		p.DisableAutomaticCompactions = true
	}
	s := mustOpen(t, o)
	const keys, size = 400, 40
	var units []store.Append
	random := rand.New(rand.NewPCG(1, 2))
	for k := range keys {
		payload := make([]byte, 3000) // which no compression makes smaller
		for i := range payload {
			payload[i] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[random.IntN(64)]
		}
		units = append(units, keyedEvent(fmt.Sprint(k), fmt.Sprintf("key-%04d", k*7%keys), fmt.Sprintf("%q", payload)))
	}
	mustCommit(t, s, true, units...)
	mustIndex(t, s, "t")
	if err := s.db.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, closed := range []bool{false, true} {
		mustClose(t, s)
		s = mustOpen(t, o)
		q := store.StateQuery{Topic: "t", Limit: size, MaxBytes: 1 << 30}
		var read, misses int64
		for n := 1; ; n++ {
			var b store.Batch
			page, err := s.State(context.Background(), q, &b)
			if err != nil {
				t.Fatal(err)
			}
			read += int64(len(b.Items))
			if n == 2 {
				if closed {
					break
				}
				for s.isWarming.Load() {
					runtime.Gosched()
				}
				misses = s.db.Metrics().BlockCache.Misses
			}
			if page.Done {
				break
			}
			q.At, q.After = page.At, page.After
		}
		if closed {
			continue
		}
		if more := s.db.Metrics().BlockCache.Misses - misses; read != keys || more != 0 {
			t.Errorf("a walk of %d keys missed %d blocks after its second page; want %d and 0", read, more, keys)
		}
	}
	mustClose(t, s)
}

// TestStateOfAColdLog: what a page reads ahead after a start is what it reads then, with keys that have
// newer events than the page's offset, and others.
func TestStateOfAColdLog(t *testing.T) {
	fsys := vfs.NewMem()
	s := mustOpen(t, onMem(t, fsys))
	const keys = 500
	for round := range 3 {
		var units []store.Append
		for k := range keys {
			if round == 0 || k%(round+1) == 0 {
				units = append(units, keyedEvent(fmt.Sprintf("%d-%d", round, k), fmt.Sprintf("key-%04d", k), fmt.Sprintf(`"%d %s"`, round, strings.Repeat("x", 500))))
			}
		}
		mustCommit(t, s, true, units...)
	}
	mustIndex(t, s, "t")
	last, err := s.published("t")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.db.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, at := range []uint64{0, last.head.Load() - 20} {
		mustClose(t, s)
		s = mustOpen(t, onMem(t, fsys))
		topic, err := s.published("t")
		if err != nil {
			t.Fatal(err)
		}
		q := store.StateQuery{Topic: "t", At: at, Limit: keys + 1, MaxBytes: 1 << 30}
		var b store.Batch
		if page, err := s.State(context.Background(), q, &b); err != nil || len(b.Items) != keys || !page.Done {
			t.Fatalf("at %d: %d items, %+v, %v", at, len(b.Items), page, err)
		}
		bounds := numberBounds(tagKey, topic.id)
		iter, err := s.db.NewIter(&bounds)
		if err != nil {
			t.Fatal(err)
		}
		if !iter.First() {
			t.Fatal("the index has no entries")
		}
		c := stateScan{topic: topic, at: cmp.Or(at, topic.head.Load()), keys: iter}
		var want []uint64
		for _, item := range b.Items {
			want = append(want, item.Offset)
		}
		first, rest := slices.Sorted(slices.Values(want[:7])), slices.Sorted(slices.Values(want[7:]))
		if got := c.ahead(7); !slices.Equal(got, first) {
			t.Errorf("at %d it reads %v ahead of the first 7; the page has %v", at, got, first)
		}
		if got := c.ahead(keys); !slices.Equal(got, rest) {
			t.Errorf("at %d it reads %v ahead after them; the page has %v", at, got, rest)
		}
		if err := iter.Close(); err != nil {
			t.Fatal(err)
		}
		if misses := s.db.Metrics().BlockCache.Misses; misses == 0 {
			t.Error("the log was not cold")
		}
	}
	mustClose(t, s)
}
