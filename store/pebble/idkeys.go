package pebble

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"strings"

	"eventhub/internal/eventid"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/google/uuid"
)

// # The keys of the id index
//
// Most publishers give UUIDs, whose text is more than twice as long as what it says. One in its
// canonical form (RFC 9562, section 4: lower case) is in the index as its 16 bytes, after its
// version:
//
//	'i' version (1) UUID (16) topic id (4)   → offset (uvarint)
//	'i' id 0x00 topic id (4)                 → offset (uvarint)   all other ids
//
// The version is at most 0x0f, and a text has no byte below '-', so neither is taken for the
// other. The canonical form is the only one that is made 16 bytes of: an id in capitals is
// another id, as it ever was. The version comes first so that ids of version 7, which grow with
// time, are next to each other, and apart from random ones.
//
// Up to format 5 every id is there as text. Such entries stay as they are: what has the id of a
// UUID is then looked up in both forms, until a program finds at Open that there is no text left.
// metaNoText says that this was found; nothing writes the text of a UUID since.
var metaNoText = []byte{tagMeta, 'n', 'o', 't', 'e', 'x', 't'}

const (
	uuidKeyBytes = 1 + 1 + 16 + topicIDBytes
	textForm     = 0xff // in idForm.version: the id is text
)

// idForm is how an id is in the index.
type idForm struct {
	version   byte
	high, low uint64 // of a UUID
	text      string // the id
}

// formOf returns the form of an id.
func formOf(id string) idForm {
	f := idForm{version: textForm, text: id}
	if u, ok := parseUUID(id); ok {
		f.version = byte(u.Version())
		f.high, f.low = binary.BigEndian.Uint64(u[:8]), binary.BigEndian.Uint64(u[8:])
	}
	return f
}

func (f *idForm) isUUID() bool { return f.version != textForm }

// appendPrefix appends what the entries of an id begin with, one for each topic.
func (f *idForm) appendPrefix(dst []byte) []byte {
	if !f.isUUID() {
		return appendIDText(dst, f.text)
	}
	dst = append(dst, tagID, f.version)
	dst = binary.BigEndian.AppendUint64(dst, f.high)
	return binary.BigEndian.AppendUint64(dst, f.low)
}

// append appends the key of the entry of an id in a topic.
func (f *idForm) append(dst []byte, topic uint32) []byte {
	return binary.BigEndian.AppendUint32(f.appendPrefix(dst), topic)
}

// keyBytes is what append appends.
func (f *idForm) keyBytes() int {
	if f.isUUID() {
		return uuidKeyBytes
	}
	return 1 + len(f.text) + 1 + topicIDBytes
}

// compareForms orders ids as their keys are.
func compareForms(a, b *idForm) int {
	if a.version == textForm && b.version == textForm {
		return strings.Compare(a.text, b.text)
	}
	return cmp.Or(cmp.Compare(a.version, b.version), cmp.Compare(a.high, b.high), cmp.Compare(a.low, b.low))
}

// appendIDKey appends the key of an id's entry in a topic.
func appendIDKey(dst []byte, id string, topic uint32) []byte {
	f := formOf(id)
	return f.append(dst, topic)
}

// appendIDText appends what the entries of an id begin with as text.
func appendIDText(dst []byte, id string) []byte {
	return append(append(append(dst, tagID), id...), 0)
}

// appendTextKey appends the key that a program of format 5 has given to the entry of an id.
func appendTextKey(dst []byte, id string, topic uint32) []byte {
	return binary.BigEndian.AppendUint32(appendIDText(dst, id), topic)
}

// hexValue has the value of each lower-case digit, and noDigit of other bytes.
var hexValue = func() (values [256]byte) {
	for i := range values {
		values[i] = noDigit
	}
	for i, c := range []byte("0123456789abcdef") {
		values[c] = byte(i)
	}
	return values
}()

const noDigit = 0xff

// uuidPairs are the places of a UUID's bytes in its text.
var uuidPairs = [16]int{0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34}

// parseUUID reads a UUID in its canonical form, and in no other: appendUUID makes the same text
// of it.
func parseUUID(id string) (u uuid.UUID, ok bool) {
	if len(id) != eventid.Size || id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' {
		return u, false
	}
	bad := byte(0)
	for i, at := range uuidPairs {
		high, low := hexValue[id[at]], hexValue[id[at+1]]
		bad |= high | low
		u[i] = high<<4 | low
	}
	return u, bad <= 0x0f
}

// putUUID writes the canonical form of a UUID.
func putUUID(text *[eventid.Size]byte, id uuid.UUID) {
	hex.Encode(text[:8], id[:4])
	hex.Encode(text[9:13], id[4:6])
	hex.Encode(text[14:18], id[6:8])
	hex.Encode(text[19:23], id[8:10])
	hex.Encode(text[24:], id[10:])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
}

// loadIDForms finds out at Open whether the text of a UUID may be in the index.
func (s *Store) loadIDForms(first *pdb.Batch) (err error) {
	noText, err := s.has(metaNoText)
	if noText || err != nil {
		return err
	}
	iter, err := s.tagged(tagID)
	if err != nil {
		return err
	}
	defer closeInto(iter, &err)
	if s.textIDs = iter.SeekGE([]byte{tagID, '-'}); s.textIDs || iter.Error() != nil {
		return iter.Error()
	}
	return first.Set(metaNoText, nil, nil)
}

// deleteID deletes the entry of an id, in whichever form it is there.
func (p *sweepStep) deleteID(id string, topic uint32) {
	f := formOf(id)
	_ = p.batch.Delete(f.append(nil, topic), nil) // a batch takes what fits in memory
	if p.s.textIDs && f.isUUID() {
		_ = p.batch.Delete(appendTextKey(nil, id, topic), nil)
	}
}

// entry returns the offset of the entry of an id; 0 where there is none.
func (s *Store) entry(id string, topic uint32) (uint64, error) {
	f := formOf(id)
	value, err := s.get(f.append(nil, topic))
	if value == nil && err == nil && s.textIDs && f.isUUID() {
		value, err = s.get(appendTextKey(nil, id, topic))
	}
	if value == nil || err != nil {
		return 0, err
	}
	return decodeOffset(value)
}

// seekID moves an iterator to the entry of an id, and returns its offset; 0 where there is
// none. key is memory to work in.
func (s *Store) seekID(iter *pdb.Iterator, f *idForm, topic uint32, key *[]byte) (uint64, error) {
	for text := !f.isUUID(); ; text = true {
		if *key = f.append((*key)[:0], topic); text && f.isUUID() {
			*key = appendTextKey((*key)[:0], f.text, topic)
		}
		switch {
		case iter.SeekPrefixGE(*key):
			if bytes.Equal(iter.Key(), *key) {
				return decodeOffset(iter.Value())
			}
		case iter.Error() != nil: // now, as the next seek forgets it
			return 0, iter.Error()
		}
		if text || !s.textIDs {
			return 0, nil
		}
	}
}
