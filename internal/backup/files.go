package backup

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// sumsFile has the checksum of each other file of a backup, in the form of sha256sum. Its
// first line, a comment there, has that of the lines below: a list that lost its end
// would else be that of a part of the backup.
const (
	sumsFile  = "backup.sha256"
	sumsTitle = "# the files of a backup; this list is sha256="
)

// fileSum is one line of it.
type fileSum struct {
	name string // with slashes
	sum  string // hexadecimal
}

// unpackTar writes what a tar holds into dir, and reads it to its last byte. Files and
// directories are all that a backup has, and none of them is outside dir:
// anything else is an error.
func unpackTar(dir string, r io.Reader) ([]fileSum, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var sums []fileSum
	for tr := tar.NewReader(r); ; {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the backup: %w", err)
		}
		name := path.Clean(header.Name)
		if !fs.ValidPath(name) || !filepath.IsLocal(name) || strings.ContainsAny(name, "\n\\") || name == sumsFile {
			return nil, fmt.Errorf("the backup has a file %q, which no store has", header.Name)
		}
		switch header.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o700)
		case tar.TypeReg:
			var sum string
			sum, err = writeSynced(root, name, tr)
			sums = append(sums, fileSum{name, sum})
		default:
			err = fmt.Errorf("the backup has %q, which is neither a file nor a directory", header.Name)
		}
		if err != nil {
			return nil, err
		}
	}
	_, err = io.Copy(io.Discard, r)
	return sums, err
}

// writeSynced writes a new file, to the disk, and returns its checksum.
func writeSynced(root *os.Root, name string, r io.Reader) (sum string, err error) {
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return "", err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	if _, err = io.Copy(io.MultiWriter(f, h), r); err == nil {
		err = f.Sync()
	}
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, f.Close())
}

// seal writes the checksums, holds what is on disk against them, and makes it
// all durable.
func seal(dir string, sums []fileSum) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	var list bytes.Buffer
	for _, s := range sums {
		fmt.Fprintf(&list, "%s  %s\n", s.sum, s.name)
	}
	whole := sha256.Sum256(list.Bytes())
	title := strings.NewReader(sumsTitle + hex.EncodeToString(whole[:]) + "\n")
	if _, err := writeSynced(root, sumsFile, io.MultiReader(title, &list)); err != nil {
		return err
	}
	if err := checkSums(root, sums); err != nil {
		return err
	}
	return syncTree(dir)
}

// readSums reads the checksums of a backup; none, and no error, where it has no list.
// Lists without a first line of ours are taken as they are: earlier versions wrote such.
func readSums(dir string) ([]fileSum, error) {
	file := filepath.Join(dir, sumsFile)
	list, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	title, rest, _ := strings.Cut(string(list), "\n")
	if want, ok := strings.CutPrefix(title, sumsTitle); !ok {
		rest = string(list)
	} else if whole := sha256.Sum256([]byte(rest)); hex.EncodeToString(whole[:]) != want {
		return nil, fmt.Errorf("%s is not as it was when the backup was made: a part of it may be missing", file)
	}
	var sums []fileSum
	for line := range strings.Lines(rest) {
		sum, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		if !ok || len(sum) != 2*sha256.Size || !fs.ValidPath(name) {
			return nil, fmt.Errorf("%s: %.80q is no checksum and file", file, line)
		}
		sums = append(sums, fileSum{name, sum})
	}
	return sums, nil
}

// checkSums holds files against their checksums.
func checkSums(root *os.Root, sums []fileSum) error {
	for _, s := range sums {
		if err := s.hold(root, io.Discard); err != nil {
			return err
		}
	}
	return nil
}

// hold reads the file, as it is copied to w, and fails if it is not the one that was
// backed up.
func (s fileSum) hold(root *os.Root, w io.Writer) error {
	f, err := root.Open(s.name)
	if err != nil {
		return err
	}
	defer f.Close() // it is only read
	h := sha256.New()
	if _, err := io.Copy(io.MultiWriter(w, h), f); err != nil {
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != s.sum {
		return fmt.Errorf("%s in %s is not as it was when the backup was made", s.name, root.Name())
	}
	return nil
}

// copy copies the file from one directory to another.
func (s fileSum) copy(from, to *os.Root) error {
	r, w := io.Pipe()
	held := make(chan error, 1)
	go func() {
		err := s.hold(from, w)
		w.CloseWithError(err)
		held <- err
	}()
	_, err := writeSynced(to, s.name, r)
	r.CloseWithError(err)
	// Each end hears of what has broken the other.
	if heldErr := <-held; err == nil {
		err = heldErr
	}
	return err
}
