// Package eventid makes the ids of events that came without one.
package eventid

import (
	"crypto/rand"
	"fmt"
	randv2 "math/rand/v2"
	"sync"

	"github.com/google/uuid"
)

// Size is the length of an id in bytes.
const Size = 36

// source feeds the random bits of ids. Ids must be unique, not secret, and a
// system call per id would show in a publish; ChaCha8 seeded by the system
// gives unpredictable bits without one.
var source = struct {
	sync.Mutex
	*randv2.ChaCha8
}{ChaCha8: newChaCha()}

func newChaCha() *randv2.ChaCha8 {
	var seed [32]byte
	rand.Read(seed[:]) // never fails: crypto/rand ends the program instead
	return randv2.NewChaCha8(seed)
}

// New returns a new id: a UUIDv7 (RFC 9562) in lower-case text, greater than
// every one that this process made before. It is safe for concurrent use.
func New() string {
	source.Lock()
	id, err := uuid.NewV7FromReader(source.ChaCha8)
	source.Unlock()
	if err != nil {
		panic(fmt.Sprintf("eventid: %v", err)) // ChaCha8 never fails to read
	}
	return id.String()
}
