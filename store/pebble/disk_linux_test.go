package pebble

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"eventhub/store"
)

func mountSmall(dir string, size int64) error {
	return syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", size))
}

func unmount(dir string) error { return syscall.Unmount(dir, 0) }

// blocksIn returns how many bytes of the disk the files of a directory take.
func blocksIn(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(dir, e.Name()))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		bytes += info.Sys().(*syscall.Stat_t).Blocks * 512
	}
	return bytes
}

// TestDiskOfAStore: what a store takes of the disk depends on what is in it.
func TestDiskOfAStore(t *testing.T) {
	o := Options{Dir: t.TempDir(), Logger: quiet}
	const mib = 1 << 20
	for _, tt := range []struct{ events, most int64 }{{0, 32 * mib}, {1, 32 * mib}, {17 * mib / 100_000, 64 * mib}} {
		s := mustOpen(t, o)
		for i := range tt.events {
			id := fmt.Sprint(i)
			mustCommit(t, s, false, store.Append{Topic: "t", ID: id, Record: newRecord("t", id, 100_000)})
		}
		open := blocksIn(t, o.Dir)
		mustClose(t, s)
		if closed := blocksIn(t, o.Dir); max(open, closed) > tt.most {
			t.Errorf("with %d events of 100 kB: %d MiB, closed %d; want at most %d", tt.events, open/mib, closed/mib, tt.most/mib)
		}
	}
}
