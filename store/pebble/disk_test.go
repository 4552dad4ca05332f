package pebble

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"eventhub/internal/bubble"
	"eventhub/internal/faultfs"
	"eventhub/internal/testsize"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// smallDisk is a file system of so many bytes.
type smallDisk struct {
	name string
	fs   vfs.FS // nil for the machine's
	dir  string
}

// smallDisks are one in memory, whose writes fail when it is full, and one of the
// kernel's where this process may mount such. In a small run that is the only one then.
func smallDisks(t *testing.T, size int64) []smallDisk {
	t.Helper()
	disks := []smallDisk{{name: "in memory", fs: &boundedFS{FS: vfs.NewMem(), size: size}, dir: "data"}}
	dir := t.TempDir()
	if err := mountSmall(dir, size); err != nil {
		warn := fmt.Sprintf("%s: no real small disk (%v); this shows what one in memory does, and no more", t.Name(), err)
		t.Log(warn)
		fmt.Fprintln(os.Stderr, "WARNING: "+warn)
		return disks
	}
	t.Cleanup(func() {
		if err := unmount(dir); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	if testsize.Small() {
		disks = nil // the race detector looks at all bytes of it
	}
	return append(disks, smallDisk{name: "tmpfs", dir: dir + "/data"})
}

func (d smallDisk) options(t *testing.T) Options {
	o := onMem(t, d.fs)
	o.Dir, o.tune = d.dir, nil
	return o
}

// boundedFS has room for so many bytes of files, and fails writes when they are used.
type boundedFS struct {
	vfs.FS
	size, used int64 // used is atomic
}

func (b *boundedFS) sizeOf(name string) int64 {
	info, err := b.FS.Stat(name)
	if err != nil || info.IsDir() {
		return 0
	}
	return info.Size()
}

func (b *boundedFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	old := b.sizeOf(name)
	f, err := b.FS.Create(name, category)
	if err == nil {
		atomic.AddInt64(&b.used, -old)
		f = &boundedFile{File: f, disk: b}
	}
	return f, err
}

func (b *boundedFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	size := b.sizeOf(oldname)
	f, err := b.FS.ReuseForWrite(oldname, newname, category)
	if err == nil {
		f = &boundedFile{File: f, disk: b, end: size}
	}
	return f, err
}

func (b *boundedFS) Remove(name string) error {
	old := b.sizeOf(name)
	err := b.FS.Remove(name)
	if err == nil {
		atomic.AddInt64(&b.used, -old)
	}
	return err
}

func (b *boundedFS) Rename(oldname, newname string) error {
	old := b.sizeOf(newname)
	err := b.FS.Rename(oldname, newname)
	if err == nil {
		atomic.AddInt64(&b.used, -old)
	}
	return err
}

func (b *boundedFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	used := atomic.LoadInt64(&b.used)
	return vfs.DiskUsage{AvailBytes: uint64(b.size - used), TotalBytes: uint64(b.size), UsedBytes: uint64(used)}, nil
}

func (b *boundedFS) Unwrap() vfs.FS { return b.FS }

// boundedFile is written from its beginning.
type boundedFile struct {
	vfs.File
	disk    *boundedFS
	at, end int64
}

func (f *boundedFile) Write(p []byte) (int, error) {
	more := max(f.at+int64(len(p))-f.end, 0)
	if atomic.AddInt64(&f.disk.used, more) > f.disk.size {
		atomic.AddInt64(&f.disk.used, -more)
		return 0, syscall.ENOSPC
	}
	n, err := f.File.Write(p)
	f.at += int64(n)
	f.end = max(f.end, f.at)
	return n, err
}

// fillUntilLow commits events of some size above 100 bytes, which do not shrink when they are compressed, until the
// disk is low although the store has given back what it could, and returns how many bytes it took.
func fillUntilLow(t *testing.T, s *Store, size int) (stored int) {
	t.Helper()
	isLow := func() bool {
		space, err := s.Space()
		if err != nil {
			t.Fatal(err)
		}
		return space.IsLow()
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := 0; ; i++ {
		if isLow() {
			if err := s.Shrink(context.Background()); err != nil {
				t.Fatal(err)
			}
			if isLow() {
				return stored
			}
		}
		id := fmt.Sprint(i)
		r := newRecord("t", id, size)
		text := randomText(rng, size-100)
		copy(r[len(r)-len(text):], text[1:len(text)-1]) // the most of its payload
		mustCommit(t, s, true, store.Append{Topic: "t", ID: id, Record: r})
		stored += size
	}
}

// TestSmallDisk: events have what a small disk has beyond the reserve, except what a
// log, and a table that is being written, need.
func TestSmallDisk(t *testing.T) {
	room := testsize.Of(48, 32) << 20
	for _, disk := range smallDisks(t, int64(256<<20+room)) {
		t.Run(disk.name, func(t *testing.T) {
			s := mustOpen(t, disk.options(t))
			if stored := fillUntilLow(t, s, 100<<10); stored < room/2 {
				t.Errorf("%d MiB of events are stored, and the disk of %d MiB is low", stored>>20, 256+room>>20)
			}
			mustClose(t, s)
			mustClose(t, mustOpen(t, disk.options(t)))
		})
	}
}

// TestShrink: what is stored stays, and logs that were to be used again are gone.
func TestShrink(t *testing.T) {
	mem := vfs.NewMem()
	o := onMem(t, mem)
	var low atomic.Bool
	o.Space = spaceThatIs(&low)
	s := mustOpen(t, o)
	const n, size = 100, 20 << 10
	for i := range n {
		mustCommit(t, s, true, store.Append{Topic: "t", ID: fmt.Sprint(i), Record: newRecord("t", fmt.Sprint(i), size)})
	}
	before := logBytes(t, s, mem)
	low.Store(true)
	if err := s.Shrink(context.Background()); err != nil {
		t.Fatal(err)
	}
	if after := logBytes(t, s, mem); before < 10*size || after > size {
		t.Errorf("logs have %d bytes, and %d after a Shrink", before, after)
	}
	if got := readAll(t, s, "t"); len(got) != n {
		t.Errorf("%d events are there; want %d", len(got), n)
	}
	mustClose(t, s)
	if err := s.Shrink(context.Background()); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Shrink after Close: %v", err)
	}
}

// spaceThatIs is of a disk that is nearly full, or not.
func spaceThatIs(low *atomic.Bool) func() (store.Space, error) {
	return func() (store.Space, error) {
		if low.Load() {
			return store.Space{Free: 1, Total: 1 << 40}, nil
		}
		return store.Space{Free: 1 << 40, Total: 1 << 40}, nil
	}
}

// logBytes returns the size of all logs.
func logBytes(t *testing.T, s *Store, fsys vfs.FS) (bytes int64) {
	t.Helper()
	s.db.TestOnlyWaitForCleaning() // Pebble removes files in the background
	names, err := fsys.List("data")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if info, err := fsys.Stat("data/" + name); err == nil && isLog(name) {
			bytes += info.Size()
		}
	}
	return bytes
}

// tableHold makes all writes of tables wait, where it is not nil.
type tableHold struct{ release atomic.Pointer[chan struct{}] }

func (h *tableHold) MaybeError(op errorfs.Op) error {
	if release := h.release.Load(); release != nil && isTable(op.Path) && op.Kind == errorfs.OpFileWrite {
		<-*release
	}
	return nil
}

func (h *tableHold) String() string { return "hold the writes of tables" }

// TestShrinkWhileStalled: it is a burst of commits that makes the room low, and all
// memtables may be waiting for their flush then. Shrink waits too: it is not called again
// before the room is low again.
func TestShrinkWhileStalled(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		mem := vfs.NewMem()
		hold, release := &tableHold{}, make(chan struct{})
		o := onMem(t, faultfs.Wrap(mem, hold))
		var low atomic.Bool
		o.Space = spaceThatIs(&low)
		s := mustOpen(t, o)
		hold.release.Store(&release)
		const size = 20 << 10
		for n := 0; !s.isStalled(); n++ {
			mustCommit(t, s, true, store.Append{Topic: "t", ID: fmt.Sprint(n), Record: newRecord("t", fmt.Sprint(n), size)})
		}
		before := logBytes(t, s, mem)
		low.Store(true)
		shrunk := make(chan error, 1)
		go func() { shrunk <- s.Shrink(context.Background()) }()
		synctest.Wait()
		close(release)
		if err := <-shrunk; err != nil {
			t.Fatal(err)
		}
		if after := logBytes(t, s, mem); before < 10*size || after > size {
			t.Errorf("logs have %d bytes, and %d after a Shrink", before, after)
		}
		mustClose(t, s)
	})
}

