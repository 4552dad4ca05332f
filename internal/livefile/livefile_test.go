package livefile

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"eventhub/internal/measure"
)

// TestFilesAreTakenTogether: a change of any of them takes all of them again, what can not be
// taken changes nothing, and each state is logged once.
func TestFilesAreTakenTogether(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	put := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	var taken string
	f := New(slog.New(slog.NewTextHandler(&log, nil)), func(contents [][]byte) error {
		if !bytes.Equal(contents[0], contents[1]) {
			return errors.Join(fmt.Errorf("%s and %s differ", a, b), errors.New("twice"))
		}
		taken = string(contents[0])
		return nil
	}, File{"a_file", a}, File{"b_file", b})
	want := func(what string, failures uint64, stale bool) {
		t.Helper()
		if m := f.Measure(); taken != what || m != (measure.Source{Setting: "a_file", Failures: failures, Stale: stale}) {
			t.Errorf("taken %q, measured %+v; want %q, %d failures, stale: %t", taken, m, what, failures, stale)
		}
	}
	put(a, "1")
	if err := f.Open(); err == nil || !strings.HasPrefix(err.Error(), "b_file: ") || !strings.Contains(err.Error(), b) {
		t.Errorf("without b: %v", err)
	}
	put(b, "2")
	if err := f.Open(); err == nil || err.Error() != fmt.Sprintf("a_file, b_file: %s and %s differ\na_file, b_file: twice", a, b) {
		t.Errorf("with another b: %v", err)
	}
	put(b, "1")
	if err := f.Open(); err != nil {
		t.Fatal(err)
	}
	want("1", 0, false)
	f.Look()
	put(b, "3")
	f.Look()
	f.Look()
	want("1", 1, true)
	if err := os.Remove(a); err != nil {
		t.Fatal(err)
	}
	f.Look()
	f.Look()
	want("1", 2, true)
	put(a, "3")
	f.Look()
	want("3", 2, false)
	if n := strings.Count(log.String(), "level=ERROR"); n != 2 || strings.Count(log.String(), "level=INFO") != 2 {
		t.Errorf("want two errors, and a line for each file:\n%s", log.String())
	}
}
