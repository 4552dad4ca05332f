package bus

import (
	"math/rand/v2"
	"sync"
)

// runtimeBits is how much of a lease's token names the run of its group.
const runtimeBits = 48

// runtimes finds the group G that gave a lease by the number that the group drew
// when it was loaded or moved. No two groups have the same, so a lease names its
// topic too.
type runtimes[G comparable] struct {
	mu      sync.Mutex
	groups  map[uint64]G
	numbers map[G]uint64
}

// draw gives the group a new number and forgets its old one. The caller is alone
// with the group's runtime.
func (r *runtimes[G]) draw(g G) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.groups == nil {
		r.groups, r.numbers = make(map[uint64]G), make(map[G]uint64)
	}
	delete(r.groups, r.numbers[g])
	for {
		n := 1 + rand.Uint64N(1<<runtimeBits-1)
		if _, taken := r.groups[n]; !taken {
			r.groups[n], r.numbers[g] = g, n
			return n
		}
	}
}

// forget takes the group's number back.
func (r *runtimes[G]) forget(g G) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.groups, r.numbers[g])
	delete(r.numbers, g)
}

// group returns the group that drew n, the zero G where none did.
func (r *runtimes[G]) group(n uint64) G {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.groups[n]
}
