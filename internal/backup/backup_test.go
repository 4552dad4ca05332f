package backup

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// file is one entry of a tar. A name that ends with a slash is a directory.
type file struct {
	name, text string
	kind       byte
}

var storeFiles = []file{
	{name: "FORMAT", text: "eventhub-pebble 1\n"},
	{name: "000001.sst", text: "a table"},
	{name: "sub/"},
	{name: "sub/000002.log", text: "a log"},
}

// sender returns a function that writes a tar, as a hub sends it.
func sender(files ...file) func(io.Writer) error {
	return func(w io.Writer) error {
		tw := tar.NewWriter(w)
		for _, f := range files {
			header := &tar.Header{Name: f.name, Typeflag: f.kind, Size: int64(len(f.text)), Mode: 0o600}
			switch {
			case f.kind == tar.TypeSymlink:
				header.Linkname, header.Size = f.text, 0
			case strings.HasSuffix(f.name, "/"):
				header.Typeflag = tar.TypeDir
			}
			if err := tw.WriteHeader(header); err != nil {
				return err
			}
			if header.Size > 0 {
				if _, err := io.WriteString(tw, f.text); err != nil {
					return err
				}
			}
		}
		return tw.Close()
	}
}

// received makes a backup of storeFiles in a directory of its own.
func received(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "b")
	if n, err := Receive(dir, sender(storeFiles...)); err != nil || n != 3 {
		t.Fatalf("received %d files: %v", n, err)
	}
	return dir
}

// tree lists what is below a directory, each file with its text.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		entry := filepath.ToSlash(name)
		if d.Type().IsRegular() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			entry += "=" + string(text)
		}
		found = append(found, entry)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func holds(t *testing.T, dir string, want ...string) {
	t.Helper()
	if got := tree(t, dir); !slices.Equal(got, want) {
		t.Errorf("%s holds %q, want %q", filepath.Base(dir), got, want)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func isPlace(err error) bool {
	var place *PlaceError
	return errors.As(err, &place)
}

var restored = []string{"000001.sst=a table", "FORMAT=eventhub-pebble 1\n", "sub", "sub/000002.log=a log"}

func TestReceive(t *testing.T) {
	dir := received(t)
	list, err := os.ReadFile(filepath.Join(dir, "backup.sha256"))
	if err != nil {
		t.Fatal(err)
	}
	// As sha256sum prints it.
	want := sumsTitle + "547a00fe58a96711fc804f4b7df6d3f64fd63d11ae6fb7e0482d7aa315aca917\n" +
		"1aa73f7cad93a113db0667dcf3b3d99f89531c9ae5e1d815a87660cfc860e902  FORMAT\n" +
		"ad875d4bcb7fa0fef5d27aadd709b8ca253b2a10d15e8283d4dc7823bf26918e  000001.sst\n" +
		"5775e775a009a883570f8738b2efba72ebd889bebd792398088abf4b78a55133  sub/000002.log\n"
	if string(list) != want {
		t.Errorf("the list is\n%swant\n%s", list, want)
	}
	if err := os.Remove(filepath.Join(dir, "backup.sha256")); err != nil {
		t.Fatal(err)
	}
	holds(t, dir, restored...)
	if n, err := Receive(dir, func(io.Writer) error { t.Error("sent"); return nil }); n != 0 || !isPlace(err) {
		t.Errorf("over one that is there: %d files, %v", n, err)
	}
}

func TestReceiveLeavesNothing(t *testing.T) {
	broken := errors.New("the line is cut")
	for name, tt := range map[string]struct {
		send func(io.Writer) error
		says string
	}{
		"outside":       {sender(file{name: "../x", text: "1"}), `a file "../x"`},
		"absolute":      {sender(file{name: "/x", text: "1"}), `a file "/x"`},
		"backslash":     {sender(file{name: `a\b`, text: "1"}), "a file"},
		"a line end":    {sender(file{name: "a\nb", text: "1"}), "a file"},
		"a list":        {sender(file{name: "backup.sha256", text: "1"}), `"backup.sha256"`},
		"a link":        {sender(file{name: "x", text: "/etc", kind: tar.TypeSymlink}), "neither a file nor a directory"},
		"twice":         {sender(file{name: "x", text: "1"}, file{name: "x", text: "2"}), "exists"},
		"cut off":       {func(w io.Writer) error { return errors.Join(sender(storeFiles...)(&part{w, 1300}), broken) }, broken.Error()},
		"no tar":        {func(w io.Writer) error { _, err := io.WriteString(w, strings.Repeat("x", 2000)); return err }, "read the backup"},
		"too few bytes": {func(w io.Writer) error { return sender(storeFiles...)(&part{w, 1300}) }, "read the backup"},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			_, err := Receive(filepath.Join(parent, "b"), tt.send)
			if err == nil || !strings.Contains(err.Error(), tt.says) || isPlace(err) {
				t.Errorf("error %v, want %q", err, tt.says)
			}
			holds(t, parent)
		})
	}
}

// part passes on the first bytes and discards the others.
type part struct {
	w    io.Writer
	left int
}

func (p *part) Write(b []byte) (int, error) {
	some := b[:min(len(b), p.left)]
	p.left -= len(some)
	_, err := p.w.Write(some)
	return len(b), err
}

