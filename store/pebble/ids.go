package pebble

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"eventhub"
	"eventhub/internal/eventid"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/google/uuid"
)

// # The ids that the store makes
//
// An id of the hub's own making is a UUIDv7 (RFC 9562, section 5.7) whose time is that
// of the commit and whose other 74 bits are the event's place, encrypted. So such an
// event has no entry in the id index, which would be half of all keys: from the id
// itself comes the place where the event must be if it is anywhere, and the record
// at that place says whether it is.
//
// Encrypted, because ids must be unique over all hubs, and because nobody may know the
// next one and publish under it: a Feistel network of four rounds over AES (Luby and
// Rackoff, 1988), with the time as a tweak. To whoever lacks the store's key the bits
// are random ones.
//
// A place that 74 bits do not hold gets a random id, which is indexed as a given one. A
// given id that names the very place that its event gets is not indexed: that is how an
// exported event comes back the store is an older copy of the one that made it.
//
// A copy has the secret of its original. Two of them that both go on would give events
// the same id where topic, offset and millisecond agree.
const (
	placeTopicBits  = 32
	placeOffsetBits = 42 // four million million events in a topic
	halfBits        = (placeTopicBits + placeOffsetBits) / 2
	halfMask        = 1<<halfBits - 1
	feistelRounds   = 4

	// Of a UUIDv7: 48 bits of time, 4 of version, 12 free, 2 of variant, 62 free.
	uuidVersion  = 7
	uuidVariant  = 2
	uuidLowBits  = 62
	uuidHighBits = 12

	idSecretBytes = 16

	// The text of so many ids is one allocation, which whoever keeps one of them keeps.
	idsTogether = 32
)

// metaIDSecret holds the key that ids are encrypted with.
var metaIDSecret = []byte{tagMeta, 'i', 'd', 's'}

// ids makes ids and reads places out of them. It is for one goroutine at a time.
type ids struct {
	block   cipher.Block
	in, out [aes.BlockSize]byte // here, as the cipher would have them escape
	text    strings.Builder
}

// place is that of an event: its topic's number and its offset.
type place struct {
	topic  uint32
	offset uint64
}

// fresh returns another one, for another goroutine.
func (c *ids) fresh() *ids { return &ids{block: c.block} }

// round is the function of the network: half a place, out of the other half.
func (c *ids) round(n int, half uint64, ms int64) uint64 {
	binary.BigEndian.PutUint64(c.in[:8], uint64(ms)<<8|uint64(n)) // 48 bits of time
	binary.BigEndian.PutUint64(c.in[8:], half)
	c.block.Encrypt(c.out[:], c.in[:])
	return binary.BigEndian.Uint64(c.out[:8]) & halfMask
}

// make returns the id of the event at a place that is committed at ms, or "" where the
// place is too large.
func (c *ids) make(p place, ms int64) string {
	if p.offset >= 1<<placeOffsetBits {
		return ""
	}
	// topic and offset one after the other, cut into halves.
	left := uint64(p.topic)<<(halfBits-placeTopicBits) | p.offset>>halfBits
	right := p.offset & halfMask
	for n := range feistelRounds {
		left, right = right, left^c.round(n, right, ms)
	}
	var id uuid.UUID
	high := left >> (halfBits - uuidHighBits)
	low := left<<halfBits&(1<<uuidLowBits-1) | right
	binary.BigEndian.PutUint64(id[:8], uint64(ms)<<16|uuidVersion<<uuidHighBits|high)
	binary.BigEndian.PutUint64(id[8:], uuidVariant<<uuidLowBits|low)
	return c.write(id)
}

// write returns the text of an id, as its package would.
func (c *ids) write(id uuid.UUID) string {
	at := c.text.Len()
	if at+eventid.Size > c.text.Cap() {
		c.text.Reset()
		c.text.Grow(idsTogether * eventid.Size)
		at = 0
	}
	var text [eventid.Size]byte
	putUUID(&text, id)
	c.text.Write(text[:])
	return c.text.String()[at:]
}

// place returns where the event with an id is if this store made it; of another id it
// says nothing, or a place with another event, or with none.
func (c *ids) place(id string) (p place, ok bool) {
	f := formOf(id)
	return c.placeOf(&f)
}

// placeOf likewise.
func (c *ids) placeOf(f *idForm) (p place, ok bool) {
	if f.version != uuidVersion || f.low>>uuidLowBits != uuidVariant {
		return place{}, false
	}
	high, low := f.high, f.low
	ms := int64(high >> 16)
	left := high<<(halfBits-uuidHighBits)&halfMask | low&(1<<uuidLowBits-1)>>halfBits
	right := low & halfMask
	for n := feistelRounds - 1; n >= 0; n-- {
		left, right = right^c.round(n, left, ms), left
	}
	p.topic = uint32(left >> (halfBits - placeTopicBits))
	p.offset = left<<halfBits&(1<<placeOffsetBits-1) | right
	return p, p.offset > 0
}

// loadIDs reads the secret, or draws it for a store that has none.
func (s *Store) loadIDs(first *pdb.Batch) error {
	secret, err := s.get(metaIDSecret)
	if err != nil {
		return err
	}
	if secret == nil {
		secret = make([]byte, idSecretBytes)
		rand.Read(secret) // never fails: crypto/rand ends the program instead
		if err := first.Set(metaIDSecret, secret, nil); err != nil {
			return err
		}
	}
	if len(secret) != idSecretBytes {
		return fmt.Errorf("the secret of the ids has %d bytes; want %d", len(secret), idSecretBytes)
	}
	block, err := aes.NewCipher(secret)
	s.ids.block = block
	return err
}

// holds reports whether the event with an id is at a place, and its commit time.
func (s *Store) holds(p place, id string) (ms int64, ok bool, err error) {
	value, closer, err := s.db.Get(appendEventKey(nil, p.topic, p.offset))
	if errors.Is(err, pdb.ErrNotFound) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	record := eventhub.Record(value)
	ms, ok = record.CommitTime(), string(record.ID()) == id
	return ms, ok, closer.Close()
}
