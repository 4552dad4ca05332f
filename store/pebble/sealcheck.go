package pebble

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
)

// dirCheck holds a directory against its seal.
type dirCheck struct {
	fsys   vfs.FS
	dir    string
	names  []string
	log    *slog.Logger
	isSure bool // there is a seal; a store of an earlier format may have none
	seal   sealed
}

// checkDir looks whether all is there that Pebble would otherwise take for something that
// never was, and changes nothing. It returns what the seal of the open store is to say.
func checkDir(fsys vfs.FS, dir string, version int, log *slog.Logger) (sealed, error) {
	c := dirCheck{fsys: fsys, dir: dir, log: log, seal: newSealed()}
	var err error
	if c.names, err = fsys.List(dir); err != nil {
		return sealed{}, c.unreadable(err)
	}
	if err := c.readSeal(version); err != nil {
		return sealed{}, err
	}
	marker, err := atomicfs.ReadMarker(fsys, dir, "manifest")
	if err != nil {
		return sealed{}, c.damaged("has a file that is named like a marker and is none: %v", err)
	}
	if marker == "" {
		return newSealed(), c.checkNew()
	}
	found, oldest, err := c.checkManifest(marker)
	if err != nil {
		return sealed{}, err
	}
	next := newSealed()
	next.current, next.manifests[marker] = marker, found
	return next, c.checkLogs(oldest, &next)
}

// damaged is the error of a directory that is not whole.
func (c *dirCheck) damaged(format string, args ...any) error {
	return fmt.Errorf("%w: directory %s %s. It holds %s. Nothing in it was changed. Where it is a copy, copy it again, "+
		"with all files, the empty ones too; else look at the disk and restore a backup",
		ErrDamaged, c.dir, fmt.Sprintf(format, args...), c.inventory())
}

func (c *dirCheck) unreadable(err error) error {
	return fmt.Errorf("store/pebble: directory %s can not be read: %w", c.dir, err)
}

// inventory says what is there: tables and logs by number, all else by name.
func (c *dirCheck) inventory() string {
	tables, logs := 0, 0
	var others []string
	for _, name := range c.names {
		switch {
		case isTable(name):
			tables++
		case isLog(name):
			logs++
		case name != lockFile:
			others = append(others, name)
		}
	}
	slices.Sort(others)
	return fmt.Sprintf("%d tables, %d logs, %s", tables, logs, strings.Join(others, ", "))
}

func (c *dirCheck) has(name string) bool { return slices.Contains(c.names, name) }

// readSeal reads the seal. Those of earlier formats were there in closed stores alone.
func (c *dirCheck) readSeal(version int) error {
	if !c.has(sealFile) {
		if version >= sealedVersion {
			return c.damaged("has no file %s", sealFile)
		}
		return nil
	}
	content, err := readStart(c.fsys, c.fsys.PathJoin(c.dir, sealFile), 2*sealSlot)
	if err != nil {
		return c.unreadable(err)
	}
	if c.seal, c.isSure = decodeSeal(content); c.isSure {
		return nil
	}
	c.seal = newSealed()
	if version == noFormat || version >= sealedVersion {
		return c.damaged("has a file %s that says nothing", sealFile)
	}
	return c.checkFormerSeal(content)
}

// checkFormerSeal holds the manifests of a closed store of an earlier format against its
// seal, which has a line with size and checksum for each.
func (c *dirCheck) checkFormerSeal(want []byte) error {
	var got []byte
	slices.Sort(c.names)
	for _, name := range c.names {
		if !isManifest(name) {
			continue
		}
		sum, err := c.sumOf(name)
		if err != nil {
			return c.unreadable(err)
		}
		got = fmt.Appendf(got, "%s %d %08x\n", name, sum.size, sum.crc)
	}
	if !bytes.Equal(want, got) {
		return c.damaged("has manifests that are not those that were closed: they are %q, in %s they were %q", got, sealFile, want)
	}
	return nil
}

func (c *dirCheck) sumOf(name string) (all fileSum, err error) {
	f, err := c.fsys.Open(c.fsys.PathJoin(c.dir, name))
	if err != nil {
		return all, err
	}
	_, err = io.Copy(&all, f)
	return all, errors.Join(err, f.Close())
}

// checkNew looks whether a directory in which no manifest is current is one in which
// there never was one.
func (c *dirCheck) checkNew() error {
	what := func(name string) bool { return isTable(name) || isLog(name) }
	if c.seal.current != "" || slices.ContainsFunc(c.names, what) {
		of := c.seal.current
		if of == "" {
			of = "a manifest"
		}
		return c.damaged("has no file marker.manifest.*, an empty one that names %s", of)
	}
	return nil
}

