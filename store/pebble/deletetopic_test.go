package pebble

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"eventhub"
	"eventhub/internal/faultfs"
	"eventhub/internal/record"
	"eventhub/internal/testsize"
	"eventhub/store"
)

// What a deleted topic leaves is swept to the last key, also where the process ends
// before: then by whoever opens the store next.
func TestSweepLeavesNothing(t *testing.T) {
	mem := vfs.NewCrashableMem()
	s := mustOpen(t, onMem(t, mem))
	fillTopic(t, s, "t", 1500)
	if err := s.DeleteTopic(context.Background(), "t"); err != nil {
		t.Fatal(err)
	}
	mustSweep(t, s)
	image := mem.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	s = mustOpen(t, onMem(t, image))
	defer mustClose(t, s)
	sweepAll(t, s)
	for _, tag := range []byte{tagTopic, tagEvent, tagID, tagKey, tagGroup, tagPart, tagDelayed, tagDelayedID, tagEffect, tagCorrelated, tagGarbage,
		tagMarks, tagSweep, tagSegment, tagOutdated, tagCompaction} {
		scan(t, s, tag, func(key, _ []byte) { t.Errorf("the key %q is left", key) })
	}
}

// Names that are gone have a bounded number of rows, and no offset is given twice under
// any of them, also after a crash at any of the deletions.
func TestRowsOfDeletedNamesAreBounded(t *testing.T) {
	const names, most = 60, 8
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	mem := vfs.NewCrashableMem()
	s := mustOpen(t, onMem(t, mem))
	s.mostDeleted = most
	last := make(map[string]uint64)
	give := func(name string, n int) {
		for range n {
			offset := mustCommit(t, s, true, made(name))[0].Offset
			if offset <= last[name] {
				t.Fatalf("topic %s has offset %d again; %d was given", name, offset, last[name])
			}
			last[name] = offset
		}
	}
	for i := range 3 * names {
		name := fmt.Sprint("t", rng.IntN(names))
		give(name, 1+rng.IntN(9))
		if err := s.DeleteTopic(context.Background(), name); err != nil {
			t.Fatal(err)
		}
		rows := 0
		scan(t, s, tagDeleted, func(key, _ []byte) {
			if len(key) > 1 {
				rows++
			}
		})
		if rows > most || rows != len(s.deletedNames) {
			t.Fatalf("%d names are gone: %d rows on disk and %d in memory; want at most %d", i+1, rows, len(s.deletedNames), most)
		}
		if i%10 == 0 {
			image := afterPowerLoss(mem)
			mustClose(t, s)
			mem, s = image, mustOpen(t, onMem(t, image))
			s.mostDeleted = most
		}
	}
	for i := range names {
		give(fmt.Sprint("t", i), 1)
	}
	mustClose(t, s)
}

// The link of a correlation goes with its event, however the header was written: of its
// name case does not count, except for which of two says it, and its value is taken as it is.
func TestSweepOfCorrelations(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	all := []map[string]string{
		{"x-correlation-id": "plain"}, {"X-Correlation-Id": "mixed"}, {"X-CORRELATION-ID": "first", "x-correlation-id": "second"},
		{"correlationId": "camel"}, {"Correlation-Id": "short", "other": "x"}, {"ce-correlationid": "cloud"},
		{"correlationid": "after", "X-Correlation-ID": "before"}, {"x-correlation-id": strings.Repeat("x", eventhub.MaxCorrelationBytes+1)},
	}
	for i := range 20 { // a map has no order: a sweep that merges the two meets the wrong one in half of them
		all = append(all, map[string]string{"X-Correlation-ID": fmt.Sprint("Upper-", i), "x-correlation-id": fmt.Sprint("lower-", i)})
	}
	var u store.Unit
	for i, headers := range all {
		id := fmt.Sprint("id-", i)
		r, err := record.Append(nil, &eventhub.Event{Topic: "t", ID: id, Headers: headers, Payload: []byte("1")})
		if err != nil {
			t.Fatal(err)
		}
		u.Appends = append(u.Appends, store.Append{Topic: "t", ID: id, Record: r, Correlation: eventhub.Correlation(headers)})
	}
	if err := s.Commit(context.Background(), []*store.Unit{&u}, true); err != nil {
		t.Fatal(err)
	}
	links := 0
	scan(t, s, tagCorrelated, func(_, _ []byte) { links++ })
	if links != len(all)-1 {
		t.Errorf("%d events have links; want all but the one with too long a value, of %d", links, len(all))
	}
	if err := s.DeleteTopic(context.Background(), "t"); err != nil {
		t.Fatal(err)
	}
	sweepAll(t, s)
	scan(t, s, tagCorrelated, func(key, _ []byte) { t.Errorf("the key %q is left", key) })
}

