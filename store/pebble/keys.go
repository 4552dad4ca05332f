package pebble

import (
	"encoding/binary"
	"fmt"

	"eventhub/store"
)

// # The keys
//
// All keys live in one Pebble keyspace, ordered byte by byte. The first byte
// says what a key is; integers in keys are big endian, so that byte order is
// number order. Topics are in the other keys by a number of 4 bytes that is
// never given twice, so that a topic that is deleted and created again never
// meets its old events.
//
//	'm' name                             → a number: see metaNextTopic and those below it
//	't' topic name                       → topic id (4), floor (8), index (1)
//	'e' topic id (4) offset (8)          → record                the log
//	'i' event id, topic id (4)           → offset (uvarint)      the id index, see idkeys.go
//	'k' topic id (4) key' ^offset (8)    → empty                 the key index
//	'g' topic id (4) group name          → epoch, cursor (uvarints), mark, settings
//	'p' topic id (4) group name 0x00 kind (1) offset (8)
//	                                     → value                 a part of a group
//	'd' at (8) seq (8)                   → topic, key, record    the delayed events
//	's' topic id (4) event id            → at (8), seq (8)       their id index
//	'x' group name 0x00 pattern          → value                 a group's pattern
//	'o' topic name or pattern            → value                 the settings of topics
//	'l' note name                        → value                 the engine's own rows
//	'c' event id 0x00 topic id (4) offset (8)
//	                                     → empty                 an effect of the event
//	'r' correlation 0x00 topic id (4) offset (8)
//	                                     → empty                 an event with that value
//	'u', 'j'                                                      producers, see producers.go
//	'h' topic id (4)                     → horizon, last offset and its commit time, compacted and
//	                                       tombstones (uvarints) the marks of a topic
//	'v' topic id (4)                     → …                     how far its compaction is, see compact.go
//	'b' topic id (4)                     → …                     how far its key index is, see keyindex.go
//	'w' topic id (4) kind (1) offset (8) → …                     what is to be swept, see removed.go
//	'n' topic id (4) last offset (8) → …                         how much is up to there, see segments.go
//	'q' due (8) topic id (4) offset (8) → ids                    that are remembered, see sweepids.go
//
// 'z' and 'y' are about topics that were deleted: see deletetopic.go.
//
// An event costs its log key, and its id key where the publisher gave the id: one that
// the store made says where its event is (ids.go). One with a key costs one more where its
// topic has the key index, and any event one more for each id in its caused_by and for its
// correlation. That is all: each further key would be paid for by every event in the
// write-ahead log, the memtable and every compaction.
//
// The id index has the id first: the ids that the SDK makes grow with time, so
// new entries go to one end of the index, and one id can be looked up over all
// topics.
//
// The key index holds the event's key escaped: 0x00 becomes 0x00 0xff, and 0x00
// 0x01 ends it. No escaped key is then a prefix of another one, and the offsets
// of one key, inverted, are next to each other with the newest first.
//
// There is no index by commit time. The time never decreases within a topic and
// is at a fixed place in the record, so the log itself is sorted by it, and
// a binary search over offsets finds a time in about log2(head) seeks.
//
// The mark in a group's header is the byte 0x01 where the group is paused, and
// not there where it is not. Settings are JSON or nothing, so no header written
// before there was a mark can be taken for one with it: such headers are read,
// and an unpaused group has one still, which is why the format's version was not
// raised for it. Any other byte there that begins no JSON is damage.
//
// A group's name, like an id, holds no byte below '-', so that 0x00 ends it, and
// the parts of one group are together and apart from those of a group whose name
// only starts like that. They are not among the headers, which are listed.
//
// Parts go one by one, with their group or at a reset too, and not by one
// deletion of the range: an iterator has to hold each of its keys against every
// range deletion in the tables and memtables it opens, so those of groups that
// come and go would be paid for by the readers of events. The tombstones of parts
// are in nobody's way but that of the group's next load; overwriting a part,
// which is what happens many times a second, leaves none.
//
// A delayed event is where it is due: At in milliseconds, then Seq. So what is due is
// read from one place on, whatever the topic, and the delayed events themselves are all
// that says when to look again. Its value has the topic's name and the event's
// key, each after its length (uvarint); the id is in the record. Those that moved leave
// tombstones at the front of that order; who moves them reads from where it was.
//
// Settings are by the name that a topic has or may have, and not by its number: they are
// there before their topics, and stay when these are deleted.
//
// The links of an event are keys without a value, with the place of the effect at
// the end. They have the topic's number, whose order is that of creation: who asks for
// the order of names looks up the topics first, one seek each. Neither an id nor a
// correlation has the byte 0x00 that ends it.
//
// The keys with 'd', 's', 'x', 'o', 'l', 'c', 'r', 'u' and 'j' came after the others. A program that does not
// know them neither reads nor writes them, and what it writes breaks none of their
// promises: delayed events wait until a newer one is back, and an id that it publishes
// while a delayed event has it is what it would be here. Events that it publishes have no
// links, nor have those that were there before; nobody goes through the log to make
// up for it. Settings of topics, notes and producers have no effect until a newer one is back.
// So the format's version was not raised for them.
//
// It was for those about removed events, 'h', 'w', 'q', 'n' and 'v': an older program finds
// neither the event of an id that is remembered nor, in an empty log, which offsets were given,
// and what it appends is in no segment. And for topics without the key index: an older program
// would take an event that it does not find there for removed. And for ids that are UUIDs: an
// older program does not find them.
//
// The floor of a topic says that no offset at or below it is given again. It
// matters where the log alone does not show that: see reserve.
const (
	tagMeta  = 'm'
	tagTopic = 't'
	tagEvent = 'e'
	tagID    = 'i'
	tagKey   = 'k'
	tagGroup = 'g'
	tagPart  = 'p'

	tagDelayed   = 'd'
	tagDelayedID = 's'
	tagPattern   = 'x'
	tagSetting   = 'o'
	tagNote      = 'l'

	tagMarks = 'h'
	tagSweep = 'w'

	tagEffect     = 'c'
	tagCorrelated = 'r'
)

