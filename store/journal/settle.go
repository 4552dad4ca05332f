package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
)

// settle appends an entry at a place until it is known what became of it: nil where it is there,
// ErrFenced where another's is, ErrDiverged where the journal is not what it was, ErrTooLarge,
// and ErrUnknown where ctx or the journal ended first.
//
// All attempts have the same bytes and the same expectation, so at most one of them is carried out, and
// one that is delayed finds its place taken. Before each attempt but the first, and before such a one
// counts, the entry before is held against the chain: a journal that has lost entries, and was filled
// up to there by another hub, would take the attempt. Full says of each attempt that it was refused, for as long as
// nothing else came of one.
func (l *Log) settle(ctx context.Context, at uint64, entry []byte) error {
	defer l.attempted(nil)
	var short, lost shortfall
	carried := false // it is there, and only the entry before is to be looked at
	for try := 0; ; try++ {
		var err error
		if try > 0 {
			if err = l.fits(ctx, at, entry); errors.Is(err, ErrDiverged) {
				return err
			}
		}
		if !carried && (err == nil || errors.Is(err, ErrAbsent)) {
			err = l.append(ctx, at, entry)
			if errors.Is(err, ErrConflict) {
				var settled bool
				if settled, err = l.look(ctx, at, entry, &short); settled && err != nil {
					return err
				}
			}
			if carried = err == nil; carried && try > 0 {
				if err = l.fits(ctx, at, entry); errors.Is(err, ErrDiverged) {
					return err
				}
			}
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrHole) && lost.lasts(), errors.Is(err, ErrForeign):
			return diverged(at, err)
		case errors.Is(err, ErrTooLarge):
			return fmt.Errorf("append at %d: %w", at, err)
		case errors.Is(err, ErrClosed):
			return fmt.Errorf("append at %d: %w: %w", at, ErrUnknown, err)
		}
		l.attempted(err)
		if ctx.Err() == nil {
			_ = pause(ctx, try)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("append at %d: %w: %w; the last attempt: %v", at, ErrUnknown, context.Cause(ctx), err)
		}
	}
}

// fits returns nil where the entry before a place is the one that the entry for that place comes after, or
// is trimmed, and ErrDiverged where it is another one.
func (l *Log) fits(ctx context.Context, at uint64, entry []byte) error {
	if at == 1 {
		return nil
	}
	h, _, err := ParseEntry(entry)
	if err != nil {
		return err
	}
	before, err := l.read(ctx, at-1)
	switch {
	case errors.Is(err, ErrTrimmed):
		return nil
	case err != nil:
		return err
	case Hash(before) != h.Chain:
		return fmt.Errorf("%w: at %d it has another entry than the one that it has acknowledged", ErrDiverged, at-1)
	}
	return nil
}

func (l *Log) append(ctx context.Context, at uint64, entry []byte) error {
	return l.call(ctx, func(ctx context.Context) error { return l.journal.Append(ctx, at-1, entry) })
}

// look reads a place whose append met a conflict, and says whether that settles it.
func (l *Log) look(ctx context.Context, at uint64, entry []byte, short *shortfall) (bool, error) {
	found, err := l.read(ctx, at)
	switch {
	case errors.Is(err, ErrTrimmed):
		// The last place is never trimmed: another has gone on after this one, whoever has it.
		return true, fmt.Errorf("append at %d: %w: %w: %w", at, ErrUnknown, ErrOvertaken, err)
	case errors.Is(err, ErrAbsent):
		return l.ends(ctx, at, short)
	case err != nil:
		return false, err
	case bytes.Equal(found, entry):
		return true, nil
	}
	h, _, err := ParseEntry(found)
	if err != nil {
		return true, diverged(at, err)
	}
	return true, fmt.Errorf("append at %d: %w", at, &FencedError{Hub: h.Hub, Epoch: h.Epoch})
}

// shortfall is since when the engine says that the journal lacks what it has acknowledged.
type shortfall struct{ since time.Time }

// lasts reports whether the engine has said so for long enough to be believed.
func (s *shortfall) lasts() bool {
	if s.since.IsZero() {
		s.since = time.Now()
	}
	return time.Since(s.since) >= sure
}

// ends says what a conflict at a place that is empty means: nothing for now, and that the
// journal has lost entries where it ends before the place before for long enough.
func (l *Log) ends(ctx context.Context, at uint64, short *shortfall) (bool, error) {
	last, err := l.last(ctx)
	if err != nil {
		return false, err
	}
	if last >= at-1 {
		*short = shortfall{}
		return false, ErrAbsent
	}
	err = fmt.Errorf("%w: it ends at %d, and has acknowledged %d", ErrDiverged, last, at-1)
	return short.lasts(), err
}