// A sweep reads without the lock of the committer: commits go on, however slow the disk.
func TestSweepReadsBesideCommits(t *testing.T) {
	mem := vfs.NewMem()
	s := mustOpen(t, onMem(t, mem))
	for i := range 50 {
		id := fmt.Sprint("e", i)
		mustCommit(t, s, false, store.Append{Topic: "t", ID: id, Record: newRecord("t", id, 20<<10)})
	}
	mustClose(t, s)
	held, reads := 0, 0
	hook := &failing{}
	hook.match = func(op errorfs.Op) bool {
		if isTable(op.Path) && op.Kind.ReadOrWrite() == errorfs.OpIsRead && isSweeping() {
			reads++
			if !s.committing.TryLock() {
				held++
				return false
			}
			s.committing.Unlock()
		}
		return false
	}
	s = mustOpen(t, onMem(t, faultfs.Wrap(mem, hook)))
	defer mustClose(t, s)
	if err := s.DeleteTopic(context.Background(), "t"); err != nil {
		t.Fatal(err)
	}
	hook.on.Store(true)
	if _, err := s.Sweep(context.Background()); err != nil {
		t.Fatal(err)
	}
	hook.on.Store(false)
	if held > 0 || reads == 0 {
		t.Errorf("commits were held up at %d of %d reads of a sweep", held, reads)
	}
}

// isSweeping reports whether a step of a sweep has called it, for Pebble reads in goroutines of its own meanwhile.
func isSweeping() bool {
	var pcs [128]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(0, pcs[:])])
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, ".(*Store).Sweep") {
			return true
		}
		if !more {
			return false
		}
	}
}

// A step of a sweep reads few bytes, whatever the size of the events.
func TestSweepStepIsSmall(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	part := testsize.Of(8, 32)
	s.sweepRange = sweepRange / part
	const size = 64 << 10
	n := 2400 / part // two and a third times what one range deletion removes
	for i := range n {
		id := fmt.Sprint("e", i)
		mustCommit(t, s, false, store.Append{Topic: "t", ID: id, Record: newRecord("t", id, size)})
	}
	if err := s.DeleteTopic(context.Background(), "t"); err != nil {
		t.Fatal(err)
	}
	left := func(tag byte) (keys int) {
		scan(t, s, tag, func(_, _ []byte) { keys++ })
		return keys
	}
	ids, leftAtRange := n, 0
	for more := true; more; {
		more = mustSweep(t, s).More()
		now := left(tagID)
		if ids-now > 1+sweepBytes/size {
			t.Fatalf("one step took %d events of %d bytes", ids-now, size)
		}
		if ids = now; ids <= n/2 && leftAtRange == 0 {
			leftAtRange = left(tagEvent)
		}
	}
	if records := left(tagEvent); ids > 0 || records > 0 {
		t.Errorf("%d ids and %d records are left", ids, records)
	}
	if gone := n - leftAtRange; gone < s.sweepRange/size {
		t.Errorf("%d records were gone half way; room comes back only at the end", gone)
	}
}

// Many small topics are swept together, and key by key.
func TestSweepOfManyTopics(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	const n = 1000
	for i := range n {
		fillTopic(t, s, fmt.Sprint("t", i), 1)
		if err := s.DeleteTopic(context.Background(), fmt.Sprint("t", i)); err != nil {
			t.Fatal(err)
		}
	}
	steps := 0
	for mustSweep(t, s).More() {
		steps++
	}
	const keysOfOne = 10 // delayed event, its id, record, id, key, cause, correlation, group, part, garbage
	if most := n*keysOfOne/sweepKeys + 1; steps > most {
		t.Errorf("%d steps for %d topics of %d keys; want at most %d", steps, n, keysOfOne, most)
	}
	if _, err := s.flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := rangeDeletions(t, s); n > 0 {
		t.Errorf("the sweep of small topics left %d range deletions", n)
	}
}

