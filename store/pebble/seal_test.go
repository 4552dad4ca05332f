package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"eventhub/internal/bubble"
	"eventhub/internal/faultfs"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"eventhub/internal/testsize"
)

// without is the store as a copy that has not all files.
func (c damagedStore) without(t *testing.T, gone func(name string) bool) *vfs.MemFS {
	disk := vfs.NewCrashableMem()
	if err := disk.MkdirAll("data", 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range c.contents(t) {
		if !gone(name) {
			writeFile(t, disk, "data/"+name, content)
		}
	}
	return disk
}

// copiedStore is one that Checkpoint made, with events that are in the log alone.
func copiedStore(t *testing.T) damagedStore {
	mem := vfs.NewCrashableMem()
	o := onMem(t, mem)
	o.Dir = "original"
	s := mustOpen(t, o)
	records := fillForDamage(t, s, 200)
	if err := s.Checkpoint(context.Background(), "data"); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	return damagedStore{mem, records}
}

var damagedStores = map[string]func(*testing.T) damagedStore{"closed": closedStore, "crashed": crashedStore, "copied": copiedStore}

// TestOpenWithoutMarker: an empty file that a copy left out makes no new store of one that
// is there. The error says what is missing, what is there and what to do, and the directory
// is left as it is; with the file it opens.
func TestOpenWithoutMarker(t *testing.T) {
	isMarker := func(name string) bool { return strings.HasPrefix(name, "marker.manifest.") }
	former := func(t *testing.T) damagedStore { // one that was not closed
		c := crashedStore(t)
		disk := c.without(t, func(name string) bool { return name == sealFile })
		writeFile(t, disk, "data/"+formatFile, []byte("eventhub-pebble 2\n"))
		return damagedStore{disk, c.records}
	}
	stores := maps.Clone(damagedStores)
	stores["of a former format"] = former
	for name, build := range stores {
		t.Run(name, func(t *testing.T) {
			c := build(t)
			broken := damagedStore{c.without(t, isMarker), nil}
			before := broken.contents(t)
			for range 2 {
				_, err := Open(onMem(t, broken.disk))
				wantError(t, err, ErrDamaged, "no file marker.manifest", "MANIFEST-0", " tables, ", " logs", "copy it again")
			}
			after := broken.contents(t)
			delete(after, lockFile)
			delete(before, lockFile)
			if !maps.EqualFunc(before, after, bytes.Equal) {
				t.Errorf("the directory had %q and has %q", slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)))
			}
			for name, content := range c.contents(t) {
				if isMarker(name) {
					writeFile(t, broken.disk, "data/"+name, content)
				}
			}
			s := mustOpen(t, onMem(t, broken.disk))
			if got, err := readRecords(s); err != nil || !slices.Equal(got, c.records) {
				t.Errorf("with its marker it has %d of %d events, %v", len(got), len(c.records), err)
			}
			mustClose(t, s)
		})
	}
}

// TestOpenCopyInPart: a copy without some of the files, as one that was interrupted, is
// refused, or has all events. From no file at all a new store is made, and the log says so.
func TestOpenCopyInPart(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for name, build := range damagedStores {
		t.Run(name, func(t *testing.T) {
			c := build(t)
			names := slices.Sorted(maps.Keys(c.contents(t)))
			var copies [][]string
			stride := testsize.Of(1, 3)
			for n := rng.IntN(stride); n < len(names); n += stride { // in the order of names, and from the end
				copies = append(copies, names[:n+1], names[n:])
			}
			for range 20 / stride { // in any order
				rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
				copies = append(copies, slices.Clone(names[:rng.IntN(len(names))]))
			}
			refused := 0
			for _, copied := range copies {
				var logged bytes.Buffer
				o := onMem(t, c.without(t, func(name string) bool { return !slices.Contains(copied, name) }))
				o.Logger = slog.New(slog.NewTextHandler(&logged, nil))
				s, err := Open(o)
				if err != nil {
					refused++
					continue
				}
				got, err := readRecords(s)
				mustClose(t, s)
				isNew := strings.Contains(logged.String(), "a new store")
				if err == nil && !slices.Equal(got, c.records) && !isNew {
					t.Errorf("a copy of %q opens with %d of %d events", copied, len(got), len(c.records))
				}
				if isNew && slices.ContainsFunc(copied, func(name string) bool { return name != lockFile }) {
					t.Errorf("a copy of %q is taken for a new store", copied)
				}
			}
			if refused < len(names)/stride {
				t.Errorf("%d of %d copies were refused; this shows nothing", refused, len(copies))
			}
		})
	}
}

