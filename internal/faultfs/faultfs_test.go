package faultfs

import (
	"errors"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// TestReusedFilesHaveFaults: what is done to a file that is used again is seen under its
// new name, can fail, and is done to the file otherwise.
func TestReusedFilesHaveFaults(t *testing.T) {
	var seen []errorfs.Op
	fail := false
	injector := errorfs.InjectorFunc(func(op errorfs.Op) error {
		seen = append(seen, op)
		if fail {
			return errorfs.ErrInjected
		}
		return nil
	})
	mem := vfs.NewMem()
	fsys := Wrap(mem, injector)
	f, err := fsys.Create("old", vfs.WriteCategoryUnspecified)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if f, err = fsys.ReuseForWrite("old", "new", vfs.WriteCategoryUnspecified); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	fail = true
	if err := f.Sync(); !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("Sync: %v", err)
	}
	if _, err := fsys.ReuseForWrite("new", "newer", vfs.WriteCategoryUnspecified); !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("ReuseForWrite: %v", err)
	}
	for _, kind := range []errorfs.OpKind{errorfs.OpFileWrite, errorfs.OpFileSync} {
		if !slices.ContainsFunc(seen, func(op errorfs.Op) bool { return op.Kind == kind && op.Path == "new" }) {
			t.Errorf("operation %v was not seen", kind)
		}
	}
	if info, err := mem.Stat("new"); err != nil || info.Size() != 1 {
		t.Errorf("the file has %v, %v", info, err)
	}
}
