package pebble

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrDamaged: the directory is not what its last Close left.
var ErrDamaged = errors.New("store/pebble: damaged")

// The seal of a closed store is the file SEAL: size and CRC-32C of each
// manifest. Pebble takes a damaged manifest for one that a crash cut short,
// forgets the tables that the rest of it named, and deletes them. That guess is
// needed after a crash only, so Close seals the manifests, and Open holds them
// against the seal before Pebble sees them and breaks it: a store without a seal
// was not closed. Tables and a store's log carry checksums of their own.
const sealFile = "SEAL"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal describes the manifests in dir.
func seal(fsys vfs.FS, dir string) ([]byte, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var text []byte
	for _, name := range names {
		if !strings.HasPrefix(name, "MANIFEST-") {
			continue
		}
		f, err := fsys.Open(fsys.PathJoin(dir, name))
		if err != nil {
			return nil, err
		}
		sum := crc32.New(castagnoli)
		size, err := io.Copy(sum, f)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		text = fmt.Appendf(text, "%s %d %08x\n", name, size, sum.Sum32())
	}
	return text, nil
}

// writeSeal seals a store that Pebble has closed.
func writeSeal(fsys vfs.FS, dir string) error {
	text, err := seal(fsys, dir)
	if err != nil {
		return err
	}
	return replaceFile(fsys, dir, sealFile, text)
}

// breakSeal checks the seal, if there is one, and removes it for good.
func breakSeal(fsys vfs.FS, dir string) error {
	want, err := readSmall(fsys, fsys.PathJoin(dir, sealFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("store/pebble: directory %s can not be read: %w", dir, err)
	}
	got, err := seal(fsys, dir)
	if err != nil {
		return fmt.Errorf("store/pebble: directory %s can not be read: %w", dir, err)
	}
	if !bytes.Equal(want, got) {
		return fmt.Errorf("%w: the manifests in %s are not those that were closed: they are %q, in %s they were %q",
			ErrDamaged, dir, got, sealFile, want)
	}
	err = fsys.Remove(fsys.PathJoin(dir, sealFile))
	if err == nil {
		err = syncDir(fsys, dir)
	}
	if err != nil {
		return fmt.Errorf("store/pebble: directory %s is not writable: %w", dir, err)
	}
	return nil
}