// TestShrinkEnds: a stalled store whose flushes fail, as on a full disk, may be stalled for
// ever. Shrink ends then, and when its caller gives up.
func TestShrinkEnds(t *testing.T) {
	for _, name := range []string{"a flush fails", "the caller gives up"} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				hold, release := &tableHold{}, make(chan struct{})
				fault := &failing{match: func(op errorfs.Op) bool { return isTable(op.Path) && op.Kind == errorfs.OpFileWrite }}
				s := mustOpen(t, onMem(t, faultfs.Wrap(faultfs.Wrap(vfs.NewMem(), fault), hold)))
				hold.release.Store(&release)
				for n := 0; !s.isStalled(); n++ {
					mustCommit(t, s, true, store.Append{Topic: "t", ID: fmt.Sprint(n), Record: newRecord("t", fmt.Sprint(n), 20<<10)})
				}
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				shrunk := make(chan error, 1)
				go func() { shrunk <- s.Shrink(ctx) }()
				synctest.Wait()
				if name == "a flush fails" {
					fault.on.Store(true)
					close(release)
				} else {
					cancel()
				}
				if err := <-shrunk; err != nil || !s.isStalled() {
					t.Errorf("Shrink: %v; the store is stalled: %t", err, s.isStalled())
				}
				if fault.on.Swap(false); name != "a flush fails" {
					close(release)
				}
				mustClose(t, s)
			})
		})
	}
}

