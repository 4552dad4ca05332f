package journal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/cespare/xxhash/v2"
)

// Kind says what an entry is.
type Kind uint8

const (
	KindData    Kind = 1 + iota // a commit of the store, or a piece of one
	KindLead                    // a hub takes over: its epoch begins
	KindBeat                    // the hub that leads is there, and has nothing to say
	KindRelease                 // the hub that leads stops, and another may take over at once
)

func (k Kind) String() string {
	switch k {
	case KindData:
		return "data"
	case KindLead:
		return "lead"
	case KindBeat:
		return "beat"
	case KindRelease:
		return "release"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// MaxHub is how long the id of a hub may be, in bytes.
const MaxHub = 64

// Header is what an entry says of itself.
type Header struct {
	Kind   Kind
	Rest   uint32   // how many pieces of the same data follow this one; 0 but for data
	Layout uint32   // how the keys in the data are laid out; an entry of a lead says what its hub writes
	Epoch  uint64   // counts the hubs that have led
	Hub    string   // who leads: 1 to MaxHub bytes
	Nonce  [16]byte // random: no two appends have the same bytes
	Time   int64    // of the commit, in Unix milliseconds
	Chain  uint64   // Hash of the entry before; 0 in the first
}

// An entry is, in big endian:
//
//	magic   4  "EHJ" and the version of this format
//	check   4  CRC32C of all other bytes
//	kind    1
//	hub     1  length of the hub's id
//	layout  4
//	rest    4
//	length  4  of the data
//	epoch   8
//	time    8
//	chain   8
//	nonce  16
//	hub's id, data
const (
	magic      = "EHJ\x01"
	atCheck    = 4
	atKind     = 8
	atHub      = 9
	atLayout   = 10
	atRest     = 14
	atLength   = 18
	atEpoch    = 22
	atTime     = 30
	atChain    = 38
	atNonce    = 46
	fixedBytes = 62
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Hash returns the hash of an entry, which is the Chain of the next one.
func Hash(entry []byte) uint64 { return xxhash.Sum64(entry) }

// room returns how much data an entry of at most that size may have.
func room(entryBytes int, hub string) int { return entryBytes - fixedBytes - len(hub) }

// AppendEntry appends the bytes of an entry to b. It fails where the decoder would refuse them.
func AppendEntry(b []byte, h *Header, data []byte) ([]byte, error) {
	if what := h.offence(len(data)); what != "" {
		return b, fmt.Errorf("an entry for the journal: %s", what)
	}
	if len(data) > math.MaxUint32 {
		return b, fmt.Errorf("an entry of %d bytes: %w", len(data), ErrTooLarge)
	}
	from := len(b)
	b = append(b, magic...)
	b = append(b, 0, 0, 0, 0, byte(h.Kind), byte(len(h.Hub)))
	b = binary.BigEndian.AppendUint32(b, h.Layout)
	b = binary.BigEndian.AppendUint32(b, h.Rest)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	b = binary.BigEndian.AppendUint64(b, h.Epoch)
	b = binary.BigEndian.AppendUint64(b, uint64(h.Time))
	b = binary.BigEndian.AppendUint64(b, h.Chain)
	b = append(b, h.Nonce[:]...)
	b = append(b, h.Hub...)
	b = append(b, data...)
	binary.BigEndian.PutUint32(b[from+atCheck:], checksum(b[from:]))
	return b, nil
}

// checksum is the CRC32C of an entry but for its own bytes.
func checksum(entry []byte) uint32 {
	return crc32.Update(crc32.Checksum(entry[:atCheck], castagnoli), castagnoli, entry[atKind:])
}

// ParseEntry returns what an entry says of itself, and its data, which are bytes of the entry.
// Whatever is not exactly what AppendEntry makes is ErrForeign.
func ParseEntry(entry []byte) (Header, []byte, error) {
	var h Header
	foreign := func(what string) (Header, []byte, error) {
		return Header{}, nil, fmt.Errorf("%w: %s", ErrForeign, what)
	}
	switch {
	case len(entry) < len(magic) || string(entry[:3]) != magic[:3]:
		return foreign("they begin otherwise")
	case entry[3] != magic[3]:
		return foreign(fmt.Sprintf("they have version %d of the format, and this program reads %d", entry[3], magic[3]))
	case len(entry) < fixedBytes:
		return foreign(fmt.Sprintf("%d bytes are too few", len(entry)))
	case binary.BigEndian.Uint32(entry[atCheck:]) != checksum(entry):
		return foreign("the checksum is wrong")
	}
	hub, data := int(entry[atHub]), uint64(binary.BigEndian.Uint32(entry[atLength:]))
	if uint64(len(entry)) != uint64(fixedBytes+hub)+data {
		return foreign("the lengths are wrong")
	}
	h = Header{
		Kind:   Kind(entry[atKind]),
		Layout: binary.BigEndian.Uint32(entry[atLayout:]),
		Rest:   binary.BigEndian.Uint32(entry[atRest:]),
		Epoch:  binary.BigEndian.Uint64(entry[atEpoch:]),
		Time:   int64(binary.BigEndian.Uint64(entry[atTime:])),
		Chain:  binary.BigEndian.Uint64(entry[atChain:]),
		Nonce:  [16]byte(entry[atNonce:fixedBytes]),
		Hub:    string(entry[fixedBytes : fixedBytes+hub]),
	}
	if what := h.offence(int(data)); what != "" {
		return foreign(what)
	}
	return h, entry[fixedBytes+hub:], nil
}

// offence says what is wrong with a header of so many bytes of data, or nothing.
func (h *Header) offence(data int) string {
	switch {
	case h.Kind < KindData || h.Kind > KindRelease:
		return h.Kind.String() + " is unknown"
	case h.Epoch == 0:
		return "the epoch is 0"
	case len(h.Hub) == 0 || len(h.Hub) > MaxHub:
		return fmt.Sprintf("the id of a hub has %d bytes, not 1 to %d", len(h.Hub), MaxHub)
	case h.Kind != KindData && (h.Rest > 0 || data > 0):
		return "a " + h.Kind.String() + " has data"
	}
	return ""
}
