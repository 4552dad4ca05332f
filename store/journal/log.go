package journal

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// MaxData is how much data one Append of a Leader may have. A follower holds all of it, and
// does not join more.
const MaxData = 256 << 20

const (
	// answerWithin is how long one call of the engine may take, before it is made again. An
	// append that is made again while the first is under way costs a conflict, and a read. The time doubles
	// with each call that has no answer, up to mostDoubled times: an engine that is slow for a while would have
	// all its work thrown away and asked for again, and would stay slow.
	answerWithin = time.Second
	mostDoubled  = 2
	// sure is how long the engine has to say that the journal ends before an entry that it has
	// acknowledged, until that is believed. A leader of the engine that was replaced says so for
	// up to 20 s in JetStream.
	sure = 30 * time.Second
	// leastWait and mostWait are between two attempts.
	leastWait = 10 * time.Millisecond
	mostWait  = time.Second
)

// Log is the entries in a Journal. Its methods may be called at once.
type Log struct {
	journal Journal
	doubled atomic.Int32            // how often answerWithin is doubled
	refused atomic.Pointer[refusal] // the last one of an append; nil where there was none
}

// New returns the log in a journal, which stays the caller's to close.
func New(j Journal) *Log { return &Log{journal: j} }

// refusal is the answer ErrFull to an attempt to append.
type refusal struct {
	err error // nil where the last attempt had another outcome
	at  time.Time
}

// Full returns the answer of a journal that is there and takes nothing: ErrFull, nil where that was not the answer to
// the last attempt to append; and when that answer last came, also where others have come since.
func (l *Log) Full() (at time.Time, err error) {
	if r := l.refused.Load(); r != nil {
		return r.at, r.err
	}
	return time.Time{}, nil
}

// attempted keeps what became of an attempt to append.
func (l *Log) attempted(err error) {
	if errors.Is(err, ErrFull) {
		l.refused.Store(&refusal{err, time.Now()})
	} else if at, was := l.Full(); was != nil {
		l.refused.Store(&refusal{at: at})
	}
}

// Entry is one that a follower gets.
type Entry struct {
	Header            // of a commit that was divided: of its last piece
	Data     []byte   // all of it; the visitor's to keep
	Position Position // of a copy that has this entry
}

// Follow calls visit with each entry after a position, in order, as they come, until ctx is done or
// visit fails, whose error it returns. What was divided comes as one entry; a commit that its
// hub did not finish does not come, and its places are in the position of the next entry.
//
// ErrDiverged says that the journal is not the one that the position is of, or has bytes in it that
// no hub wrote there; ErrTrimmed that the next entries are gone.
func (l *Log) Follow(ctx context.Context, from Position, visit func(Entry) error) error {
	r, err := l.from(ctx, from)
	if err != nil {
		return err
	}
	return l.journal.Follow(ctx, from.Seq, func(at uint64, entry []byte) error {
		e, whole, err := r.take(at, entry)
		if err != nil || !whole {
			return err
		}
		return visit(e)
	})
}

// from returns a reader of what comes after a position. It makes sure that the journal has the
// entry that the position is of, unless it is trimmed: then the chain of the next one says it.
func (l *Log) from(ctx context.Context, p Position) (*reader, error) {
	r := &reader{tip: p}
	if p.Seq == 0 {
		if p != (Position{}) {
			return nil, fmt.Errorf("%w: the position %+v is of no place", ErrDiverged, p)
		}
		return r, nil
	}
	if err := l.reaches(ctx, p.Seq); err != nil {
		return nil, err
	}
	entry, err := l.own(ctx, p.Seq)
	switch {
	case errors.Is(err, ErrTrimmed):
		return r, nil
	case errors.Is(err, ErrHole):
		return nil, diverged(p.Seq, err)
	case err != nil:
		return nil, fmt.Errorf("read the journal at the position %d of this hub: %w", p.Seq, err)
	}
	h, _, err := ParseEntry(entry)
	switch {
	case err != nil:
		return nil, diverged(p.Seq, err)
	case Hash(entry) != p.Chain || h.Epoch != p.Epoch:
		return nil, fmt.Errorf("%w: at %d it has an entry of epoch %d, and this hub has another one, of epoch %d", ErrDiverged, p.Seq, h.Epoch, p.Epoch)
	}
	r.hub = h.Hub
	return r, nil
}

