package pebble

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrDamaged: the directory is not what this program has left there.
var ErrDamaged = errors.New("store/pebble: damaged")

// # The seal
//
// Pebble takes what is missing or damaged for what a crash left: no marker for no
// database, a damaged manifest for one that ends there, a log that is not there for one
// that never was. It forgets what they named, and deletes it. So the file SEAL keeps
// account of what Pebble relies on:
//
//   - of each manifest the size and the CRC-32C of what is synced, written before Pebble
//     hears that the sync is done. Whatever an edit makes obsolete is deleted afterwards,
//     so a manifest whose end is damaged after that has still all that its beginning needs;
//   - which manifest is current, written when the marker names it;
//   - each log, written before the first byte in it, and how far it is synced, written when
//     that has grown by sealBytes, and on the disk sealPause later at the latest;
//   - that a log or a manifest is going to be deleted, written before that is done.
//
// Open holds the directory against it before Pebble sees it (check). Tables carry
// checksums of their own, and the manifest names each of them with its size.
//
// The file has two slots, each with a number and a checksum. The slot that is synced is
// never written to, so a crash leaves one of them. A slot that is only written, as for how
// far a log is synced, is true whenever it is on the disk.
const (
	sealFile  = "SEAL"
	sealSlot  = 32 << 10 // bytes
	sealFirst = 4 << 10  // bytes of the second slot in a new file, for a full disk later
	sealBytes = 1 << 20
	sealPause = time.Second
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// fileSum is what is known of the first bytes of a file.
type fileSum struct {
	size int64
	crc  uint32
}

// Write implements io.Writer.
func (s *fileSum) Write(p []byte) (int, error) {
	s.size += int64(len(p))
	s.crc = crc32.Update(s.crc, castagnoli, p)
	return len(p), nil
}

// sealed is what a seal says.
type sealed struct {
	// closed: nothing was written after this.
	closed    bool
	current   string // the manifest that the marker names; "" while there was none
	manifests map[string]fileSum
	logs      map[uint64]*sealedLog

	nums []uint64 // of logs; memory of appendSlot
}

// sealedLog is a log that was written to.
type sealedLog struct {
	synced atomic.Int64 // bytes
	sealed atomic.Int64 // those of them that the seal has
}

func newSealed() sealed {
	return sealed{manifests: make(map[string]fileSum), logs: make(map[uint64]*sealedLog)}
}

func (s *sealed) addLog(num uint64, synced int64) *sealedLog {
	l := new(sealedLog)
	l.synced.Store(synced)
	s.logs[num] = l
	return l
}

// sealHead is the size of a slot's first line: number, size of the rest and checksum.
const sealHead = len("seal 0123456789abcdef 01234567 01234567\n")

// appendSlot appends a slot to dst, which is empty: one is written with every sealBytes of
// log, so its memory, and that of nums, is used again. Where there is no room for all logs
// the newest are written: of so many most were flushed long ago, and wait for a checkpoint to
// be over.
func (s *sealed) appendSlot(dst []byte, seq uint64) []byte {
	dst = append(dst, make([]byte, sealHead)...)
	if s.closed {
		dst = append(dst, "closed\n"...)
	}
	if s.current != "" {
		dst = append(append(append(dst, "current "...), s.current...), '\n')
	}
	for name, sum := range s.manifests {
		dst = append(append(append(dst, "manifest "...), name...), ' ')
		dst = append(strconv.AppendInt(dst, sum.size, 10), ' ')
		dst = append(appendHex(dst, uint64(sum.crc), 8), '\n')
	}
	s.nums = s.nums[:0]
	for num := range s.logs {
		s.nums = append(s.nums, num)
	}
	slices.Sort(s.nums)
	for _, num := range slices.Backward(s.nums) {
		const most = len("log  \n") + 2*20 // digits
		if len(dst)+most > sealSlot {
			break
		}
		synced := s.logs[num].synced.Load()
		dst = append(strconv.AppendUint(append(dst, "log "...), num, 10), ' ')
		dst = append(strconv.AppendInt(dst, synced, 10), '\n')
		s.logs[num].sealed.Store(synced)
	}
	head := appendHex(append(dst[:0], "seal "...), seq, 16)
	head = appendHex(append(head, ' '), uint64(len(dst)-sealHead), 8)
	crc := crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, dst[sealHead:])
	head = appendHex(append(head, ' '), uint64(crc), 8)
	_ = append(head, '\n')
	return dst
}

