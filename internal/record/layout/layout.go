// Package layout knows where the parts of a stored event are. A record is the JSON object
// of an event without the offset, which is not known when the event is encoded:
//
//	{"ts":1723140000000,"id":"0199…",…            the publisher gave no ts
//	{"committed_ts":1723140000000,"id":"…","ts":… it did
//
// The commit time is at a fixed place and 13 bytes wide, padded with spaces on the left
// before the year 2001, so that the commit can write it in place; the id follows it. Any
// JSON reader reads it. Package record encodes events into this layout.
//
// The functions that read take any bytes: they return a zero value for bytes that do not
// start as a record does. They do not allocate, except Key for a key with escapes.
package layout

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// The fixed start of a record.
const (
	TSPrefix        = `{"ts":`
	CommittedPrefix = `{"committed_ts":`
	TimeWidth       = 13
	IDRoom          = "00000000-0000-0000-0000-000000000000" // where the store is to make the id
	idPrefix        = `,"id":"`
	keyedPrefix     = `,"partition":`
)

// timeAt returns where the commit time starts, or -1 for bytes that are no record.
func timeAt(record []byte) int {
	at := len(TSPrefix)
	if bytes.HasPrefix(record, []byte(CommittedPrefix)) {
		at = len(CommittedPrefix)
	} else if !bytes.HasPrefix(record, []byte(TSPrefix)) {
		return -1
	}
	if len(record) < at+TimeWidth+len(idPrefix) {
		return -1
	}
	return at
}

// CommitTime returns the commit time in epoch milliseconds.
func CommitTime(record []byte) int64 {
	at := timeAt(record)
	if at < 0 {
		return 0
	}
	var ms int64
	for _, c := range record[at : at+TimeWidth] {
		if c != ' ' {
			ms = ms*10 + int64(c-'0')
		}
	}
	return ms
}

// SetCommitTime writes the commit time, in epoch milliseconds from 0 to 9999999999999,
// into a record that is not yet committed. It panics for anything else.
func SetCommitTime(record []byte, ms int64) {
	at := timeAt(record)
	if at < 0 || ms < 0 {
		panic(fmt.Sprintf("layout: SetCommitTime(%.40q, %d)", record, ms))
	}
	for i := at + TimeWidth - 1; i >= at; i-- {
		if ms == 0 && i < at+TimeWidth-1 {
			record[i] = ' '
			continue
		}
		record[i] = byte('0' + ms%10)
		ms /= 10
	}
}

// ID returns the event's id as a part of the record.
func ID(record []byte) []byte {
	at := timeAt(record)
	if at < 0 {
		return nil
	}
	rest := record[at+TimeWidth+len(idPrefix):]
	end := bytes.IndexByte(rest, '"')
	if end < 0 {
		return nil
	}
	return rest[:end]
}

// SetID writes an id as long as IDRoom into a record that is not yet committed and has
// one of that length. It panics for anything else.
func SetID(record []byte, id string) {
	old := ID(record)
	if len(old) != len(IDRoom) || len(id) != len(old) {
		panic(fmt.Sprintf("layout: SetID(%.80q, %q)", record, id))
	}
	copy(old, id)
}

// WithTS returns a record of the same event whose ts is the publisher's own, and whose
// commit time is still to be set. A record that has such a ts is returned as it is. ts is
// in epoch milliseconds.
func WithTS(record []byte, ts int64) []byte {
	if bytes.HasPrefix(record, []byte(CommittedPrefix)) || timeAt(record) < 0 {
		return record
	}
	topic := len(TSPrefix) + TimeWidth + len(idPrefix) + len(ID(record)) + 1
	out := make([]byte, 0, len(record)+len(CommittedPrefix)+len(`,"ts":`)+TimeWidth)
	out = append(out, CommittedPrefix...)
	out = append(out, record[len(TSPrefix):topic]...)
	out = append(out, `,"ts":`...)
	out = strconv.AppendInt(out, ts, 10)
	return append(out, record[topic:]...)
}

// Key returns the event's key, or nil if it has none. It may be a part of the record.
func Key(record []byte) []byte {
	at := timeAt(record)
	if at < 0 {
		return nil
	}
	// After the time come the id, perhaps the publisher's ts, and the topic, none of
	// which has escapes; then, if there is a key, the partition.
	_, rest, _ := bytes.Cut(record[at+TimeWidth+len(idPrefix):], []byte(`"topic":"`))
	_, rest, _ = bytes.Cut(rest, []byte(`"`))
	if !bytes.HasPrefix(rest, []byte(keyedPrefix)) {
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
func AppendJSON(dst, record []byte, offset uint64) []byte {
	dst = append(dst, `{"offset":`...)
	dst = strconv.AppendUint(dst, offset, 10)
	dst = append(dst, ',')
	return append(dst, record[1:]...)
}

// Payload returns the payload, the last member of a record, or nil for bytes that have none. It
// is a part of the record.
func Payload(record []byte) []byte {
	const name = `"payload"`
	for at, depth := 0, 0; at < len(record); at++ {
		switch record[at] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			end := at + 1
			for end < len(record) && record[end] != '"' {
				if record[end] == '\\' {
					end++
				}
				end++
			}
			isName := depth == 1 && end+1 < len(record) && record[end+1] == ':'
			if isName && string(record[at:end+1]) == name {
				return record[end+2 : len(record)-1]
			}
			at = end
		}
	}
	return nil
}

// IsTombstone reports whether the payload, which is the last part of a record, is null.
func IsTombstone(record []byte) bool { return bytes.HasSuffix(record, []byte(`"payload":null}`)) }