// TestOpenOnFullDisk: where what a crash left in the logs can not be moved into tables,
// Open says so and does not try for ever; with room all is there.
func TestOpenOnFullDisk(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		mem := vfs.NewCrashableMem()
		o := onMem(t, mem)
		o.tune = nil // so that all stays in the log
		s := mustOpen(t, o)
		const n = 50
		for i := range n {
			mustCommit(t, s, true, store.Append{Topic: "t", ID: fmt.Sprint(i), Record: newRecord("t", fmt.Sprint(i), 10_000)})
		}
		image := afterPowerLoss(mem)
		mustClose(t, s)

		const most = 100 // tries before this test takes it for a loop without end
		fault := &failing{}
		fault.match = func(op errorfs.Op) bool {
			return isTable(op.Path) && op.Kind == errorfs.OpFileWrite && fault.fired.Load() < most
		}
		fault.on.Store(true)
		o = onMem(t, faultfs.Wrap(image, fault))
		s, err := Open(o)
		if err == nil {
			mustClose(t, s)
		}
		wantError(t, err, errorfs.ErrInjected)
		if tries := fault.fired.Load(); tries == most {
			t.Errorf("Open tried to write a table %d times", tries)
		}
		s = mustOpen(t, onMem(t, image))
		if got := readAll(t, s, "t"); len(got) != n {
			t.Errorf("%d events are there; want %d", len(got), n)
		}
		mustClose(t, s)
	})
}

// TestOpenOnSmallFullDisk: where the disk has no room at all Open says so, or finds enough
// in what it may remove; what is stored stays.
func TestOpenOnSmallFullDisk(t *testing.T) {
	const size = 24 << 20
	for _, disk := range smallDisks(t, size) {
		t.Run(disk.name, func(t *testing.T) {
			o := disk.options(t)
			fsys := o.withDefaults().FS
			s := mustOpen(t, o)
			var n int
			for ; n < 100; n++ {
				id := fmt.Sprint(n)
				mustCommit(t, s, true, store.Append{Topic: "t", ID: id, Record: newRecord("t", id, 40<<10)})
			}
			mustClose(t, s)
			filler, err := fsys.Create(fsys.PathJoin(fsys.PathDir(disk.dir), "filler"), vfs.WriteCategoryUnspecified)
			if err != nil {
				t.Fatal(err)
			}
			for piece := 64 << 10; piece > 0; {
				if _, err := filler.Write(make([]byte, piece)); err != nil {
					piece /= 2
				}
			}
			if err := filler.Close(); err != nil {
				t.Fatal(err)
			}
			o.Fatal = func(error) {}
			s, err = Open(o)
			if err == nil {
				if got := readAll(t, s, "t"); len(got) != n {
					t.Errorf("%d events are there on the full disk; want %d", len(got), n)
				}
				err = s.Close()
			}
			if err != nil && !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("on a full disk: %v; want ENOSPC", err)
			}
			if err := fsys.Remove(fsys.PathJoin(fsys.PathDir(disk.dir), "filler")); err != nil {
				t.Fatal(err)
			}
			s = mustOpen(t, disk.options(t))
			if got := readAll(t, s, "t"); len(got) != n {
				t.Errorf("%d events are there; want %d", len(got), n)
			}
			mustClose(t, s)
		})
	}
}