const (
	topicIDBytes  = 4
	offsetBytes   = 8
	eventKeyBytes = 1 + topicIDBytes + offsetBytes
	topicValBytes = topicIDBytes + offsetBytes + 1
	epochBytes    = 8

	partTailBytes = 1 + offsetBytes // of a part's key, after its group's prefix

	linkTailBytes = topicIDBytes + offsetBytes // of a link's key, after its name's 0x00

	delayPlaceBytes = 8 + 8 // At, Seq
	delayKeyBytes   = 1 + delayPlaceBytes
)

// pausedMark is in the header of a paused group.
const pausedMark = 0x01

// metaNextTopic holds the number that the next topic gets.
var metaNextTopic = []byte{tagMeta, 'n', 'e', 'x', 't'}

// metaDelayFloor holds a number that no Seq of a delayed event is above, see reserveDelays.
var metaDelayFloor = []byte{tagMeta, 'p', 'l', 'a', 'n', 's'}

// metaEpoch holds the highest epoch of a group that was deleted, where one was. It too
// came after the others: an older program leaves it, and does not raise it.
var metaEpoch = []byte{tagMeta, 'e', 'p', 'o', 'c', 'h'}

// metaEras holds the eras of the topics' numbers: id (8), first number (8) of each, the
// oldest first. It too came after the others: what an older program gives then counts as
// of the era before.
var metaEras = []byte{tagMeta, 'e', 'r', 'a', 's'}

func appendTopicKey(dst []byte, name string) []byte {
	return append(append(dst, tagTopic), name...)
}

func appendTopicValue(dst []byte, id uint32, floor uint64, index store.IndexStatus) []byte {
	dst = binary.BigEndian.AppendUint32(dst, id)
	dst = binary.BigEndian.AppendUint64(dst, floor)
	return append(dst, byte(index))
}