// rangeDeletions counts those in tables.
func rangeDeletions(t *testing.T, s *Store) (n uint64) {
	t.Helper()
	tables, err := s.db.SSTables(pdb.WithProperties())
	if err != nil {
		t.Fatal(err)
	}
	for _, level := range tables {
		for _, table := range level {
			n += table.Properties.NumRangeDeletions
		}
	}
	return n
}

// What can not be read of one topic is left, and reported; the others are swept.
func TestSweepPassesWhatItCanNotRead(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	for _, topic := range []string{"a", "b"} {
		fillTopic(t, s, topic, 3)
	}
	bad := appendEventKey(nil, s.topics.get("a").id, 2)
	if err := s.db.Set(bad, []byte(`{"ts":1723140000000,"id":"e1","caused_by":7}`), pdb.Sync); err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"a", "b"} {
		if err := s.DeleteTopic(context.Background(), topic); err != nil {
			t.Fatal(err)
		}
	}
	left, err := s.Sweep(context.Background())
	if !left.More() || err == nil {
		t.Fatalf("Sweep: %+v, %v; want an error, and more to do", left, err)
	}
	if left, err = s.Sweep(context.Background()); left.More() || err != nil {
		t.Fatalf("Sweep of the other topic: %+v, %v", left, err)
	}
	garbage := 0
	scan(t, s, tagGarbage, func(_, _ []byte) { garbage++ })
	if garbage != 1 {
		t.Errorf("%d topics are left to be swept by the next start; want 1", garbage)
	}
}

// linkedEvent is an event with a key, a cause and a correlation.
func linkedEvent(t *testing.T, topic string, i int) store.Append {
	t.Helper()
	e := eventhub.Event{Topic: topic, ID: fmt.Sprint("e", i), Key: "k", CausedBy: []string{"cause"},
		Headers: map[string]string{eventhub.CorrelationHeader: "corr"}, Payload: []byte("1")}
	rec, err := record.Append(nil, &e)
	if err != nil {
		t.Fatal(err)
	}
	return store.Append{Topic: topic, ID: e.ID, Key: e.Key, CausedBy: e.CausedBy, Correlation: "corr", Record: rec}
}

func fillTopic(t *testing.T, s *Store, topic string, n int) {
	t.Helper()
	for i := range n {
		a := linkedEvent(t, topic, i)
		u := &store.Unit{Appends: []store.Append{a}}
		if i == 0 {
			u.Groups = []store.GroupChange{{Topic: topic, Group: "g", Create: true, State: store.GroupState{Epoch: 1},
				Parts: []store.GroupPart{{Kind: 'p', Value: []byte("x")}}}}
			u.Delays = []store.Delay{newDelay(topic, "delayed", 1)}
		}
		if err := s.Commit(context.Background(), []*store.Unit{u}, i == n-1); err != nil || u.Err != nil {
			t.Fatal(err, u.Err)
		}
	}
	mustIndex(t, s, topic)
}

// A power loss around a deletion leaves the whole topic or nothing of it, and never
// gives an offset again.
func TestDeletionIsWhole(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	const n = 20
	there, gone := 0, 0
	for i := range 40 {
		mem := vfs.NewCrashableMem()
		s := mustOpen(t, onMem(t, mem))
		fillTopic(t, s, "t", n)
		deleted := i%4 == 3
		done := make(chan error, 1)
		if deleted {
			done <- s.DeleteTopic(context.Background(), "t")
		} else {
			go func() { done <- s.DeleteTopic(context.Background(), "t") }()
		}
		for range rng.IntN(2000) * (i % 3) {
			_ = rng.Uint64() // a moment
		}
		image := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[i%3], RNG: rng})
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		mustClose(t, s)
		s = mustOpen(t, onMem(t, image))
		var batch store.Batch
		if err := s.Read(context.Background(), "t", 1, 2*n, 1<<20, &batch); err != nil {
			t.Fatal(err)
		}
		_, delayErr := s.FindDelayed(context.Background(), "t", "delayed")
		_, groupErr := s.Group(context.Background(), "t", "g")
		isGone := len(batch.Items) == 0
		switch {
		case isGone && errors.Is(delayErr, store.ErrNotFound) && errors.Is(groupErr, store.ErrNotFound):
			gone++
		case len(batch.Items) == n && delayErr == nil && groupErr == nil && !deleted:
			there++
		default:
			t.Fatalf("image %d, deleted %v: %d events, delayed event %v, group %v", i, deleted, len(batch.Items), delayErr, groupErr)
		}
		a := linkedEvent(t, "t", n)
		u := &store.Unit{Appends: []store.Append{a}}
		if err := s.Commit(context.Background(), []*store.Unit{u}, true); err != nil || u.Appends[0].Offset <= n {
			t.Fatalf("the next offset is %d, %v", u.Appends[0].Offset, err)
		}
		mustClose(t, s)
	}
	t.Logf("%d images have the topic, %d do not", there, gone)
}

