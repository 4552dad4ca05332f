// Package budget bounds the memory that the hub holds for its peers: for messages of
// which a part is still to come, or for answers that are not taken. Each message has
// its own limit; what bounds all of them together is one Budget, from which every
// connection, of whatever transport, takes the bytes that it holds.
package budget

import (
	"context"
	"slices"
	"sync"
)

// Budget is a number of bytes. It is safe for concurrent use.
type Budget struct {
	most int

	mu      sync.Mutex
	used    int
	waiting []*waiter // in the order in which they came
}

type waiter struct {
	bytes   int
	granted chan struct{}
}

// New returns a budget of so many bytes.
func New(bytes int) *Budget { return &Budget{most: bytes} }

// Most returns the bytes that there are in all, and Used those that are taken.
func (b *Budget) Most() int { return b.most }

func (b *Budget) Used() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Take takes n bytes and reports true, or takes nothing where there are not so many, or
// where somebody waits: each byte that is given back would go past those who need more.
func (b *Budget) Take(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting) == 0 && b.take(n)
}

func (b *Budget) take(n int) bool {
	if b.used+n > b.most {
		return false
	}
	b.used += n
	return true
}

// Force takes n bytes although there may not be so many, for what is there already:
// it keeps others out.
func (b *Budget) Force(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += n
}

// Wait takes n bytes as soon as there are so many, those who came first before
// others, and returns the cause where the context ends before. More than there will
// ever be are never there.
func (b *Budget) Wait(ctx context.Context, n int) error {
	b.mu.Lock()
	if len(b.waiting) == 0 && b.take(n) {
		b.mu.Unlock()
		return nil
	}
	w := &waiter{n, make(chan struct{})}
	b.waiting = append(b.waiting, w)
	b.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at := slices.Index(b.waiting, w)
	if at < 0 {
		return nil // granted meanwhile
	}
	b.waiting = slices.Delete(b.waiting, at, at+1)
	b.grant() // it may have been ahead of others that need less
	return context.Cause(ctx)
}

// Give gives n bytes back.
func (b *Budget) Give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if b.used < 0 {
		panic("budget: more is given back than was taken")
	}
	b.grant()
}

// grant lets those have their bytes who come next. b.mu is held.
func (b *Budget) grant() {
	for len(b.waiting) > 0 && b.take(b.waiting[0].bytes) {
		close(b.waiting[0].granted)
		b.waiting = b.waiting[1:]
	}
}
