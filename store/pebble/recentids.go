package pebble

import (
	"encoding/binary"
	"errors"
	"time"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # Ids that are new
//
// Nearly every id that is looked up is new, and nearly every one is a UUID of version 7 that its
// publisher has just made. So recentIDs knows a window of such ids that was empty in the index when
// it was begun: those above the last one in the index, up to a minute ahead of the clock. What
// is looked up in the window is noted. An id of the window that was not noted is in no topic, and costs
// no seek; all others are looked up. Where the hash of two ids is the same, the second is looked up too.
//
// Nothing is stored for it: a window begins with what the index has then, after a restart too. Ids
// of the future are beyond the window, so that one of them does not end it. What the sweep forgets stays noted
// until the next window.
const (
	windowAhead = time.Minute
	windowFor   = 30 * time.Second
	windowMost  = 1 << 17 // ids in one window: up to 3 MB
)

// recentIDs is guarded by Store.committing.
type recentIDs struct {
	above, until uuidBits // the window, both exclusive
	begun        bool
	end          int64 // when the next one begins, in epoch milliseconds
	noted        map[uint64]struct{}
	most         int // ids in one window
}

// uuidBits are those of a UUID.
type uuidBits struct{ high, low uint64 }

func (a uuidBits) below(b uuidBits) bool { return a.high < b.high || a.high == b.high && a.low < b.low }

// isOver reports whether a window has to be begun before ids are noted.
func (r *recentIDs) isOver(now int64) bool {
	return !r.begun || now >= r.end || len(r.noted) >= r.most
}

// note notes an id that may be written by this commit, and reports whether it is new: it is in the
// index of no topic, and was not noted before.
func (r *recentIDs) note(f *idForm) (isNew bool) {
	id := uuidBits{f.high, f.low}
	if !r.begun || f.version != uuidVersion || !r.above.below(id) || !id.below(r.until) {
		return false
	}
	const odd = 0x9e3779b97f4a7c15
	before := len(r.noted)
	r.noted[id.low^id.high*odd] = struct{}{}
	return len(r.noted) > before
}

// begin begins a window. All that was committed is in the index.
func (r *recentIDs) begin(s *Store, now int64) (err error) {
	r.begun = false
	if s.textIDs {
		return nil // the index has ids where the window does not see them
	}
	iter, err := s.db.NewIter(&pdb.IterOptions{LowerBound: []byte{tagID, uuidVersion}, UpperBound: []byte{tagID, uuidVersion + 1}})
	if err != nil {
		return err
	}
	defer closeInto(iter, &err)
	until := idForm{version: uuidVersion, high: uint64(now+windowAhead.Milliseconds()) << 16}
	r.above, r.until = uuidBits{}, uuidBits{until.high, until.low}
	if iter.SeekLT(until.append(nil, 0)) {
		if r.above, err = keyBits(iter.Key()); err != nil {
			return err
		}
	}
	if err := iter.Error(); err != nil {
		return err
	}
	if r.noted == nil {
		r.noted = make(map[uint64]struct{})
	}
	clear(r.noted)
	r.begun, r.end = true, now+windowFor.Milliseconds()
	return nil
}

// keyBits reads the UUID out of a key of the index.
func keyBits(key []byte) (uuidBits, error) {
	if len(key) != uuidKeyBytes {
		return uuidBits{}, errors.New("the id index has a key that is neither a UUID nor text")
	}
	return uuidBits{binary.BigEndian.Uint64(key[2:]), binary.BigEndian.Uint64(key[10:])}, nil
}
