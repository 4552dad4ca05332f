package pebble

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"eventhub/store"
)

// # Results of producers' units
//
// A row of results is a list of entries, one after the other, for consecutive numbers:
//
//	'r' or 'g' count per topic (4) offset ms   count units with per appends each, which are one after
//	                                           the other in one topic. 'r': the store made their ids
//	'p' appends delays                         any unit that was applied
//	'f' count text                             the engine has refused so many, all for one reason
//	'c' append present                         refused with a ConflictError
//	'n' topic                                  refused with a NotIndexedError
//	't' text                                   refused with ErrTopicLimit
//
// Numbers are uvarints, texts have their length before them. The appends and delays of 'p' are
// each a count and so many of them:
//
//	append  flags topic (4) offset ms [id]     id where resultKeepsID
//	delay   flags id at seq offset
//
// The ids that the store makes come from the place and the time of their events (ids.go), so that
// a unit of one append in a series of them costs no byte.
const (
	resultRun      = 'r'
	resultGiven    = 'g'
	resultParts    = 'p'
	resultRefused  = 'f'
	resultConflict = 'c'
	resultNoIndex  = 'n'
	resultTopics   = 't'

	// The flags of a part.
	resultDuplicate = 1
	resultNewID     = 2
	resultKeepsID   = 4
)

// The most entries of a row, and bytes with one entry more: a number that comes again costs a read of
// its row, while others wait for their commit.
const (
	mostEntries  = 64
	mostRowBytes = 2 << 10
)

// results are rows that are being made. The last entry of the last one may be a run that still
// grows.
type results struct {
	full []resultsRow

	first   uint64 // number of the last row
	row     []byte
	entries int

	// The last entry: where it begins in row, and what it is a run of, units or refusals.
	at      int
	grows   bool
	run     resultsRun
	refusal []byte
	refused uint64 // how many
}

// resultsRow is what became of the numbers from first on.
type resultsRow struct {
	first uint64
	row   []byte
}

// resultsRun is an entry of one unit or of more that are alike.
type resultsRun struct {
	given      bool
	count, per uint64
	topic      uint32
	offset     uint64
	ms         int64
}

func (r *results) isEmpty() bool { return len(r.row) == 0 && len(r.full) == 0 }

// find returns the row that has a number; none where it is in a row that was written.
func (r *results) find(number uint64) (resultsRow, bool) {
	if len(r.row) > 0 && number >= r.first {
		return resultsRow{r.first, r.row}, true
	}
	for _, full := range slices.Backward(r.full) {
		if number >= full.first {
			return full, true
		}
	}
	return resultsRow{}, false
}

// add adds what became of the unit with a number. id returns the number of a topic that the unit
// appends to.
func (r *results) add(number uint64, u *store.Unit, id func(topic string) uint32) {
	run, isRun := runOf(u, id)
	if u.Err == store.ErrRefused && len(r.row) > 0 && r.refused > 0 && string(r.refusal) == string(u.Sequence.Refusal) {
		r.row = r.row[:r.at]
		r.addRefused(r.refused + 1)
		return
	}
	if len(r.row) > 0 && !(isRun && r.continues(&run)) && (r.entries == mostEntries || len(r.row) >= mostRowBytes) {
		r.full = append(r.full, resultsRow{r.first, r.row})
		r.row, r.grows, r.entries, r.refused = nil, false, 0, 0
	}
	if len(r.row) == 0 {
		r.first = number
	}
	if isRun {
		r.addRun(run)
		return
	}
	r.grows, r.refused = false, 0
	r.entries++
	if u.Err != nil {
		r.addRefusal(u)
		return
	}
	r.row = append(r.row, resultParts)
	r.row = binary.AppendUvarint(r.row, uint64(len(u.Appends)))
	for i := range u.Appends {
		r.addAppend(&u.Appends[i], id(u.Appends[i].Topic))
	}
	r.row = binary.AppendUvarint(r.row, uint64(len(u.Delays)))
	for i := range u.Delays {
		d := &u.Delays[i]
		r.row = append(r.row, flagIf(d.Duplicate, resultDuplicate))
		r.row = appendText(r.row, d.ID)
		r.row = binary.AppendUvarint(r.row, uint64(d.At))
		r.row = binary.AppendUvarint(r.row, d.Seq)
		r.row = binary.AppendUvarint(r.row, d.Offset)
	}
}

func (r *results) addAppend(a *store.Append, topic uint32) {
	keepsID := a.NewID && a.Offset >= 1<<placeOffsetBits
	r.row = append(r.row, flagIf(a.Duplicate, resultDuplicate)|flagIf(a.NewID, resultNewID)|flagIf(keepsID, resultKeepsID))
	r.row = binary.BigEndian.AppendUint32(r.row, topic)
	r.row = binary.AppendUvarint(r.row, a.Offset)
	r.row = binary.AppendUvarint(r.row, uint64(a.CommitTime))
	if keepsID {
		r.row = appendText(r.row, a.ID)
	}
}