// decodeTopicValue also reads that of a store up to format 4, all of whose topics have the key
// index: it has nothing after the floor.
func decodeTopicValue(v []byte) (id uint32, floor uint64, index store.IndexStatus, err error) {
	index = store.Indexed
	switch len(v) {
	case topicValBytes - 1:
	case topicValBytes:
		index = store.IndexStatus(v[topicValBytes-1])
	default:
		return 0, 0, 0, fmt.Errorf("topic record has %d bytes; want %d", len(v), topicValBytes)
	}
	if index > store.Indexed {
		return 0, 0, 0, fmt.Errorf("topic record %x says nothing of its index", v)
	}
	return binary.BigEndian.Uint32(v), binary.BigEndian.Uint64(v[topicIDBytes:]), index, nil
}

func appendEventKey(dst []byte, topic uint32, offset uint64) []byte {
	dst = append(dst, tagEvent)
	dst = binary.BigEndian.AppendUint32(dst, topic)
	return binary.BigEndian.AppendUint64(dst, offset)
}

// eventOffset reads the offset out of a key of the log.
func eventOffset(key []byte) uint64 { return binary.BigEndian.Uint64(key[1+topicIDBytes:]) }

// appendKeyPrefix appends what the entries of one key in the key index start
// with.
func appendKeyPrefix(dst []byte, topic uint32, key string) []byte {
	dst = append(dst, tagKey)
	dst = appendEscapedKey(binary.BigEndian.AppendUint32(dst, topic), key)
	return append(dst, keyEnd...)
}

// keyEnd ends an escaped key.
const keyEnd = "\x00\x01"

// appendEscapedKey appends a key as the key index has it, or the first bytes of one.
func appendEscapedKey(dst []byte, key string) []byte {
	for i := 0; i < len(key); i++ {
		dst = append(dst, key[i])
		if key[i] == 0 {
			dst = append(dst, 0xff)
		}
	}
	return dst
}

func appendKeyKey(dst []byte, topic uint32, key string, offset uint64) []byte {
	dst = appendKeyPrefix(dst, topic, key)
	return binary.BigEndian.AppendUint64(dst, ^offset)
}

// keyOffset reads the offset out of a key of the key index.
func keyOffset(key []byte) uint64 { return ^binary.BigEndian.Uint64(key[len(key)-offsetBytes:]) }

func appendGroupPrefix(dst []byte, topic uint32) []byte {
	return binary.BigEndian.AppendUint32(append(dst, tagGroup), topic)
}

func appendGroupKey(dst []byte, topic uint32, group string) []byte {
	return append(appendGroupPrefix(dst, topic), group...)
}

// groupName reads the group's name out of a key of a group header.
func groupName(key []byte) string { return string(key[1+topicIDBytes:]) }

func appendGroupValue(dst []byte, s *store.GroupState) []byte {
	dst = binary.AppendUvarint(dst, s.Epoch)
	dst = binary.AppendUvarint(dst, s.Cursor)
	if s.Paused {
		dst = append(dst, pausedMark)
	}
	return append(dst, s.Settings...)
}

// decodeGroupValue copies what it returns.
func decodeGroupValue(v []byte) (store.GroupState, error) {
	epoch, n := binary.Uvarint(v)
	if n <= 0 {
		return store.GroupState{}, fmt.Errorf("group header %x has no epoch", v)
	}
	cursor, m := binary.Uvarint(v[n:])
	if m <= 0 {
		return store.GroupState{}, fmt.Errorf("group header %x has no cursor", v)
	}
	s := store.GroupState{Epoch: epoch, Cursor: cursor}
	settings := v[n+m:]
	if len(settings) > 0 && settings[0] == pausedMark {
		s.Paused, settings = true, settings[1:]
	}
	if len(settings) > 0 {
		if c := settings[0]; c < ' ' && c != '\t' && c != '\n' && c != '\r' {
			return store.GroupState{}, fmt.Errorf("group header %x has the mark %#02x", v, c)
		}
		s.Settings = append([]byte(nil), settings...)
	}
	return s, nil
}

// appendPartPrefix appends what the keys of one group's parts start with; end is
// 0, or 1 for the bound after all of them.
func appendPartPrefix(dst []byte, topic uint32, group string, end byte) []byte {
	dst = binary.BigEndian.AppendUint32(append(dst, tagPart), topic)
	return append(append(dst, group...), end)
}