// TestOpenFormerSeal: a store of format 2 that was closed has a seal of another form.
func TestOpenFormerSeal(t *testing.T) {
	c := closedStore(t)
	manifest := ""
	var seal []byte
	check := dirCheck{fsys: c.disk, dir: "data"}
	for _, name := range slices.Sorted(maps.Keys(c.contents(t))) {
		if isManifest(name) {
			sum, err := check.sumOf(name)
			if err != nil {
				t.Fatal(err)
			}
			seal = fmt.Appendf(seal, "%s %d %08x\n", name, sum.size, sum.crc)
			manifest = name
		}
	}
	writeFile(t, c.disk, "data/"+sealFile, seal)
	writeFile(t, c.disk, "data/"+formatFile, []byte("eventhub-pebble 2\n"))
	for _, d := range []damage{{flipped, manifest, 60, 1}, {kind: emptied, name: manifest}, {kind: missing, name: manifest}} {
		if outcome := c.suffer(t, d, ""); outcome != "refused" {
			t.Errorf("%v: %s; want it to be refused", d, outcome)
		}
	}
	s := mustOpen(t, onMem(t, c.disk))
	if got, err := readRecords(s); err != nil || !slices.Equal(got, c.records) {
		t.Errorf("it has %d of %d events, %v", len(got), len(c.records), err)
	}
	mustClose(t, s)
	if got := string(readFile(t, c.disk, "data/"+formatFile)); got != formatLine {
		t.Errorf("the format reads %q; want %q", got, formatLine)
	}
}

// TestSealFallsBack: a slot that a crash cut short leaves the one before it.
func TestSealFallsBack(t *testing.T) {
	older, newer := newSealed(), newSealed()
	older.current, newer.current = "MANIFEST-000001", "MANIFEST-000002"
	newer.addLog(7, 42)
	image := make([]byte, 2*sealSlot)
	copy(image, older.appendSlot(nil, 8))
	slot := newer.appendSlot(nil, 9)
	for n := range len(slot) + 1 {
		clear(image[sealSlot:])
		copy(image[sealSlot:], slot[:n])
		want := "MANIFEST-000001"
		if n == len(slot) {
			want = "MANIFEST-000002"
		}
		if got, ok := decodeSeal(image); !ok || got.current != want {
			t.Fatalf("with %d of %d bytes it says %q, %v; want %q", n, len(slot), got.current, ok, want)
		}
	}
	if got, _ := decodeSeal(image); got.logs[7] == nil || got.logs[7].synced.Load() != 42 {
		t.Errorf("it has the logs %v", got.logs)
	}
}

// TestSealOfManyLogs: where a checkpoint keeps thousands of flushed logs, the newest are in the seal.
func TestSealOfManyLogs(t *testing.T) {
	s := newSealed()
	for num := range uint64(5000) {
		s.addLog(100_000+num, 64<<20)
	}
	slot := s.appendSlot(nil, 1)
	got, ok := decodeSeal(slot)
	if !ok || len(slot) > sealSlot || len(got.logs) < 1000 || got.logs[104_999] == nil {
		t.Errorf("a slot of %d bytes has %d logs, %v", len(slot), len(got.logs), ok)
	}
}

// TestNoLogWithoutSeal: a store that breaks between the look of who writes a log's first byte
// and the seal's account of the log writes neither. An image that had the log without its
// account would be refused.
func TestNoLogWithoutSeal(t *testing.T) {
	disk := vfs.NewMem()
	if err := disk.MkdirAll("data", 0o700); err != nil {
		t.Fatal(err)
	}
	o := onMem(t, disk)
	o.Fatal = func(error) {}
	broken := newFaults(o)
	s, err := keepSeal(disk, "data", newSealed(), broken)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.stop(false, false) }()
	file, err := disk.Create("data/000013.log", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	log := s.watch(file, "000013.log")
	defer func() { _ = log.Close() }()
	broken.fail(errorfs.ErrInjected)
	if n, err := log.Write([]byte("event")); n > 0 || !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("%d bytes are written, %v", n, err)
	}
	if info, err := file.Stat(); err != nil || info.Size() > 0 {
		t.Errorf("the log has %d bytes that the seal does not know (%v)", info.Size(), err)
	}
}

// TestSealOfGrowingLog: what is lost in silence where a store was killed and its log was
// damaged after that is at most what was synced since the seal was written, and that is
// less than sealBytes and one commit.
func TestSealOfGrowingLog(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		mem := vfs.NewCrashableMem()
		o := onMem(t, mem)
		o.tune = nil
		s := mustOpen(t, o)
		for i := range 300 {
			large(t, s, fmt.Sprint(i), 20<<10)
		}
		// kill -9: all that was written is there. No time has passed.
		image := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 2))})
		mustClose(t, s)
		got, ok := decodeSeal(readFile(t, image, "data/"+sealFile))
		if !ok {
			t.Fatal("the seal says nothing")
		}
		found := false
		for num, l := range got.logs {
			x, err := measureLog(image, fmt.Sprintf("data/%06d.log", num), num, 1<<40)
			if err != nil {
				t.Fatal(err)
			}
			found = found || x.whole > sealBytes
			if left := x.whole - l.synced.Load(); left < 0 || left > sealBytes+21<<10 {
				t.Errorf("of the %d bytes of log %d the seal has %d", x.whole, num, l.synced.Load())
			}
		}
		if !found {
			t.Error("no log was large; this shows nothing")
		}
	})
}

