// Package budget bounds the memory that the hub holds for its peers: for messages of
// which a part is still to come, or for answers that are not taken. Each message has
// its own limit; what bounds all of them together is one Budget, from which every
// connection, of whatever transport, takes the bytes that it holds.
package budget

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// Budget is a number of bytes. It is safe for concurrent use.
type Budget struct {
	most int

	mu      sync.Mutex
	used    int
	kept    int       // by those who wait
	waiting []*waiter // in the order in which they came
}

type waiter struct {
	bytes    int
	kept     int
	refused  bool // set before answered is closed
	answered chan struct{}
}

// ErrStuck is why Grow takes nothing: all bytes are kept by those who wait for more.
var ErrStuck = errors.New("budget: everybody who has taken some waits for more")

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
func (b *Budget) Wait(ctx context.Context, n int) error { return b.Grow(ctx, 0, n) }

// Grow is Wait for one that has taken kept bytes before, and keeps them meanwhile. If all
// that is taken is kept by those who wait, nobody would ever give anything back: then the
// last of them that keeps some gets ErrStuck, at once, and has to give it back.
func (b *Budget) Grow(ctx context.Context, kept, n int) error {
	b.mu.Lock()
	if len(b.waiting) == 0 && b.take(n) {
		b.mu.Unlock()
		return nil
	}
	w := &waiter{bytes: n, kept: kept, answered: make(chan struct{})}
	b.waiting = append(b.waiting, w)
	b.kept += kept
	b.grant()
	b.mu.Unlock()
	select {
	case <-w.answered:
		return w.outcome()
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at := slices.Index(b.waiting, w)
	if at < 0 {
		return w.outcome() // answered meanwhile
	}
	b.remove(at)
	b.grant() // it may have been ahead of others that need less
	return context.Cause(ctx)
}

func (w *waiter) outcome() error {
	if w.refused {
		return ErrStuck
	}
	return nil
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
		close(b.waiting[0].answered)
		b.remove(0)
	}
	for at := len(b.waiting) - 1; at >= 0 && b.used == b.kept; at-- {
		if w := b.waiting[at]; w.kept > 0 { // what it gives back is for those before it
			w.refused = true
			close(w.answered)
			b.remove(at)
		}
	}
}

// remove takes one out of the line. b.mu is held.
func (b *Budget) remove(at int) {
	b.kept -= b.waiting[at].kept
	b.waiting = slices.Delete(b.waiting, at, at+1)
}
