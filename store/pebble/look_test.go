package pebble

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestLook: what a directory has is said, and nothing of it changes.
func TestLook(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) Options { return Options{Dir: filepath.Join(dir, name)} }
	look := func(name string, want Holding) {
		t.Helper()
		if got, err := Look(at(name)); got != want || err != nil {
			t.Errorf("Look at %s = %d, %v; want %d", name, got, err, want)
		}
	}
	look("absent", HoldsNothing)
	if _, err := os.Stat(at("absent").Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Look has made the directory: %v", err)
	}
	s, err := Open(at("alone"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Look(at("alone")); !errors.Is(err, ErrLocked) {
		t.Errorf("Look at a store that is open: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	look("alone", HoldsStore)
	r, err := OpenReplica(at("member"))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	look("member", HoldsReplica)
	if err := os.WriteFile(filepath.Join(dir, "letter"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Look(Options{Dir: dir}); !errors.Is(err, ErrFormat) {
		t.Errorf("Look at a directory of something else: %v", err)
	}
	for _, name := range []string{"alone", "member"} { // what was looked at can be opened
		open := func(o Options) (interface{ Close() error }, error) { return Open(o) }
		if name == "member" {
			open = func(o Options) (interface{ Close() error }, error) { return OpenReplica(o) }
		}
		s, err := open(at(name))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