// TestSealIsWrittenSeldom: commits cost no write of the seal each, nor does an idle store.
func TestSealIsWrittenSeldom(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var writes, syncs atomic.Int64
		count := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if strings.HasSuffix(op.Path, sealFile) {
				switch op.Kind {
				case errorfs.OpFileWriteAt:
					writes.Add(1)
				case errorfs.OpFileSync, errorfs.OpFileSyncData:
					syncs.Add(1)
				}
			}
			return nil
		})
		s := mustOpen(t, onMem(t, faultfs.Wrap(vfs.NewMem(), count)))
		mustCommit(t, s, true, given("t", "first"))
		time.Sleep(10 * sealPause)
		writes.Store(0)
		syncs.Store(0)
		time.Sleep(time.Hour)
		if writes.Load()+syncs.Load() != 0 {
			t.Errorf("an idle store writes its seal %d times and syncs it %d times", writes.Load(), syncs.Load())
		}
		for i := range 100 {
			mustCommit(t, s, true, given("t", fmt.Sprint(i)))
		}
		if writes.Load()+syncs.Load() != 0 {
			t.Errorf("100 commits at one time write the seal %d times and sync it %d times", writes.Load(), syncs.Load())
		}
		time.Sleep(10 * sealPause)
		if writes.Load() != 1 || syncs.Load() != 1 {
			t.Errorf("after them the seal is written %d times and synced %d times; want once", writes.Load(), syncs.Load())
		}
		mustClose(t, s)
	})
}

// TestCrashAtEveryWrite takes an image in front of each write of a store's life: commits,
// flushes, compactions, a checkpoint, closes, the opening of what was closed, what was
// killed and what is of a former format. Each opens, with all that was acknowledged: what
// the seal asks for is never more than a crash leaves.
func TestCrashAtEveryWrite(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	mem := vfs.NewCrashableMem()
	var mu sync.Mutex // Pebble writes from several goroutines
	stride := testsize.Of(1, 5)
	acked, ops, checked := 0, rng.IntN(stride), 0
	look := func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if ops++; ops%stride != 0 {
			return nil
		}
		percent := []int{0, 30, 70, 100}[rng.IntN(4)]
		image := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
		if names, err := image.List("data"); err != nil || !slices.Contains(names, formatFile) {
			return nil // TestCrashDuringCreation
		}
		s, err := Open(onMem(t, image))
		if err != nil {
			t.Errorf("image %d of %d %%, in front of %v %s, does not open: %v", ops, percent, op.Kind, op.Path, err)
			return nil
		}
		if got := len(readAll(t, s, "t")); got < acked {
			t.Errorf("image %d of %d %%, in front of %v %s, has %d events; %d were acknowledged", ops, percent, op.Kind, op.Path, got, acked)
		}
		mustClose(t, s)
		checked++
		return nil
	}
	open := func() *Store {
		o := onMem(t, faultfs.Wrap(mem, errorfs.InjectorFunc(look)))
		o.tune = func(p *pdb.Options) {
			small(p)
			p.MemTableSize = 64 << 10
		}
		return mustOpen(t, o)
	}
	next := 0
	fill := func(s *Store, n int) {
		for range n {
			large(t, s, fmt.Sprint(next), 5<<10)
			next++
			mu.Lock()
			acked++
			mu.Unlock()
		}
	}
	format := func(line string) {
		writeFile(t, mem, "data/"+formatFile, []byte(line))
		f, err := mem.Open("data/" + formatFile)
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	s := open()
	fill(s, 30)
	if err := s.Checkpoint(context.Background(), copyDir); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	s = open() // what was closed
	fill(s, 10)
	killed := mem.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	mem = killed
	s = open()
	fill(s, 2)
	killed = mem.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	mem = killed
	format("eventhub-pebble 2\n")
	if err := mem.Remove("data/" + sealFile); err != nil {
		t.Fatal(err)
	}
	s = open()
	fill(s, 2)
	mustClose(t, s)
	t.Logf("%d writes, %d images", ops, checked)
	if checked < 200/stride {
		t.Errorf("only %d images were taken", checked)
	}
}