// reaches returns nil where the journal has so many places, and ErrDiverged where the engine stays
// with it that it has fewer.
func (l *Log) reaches(ctx context.Context, seq uint64) error {
	began := time.Now()
	for try := 0; ; try++ {
		last, err := l.last(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("ask for the end of the journal: %w", err)
		case last >= seq:
			return nil
		case time.Since(began) >= sure:
			return fmt.Errorf("%w: it ends at %d, and this hub has it up to %d", ErrDiverged, last, seq)
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
}

// own reads a place that is or was taken. It returns ErrHole where the engine stays with that.
func (l *Log) own(ctx context.Context, seq uint64) ([]byte, error) {
	var lost shortfall
	for try := 0; ; try++ {
		entry, err := l.read(ctx, seq)
		if !errors.Is(err, ErrHole) || lost.lasts() {
			return entry, err
		}
		if err := pause(ctx, try); err != nil {
			return nil, err
		}
	}
}

// call makes one call of the engine, which may take as long as the engine needs of late.
func (l *Log) call(ctx context.Context, do func(context.Context) error) error {
	doubled := l.doubled.Load()
	limit := answerWithin << doubled
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	err := do(limited)
	switch {
	case limited.Err() != nil && ctx.Err() == nil:
		l.doubled.CompareAndSwap(doubled, min(doubled+1, mostDoubled)) // one of several at once counts
	case err == nil && doubled > 0 && time.Since(began) < answerWithin/2:
		l.doubled.Store(0)
	}
	return err
}

func (l *Log) last(ctx context.Context) (last uint64, err error) {
	err = l.call(ctx, func(ctx context.Context) error {
		last, err = l.journal.Last(ctx)
		return err
	})
	return last, err
}

func (l *Log) read(ctx context.Context, at uint64) (entry []byte, err error) {
	err = l.call(ctx, func(ctx context.Context) error {
		entry, err = l.journal.Read(ctx, at)
		return err
	})
	return entry, err
}

func (l *Log) limits(ctx context.Context) (limits Limits, err error) {
	err = l.call(ctx, func(ctx context.Context) error {
		limits, err = l.journal.Limits(ctx)
		return err
	})
	return limits, err
}

// pause waits before the attempt after try, longer each time.
func pause(ctx context.Context, try int) error {
	t := time.NewTimer(min(leastWait<<min(try, 10), mostWait))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func diverged(at uint64, why error) error {
	return fmt.Errorf("%w: at %d: %w", ErrDiverged, at, why)
}

// reader checks entries one after the other, and joins what was divided.
type reader struct {
	tip   Position // of the last place that was read
	hub   string   // who leads in the epoch of the tip, where that is known
	first Header   // of the run that is not finished
	data  []byte   // what the run has so far
	rest  uint32   // how many pieces it misses; 0 where there is none
}

// take returns the entry that is whole with the one at a place.
func (r *reader) take(at uint64, entry []byte) (Entry, bool, error) {
	if at != r.tip.Seq+1 {
		return Entry{}, false, fmt.Errorf("%w: the entry at %d comes after the one at %d", ErrDiverged, at, r.tip.Seq)
	}
	h, data, err := ParseEntry(entry)
	if err != nil {
		return Entry{}, false, diverged(at, err)
	}
	if err := r.check(at, &h); err != nil {
		return Entry{}, false, err
	}
	r.tip, r.hub = Position{Seq: at, Epoch: h.Epoch, Chain: Hash(entry)}, h.Hub
	if h.Kind == KindLead {
		r.rest, r.data = 0, nil // what the hub before did not finish is void
	}
	if r.rest == 0 && h.Rest == 0 {
		return Entry{Header: h, Data: data, Position: r.tip}, true, nil
	}
	if r.rest == 0 {
		// All pieces but the last one are as large as the first.
		r.first, r.data = h, make([]byte, 0, min(uint64(len(data))*(uint64(h.Rest)+1), MaxData))
	}
	if len(r.data)+len(data) > MaxData {
		return Entry{}, false, fmt.Errorf("%w: at %d: the pieces of one commit have more than %d bytes", ErrDiverged, at, MaxData)
	}
	r.data = append(r.data, data...)
	if r.rest = h.Rest; r.rest > 0 {
		return Entry{}, false, nil
	}
	whole := Entry{Header: h, Data: r.data, Position: r.tip}
	r.data = nil
	return whole, true, nil
}

// check holds the header of the entry at a place against those before it.
func (r *reader) check(at uint64, h *Header) error {
	fail := func(format string, args ...any) error {
		return diverged(at, fmt.Errorf(format, args...))
	}
	switch {
	case h.Chain != r.tip.Chain:
		return fail("the %s of hub %q comes after another entry than the one at %d", h.Kind, h.Hub, r.tip.Seq)
	case h.Kind == KindLead && h.Epoch <= r.tip.Epoch:
		return fail("hub %q leads in epoch %d after epoch %d", h.Hub, h.Epoch, r.tip.Epoch)
	case h.Kind == KindLead:
		return nil
	case h.Epoch != r.tip.Epoch:
		return fail("a %s of epoch %d is among the entries of epoch %d", h.Kind, h.Epoch, r.tip.Epoch)
	case r.hub != "" && h.Hub != r.hub:
		return fail("a %s of hub %q is among the entries of %q", h.Kind, h.Hub, r.hub)
	case r.rest > 0 && (h.Kind != KindData || h.Rest != r.rest-1 || h.Layout != r.first.Layout || h.Time != r.first.Time):
		return fail("a %s with %d more is not the next piece, which has %d more", h.Kind, h.Rest, r.rest-1)
	}
	return nil
}
