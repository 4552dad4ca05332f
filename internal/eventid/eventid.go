// Package eventid makes ids of events that show nothing but when they were made: for the
// SDK, for scheduled events, and for stores that do not make their own.
package eventid

import (
	"crypto/rand"
	"encoding/binary"
	randv2 "math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Size is the length of an id in bytes.
const Size = 36

// source is what ids are made of. Ids must be unique, not secret, and a system
// call per id would show in a publish; ChaCha8 seeded by the system gives
// unpredictable bits without one.
//
// last is the time in the latest id: milliseconds since 1970 above 12 bits of what
// is below them, counted up where the clock did not move on or went back.
var source = struct {
	sync.Mutex
	*randv2.ChaCha8
	last uint64
}{ChaCha8: newChaCha()}

func newChaCha() *randv2.ChaCha8 {
	var seed [32]byte
	rand.Read(seed[:]) // never fails: crypto/rand ends the program instead
	return randv2.NewChaCha8(seed)
}

const (
	version = 7 << 12 // above the 12 bits of the time that come after it
	variant = 2 << 62 // of RFC 9562, above 62 random bits
)

// New returns a new id: a UUIDv7 (RFC 9562, section 6.2, method 3) in lower-case
// text, greater than every one that this process made before. It is safe for
// concurrent use.
//
// The bits are put together here, and not by package uuid, whose readers cost an
// allocation more than the text alone does.
func New() string {
	now := time.Now()
	source.Lock()
	below := uint64(now.Nanosecond()%int(time.Millisecond)) << 12 / uint64(time.Millisecond)
	source.last = max(source.last+1, uint64(now.UnixMilli())<<12|below)
	at, random := source.last, source.Uint64()
	source.Unlock()
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], at>>12<<16|version|at&(1<<12-1))
	binary.BigEndian.PutUint64(id[8:], variant|random>>2)
	return id.String()
}