// checkManifest returns what the manifest that the marker names has now, and the number of
// the oldest log that it needs.
func (c *dirCheck) checkManifest(name string) (found fileSum, oldest uint64, err error) {
	if !c.has(name) {
		return found, 0, c.damaged("has no %s, which its marker names", name)
	}
	want, ok := c.seal.manifests[name]
	if c.isSure && (!ok || isOlder(name, c.seal.current)) {
		// A later one than the seal names: the marker was moved, and then came a crash.
		return found, 0, c.damaged("has a marker that names %s; %s says %s", name, sealFile, c.seal.current)
	}
	if !c.isSure {
		want.size = math.MaxInt64
	}
	f, err := c.fsys.Open(c.fsys.PathJoin(c.dir, name))
	if err != nil {
		return found, 0, c.unreadable(err)
	}
	defer f.Close() // it is only read, and synced
	first := io.TeeReader(io.LimitReader(f, want.size), &found)
	oldest = oldestLog(first)
	if _, err = io.Copy(io.Discard, first); err != nil {
		return found, 0, c.unreadable(err)
	}
	if !c.isSure {
		return found, oldest, nil
	}
	if found != want {
		return found, 0, c.damaged("has a damaged %s: %d bytes of it are not those that were written", name, want.size)
	}
	rest, err := io.Copy(&found, f)
	if err == nil && rest > 0 && c.seal.closed {
		return found, 0, c.damaged("has a damaged %s: %d bytes follow the %d that were written", name, rest, want.size)
	}
	if err == nil && rest > 0 {
		err = f.Sync() // as the seal says it from now on
	}
	if err != nil {
		return found, 0, c.unreadable(err)
	}
	return found, oldest, nil
}

// isOlder compares the numbers of manifests, which have at least six digits.
func isOlder(a, b string) bool { return len(a) < len(b) || len(a) == len(b) && a < b }

// oldestLog returns the number of the oldest log that a manifest needs. An edit begins
// with the name of the order of keys, where it is a manifest's first one, and with that
// number, where it changes it.
func oldestLog(manifest io.Reader) (oldest uint64) {
	const tagOrder, tagLog = 1, 2
	for r := record.NewReader(manifest, 0); ; {
		edit, err := r.Next()
		if err != nil {
			return oldest
		}
		var start [64]byte
		n, _ := io.ReadFull(edit, start[:])
		rest := bytes.NewReader(start[:n])
		tag, err := binary.ReadUvarint(rest)
		if err == nil && tag == tagOrder {
			var size uint64
			if size, err = binary.ReadUvarint(rest); err == nil {
				_, err = rest.Seek(int64(size), io.SeekCurrent)
			}
			if err == nil {
				tag, err = binary.ReadUvarint(rest)
			}
		}
		if err != nil || tag != tagLog {
			continue
		}
		if num, err := binary.ReadUvarint(rest); err == nil {
			oldest = max(oldest, num)
		}
	}
}

// checkLogs looks for the logs that the manifest needs. next gets those that are there.
func (c *dirCheck) checkLogs(oldest uint64, next *sealed) error {
	present := make(map[uint64]string)
	var last uint64
	for _, name := range c.names {
		if num, ok := logNumber(name); ok && num >= oldest {
			present[num] = name
			last = max(last, num)
		}
	}
	for num, l := range c.seal.logs {
		if num < oldest {
			continue
		}
		name, ok := present[num]
		if !ok {
			return c.damaged("has no log %06d; %d bytes of it were synced", num, l.synced.Load())
		}
		enough := l.synced.Load()
		if num == last {
			enough = math.MaxInt64
		}
		x, err := measureLog(c.fsys, c.fsys.PathJoin(c.dir, name), num, enough)
		if err != nil {
			return c.unreadable(err)
		}
		if x.whole < l.synced.Load() {
			return c.damaged("has a damaged log %s: the first %d bytes are whole, and %d were synced", name, x.whole, l.synced.Load())
		}
		if x.broken {
			c.log.Warn("the end of a log is not whole: a crash cut a write short, or it is damaged; what it had there is not in the store",
				"file", c.fsys.PathJoin(c.dir, name), "whole", x.whole)
		}
		next.addLog(num, l.synced.Load())
	}
	for num, name := range present {
		if next.logs[num] != nil {
			continue
		}
		if !c.isSure {
			next.addLog(num, 0)
			continue
		}
		x, err := measureLog(c.fsys, c.fsys.PathJoin(c.dir, name), num, 1)
		if err != nil {
			return c.unreadable(err)
		}
		if x.chunks > 0 {
			return c.damaged("has a log %s that %s does not know", name, sealFile)
		}
	}
	return nil
}

// sealCopy seals a copy that Pebble has made in dir.
func sealCopy(fsys vfs.FS, dir string) error {
	names, err := fsys.List(dir)
	if err != nil {
		return err
	}
	c := dirCheck{fsys: fsys, dir: dir, names: names, log: slog.New(slog.DiscardHandler), seal: newSealed()}
	marker, err := atomicfs.ReadMarker(fsys, dir, "manifest")
	if err != nil {
		return err
	}
	s := newSealed()
	s.closed, s.current = true, marker
	var oldest uint64
	if s.manifests[marker], oldest, err = c.checkManifest(marker); err != nil {
		return err
	}
	for _, name := range names {
		if num, ok := logNumber(name); ok && num >= oldest {
			x, err := measureLog(fsys, fsys.PathJoin(dir, name), num, math.MaxInt64)
			if err != nil {
				return err
			}
			s.addLog(num, x.whole)
		}
	}
	return writeSeal(fsys, dir, &s)
}
