// Package memory is the engine of a journal for tests, in memory. It is the strictest: each append
// is carried out or refused exactly as the contract of package journal says. And it has
// the faults of networks and engines, which tests ask for: what is lost, late or doubled on the
// way (Handle.Faults, Handle.Cut), and what an engine does that breaks its word (Journal.Rollback, Flip, Remove, Put).
//
// A Journal is the engine; each Handle on it stands for a hub.
package memory

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"eventhub/store/journal"
)

// Fault is what happens to an append.
type Fault int

const (
	None        Fault = iota
	LoseRequest       // it is not carried out, and there is no answer
	LoseReply         // it is carried out, and there is no answer
	Delay             // there is no answer, and it is carried out by Journal.Deliver
	Double            // it is carried out, and once more by Journal.Deliver
	Propose           // there is no answer; its place is taken, and reads as empty until Journal.Deliver decides
	Refuse            // journal.ErrFull
)

// errNoAnswer is what a caller learns where the answer is lost: nothing.
var errNoAnswer = errors.New("the engine does not answer")

// Options are the limits of a journal.
type Options struct {
	EntryBytes int    // 1 MiB where 0
	Most       uint64 // bytes; no limit where 0
}

// Journal is the engine. Its methods may be called at once.
type Journal struct {
	options Options

	mu      sync.Mutex
	changed sync.Cond // entries, handles
	trimmed uint64    // the last place that is gone
	entries [][]byte  // those after trimmed
	used    uint64
	late    []request
	open    *request // it has its place among those who append, and nobody else sees it
	members map[string]journal.Member
	ahead   time.Duration // of the engine's clock
}

// request is an append that is under way.
type request struct {
	after uint64
	entry []byte
}

// New returns an empty journal.
func New(o Options) *Journal {
	if o.EntryBytes == 0 {
		o.EntryBytes = 1 << 20
	}
	j := &Journal{options: o, members: make(map[string]journal.Member)}
	j.changed.L = &j.mu
	return j
}

// Open returns a handle without faults.
func (j *Journal) Open() *Handle { return &Handle{engine: j} }

func (j *Journal) last() uint64 { return j.trimmed + uint64(len(j.entries)) }

// append carries a request out. It is called with the lock.
func (j *Journal) append(r request) error {
	switch {
	case r.after != j.last() || j.open != nil:
		return journal.ErrConflict
	case j.options.Most > 0 && j.used+uint64(len(r.entry)) > j.options.Most:
		return journal.ErrFull
	}
	j.put(r.entry)
	return nil
}

func (j *Journal) put(entry []byte) {
	j.entries = append(j.entries, entry)
	j.used += uint64(len(entry))
	j.changed.Broadcast()
}

// Deliver carries out one of the requests that are late, or decides on the one that is proposed: it
// becomes an entry, or is lost as with a leader that is replaced. It reports whether there was one.
func (j *Journal) Deliver(random *rand.Rand) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.open != nil && (len(j.late) == 0 || random.IntN(2) == 0) {
		r := *j.open
		if j.open = nil; random.IntN(2) == 0 {
			_ = j.append(r)
		}
		return true
	}
	if len(j.late) == 0 {
		return false
	}
	i := random.IntN(len(j.late))
	r := j.late[i]
	j.late = slices.Delete(j.late, i, i+1)
	_ = j.append(r)
	return true
}

// Rollback loses the last n entries that there are, as if they had never been.
func (j *Journal) Rollback(n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for range min(n, len(j.entries)) {
		end := len(j.entries) - 1
		j.used -= uint64(len(j.entries[end]))
		j.entries = j.entries[:end]
	}
}

// Flip flips one bit of the entry at a place, which is there.
func (j *Journal) Flip(at uint64, bit int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries[at-j.trimmed-1][bit/8] ^= 1 << (bit % 8)
}

// Remove loses the entry at a place, which is there, and none of the others.
func (j *Journal) Remove(at uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.used -= uint64(len(j.entries[at-j.trimmed-1]))
	j.entries[at-j.trimmed-1] = nil
}

// Put appends bytes as somebody does who keeps to nothing.
func (j *Journal) Put(entry []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.put(append([]byte{}, entry...)) // one of no bytes is there too
}

// Say has a member say something at a time of its own.
func (j *Journal) Say(m journal.Member) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.members[m.ID] = m
}

// SetMost changes the limit of bytes.
func (j *Journal) SetMost(most uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.options.Most = most
}

// SetAhead has the engine's clock be so far ahead of that of the machine.
func (j *Journal) SetAhead(by time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ahead = by
}

// Handle is one hub's way to the engine.
type Handle struct {
	engine *Journal
	faults func() Fault
	cut    bool
	closed bool
}

var _ journal.Journal = (*Handle)(nil)

// Faults has a func say what happens to each append from now on. It is called with a lock.
func (h *Handle) Faults(f func() Fault) {
	h.engine.mu.Lock()
	defer h.engine.mu.Unlock()
	h.faults = f
}

// Cut parts the handle from the engine, or ends that: meanwhile no call has an answer.
func (h *Handle) Cut(cut bool) {
	h.engine.mu.Lock()
	defer h.engine.mu.Unlock()
	h.cut = cut
	h.engine.changed.Broadcast()
}

