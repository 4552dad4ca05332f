package pebble

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

const (
	eraBytes = 8 + 8
	// mostEras is how many are kept: one for each time that the store was opened and got
	// topics.
	mostEras = 1000
)

// loadEras reads the eras, or begins the first one in a store that has none. Any other
// begins with the first topic that is created after Open, in the same batch: a copy of the
// store may have gone on under the last one.
func (s *Store) loadEras(first *pdb.Batch) error {
	value, err := s.get(metaEras)
	if err != nil {
		return err
	}
	if s.eras, err = decodeEras(value); err != nil || len(s.eras) > 0 {
		return err
	}
	s.eras, s.newEra = []store.Era{s.drawEra()}, true
	return first.Set(metaEras, encodeEras(s.eras), nil)
}

// drawEra returns the era that begins with the next topic.
func (s *Store) drawEra() store.Era {
	var id [8]byte
	rand.Read(id[:]) // never fails: crypto/rand ends the program instead
	return store.Era{ID: max(binary.BigEndian.Uint64(id[:]), 1), First: uint64(s.nextTopic)}
}

// beginEra begins the era of this Open, with the topic that is about to be created.
func (c *commit) beginEra() {
	s := c.s
	if s.newEra {
		return
	}
	s.newEra = true
	// A list that was returned is not changed.
	s.eras = append(slices.Clone(s.eras[max(0, len(s.eras)+1-mostEras):]), s.drawEra())
	_ = c.batch.Set(metaEras, encodeEras(s.eras), nil) // fails for a closed batch only
}

func encodeEras(eras []store.Era) []byte {
	value := make([]byte, 0, len(eras)*eraBytes)
	for _, e := range eras {
		value = binary.BigEndian.AppendUint64(value, e.ID)
		value = binary.BigEndian.AppendUint64(value, e.First)
	}
	return value
}

func decodeEras(value []byte) ([]store.Era, error) {
	if len(value)%eraBytes != 0 {
		return nil, fmt.Errorf("the eras of the topics' numbers have %d bytes; want a multiple of %d", len(value), eraBytes)
	}
	eras := make([]store.Era, 0, len(value)/eraBytes)
	for ; len(value) > 0; value = value[eraBytes:] {
		eras = append(eras, store.Era{ID: binary.BigEndian.Uint64(value), First: binary.BigEndian.Uint64(value[8:])})
	}
	return eras, nil
}
