package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// makeIn runs make in the tree of the source, with nothing of a make around the test.
func makeIn(t *testing.T, args ...string) (output string, err error) {
	t.Helper()
	cmd := exec.Command("make", append([]string{"--no-print-directory", "-C", filepath.Join("..", "..")}, args...)...)
	cmd.Env = slices.DeleteFunc(cleanEnv(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PREFIX", "DESTDIR", "BINARY", "UNITDIR"}, name)
	})
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// filesBelow returns the files below a directory with their permissions, by their path
// in it.
func filesBelow(t *testing.T, dir string) map[string]fs.FileMode {
	t.Helper()
	files := make(map[string]fs.FileMode)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		files[strings.TrimPrefix(path, dir)] = info.Mode().Perm()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func equalFiles(t *testing.T, got, want map[string]fs.FileMode) {
	t.Helper()
	for path, mode := range want {
		if got[path] != mode {
			t.Errorf("%s has mode %v; want %v", path, got[path], mode)
		}
	}
	for path := range got {
		if _, ok := want[path]; !ok {
			t.Errorf("%s is there too", path)
		}
	}
}

// TestInstall: make install puts exactly the files that docs/install.md lists, once or
// again, and make uninstall removes exactly these.
func TestInstall(t *testing.T) {
	dest := t.TempDir()
	own := filepath.Join(dest, "usr", "share", "fish", "vendor_completions.d", "other.fish")
	if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(own, []byte("# of somebody else\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	others := filesBelow(t, dest)
	args := []string{"BINARY=" + binary, "DESTDIR=" + dest, "PREFIX=/usr/", "UNITDIR=/usr/lib/systemd/system"}
	for range 2 {
		if out, err := makeIn(t, append([]string{"install"}, args...)...); err != nil || !strings.Contains(out, "installed eventhub devel") {
			t.Fatalf("make install: %v\n%s", err, out)
		}
		equalFiles(t, filesBelow(t, dest), map[string]fs.FileMode{
			"/usr/bin/eventhub": 0o755,
			"/usr/share/bash-completion/completions/eventhub":    0o644,
			"/usr/share/zsh/site-functions/_eventhub":            0o644,
			"/usr/share/fish/vendor_completions.d/eventhub.fish": 0o644,
			"/usr/share/fish/vendor_completions.d/other.fish":    0o600,
			"/usr/lib/systemd/system/eventhub.service":           0o644,
		})
	}
	unit, err := os.ReadFile(filepath.Join(dest, "usr/lib/systemd/system/eventhub.service"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(unit), "\nExecStart=/usr/bin/eventhub serve ") {
		t.Errorf("the unit does not start what was installed:\n%s", unit)
	}
	for shell, path := range map[string]string{"bash": "bash-completion/completions/eventhub", "zsh": "zsh/site-functions/_eventhub", "fish": "fish/vendor_completions.d/eventhub.fish"} {
		got, err := os.ReadFile(filepath.Join(dest, "usr/share", path))
		if err != nil {
			t.Fatal(err)
		}
		if _, want, _ := runBinary(t, nil, "completion", shell); strings.TrimRight(string(got), "\n") != strings.TrimRight(want, "\n") {
			t.Errorf("the completion for %s is not what the binary prints", shell)
		}
	}
	if out, err := makeIn(t, append([]string{"uninstall"}, args...)...); err != nil {
		t.Fatalf("make uninstall: %v\n%s", err, out)
	}
	equalFiles(t, filesBelow(t, dest), others)
}

// TestInstallElsewhere: where systemd does not look there is no unit, and what can not
// be done is refused before anything is written.
func TestInstallElsewhere(t *testing.T) {
	dest := t.TempDir()
	if out, err := makeIn(t, "install", "BINARY="+binary, "DESTDIR="+dest, "PREFIX=/opt/hub"); err != nil {
		t.Fatalf("make install: %v\n%s", err, out)
	}
	equalFiles(t, filesBelow(t, dest), map[string]fs.FileMode{
		"/opt/hub/bin/eventhub":                                  0o755,
		"/opt/hub/share/bash-completion/completions/eventhub":    0o644,
		"/opt/hub/share/zsh/site-functions/_eventhub":            0o644,
		"/opt/hub/share/fish/vendor_completions.d/eventhub.fish": 0o644,
	})
	for want, args := range map[string][]string{
		"PREFIX is usr; it must be an absolute path": {"BINARY=" + binary, "PREFIX=usr"},
		"there is no program /nowhere/eventhub":      {"BINARY=/nowhere/eventhub"},
	} {
		empty := t.TempDir()
		out, err := makeIn(t, append([]string{"install", "DESTDIR=" + empty}, args...)...)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("make install %v: %v, %s; want %q", args, err, out, want)
		}
		equalFiles(t, filesBelow(t, empty), nil)
	}
}
