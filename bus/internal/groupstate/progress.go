package groupstate

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"
	"sort"
	"strings"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
)

// What a group knows of events above its cursor outlives the process in parts of
// its state (store.GroupPart), written together with the header:
//
//   - A progress part for each chunk of chunkSize offsets that has anything to
//     say: which events are acked, and how many attempts the others had that somebody was given.
//     Neighbours mostly have the same standing, so it is a list of runs:
//     a length and a standing, as varints; what follows the last run is fresh.
//   - A history part for each event that came back: its last attempts as JSON.
//   - A part for each redriven event (redriven.go), above the cursor or below.
//   - A part with the gaps, where there are any (gaps.go), and one with the marks of
//     compactions that the group knows (passed.go).
//   - A part that says where a seek has put the cursor. It goes with each write that
//     makes the parts before it void.
//
// Only what changed since the last write is written. Parts that have nothing more
// to say, because the cursor has passed them, are removed.
//
// When a group is loaded its window is empty, and the parts say what to make of
// events as they are read again: acked ones are done at once, the others have had
// their attempts. The last attempt is never taken for granted: the process may
// have ended before the member had its say, and a restart alone is to
// dead-letter nothing.

const (
	PartProgress = 'p'
	PartHistory  = 'h'
	PartRedriven = 'r' // of one event, see redriven.go
	PartBase     = 'b' // progress.base as its offset
	PartGaps     = 'g' // all of them, see gaps.go
	PartMarks    = 'm' // of compactions, see passed.go

	chunkSize = 4096
	// writeHistories bounds the history parts of one write: a million leases may run
	// out at once, and all commits would wait for theirs.
	writeHistories = 1024
	// writeHistoryBytes bounds their bytes: those of long attempts would be more in one write than a journal that is
	// nearly full keeps free for groups, and no ack could be written then.
	writeHistoryBytes = 256 << 10
	// maxHistory bounds the attempts that are reported of one event.
	maxHistory = 20
	// maxHistoryReason bounds, in bytes, what is kept of each attempt's reason.
	maxHistoryReason = 256
)

// unknownBase says that no seek has set Progress.base.
const unknownBase = math.MaxUint64

// The standings of an offset: fresh, acked, or so many attempts and withAttempts. With none
// of them it was given to somebody and no attempt counts, because it was given back: if it is removed,
// the group is notified.
const (
	fresh        = 0
	acked        = 1
	withAttempts = 2
)

// In a progress part the last ones are one less, and where that would be the one of acked, it is a
// zero of two bytes: an earlier version of the hub reads it as fresh, which it took that for.
const (
	storedAttempts = 1
	storedGiven    = "\x80\x00"
)

func appendStanding(b []byte, standing uint64) []byte {
	switch {
	case standing < withAttempts:
		return binary.AppendUvarint(b, standing)
	case standing == withAttempts:
		return append(b, storedGiven...)
	}
	return binary.AppendUvarint(b, standing-withAttempts+storedAttempts)
}

// readStanding is the other way. n is how many bytes it took, at most 0 where they are none.
func readStanding(b []byte) (standing uint64, n int) {
	switch standing, n = binary.Uvarint(b); {
	case standing == fresh && n == len(storedGiven):
		return withAttempts, n
	case standing > acked:
		standing += withAttempts - storedAttempts
	}
	return standing, n
}

// run says what the standing of the offsets from from to to is.
type run struct {
	from, to uint64
	standing uint64
}

// progress is the part of a group's memory that is about to be written, or was
// read and is not used up. The group's lock guards it.
type Progress struct {
	// base is where the cursor stood when the epoch began, when the group was made or by a
	// seek: what is above and done was acked or dead-lettered in this epoch.
	base    uint64
	reset   bool            // all parts in the store are void
	chunks  map[uint64]bool // changed since the last write
	latest  uint64          // 1 + the chunk marked last
	stored  map[uint64]bool // chunks that the store has
	lowest  appointments    // of stored, by offset; chunks that are not stored are void
	noted   map[uint64]bool // offsets whose history changed
	written map[uint64]bool // offsets whose history the store has

	restored []run // of the store, rising: what comes after the window
	// holes are offsets that were restored as acked, and whose events reading did not find any more:
	// those above the cursor, rising. Nothing of them is in the window.
	holes   []run
	history map[uint64][]admin.Attempt
	early   []uint64 // offsets of the histories that were read from the store, rising

	redriven map[uint64]*Redriven // the list of redriven.go, by offset; nil: there never was one
	moved    map[uint64]bool      // offsets of redriven events that changed
	listed   map[uint64]bool      // … that the store has

	gaps    gaps
	notices gaps // of of compactions
	knows   store.Marks
}