func flagIf(is bool, bit byte) byte {
	if is {
		return bit
	}
	return 0
}

// continues reports whether a run of one unit goes on with the last entry.
func (r *results) continues(run *resultsRun) bool {
	last := &r.run
	return r.grows && last.given == run.given && last.per == run.per && last.topic == run.topic && last.ms == run.ms && last.offset+last.count*last.per == run.offset
}

func (r *results) addRun(run resultsRun) {
	if r.continues(&run) {
		run.offset, run.count = r.run.offset, r.run.count+1
		r.row = r.row[:r.at]
	} else {
		r.entries++
	}
	r.grows, r.run, r.at, r.refused = true, run, len(r.row), 0
	kind := byte(resultRun)
	if run.given {
		kind = resultGiven
	}
	r.row = append(r.row, kind)
	r.row = binary.AppendUvarint(r.row, run.count)
	r.row = binary.AppendUvarint(r.row, run.per)
	r.row = binary.BigEndian.AppendUint32(r.row, run.topic)
	r.row = binary.AppendUvarint(r.row, run.offset)
	r.row = binary.AppendUvarint(r.row, uint64(run.ms))
}

// runOf returns the entry of a unit all of whose events are one after the other in a topic.
func runOf(u *store.Unit, id func(topic string) uint32) (run resultsRun, ok bool) {
	if u.Err != nil || len(u.Delays) > 0 || len(u.Appends) == 0 {
		return run, false
	}
	first := &u.Appends[0]
	for i := range u.Appends {
		a := &u.Appends[i]
		if a.Duplicate || a.Topic != first.Topic || a.NewID != first.NewID || a.CommitTime != first.CommitTime ||
			a.Offset != first.Offset+uint64(i) || a.Offset >= 1<<placeOffsetBits {
			return run, false
		}
	}
	return resultsRun{!first.NewID, 1, uint64(len(u.Appends)), id(first.Topic), first.Offset, first.CommitTime}, true
}

// addRefusal adds a unit that was refused, by the engine or by the store.
func (r *results) addRefusal(u *store.Unit) {
	var conflict *store.ConflictError
	var noIndex *store.NotIndexedError
	switch {
	case u.Sequence.Refusal != nil:
		r.at, r.refusal = len(r.row), u.Sequence.Refusal
		r.addRefused(1)
	case errors.As(u.Err, &conflict):
		r.row = binary.AppendUvarint(append(r.row, resultConflict), uint64(conflict.Append))
		r.row = binary.AppendUvarint(r.row, conflict.Present)
	case errors.As(u.Err, &noIndex):
		r.row = appendText(append(r.row, resultNoIndex), noIndex.Topic)
	default: // of units with appends and delays alone there is nothing else
		r.row = appendText(append(r.row, resultTopics), u.Err.Error())
	}
}

// addRefused adds the entry of so many refusals that are alike.
func (r *results) addRefused(n uint64) {
	r.refused = n
	r.row = binary.AppendUvarint(append(r.row, resultRefused), n)
	r.row = appendText(r.row, string(r.refusal))
}

// result is what became of one unit.
type result struct {
	err     error
	refusal []byte
	// conflict is one whose Expect is the unit's.
	conflict *store.ConflictError
	appends  []appendResult
	delays   []delayResult
}

type appendResult struct {
	flags  byte
	topic  uint32
	offset uint64
	ms     int64
	id     string
}

type delayResult struct {
	flags       byte
	id          string
	at          int64
	seq, offset uint64
}

// resultReader reads entries. Its error is that of the first one that could not be read.
type resultReader struct {
	row []byte
	err error
}

var errBadResults = errors.New("results of a producer are damaged")

func (r *resultReader) fail() {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %d bytes before the end", errBadResults, len(r.row))
	}
	r.row = nil
}

func (r *resultReader) number() uint64 {
	n, size := binary.Uvarint(r.row)
	if size <= 0 {
		r.fail()
		return 0
	}
	r.row = r.row[size:]
	return n
}

func (r *resultReader) byte() byte {
	if len(r.row) == 0 {
		r.fail()
		return 0
	}
	b := r.row[0]
	r.row = r.row[1:]
	return b
}

func (r *resultReader) topic() uint32 {
	if len(r.row) < topicIDBytes {
		r.fail()
		return 0
	}
	id := binary.BigEndian.Uint32(r.row)
	r.row = r.row[topicIDBytes:]
	return id
}

func (r *resultReader) text() string {
	text, rest, ok := cutText(r.row)
	if !ok {
		r.fail()
		return ""
	}
	r.row = rest
	return text
}

