package bus

import (
	"math/rand/v2"
	"sync"
)

// runtimeBits is how much of a lease's token names the run of its group.
const runtimeBits = 48

// runtimes finds the group that gave a lease by the number that the group drew
// when it was loaded or moved. No two groups have the same, so a lease names its
// topic too.
type runtimes struct {
	mu      sync.Mutex
	groups  map[uint64]*group
	numbers map[*group]uint64
}

// draw gives the group a new number and forgets its old one. The caller is alone
// with the group's runtime.
func (r *runtimes) draw(g *group) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.groups == nil {
		r.groups, r.numbers = make(map[uint64]*group), make(map[*group]uint64)
	}
	delete(r.groups, r.numbers[g])
	for {
		n := 1 + rand.Uint64N(1<<runtimeBits-1)
		if r.groups[n] == nil {
			r.groups[n], r.numbers[g] = g, n
			return n
		}
	}
}

// forget takes the group's number back.
func (r *runtimes) forget(g *group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.groups, r.numbers[g])
	delete(r.numbers, g)
}

// group returns the group that drew n, or nil.
func (r *runtimes) group(n uint64) *group {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.groups[n]
}