// A deletion writes little, however many delayed events the topic has: commits wait for it.
// They are swept in steps as small as any, nobody sees them from the deletion on, and none
// comes back when the process ends between two steps, nor when the topic is there again
// with delayed events of the same ids and times.
func TestDeletionOfManyDelayed(t *testing.T) {
	const n, most = 5 * sweepKeys, 1 << 10
	mem := vfs.NewCrashableMem()
	s := mustOpen(t, onMem(t, mem))
	written := func(do func()) uint64 {
		before := s.db.Metrics().WAL.BytesIn
		do()
		return s.db.Metrics().WAL.BytesIn - before
	}
	delays := func(first, n int) (list []store.Delay) {
		for i := range n {
			list = append(list, newDelay("t", fmt.Sprint("delayed-", i), int64(first+i)))
		}
		return list
	}
	mustDelay(t, s, true, delays(0, n)...)
	mustDelay(t, s, true, newDelay("u", "delayed-0", 7))
	deleteTopic := func() {
		if err := s.DeleteTopic(context.Background(), "t"); err != nil {
			t.Fatal(err)
		}
	}
	if bytes := written(deleteTopic); bytes > most {
		t.Errorf("the deletion of a topic with %d delayed events wrote %d bytes; want at most %d", n, bytes, most)
	}
	want := map[string]int64{"u/delayed-0": 7}
	check := func(when string) {
		t.Helper()
		got := make(map[string]int64)
		for _, p := range mustDelayed(t, s) {
			got[p.Topic+"/"+p.ID] = p.At
		}
		if !maps.Equal(got, want) {
			t.Fatalf("%s there are %d delayed events, %.300v; want %v", when, len(got), fmt.Sprint(got), want)
		}
		if p, err := s.FindDelayed(context.Background(), "t", "delayed-0"); want["t/delayed-0"] == 0 && !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("%s FindDelayed: %v, %v", when, p, err)
		}
	}
	check("after the deletion")
	steps := 0
	for more := true; more; steps++ {
		bytes := written(func() { more = mustSweep(t, s).More() })
		const mostOfKey = 64
		if bytes > (sweepKeys+2)*mostOfKey {
			t.Errorf("step %d wrote %d bytes", steps, bytes)
		}
		check(fmt.Sprintf("after step %d", steps))
		switch steps {
		case 1:
			image := mem.CrashClone(vfs.CrashCloneCfg{})
			mustClose(t, s)
			mem = image
			s = mustOpen(t, onMem(t, mem))
			more = true
			check("after a crash")
		case 3: // the second life has delayed events of the same ids, at the same times
			mustDelay(t, s, true, delays(1, 3)...)
			want["t/delayed-0"], want["t/delayed-1"], want["t/delayed-2"] = 1, 2, 3
			check("of the second life")
		case 5:
			deleteTopic()
			want = map[string]int64{"u/delayed-0": 7}
			check("after the second deletion")
			mustDelay(t, s, true, delays(9, 1)...)
			want["t/delayed-0"] = 9
			check("of the third life")
		}
	}
	if least := 2*n/sweepKeys + 1; steps < least {
		t.Errorf("%d delayed events were swept in %d steps; want at least %d", n, steps, least)
	}
	checkDelayedIndex(t, s)
	scan(t, s, tagGarbage, func(key, _ []byte) { t.Errorf("the key %q is left", key) })
	mustClose(t, s)
	s = mustOpen(t, onMem(t, mem))
	check("in the end")
	mustClose(t, s)
}