// next reads an entry: of how many numbers it is, and what became of the unit that is the one at
// the given place among these. ms is when, 0 where the entry does not say it.
func (r *resultReader) next(at uint64) (count uint64, result result, ms int64) {
	switch kind := r.byte(); kind {
	case resultRun, resultGiven:
		run := resultsRun{given: kind == resultGiven, count: r.number(), per: r.number(), topic: r.topic(), offset: r.number(), ms: int64(r.number())}
		if run.count == 0 || run.per == 0 || run.per > 1<<20 {
			r.fail()
			return 1, result, 0
		}
		return run.count, run.result(at), run.ms
	case resultParts:
		result, ms = r.parts()
	case resultRefused:
		count := r.number()
		if result.refusal = []byte(r.text()); count == 0 {
			r.fail()
		}
		return max(count, 1), result, 0
	case resultConflict:
		result.conflict = &store.ConflictError{Append: int(r.number()), Present: r.number()}
	case resultNoIndex:
		result.err = &store.NotIndexedError{Topic: r.text()}
	case resultTopics:
		result.err = fmt.Errorf("%s: %w", r.text(), store.ErrTopicLimit)
	default:
		r.fail()
	}
	return 1, result, ms
}

// result returns that of one of the units of a run; none where it is not among them.
func (run *resultsRun) result(at uint64) (r result) {
	if at >= run.count {
		return r
	}
	for i := range run.per {
		r.appends = append(r.appends, appendResult{flagIf(!run.given, resultNewID), run.topic, run.offset + at*run.per + i, run.ms, ""})
	}
	return r
}

func (r *resultReader) parts() (result result, ms int64) {
	for n := r.number(); n > 0 && r.err == nil; n-- {
		a := appendResult{flags: r.byte(), topic: r.topic(), offset: r.number(), ms: int64(r.number())}
		if a.flags&resultKeepsID != 0 {
			a.id = r.text()
		}
		ms = max(ms, a.ms)
		result.appends = append(result.appends, a)
	}
	for n := r.number(); n > 0 && r.err == nil; n-- {
		result.delays = append(result.delays, delayResult{flags: r.byte(), id: r.text(), at: int64(r.number()), seq: r.number(), offset: r.number()})
	}
	return result, ms
}

// findResult returns what became of the unit at a place in a row.
func findResult(row []byte, at uint64) (result, error) {
	r := resultReader{row: row}
	for len(r.row) > 0 {
		count, found, _ := r.next(at)
		if r.err != nil {
			return result{}, r.err
		}
		if at < count {
			return found, nil
		}
		at -= count
	}
	return result{}, fmt.Errorf("%w: no entry for %d numbers more", errBadResults, at+1)
}

// countResults returns how many numbers a row has, and when the last of them was used that says it.
func countResults(row []byte) (n uint64, ms int64, err error) {
	r := resultReader{row: row}
	for len(r.row) > 0 {
		count, _, at := r.next(0)
		n, ms = n+count, max(ms, at)
	}
	if r.err == nil && n == 0 {
		r.fail()
	}
	return n, ms, r.err
}

// fits reports whether the results can be those of a unit.
func (r *result) fits(u *store.Unit) bool {
	switch {
	case r.refusal != nil || r.err != nil:
		return true
	case r.conflict != nil:
		return r.conflict.Append < len(u.Appends)
	}
	return slices.EqualFunc(r.appends, u.Appends, func(was appendResult, a store.Append) bool { return was.flags&resultNewID != 0 == a.NewID }) &&
		len(r.delays) == len(u.Delays)
}

// fill gives a unit, which fits, the results.
func (r *result) fill(u *store.Unit, ids *ids) error {
	q := u.Sequence
	if q.Refusal = r.refusal; r.refusal != nil {
		u.Err = store.ErrRefused
		return nil
	}
	if u.Err = r.err; r.conflict != nil {
		u.Err = &store.ConflictError{Append: r.conflict.Append, Expect: u.Appends[r.conflict.Append].Expect, Present: r.conflict.Present}
	}
	if u.Err != nil {
		return nil
	}
	r.fillParts(u.Appends, u.Delays, ids)
	return nil
}

func (r *result) fillParts(appends []store.Append, delays []store.Delay, ids *ids) {
	for i, was := range r.appends {
		a := &appends[i]
		a.Offset, a.CommitTime, a.Duplicate = was.offset, was.ms, true
		switch {
		case was.flags&resultKeepsID != 0:
			a.ID = was.id
		case a.NewID:
			a.ID = ids.make(place{was.topic, was.offset}, was.ms)
		}
	}
	for i, was := range r.delays {
		d := &delays[i]
		d.ID, d.At, d.Seq, d.Offset, d.Duplicate = was.id, was.at, was.seq, was.offset, true
	}
}

// parts returns the parts of a unit that was applied, as far as they are known.
func (r *result) parts(ids *ids) *store.FirstParts {
	p := &store.FirstParts{Appends: make([]store.Append, len(r.appends)), Delays: make([]store.Delay, len(r.delays))}
	for i, was := range r.appends {
		p.Appends[i].NewID = was.flags&resultNewID != 0
	}
	r.fillParts(p.Appends, p.Delays, ids)
	return p
}