func newProgress() Progress {
	return Progress{
		chunks: make(map[uint64]bool), stored: make(map[uint64]bool),
		noted: make(map[uint64]bool), written: make(map[uint64]bool),
		history: make(map[uint64][]admin.Attempt),
	}
}

// mark notes that an event's standing changed.
func (p *Progress) mark(offset uint64) {
	if chunk := offset / chunkSize; p.latest != chunk+1 {
		p.latest = chunk + 1
		p.chunks[chunk] = true
	}
}

// markRange marks the chunks of a range of offsets that all have an event.
func (p *Progress) markRange(from, to uint64) {
	for chunk := from / chunkSize; chunk <= to/chunkSize; chunk++ {
		p.chunks[chunk] = true
	}
}

// note adds an attempt that came to nothing.
func (p *Progress) note(offset uint64, a admin.Attempt) {
	a.Reason = strings.ToValidUTF8(a.Reason[:min(len(a.Reason), maxHistoryReason)], "")
	h := append(p.history[offset], a)
	if len(h) > maxHistory {
		h = slices.Clone(h[len(h)-maxHistory:])
	}
	p.history[offset] = h
	p.noted[offset] = true
}

// forget removes the history of an event that is done.
func (p *Progress) forget(offset uint64) {
	if _, ok := p.history[offset]; ok {
		delete(p.history, offset)
		p.noted[offset] = true
	}
}

// standing returns what was restored of an offset, and forgets what is
// before it. Offsets are asked for in rising order.
func (p *Progress) standing(offset uint64) uint64 {
	for len(p.restored) > 0 && p.restored[0].to < offset {
		p.restored = p.restored[1:]
	}
	if len(p.restored) > 0 && p.restored[0].from <= offset {
		return p.restored[0].standing
	}
	return fresh
}

// ahead returns the place of the first restored run that reaches offset.
func (p *Progress) ahead(offset uint64) int {
	return sort.Search(len(p.restored), func(i int) bool { return p.restored[i].to >= offset })
}

// restoredAs returns what was restored of an offset that was not read again.
func (p *Progress) restoredAs(offset uint64) uint64 {
	if i := p.ahead(offset); i < len(p.restored) && p.restored[i].from <= offset {
		return p.restored[i].standing
	}
	return fresh
}

// pass notes that reading goes on at offset to, and found nothing from an offset on.
func (p *Progress) pass(from, to uint64) {
	for len(p.restored) > 0 && p.restored[0].from < to {
		r := &p.restored[0]
		if first, last := max(r.from, from), min(r.to, to-1); r.standing == acked && first <= last {
			p.holes = appendRun(p.holes, run{first, last, acked})
		}
		if r.to >= to {
			r.from = to
			return
		}
		p.restored = p.restored[1:]
	}
}

// ackedNext returns the last of the offsets that were restored as acked and that
// begin at next, 0 where there are none.
func (p *Progress) ackedNext(next uint64) uint64 {
	if p.standing(next) != acked {
		return 0
	}
	return p.restored[0].to
}

// ackedFrom returns how many offsets from offset on were restored as acked.
func (p *Progress) ackedFrom(offset uint64) (n uint64) {
	return AckedRuns(p.restored[p.ahead(offset):]).From(offset)
}

// allAcked reports whether all offsets from from to to were restored as acked.
func (p *Progress) allAcked(from, to uint64) bool {
	for i := p.ahead(from); i < len(p.restored); i++ {
		r := &p.restored[i]
		if r.from > from || r.standing != acked {
			return false
		}
		if r.to >= to {
			return true
		}
		from = r.to + 1
	}
	return false
}

// AckedRuns knows which offsets above a cursor are done. Where an event was removed, or never
// was, its offset may be among them.
type AckedRuns []run

