package eventhub

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// Record is an event as it is stored: its JSON object without the offset, which
// is not known when the event is encoded. It is encoded once; the store, the
// deliveries, replay and export all carry the same bytes.
//
// A record starts with the commit time at a fixed place and the id behind it:
//
//	{"ts":1723140000000,"id":"0199…",…            the publisher gave no ts
//	{"committed_ts":1723140000000,"id":"…","ts":… it did
//
// The time is 13 bytes wide, padded with spaces on the left before the year
// 2001, so that the commit can write it in place. Any JSON reader reads it.
// A Record is read-only once committed.
type Record []byte

// The fixed start of a record.
const (
	RecordTSPrefix        = `{"ts":`
	RecordCommittedPrefix = `{"committed_ts":`
	RecordTimeWidth       = 13
	RecordIDRoom          = "00000000-0000-0000-0000-000000000000" // where the store is to make the id
	recordIDPrefix        = `,"id":"`
	recordKeyedPrefix     = `,"partition":`
)

// timeAt returns where the commit time starts, or -1 for what is no record.
func (r Record) timeAt() int {
	at := len(RecordTSPrefix)
	if bytes.HasPrefix(r, []byte(RecordCommittedPrefix)) {
		at = len(RecordCommittedPrefix)
	} else if !bytes.HasPrefix(r, []byte(RecordTSPrefix)) {
		return -1
	}
	if len(r) < at+RecordTimeWidth+len(recordIDPrefix) {
		return -1
	}
	return at
}

// CommitTime returns the commit time in epoch milliseconds, or 0 for bytes that
// do not start as a record does.
func (r Record) CommitTime() int64 {
	at := r.timeAt()
	if at < 0 {
		return 0
	}
	var ms int64
	for _, c := range r[at : at+RecordTimeWidth] {
		if c != ' ' {
			ms = ms*10 + int64(c-'0')
		}
	}
	return ms
}

// SetCommitTime writes the commit time, in epoch milliseconds from 0 to
// 9999999999999, into a record that is not yet committed.
func (r Record) SetCommitTime(ms int64) {
	at := r.timeAt()
	if at < 0 || ms < 0 {
		panic(fmt.Sprintf("eventhub: SetCommitTime(%d) on %.40q", ms, r))
	}
	for i := at + RecordTimeWidth - 1; i >= at; i-- {
		if ms == 0 && i < at+RecordTimeWidth-1 {
			r[i] = ' '
			continue
		}
		r[i] = byte('0' + ms%10)
		ms /= 10
	}
}

// SetID writes an id as long as RecordIDRoom into a record that is not yet committed
// and has one of that length.
func (r Record) SetID(id string) {
	old := r.ID()
	if len(old) != len(RecordIDRoom) || len(id) != len(old) {
		panic(fmt.Sprintf("eventhub: SetID(%q) on %.80q", id, r))
	}
	copy(old, id)
}

// WithTS returns a record of the same event whose ts is the publisher's own, and
// whose commit time is still to be set. A record that has such a ts is returned as
// it is. ts is in epoch milliseconds.
func (r Record) WithTS(ts int64) Record {
	if bytes.HasPrefix(r, []byte(RecordCommittedPrefix)) || r.timeAt() < 0 {
		return r
	}
	behind := len(RecordTSPrefix) + RecordTimeWidth
	topic := behind + len(recordIDPrefix) + len(r.ID()) + 1
	out := make(Record, 0, len(r)+len(RecordCommittedPrefix)+len(`,"ts":`)+RecordTimeWidth)
	out = append(out, RecordCommittedPrefix...)
	out = append(out, r[len(RecordTSPrefix):topic]...)
	out = append(out, `,"ts":`...)
	out = strconv.AppendInt(out, ts, 10)
	return append(out, r[topic:]...)
}

// ID returns the event's id as a part of the record, or nil for bytes that do
// not start as a record does.
func (r Record) ID() []byte {
	at := r.timeAt()
	if at < 0 {
		return nil
	}
	rest := r[at+RecordTimeWidth+len(recordIDPrefix):]
	end := bytes.IndexByte(rest, '"')
	if end < 0 {
		return nil
	}
	return rest[:end]
}

// Key returns the event's key, or nil where it has none. It may be a part of the
// record.
func (r Record) Key() []byte {
	at := r.timeAt()
	if at < 0 {
		return nil
	}
	// Behind the time stand the id, perhaps the publisher's ts, and the topic,
	// none of which has escapes; then, where there is a key, the partition.
	_, rest, _ := bytes.Cut(r[at+RecordTimeWidth+len(recordIDPrefix):], []byte(`"topic":"`))
	_, rest, _ = bytes.Cut(rest, []byte(`"`))
	if !bytes.HasPrefix(rest, []byte(recordKeyedPrefix)) {
		return nil
	}
	_, rest, _ = bytes.Cut(rest, []byte(`,"key":`))
	for end := 1; end < len(rest); end++ {
		switch rest[end] {
		case '"':
			return rest[1:end]
		case '\\':
			return unescapeKey(rest)
		}
	}
	return nil
}

// unescapeKey decodes the string at the start of rest.
func unescapeKey(rest []byte) []byte {
	var key string
	if err := json.NewDecoder(bytes.NewReader(rest)).Decode(&key); err != nil {
		return nil
	}
	return []byte(key)
}

// AppendJSON appends the whole event, offset first, as one JSON object.
func (r Record) AppendJSON(dst []byte, offset uint64) []byte {
	dst = append(dst, `{"offset":`...)
	dst = strconv.AppendUint(dst, offset, 10)
	dst = append(dst, ',')
	return append(dst, r[1:]...)
}

// Event decodes the record.
func (r Record) Event(offset uint64) (Event, error) {
	var e Event
	if err := json.Unmarshal(r, &e); err != nil {
		return Event{}, fmt.Errorf("eventhub: decode the record at offset %d: %w", offset, err)
	}
	e.Offset = offset
	return e, nil
}