// TestReceiveNowhere: the error names the directory that was asked for, and not what is made beside it.
func TestReceiveNowhere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "nowhere", "b")
	_, err := Receive(dir, sender(storeFiles...))
	if !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), dir+": ") || strings.Contains(err.Error(), ".b-") {
		t.Errorf("%v; want that %s cannot be made", err, dir)
	}
}

// TestReceiveEndsTheSender: what can not be unpacked ends one that would send forever.
func TestReceiveEndsTheSender(t *testing.T) {
	_, err := Receive(filepath.Join(t.TempDir(), "b"), func(w io.Writer) error {
		for {
			if err := sender(file{name: "../x"})(w); err != nil {
				return err
			}
		}
	})
	if err == nil {
		t.Error("no error")
	}
}

func TestRestore(t *testing.T) {
	dir := received(t)
	parent := t.TempDir()
	into := filepath.Join(parent, "new")
	if n, err := Restore(dir, into); n != 3 || err != nil {
		t.Fatalf("%d files: %v", n, err)
	}
	holds(t, into, restored...)

	disk := filepath.Join(parent, "disk")
	if err := os.MkdirAll(filepath.Join(disk, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(parent, "link")
	if err := os.Symlink(disk, link); err != nil {
		t.Fatal(err)
	}
	if n, err := Restore(dir, link); n != 3 || err != nil {
		t.Fatalf("%d files: %v", n, err)
	}
	holds(t, disk, slices.Insert(slices.Clone(restored), 2, "lost+found")...)
}

func TestRestoreRefuses(t *testing.T) {
	dir := received(t)
	parent := t.TempDir()
	full := filepath.Join(parent, "full")
	if err := os.Mkdir(full, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(full, "mine"), "1")
	dangling := filepath.Join(parent, "dangling")
	if err := os.Symlink("nowhere", dangling); err != nil {
		t.Fatal(err)
	}
	for into, says := range map[string]string{full: `it has "mine"`, dangling: "a link to nowhere"} {
		if _, err := Restore(dir, into); !isPlace(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("into %s: %v", filepath.Base(into), err)
		}
	}
	if _, err := Restore(full, filepath.Join(parent, "new")); !isPlace(err) || !strings.Contains(err.Error(), "no backup") {
		t.Errorf("from what is none: %v", err)
	}
	holds(t, parent, "dangling", "full", "full/mine=1")
}

// TestDamage: whatever is wrong with a backup, it is neither restored nor read, and the
// directory for it is as it was.
func TestDamage(t *testing.T) {
	list := func(t *testing.T, dir string, change func(lines []string) []string) {
		path := filepath.Join(dir, "backup.sha256")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		write(t, path, strings.Join(change(slices.Collect(strings.Lines(string(text)))), ""))
	}
	for name, damage := range map[string]func(t *testing.T, dir string){
		"a file":       func(t *testing.T, dir string) { write(t, filepath.Join(dir, "sub", "000002.log"), "A log") },
		"no such file": func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, "000001.sst")) },
		"the list's end": func(t *testing.T, dir string) {
			list(t, dir, func(lines []string) []string { return lines[:len(lines)-1] })
		},
		"a name": func(t *testing.T, dir string) {
			list(t, dir, func(lines []string) []string {
				return []string{strings.Replace(lines[1], "  ", "  ../", 1)}
			})
		},
		"a sum": func(t *testing.T, dir string) {
			list(t, dir, func(lines []string) []string { return []string{lines[1][1:]} })
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, parent := received(t), t.TempDir()
			empty := filepath.Join(parent, "empty")
			if err := os.Mkdir(empty, 0o700); err != nil {
				t.Fatal(err)
			}
			damage(t, dir)
			for _, into := range []string{"new", "empty"} {
				if _, err := Restore(dir, filepath.Join(parent, into)); err == nil {
					t.Errorf("restored as %s", into)
				}
			}
			holds(t, parent, "empty")
			if err := WithCopy(dir, func(string) error { t.Error("read"); return nil }); err == nil {
				t.Error("no error from WithCopy")
			}
		})
	}
}

// TestListWithoutTitle: earlier versions wrote such lists.
func TestListWithoutTitle(t *testing.T) {
	dir := received(t)
	path := filepath.Join(dir, "backup.sha256")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n")
	write(t, path, rest)
	if n, err := Restore(dir, filepath.Join(t.TempDir(), "new")); n != 3 || err != nil {
		t.Errorf("%d files: %v", n, err)
	}
}

func TestWithCopy(t *testing.T) {
	dir := received(t)
	write(t, filepath.Join(dir, "LOCK"), "")
	if err := os.MkdirAll(filepath.Join(dir, "scratch", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	wrong := errors.New("wrong")
	err := WithCopy(dir, func(temp string) error {
		got := tree(t, temp)
		got = slices.DeleteFunc(got, func(s string) bool { return strings.HasPrefix(s, "backup.sha256") })
		if !slices.Equal(got, restored) {
			t.Errorf("the copy holds %q", got)
		}
		write(t, filepath.Join(temp, "sub", "000002.log"), "changed")
		return &os.PathError{Op: "read", Path: filepath.Join(temp, "FORMAT"), Err: wrong}
	})
	if want := "read " + filepath.Join(dir, "FORMAT") + ": wrong"; !errors.Is(err, wrong) || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	holds(t, dir, before...)
	if left, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(left) != 1 {
		t.Errorf("next to the backup: %v, %v", left, err)
	}
	if err := WithCopy(filepath.Dir(dir), nil); !isPlace(err) {
		t.Errorf("what is no store: %v", err)
	}
}