// Acked returns what the store has of that.
func (p *Progress) Acked() AckedRuns {
	var list AckedRuns
	for _, r := range p.restored {
		if r.standing == acked {
			list = append(list, r)
		}
	}
	return list
}

// reaching returns the place of the first run that reaches an offset.
func (a AckedRuns) reaching(offset uint64) int {
	return sort.Search(len(a), func(i int) bool { return a[i].to >= offset })
}

// Has reports whether an offset is done, or one of those between that have no event.
func (a AckedRuns) Has(offset uint64) bool {
	i := a.reaching(offset)
	return i < len(a) && a[i].from <= offset && a[i].standing == acked
}

// Next returns the first offset from one on that is done. ok is false where there is none.
func (a AckedRuns) Next(offset uint64) (next uint64, ok bool) {
	for _, r := range a[a.reaching(offset):] {
		if r.standing == acked {
			return max(r.from, offset), true
		}
	}
	return 0, false
}

// From returns how many offsets from one on are done. Some of them may have no event.
func (a AckedRuns) From(offset uint64) (n uint64) {
	for _, r := range a {
		if r.standing == acked && r.to >= offset {
			n += r.to - max(r.from, offset) + 1
		}
	}
	return n
}

// Load reads the parts that the store has of a group.
func Load(name string, parts []store.GroupPart, cursor uint64) (Progress, error) {
	p := newProgress()
	p.base = unknownBase
	for _, part := range parts {
		switch part.Kind {
		case PartProgress:
			runs, ok := decodeRuns(part.Offset, part.Value)
			if !ok {
				return p, eventhub.Errorf(eventhub.CodeInternal, "The stored progress of group %q at offset %d cannot be read.", name, part.Offset*chunkSize)
			}
			p.setStored(part.Offset, true)
			p.restored = append(p.restored, runs...)
		case PartHistory:
			var h []admin.Attempt
			if err := json.Unmarshal(part.Value, &h); err != nil {
				return p, eventhub.Wrap(eventhub.CodeInternal, err, "The stored history of offset %d in group %q cannot be read.", part.Offset, name)
			}
			p.written[part.Offset] = true
			p.history[part.Offset] = h
			p.early = append(p.early, part.Offset)
		case PartBase:
			p.base = part.Offset
		case PartGaps:
			var ok bool
			if p.gaps, ok = decodeGaps(part.Value); !ok {
				return p, eventhub.Errorf(eventhub.CodeInternal, "The stored gaps of group %q cannot be read.", name)
			}
		case PartMarks:
			if !p.decodeMarks(part.Value) {
				return p, eventhub.Errorf(eventhub.CodeInternal, "The stored marks of group %q cannot be read.", name)
			}
		case PartRedriven:
			r, ok := decodeRedriven(part.Offset, part.Value)
			if !ok {
				return p, eventhub.Errorf(eventhub.CodeInternal, "The stored redrive of offset %d in group %q cannot be read.", part.Offset, name)
			}
			p.list(r)
			p.listed[part.Offset] = true
		}
	}
	p.forgetDone(cursor)
	slices.Sort(p.early)
	return p, nil
}

// forgetDone forgets what was loaded and has nothing more to say: histories of events that
// are done, below the cursor or above it. The commit in which an event was done leaves
// its history to a later one.
func (p *Progress) forgetDone(cursor uint64) {
	for offset := range p.history {
		if p.redriven[offset] == nil && (offset <= cursor || p.restoredAs(offset) == acked) {
			p.forget(offset)
		}
	}
}

// outlived reports whether the store has parts of what is done: the process ended after
// the commit that settled it, before it removed them.
func (p *Progress) outlived(cursor uint64) bool {
	if len(p.noted) > 0 {
		return true
	}
	for chunk := range p.stored {
		if p.passed(chunk, cursor) {
			return true
		}
	}
	return false
}

// passed reports whether nothing of a chunk is above the cursor.
func (p *Progress) passed(chunk, cursor uint64) bool { return (chunk+1)*chunkSize <= cursor+1 }

