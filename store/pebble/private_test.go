package pebble

import (
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"
)

// TestFilesAreTheOwners: whatever the umask, nobody else can read a store, or a copy of
// it.
func TestFilesAreTheOwners(t *testing.T) {
	for _, mask := range []int{0, 0o022} {
		before := syscall.Umask(mask)
		defer syscall.Umask(before)
		root := t.TempDir()
		dir, backup := filepath.Join(root, "above", "store"), filepath.Join(root, "backup")
		for range 2 { // the second opens what is there, and reuses logs
			s := mustOpen(t, Options{Dir: dir})
			large(t, s, "id", 100)
			if err := s.db.Flush(); err != nil {
				t.Fatal(err)
			}
			mustClose(t, s)
		}
		s := mustOpen(t, Options{Dir: dir})
		defer mustClose(t, s)
		if err := s.Checkpoint(t.Context(), backup); err != nil {
			t.Fatal(err)
		}
		files := 0
		for _, top := range []string{filepath.Join(root, "above"), backup} {
			err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
				if err != nil {
					return err
				}
				info, err := d.Info()
				if err != nil {
					return err
				}
				files++
				if got := info.Mode().Perm(); got&0o077 != 0 {
					t.Errorf("umask %04o: %s has mode %04o", mask, path, got)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if files < 10 {
			t.Errorf("%d files and directories were looked at", files)
		}
	}
}