// Close implements journal.Journal.
func (h *Handle) Close() error {
	h.engine.mu.Lock()
	defer h.engine.mu.Unlock()
	h.closed = true
	h.engine.changed.Broadcast()
	return nil
}

// call runs f with the lock, once the handle is not cut off. f may unlock to wait.
func (h *Handle) call(ctx context.Context, f func(j *Journal) error) error {
	j := h.engine
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := h.wait(ctx, func() bool { return !h.cut }); err != nil {
		return err
	}
	return f(j)
}

// wait waits for a condition; it is called with the lock.
func (h *Handle) wait(ctx context.Context, until func() bool) error {
	j := h.engine
	wake := context.AfterFunc(ctx, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.changed.Broadcast()
	})
	defer wake()
	for {
		switch {
		case h.closed:
			return journal.ErrClosed
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", errNoAnswer, context.Cause(ctx))
		case until():
			return nil
		}
		j.changed.Wait()
	}
}

// Last implements journal.Journal.
func (h *Handle) Last(ctx context.Context) (last uint64, err error) {
	err = h.call(ctx, func(j *Journal) error {
		last = j.last()
		return nil
	})
	return last, err
}

// Append implements journal.Journal.
func (h *Handle) Append(ctx context.Context, after uint64, entry []byte) error {
	return h.call(ctx, func(j *Journal) error {
		if len(entry) > j.options.EntryBytes {
			return fmt.Errorf("an entry of %d bytes, and %d are allowed: %w", len(entry), j.options.EntryBytes, journal.ErrTooLarge)
		}
		r := request{after: after, entry: slices.Clone(entry)}
		fault := None
		if h.faults != nil {
			fault = h.faults()
		}
		switch fault {
		case LoseRequest:
			return errNoAnswer
		case LoseReply:
			_ = j.append(r)
			return errNoAnswer
		case Delay:
			j.late = append(j.late, r)
			return errNoAnswer
		case Propose:
			if r.after == j.last() && j.open == nil {
				j.open = &r
			}
			return errNoAnswer
		case Double:
			j.late = append(j.late, r)
		case Refuse:
			return journal.ErrFull
		}
		return j.append(r)
	})
}

// get returns a copy of the entry at a place; it is called with the lock.
func (j *Journal) get(at uint64) ([]byte, error) {
	switch {
	case at <= j.trimmed:
		return nil, journal.ErrTrimmed
	case at > j.last():
		return nil, journal.ErrAbsent
	}
	if entry := j.entries[at-j.trimmed-1]; entry != nil {
		return slices.Clone(entry), nil
	}
	return nil, journal.ErrHole
}

// Read implements journal.Journal.
func (h *Handle) Read(ctx context.Context, at uint64) (entry []byte, err error) {
	err = h.call(ctx, func(j *Journal) (err error) {
		entry, err = j.get(at)
		return err
	})
	return entry, err
}

// Follow implements journal.Journal.
func (h *Handle) Follow(ctx context.Context, after uint64, visit func(at uint64, entry []byte) error) error {
	for at := after + 1; ; at++ {
		var entry []byte
		err := h.call(ctx, func(j *Journal) (err error) {
			if err = h.wait(ctx, func() bool { return !h.cut && j.last() >= at }); err == nil {
				entry, err = j.get(at)
			}
			return err
		})
		switch {
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, journal.ErrHole):
			return fmt.Errorf("%w: at %d: %w", journal.ErrDiverged, at, err)
		case err != nil:
			return err
		}
		if err := visit(at, entry); err != nil {
			return err
		}
	}
}

// Trim implements journal.Journal.
func (h *Handle) Trim(ctx context.Context, upTo uint64) error {
	return h.call(ctx, func(j *Journal) error {
		for len(j.entries) > 1 && j.trimmed < upTo {
			j.used -= uint64(len(j.entries[0]))
			j.entries = j.entries[1:]
			j.trimmed++
		}
		return nil
	})
}

// Announce implements journal.Journal.
func (h *Handle) Announce(ctx context.Context, m journal.Member) (all []journal.Member, err error) {
	err = h.call(ctx, func(j *Journal) error {
		for _, m := range j.members {
			m.URLs = slices.Clone(m.URLs)
			all = append(all, m)
		}
		if m.ID != "" {
			m.URLs, m.Seen = slices.Clone(m.URLs), j.now()
			j.members[m.ID] = m
		}
		slices.SortFunc(all, func(a, b journal.Member) int { return strings.Compare(a.ID, b.ID) })
		return nil
	})
	return all, err
}

// Now implements journal.Journal.
func (h *Handle) Now(ctx context.Context) (now time.Time, err error) {
	err = h.call(ctx, func(j *Journal) error {
		now = j.now()
		return nil
	})
	return now, err
}

// now is what the engine's clock says. j.mu is held.
func (j *Journal) now() time.Time { return time.Now().Add(j.ahead) }

// Limits implements journal.Journal.
func (h *Handle) Limits(ctx context.Context) (l journal.Limits, err error) {
	err = h.call(ctx, func(j *Journal) error {
		l = journal.Limits{EntryBytes: j.options.EntryBytes, Durability: journal.DurabilityReplicated, Used: j.used, Most: j.options.Most, First: j.trimmed + 1}
		return nil
	})
	return l, err
}