// parts returns what has to be written so that the store has what the group
// knows, and takes it for written; of very many histories only some: p.noted has the
// rest. w is the group's window, with the cursor that is written with it.
func (p *Progress) parts(w *window, cursor uint64) (parts []store.GroupPart, reset bool) {
	for len(p.holes) > 0 && p.holes[0].to <= w.cursor() {
		p.holes = p.holes[1:]
	}
	if reset, p.reset = p.reset, false; reset {
		parts = append(parts, store.GroupPart{Kind: PartBase, Offset: p.base, Value: []byte{1}})
	}
	for ; len(p.lowest) > 0 && p.passed(p.lowest[0].offset, cursor); p.lowest.pop() {
		if chunk := p.lowest[0].offset; p.stored[chunk] {
			p.chunks[chunk] = true // the cursor has passed it
		}
	}
	for chunk := range p.chunks {
		value := encodeRuns(p.runs(w, chunk, cursor), chunk)
		if len(value) > 0 || p.stored[chunk] {
			parts = append(parts, store.GroupPart{Kind: PartProgress, Offset: chunk, Value: value})
		}
		p.setStored(chunk, len(value) > 0)
	}
	histories := 0 // their bytes
	for offset := range p.noted {
		if len(parts) >= writeHistories || histories >= writeHistoryBytes {
			break // another write has the rest
		}
		delete(p.noted, offset)
		var value []byte
		e := w.find(offset)
		if r := p.redriven[offset]; r != nil {
			e = &r.Entry
		}
		if h := p.history[offset]; len(h) > 0 && (e == nil || !e.state.InCommit()) {
			value = encodeHistory(h)
		}
		histories += len(value)
		if len(value) > 0 || p.written[offset] {
			parts = append(parts, store.GroupPart{Kind: PartHistory, Offset: offset, Value: value})
		}
		setOrDelete(p.written, offset, len(value) > 0)
	}
	for offset := range p.moved {
		var value []byte
		if r := p.redriven[offset]; r != nil && !r.state.InCommit() {
			value = encodeRedriven(r)
		}
		if len(value) > 0 || p.listed[offset] {
			parts = append(parts, store.GroupPart{Kind: PartRedriven, Offset: offset, Value: value})
		}
		setOrDelete(p.listed, offset, len(value) > 0)
	}
	if p.gaps.changed || p.notices.changed {
		parts = p.gapsParts(w, parts)
	}
	clear(p.chunks)
	clear(p.moved)
	p.latest = 0
	return parts, reset
}

// gapsParts adds the parts of the gaps and of the notices, and takes them for written.
func (p *Progress) gapsParts(w *window, parts []store.GroupPart) []store.GroupPart {
	isDone := func(carrier uint64) bool {
		e := w.find(carrier)
		if r := p.redriven[carrier]; r != nil {
			e = &r.Entry
		}
		return e != nil && e.state.InCommit()
	}
	write := func(x *gaps, kind byte, value []byte) {
		if len(value) > 0 || x.stored {
			parts = append(parts, store.GroupPart{Kind: kind, Value: value})
		}
		x.changed, x.stored = false, len(value) > 0
	}
	if p.gaps.changed {
		write(&p.gaps, PartGaps, p.gaps.encode(isDone))
	}
	if p.notices.changed {
		write(&p.notices, PartMarks, p.encodeMarks(isDone))
	}
	return parts
}

// encodeHistory encodes the latest attempts, as many as a part has room for.
func encodeHistory(h []admin.Attempt) []byte {
	for {
		value, _ := json.Marshal(h) // numbers and strings always can be
		if len(value) <= store.MaxPartBytes || len(h) == 1 {
			return value
		}
		h = h[(len(h)+1)/2:]
	}
}

// setStored notes whether the store has a chunk.
func (p *Progress) setStored(chunk uint64, there bool) {
	if there && !p.stored[chunk] {
		p.lowest.push(timed{offset: chunk})
		p.lowest.compact(len(p.stored)+1, func(t timed) bool { return p.stored[t.offset] })
	}
	setOrDelete(p.stored, chunk, there)
}

func setOrDelete(set map[uint64]bool, key uint64, there bool) {
	if there {
		set[key] = true
	} else {
		delete(set, key)
	}
}