// appendHex appends the last digits of v.
func appendHex(dst []byte, v uint64, digits int) []byte {
	for shift := 4 * (digits - 1); shift >= 0; shift -= 4 {
		dst = append(dst, "0123456789abcdef"[v>>shift&15])
	}
	return dst
}

// decodeSeal returns what the newest whole slot says, and false where none is.
func decodeSeal(content []byte) (s sealed, ok bool) {
	var newest uint64
	for at := 0; at < len(content); at += sealSlot {
		if one, seq, whole := decodeSlot(content[at:min(len(content), at+sealSlot)]); whole && seq > newest {
			s, newest, ok = one, seq, true
		}
	}
	return s, ok
}

func decodeSlot(slot []byte) (s sealed, seq uint64, ok bool) {
	head, rest, _ := bytes.Cut(slot, []byte("\n"))
	var size, crc uint32
	n, err := fmt.Sscanf(string(head), "seal %016x %08x %08x", &seq, &size, &crc)
	if err != nil || n != 3 || int64(size) > int64(len(rest)) {
		return s, 0, false
	}
	body := rest[:size]
	if crc32.Update(crc32.Checksum(head[:bytes.LastIndexByte(head, ' ')], castagnoli), castagnoli, body) != crc {
		return s, 0, false
	}
	s = newSealed()
	for line := range bytes.Lines(body) {
		var name string
		var sum fileSum
		var num uint64
		var synced int64
		text := string(line)
		switch {
		case text == "closed\n":
			s.closed = true
		case scanLine(text, "current %s\n", &name):
			s.current = name
		case scanLine(text, "manifest %s %d %08x\n", &name, &sum.size, &sum.crc):
			s.manifests[name] = sum
		case scanLine(text, "log %d %d\n", &num, &synced):
			s.addLog(num, synced)
		default:
			return s, 0, false
		}
	}
	return s, seq, true
}

func scanLine(text, format string, into ...any) bool {
	n, err := fmt.Sscanf(text, format, into...)
	return err == nil && n == len(into)
}

// seal keeps the file of an open store.
type seal struct {
	fsys   vfs.FS
	dir    string
	faults *faults
	// armed: a tick is on its way.
	armed atomic.Bool
	timer *time.Timer

	mu      sync.Mutex // guards what follows, and serialises writes
	sealed  sealed
	file    vfs.File
	buf     []byte // the slot that was written last
	seq     uint64
	synced  int64 // the slot that is on the disk: 0 or 1
	stopped bool
}

// writeSeal makes a new file, at once or not at all, that says s.
func writeSeal(fsys vfs.FS, dir string, s *sealed) error {
	image := make([]byte, sealSlot+sealFirst)
	copy(image, s.appendSlot(nil, 1))
	return replaceFile(fsys, dir, sealFile, image)
}