func appendPartKey(dst []byte, topic uint32, group string, kind byte, offset uint64) []byte {
	dst = append(appendPartPrefix(dst, topic, group, 0), kind)
	return binary.BigEndian.AppendUint64(dst, offset)
}

// partName reads kind and offset out of a key of a part of the group.
func partName(key []byte, group string) (kind byte, offset uint64, err error) {
	tail := key[1+topicIDBytes+len(group)+1:]
	if len(tail) != partTailBytes {
		return 0, 0, fmt.Errorf("key %x of a part has %d bytes after the group's name; want %d", key, len(tail), partTailBytes)
	}
	return tail[0], binary.BigEndian.Uint64(tail[1:]), nil
}

func decodeOffset(v []byte) (uint64, error) {
	offset, n := binary.Uvarint(v)
	if n <= 0 || offset == 0 {
		return 0, fmt.Errorf("id index entry %x is no offset", v)
	}
	return offset, nil
}

func appendDelayPlace(dst []byte, at int64, seq uint64) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(at))
	return binary.BigEndian.AppendUint64(dst, seq)
}

func decodeDelayedPlace(v []byte) (delayPlace, error) {
	if len(v) != delayPlaceBytes {
		return delayPlace{}, fmt.Errorf("the place %x of a delayed event has %d bytes; want %d", v, len(v), delayPlaceBytes)
	}
	place := delayPlace{at: int64(binary.BigEndian.Uint64(v)), seq: binary.BigEndian.Uint64(v[8:])}
	if place.at < 0 || place.seq == 0 {
		return delayPlace{}, fmt.Errorf("the place of a delayed event is (%d, %d)", place.at, place.seq)
	}
	return place, nil
}

func appendDelayKey(dst []byte, at int64, seq uint64) []byte {
	return appendDelayPlace(append(dst, tagDelayed), at, seq)
}

// delayPlaceOf reads the place out of a delayed event's key.
func delayPlaceOf(key []byte) (delayPlace, error) { return decodeDelayedPlace(key[1:]) }

func appendDelayIDKey(dst []byte, topic uint32, id string) []byte {
	dst = binary.BigEndian.AppendUint32(append(dst, tagDelayedID), topic)
	return append(dst, id...)
}

func appendPatternKey(dst []byte, group, pattern string) []byte {
	dst = append(append(dst, tagPattern), group...)
	return append(append(dst, 0), pattern...)
}

// appendNamedKey appends the key of a setting or a note.
func appendNamedKey(dst []byte, tag byte, name string) []byte {
	return append(append(dst, tag), name...)
}

// appendLinkPrefix appends what the keys of the links with one name start with; end
// is 0, or 1 for the bound after all of them.
func appendLinkPrefix(dst []byte, tag byte, name string, end byte) []byte {
	return append(append(append(dst, tag), name...), end)
}

func appendLinkKey(dst []byte, tag byte, name string, topic uint32, offset uint64) []byte {
	dst = appendLinkPrefix(dst, tag, name, 0)
	dst = binary.BigEndian.AppendUint32(dst, topic)
	return binary.BigEndian.AppendUint64(dst, offset)
}

// linkPlace reads the place out of a link's key, after the prefix of its name.
func linkPlace(key, prefix []byte) (topic uint32, offset uint64, err error) {
	tail := key[len(prefix):]
	if len(tail) != linkTailBytes {
		return 0, 0, fmt.Errorf("key %x of a link has %d bytes after the name; want %d", key, len(tail), linkTailBytes)
	}
	return binary.BigEndian.Uint32(tail), binary.BigEndian.Uint64(tail[topicIDBytes:]), nil
}

// appendText appends a text after its length.
func appendText(dst []byte, text string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

// textBytes is what appendText appends.
func textBytes(text string) int {
	var length [binary.MaxVarintLen64]byte
	return binary.PutUvarint(length[:], uint64(len(text))) + len(text)
}

// cutText undoes appendText and copies the text.
func cutText(v []byte) (text string, rest []byte, ok bool) {
	length, n := binary.Uvarint(v)
	if n <= 0 || length > uint64(len(v)-n) {
		return "", nil, false
	}
	v = v[n:]
	return string(v[:length]), v[length:], true
}
