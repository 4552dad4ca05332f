package journal

import (
	"context"
	"errors"
	"fmt"
)

// Tally is what Verify has read.
type Tally struct {
	First, Last     uint64 // places; 0 where there is none
	Places          uint64
	Bytes           uint64 // of all places
	Commits         uint64 // that are whole
	Leads           uint64 // hubs that began to lead
	Epoch           uint64 // of Last
	Hub             string // that has written Last
	Kind            Kind   // of Last
	FirstMS, LastMS int64  // the times of First and Last, in Unix milliseconds
}

var errAllRead = errors.New("all was read")

// Verify reads the journal from its lowest place to where it ends when Verify is called, and holds each
// entry against the one before, as a follower does. It calls seen, which may be nil, after each place. Where
// anything is wrong, the tally says how far all was well; the error has ErrDiverged in its chain, or
// ErrTrimmed where the journal was trimmed meanwhile.
func (l *Log) Verify(ctx context.Context, seen func(*Tally)) (t Tally, err error) {
	limits, err := l.limits(ctx)
	if err != nil {
		return t, fmt.Errorf("ask for the beginning of the journal: %w", err)
	}
	last, err := l.last(ctx)
	if err != nil {
		return t, fmt.Errorf("ask for the end of the journal: %w", err)
	}
	first := max(limits.First, 1)
	if first > last {
		return t, nil
	}
	r := &reader{tip: Position{Seq: first - 1}}
	err = l.journal.Follow(ctx, first-1, func(at uint64, entry []byte) error {
		h, _, err := ParseEntry(entry)
		if err != nil {
			return diverged(at, err)
		}
		if at == first && first > 1 { // what was before is trimmed
			r.tip.Chain, r.tip.Epoch = h.Chain, h.Epoch
			if h.Kind == KindLead {
				r.tip.Epoch--
			}
		}
		e, whole, err := r.take(at, entry)
		if err != nil {
			return err
		}
		t.add(at, &h, len(entry), whole && e.Kind == KindData)
		if seen != nil {
			seen(&t)
		}
		if at == last {
			return errAllRead
		}
		return nil
	})
	if errors.Is(err, errAllRead) {
		err = nil
	}
	return t, err
}

func (t *Tally) add(at uint64, h *Header, bytes int, commit bool) {
	if t.Places == 0 {
		t.First, t.FirstMS = at, h.Time
	}
	t.Places++
	t.Bytes += uint64(bytes)
	t.Last, t.LastMS, t.Epoch, t.Hub, t.Kind = at, h.Time, h.Epoch, h.Hub, h.Kind
	if commit {
		t.Commits++
	}
	if h.Kind == KindLead {
		t.Leads++
	}
}