// keepSeal writes the file, and keeps it from then on.
func keepSeal(fsys vfs.FS, dir string, s sealed, f *faults) (*seal, error) {
	if err := writeSeal(fsys, dir, &s); err != nil {
		return nil, err
	}
	file, err := fsys.OpenReadWrite(fsys.PathJoin(dir, sealFile), vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	kept := &seal{fsys: fsys, dir: dir, faults: f, sealed: s, file: file, seq: 1}
	kept.timer = time.AfterFunc(time.Hour, kept.tick)
	kept.timer.Stop()
	return kept, nil
}

// write writes the slot that is not on the disk, and syncs it if that is asked for. It is
// called with mu held. Where the store is broken nothing is written, and it is an error: the
// store may have broken since the caller looked, and what the seal does not know must not be
// written either.
func (s *seal) write(sync bool) error {
	if s.stopped {
		return nil
	}
	if err := s.faults.err(); err != nil {
		return err
	}
	s.seq++
	slot := 1 - s.synced
	s.buf = s.sealed.appendSlot(s.buf[:0], s.seq)
	_, err := s.file.WriteAt(s.buf, slot*sealSlot)
	if err == nil && sync {
		if err = s.file.SyncData(); err == nil {
			s.synced = slot
		}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", sealFile, err)
	}
	return nil
}

// change changes what the seal says, on the disk.
func (s *seal) change(how func(*sealed)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	how(&s.sealed)
	return s.write(true)
}

// setCurrent is called when the marker names another manifest.
func (s *seal) setCurrent(name string) {
	if err := s.change(func(to *sealed) { to.current = name }); err != nil {
		s.faults.fail(err)
	}
}

// forget is called before a file is deleted or gets another name.
func (s *seal) forget(name string) error {
	num, isLog := logNumber(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, isManifest := s.sealed.manifests[name]
	if isLog {
		_, isLog = s.sealed.logs[num]
	}
	if !isLog && !isManifest {
		return nil
	}
	delete(s.sealed.manifests, name)
	delete(s.sealed.logs, num)
	return s.write(true)
}

// tick writes how far the logs are synced.
func (s *seal) tick() {
	s.armed.Store(false)
	if err := s.change(func(*sealed) {}); err != nil {
		s.faults.fail(err)
	}
}

// stop ends all writes to the file. closed says that Pebble is closed, and flushed that
// tables have all that the logs have.
func (s *seal) stop(closed, flushed bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer.Stop()
	s.sealed.closed = closed
	if flushed {
		clear(s.sealed.logs)
	}
	var err error
	if closed {
		err = s.write(true)
	}
	s.stopped = true
	return errors.Join(err, s.file.Close())
}

// sealedFile is a file that the seal accounts for. A write that the seal cannot record fails.
type sealedFile struct {
	vfs.File
	entry sealEntry
	begun bool
}

// sealEntry is the account of a file. Its methods are called by one goroutine at a time.
type sealEntry interface {
	begin() error    // before the first write
	writes(p []byte) // before it is done: in full, or the store breaks
	synced() error
}

// watch returns f with its account, where the seal keeps one of a file of that name.
func (s *seal) watch(f vfs.File, name string) vfs.File {
	if num, ok := logNumber(name); ok {
		return &sealedFile{File: f, entry: &logEntry{seal: s, num: num}}
	}
	if isManifest(name) {
		return &sealedFile{File: f, entry: &manifestEntry{seal: s, name: name}}
	}
	return f
}

func (f *sealedFile) Write(p []byte) (int, error) {
	if !f.begun {
		if err := f.entry.begin(); err != nil {
			return 0, err
		}
		f.begun = true
	}
	f.entry.writes(p)
	return f.File.Write(p)
}

func (f *sealedFile) Sync() error     { return f.synced(f.File.Sync()) }
func (f *sealedFile) SyncData() error { return f.synced(f.File.SyncData()) }

func (f *sealedFile) synced(err error) error {
	if err != nil {
		return err
	}
	return f.entry.synced()
}

type manifestEntry struct {
	seal  *seal
	name  string
	sum   fileSum
	named bool // on the disk
}

func (e *manifestEntry) begin() error { return nil }

func (e *manifestEntry) writes(p []byte) { _, _ = e.sum.Write(p) }

// synced makes the name durable, too: Pebble syncs the directory only after it has made the
// marker, which may be on the disk first.
func (e *manifestEntry) synced() error {
	if !e.named {
		if err := syncDir(e.seal.fsys, e.seal.dir); err != nil {
			return err
		}
		e.named = true
	}
	return e.seal.change(func(s *sealed) { s.manifests[e.name] = e.sum })
}

type logEntry struct {
	seal    *seal
	num     uint64
	written int64
	log     *sealedLog
}

func (e *logEntry) begin() error {
	return e.seal.change(func(s *sealed) { e.log = s.addLog(e.num, 0) })
}

func (e *logEntry) writes(p []byte) { e.written += int64(len(p)) }

// synced is called with each fsync of a commit: it waits for nobody, and writes seldom.
func (e *logEntry) synced() error {
	if e.log == nil {
		return nil
	}
	e.log.synced.Store(e.written)
	if e.seal.armed.CompareAndSwap(false, true) {
		e.seal.timer.Reset(sealPause)
	}
	if e.written-e.log.sealed.Load() < sealBytes || !e.seal.mu.TryLock() {
		return nil
	}
	defer e.seal.mu.Unlock()
	return e.seal.write(false)
}
