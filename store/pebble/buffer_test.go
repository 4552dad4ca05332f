package pebble

import (
	"bytes"
	"errors"
	"testing"

	"eventhub/internal/faultfs"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"pgregory.net/rapid"

	"eventhub/internal/testsize"
)

// TestBufferedFile: whatever the pieces, all is in the file after a sync and when it is
// closed, in few writes.
func TestBufferedFile(t *testing.T) {
	writes := 0
	count := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite {
			writes++
		}
		return nil
	})
	testsize.Checks(t, 100, 6)
	rapid.Check(t, func(t *rapid.T) {
		mem := vfs.NewMem()
		f, err := faultfs.Wrap(mem, count).Create("f", vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		b := newBufferedFile(f)
		var want []byte
		ends := []struct {
			name string
			end  func() error
		}{
			{"Sync", b.Sync}, {"SyncData", b.SyncData},
			{"SyncTo", func() error { _, err := b.SyncTo(int64(len(want))); return err }}, {"Close", b.Close},
		}
		writes = 0
		for _, end := range ends {
			pieces := rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 5, 16 << 10, tableBuffer - 1, tableBuffer, tableBuffer + 1}), 0, 6).Draw(t, "pieces")
			for i, n := range pieces {
				p := bytes.Repeat([]byte{byte(len(want) + i)}, n)
				want = append(want, p...)
				if m, err := b.Write(p); m != n || err != nil {
					t.Fatalf("Write: %d, %v; want %d", m, err, n)
				}
			}
			if err := end.end(); err != nil {
				t.Fatal(err)
			}
			if got := readFile(t, mem, "f"); !bytes.Equal(got, want) {
				t.Fatalf("after %s the file has %d bytes; want %d, or others", end.name, len(got), len(want))
			}
		}
		if most := 2*len(want)/tableBuffer + len(ends); writes > most {
			t.Errorf("%d writes for %d bytes; at most %d are wanted", writes, len(want), most)
		}
	})
}

// TestBufferedFileReportsErrors: an error that comes late is reported by what comes next, and
// by all after it, though the disk is well again.
func TestBufferedFileReportsErrors(t *testing.T) {
	fault := &failing{match: func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileWrite }}
	for name, next := range map[string]func(*bufferedFile) error{
		"Write":    func(f *bufferedFile) error { _, err := f.Write(make([]byte, tableBuffer)); return err },
		"Sync":     (*bufferedFile).Sync,
		"SyncData": (*bufferedFile).SyncData,
		"SyncTo":   func(f *bufferedFile) error { _, err := f.SyncTo(1); return err },
		"Close":    (*bufferedFile).Close,
	} {
		f, err := faultfs.Wrap(vfs.NewMem(), fault).Create("f", vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		b := newBufferedFile(f)
		fault.on.Store(true)
		if _, err := b.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := next(b); !errors.Is(err, errorfs.ErrInjected) {
			t.Errorf("%s: %v; want the error of the write", name, err)
		}
		fault.on.Store(false)
		if _, err := b.Write([]byte("y")); !errors.Is(err, errorfs.ErrInjected) {
			t.Errorf("Write after %s: %v; want the same error", name, err)
		}
		if err := b.Sync(); !errors.Is(err, errorfs.ErrInjected) {
			t.Errorf("Sync after %s: %v; want the same error", name, err)
		}
	}
}