// TestSlowDisk: on a disk whose every fsync takes its time, and some much more, whatever is
// done at the same time comes to its end, nothing that was acknowledged is lost in an
// image of what is synced, and nothing that was deleted is there.
func TestSlowDisk(t *testing.T) {
	const usual, seldom, one = time.Millisecond, 100 * time.Millisecond, 50 // in so many fsyncs
	var syncs atomic.Int64
	slow := errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
			if syncs.Add(1)%one == 0 {
				time.Sleep(seldom)
			}
			time.Sleep(usual)
		}
		return nil
	})
	ctx := context.Background()
	mem := vfs.NewCrashableMem()
	s := mustOpen(t, onMem(t, faultfs.Wrap(mem, slow)))
	var work, others sync.WaitGroup
	var acked [4]atomic.Int64
	for p := range acked {
		work.Go(func() {
			for i := range int64(testsize.Of(60, 20)) {
				id := fmt.Sprint(p, "-", i)
				mustCommit(t, s, true, store.Append{Topic: fmt.Sprint("t", p), ID: id, Record: newRecord("t", id, 20<<10)})
				acked[p].Store(i + 1)
			}
		})
	}
	work.Go(func() { // topics that come and go
		for range testsize.Of(10, 4) {
			mustCommit(t, s, true, given("deleted", "x"))
			if err := s.DeleteTopic(ctx, "deleted"); err != nil {
				t.Errorf("DeleteTopic: %v", err)
			}
		}
	})
	done := make(chan struct{})
	again := func(what string, do func(n int) error) {
		others.Go(func() {
			for n := 0; ; n++ {
				if err := do(n); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	again("Sweep", func(int) error { _, err := s.Sweep(ctx); return err })
	again("Shrink", func(int) error { return s.Shrink(ctx) })
	again("Checkpoint", func(n int) error { return s.Checkpoint(ctx, fmt.Sprint("copies/", n)) })
	again("image", func(int) error {
		var atLeast [len(acked)]int64
		for p := range acked {
			atLeast[p] = acked[p].Load()
		}
		image := mustOpen(t, onMem(t, mem.CrashClone(vfs.CrashCloneCfg{})))
		for p, want := range atLeast {
			if got := int64(len(readAll(t, image, fmt.Sprint("t", p)))); got < want {
				t.Errorf("an image has %d events of t%d; %d were acknowledged", got, p, want)
			}
		}
		return image.Close()
	})
	work.Wait()
	close(done)
	others.Wait()
	mustClose(t, s)
	s = mustOpen(t, onMem(t, mem))
	defer mustClose(t, s)
	for p := range acked {
		if got, want := int64(len(readAll(t, s, fmt.Sprint("t", p)))), acked[p].Load(); got != want {
			t.Errorf("t%d has %d events; %d were acknowledged", p, got, want)
		}
	}
	if topics, err := s.ListTopics(ctx, "", 9); err != nil || len(topics) != len(acked) {
		t.Errorf("the topics are %v, %v", topics, err)
	}
	if syncs.Load() < 2*one {
		t.Errorf("only %d fsyncs", syncs.Load())
	}
}

// TestCompactionLeavesRoom: a compaction that would take the last room fails before it has, because a log that can not
// grow breaks the store. It is tried again, not at once, and succeeds where it leaves half of what is free.
func TestCompactionLeavesRoom(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const total, enough = 4 << 30, 40 << 20
		var free atomic.Uint64
		var takes atomic.Bool // a table takes all
		o := onMem(t, faultfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpCreate && isTable(op.Path) && takes.Load() {
				free.Store(enough/2 - 1)
			}
			return nil
		})))
		free.Store(enough)
		o.Space = func() (store.Space, error) { return store.Space{Free: free.Load(), Total: total}, nil }
		o.tune = func(p *pdb.Options) {
			small(p)
			p.L0CompactionThreshold = l0Stop // what is merged is merged by Compact
		}
		s := mustOpen(t, o)
		const flushes = 4 // of tables that overlap
		for i := range flushes {
			for _, topic := range []string{"a", "z"} {
				id := fmt.Sprint(topic, i)
				mustCommit(t, s, true, store.Append{Topic: topic, ID: id, Record: newRecord(topic, id, 40<<10)})
			}
			if err := s.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		compact := func() error { return s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false) }
		takes.Store(true)
		if err := compact(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("a compaction that takes the last room: %v; want ENOSPC", err)
		}
		mustCommit(t, s, true, store.Append{Topic: "a", ID: "acked", Record: newRecord("a", "acked", 100)})
		if err := s.db.Flush(); err != nil { // which makes room for a log
			t.Errorf("a flush: %v", err)
		}
		takes.Store(false)
		free.Store(enough)
		began := time.Now()
		if err := compact(); err != nil {
			t.Errorf("one that leaves half: %v", err)
		}
		if took := time.Since(began); took < roomPause {
			t.Errorf("it was tried again after %s; want %s", took, roomPause)
		}
		if got := readAll(t, s, "a"); len(got) != flushes+1 {
			t.Errorf("%d events are there; want %d", len(got), flushes+1)
		}
		mustClose(t, s)
	})
}