// rewrite has everything written again, after a write that was refused: it may have
// carried a reset.
func (p *Progress) rewrite(w *window) {
	p.reset = true
	clear(p.stored)
	p.lowest = p.lowest[:0]
	clear(p.written)
	clear(p.listed)
	for _, x := range p.bothGaps() {
		x.changed, x.stored = true, false
	}
	for _, r := range p.restored {
		p.markRange(r.from, r.to)
	}
	for _, h := range p.holes {
		p.markRange(h.from, h.to)
	}
	for _, b := range w.blocks {
		for i := range b.entries {
			p.mark(b.entries[i].offset)
		}
		for _, s := range b.ranges {
			p.markRange(s.from, s.to)
		}
	}
	for offset := range p.history {
		p.noted[offset] = true
	}
	for offset := range p.redriven {
		p.moved[offset] = true
	}
}

// runs returns the standings of the offsets of a chunk above the cursor: those in the
// window as they are there, those that were not read again as they were restored, and holes.
func (p *Progress) runs(w *window, chunk, cursor uint64) []run {
	from, to := max(chunk*chunkSize, cursor+1), (chunk+1)*chunkSize-1
	var runs []run
	for _, b := range w.blocks[w.reaching(from):] {
		if b.first > to {
			break
		}
		for _, s := range b.ranges {
			if s.to >= from && s.from <= to {
				runs = appendRun(runs, run{max(s.from, from), min(s.to, to), acked})
			}
		}
		for i := b.search(from); i < len(b.entries) && b.entries[i].offset <= to; i++ {
			e := &b.entries[i]
			runs = appendRun(runs, run{e.offset, e.offset, e.standing()})
		}
	}
	runs = p.withHoles(runs, from, to)
	ahead := max(from, w.next)
	for i := p.ahead(ahead); i < len(p.restored) && p.restored[i].from <= to; i++ {
		r := p.restored[i]
		runs = appendRun(runs, run{max(r.from, ahead), min(r.to, to), r.standing})
	}
	return runs
}

// withHoles adds the holes from one offset to another to the runs of a window.
func (p *Progress) withHoles(runs []run, from, to uint64) []run {
	first := sort.Search(len(p.holes), func(i int) bool { return p.holes[i].to >= from })
	if first == len(p.holes) || p.holes[first].from > to {
		return runs
	}
	all := runs
	for _, h := range p.holes[first:] {
		if h.from <= to {
			all = append(all, run{max(h.from, from), min(h.to, to), acked})
		}
	}
	slices.SortFunc(all, func(a, b run) int { return cmp.Compare(a.from, b.from) })
	joined := make([]run, 0, len(all))
	for _, r := range all {
		joined = appendRun(joined, r)
	}
	return joined
}

// standing is how an entry is written.
func (e *Entry) standing() uint64 {
	switch {
	case e.state == Done || e.state.InCommit():
		return acked
	case e.wasGiven():
		return withAttempts + uint64(e.attempts)
	}
	return fresh
}

// appendRun adds a run, joined to the last where they touch and are alike.
func appendRun(runs []run, r run) []run {
	if r.standing == fresh {
		return runs
	}
	if n := len(runs); n > 0 && runs[n-1].to+1 == r.from && runs[n-1].standing == r.standing {
		runs[n-1].to = r.to
		return runs
	}
	return append(runs, r)
}

func encodeRuns(runs []run, chunk uint64) []byte {
	var b []byte
	at := chunk * chunkSize
	for _, r := range runs {
		if r.from > at {
			b = binary.AppendUvarint(b, r.from-at)
			b = binary.AppendUvarint(b, fresh)
		}
		b = binary.AppendUvarint(b, r.to-r.from+1)
		b = appendStanding(b, r.standing)
		at = r.to + 1
	}
	return b
}

// decodeRuns is the other way. It reports whether the bytes are what encodeRuns
// makes.
func decodeRuns(chunk uint64, b []byte) (runs []run, ok bool) {
	at, end := chunk*chunkSize, (chunk+1)*chunkSize
	for len(b) > 0 {
		length, n := binary.Uvarint(b)
		if n <= 0 || length == 0 || length > end-at {
			return nil, false
		}
		standing, m := readStanding(b[n:])
		if m <= 0 {
			return nil, false
		}
		runs = appendRun(runs, run{at, at + length - 1, standing})
		at += length
		b = b[n+m:]
	}
	return runs, true
}
