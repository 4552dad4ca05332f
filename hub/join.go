package hub

import (
	"context"
	"errors"
	"fmt"
	"time"

	"eventhub"
	"eventhub/store/journal"
	"eventhub/store/pebble"
)

const (
	// joinWithin is how long a start looks for the journal before it goes on in the background.
	joinWithin = 5 * time.Second
	// leastLook and mostLook are between two looks for a journal that is not there.
	leastLook = time.Second
	mostLook  = 15 * time.Second
)

func newCluster() *cluster {
	return &cluster{since: time.Now(), led: make(chan struct{}), held: make(chan struct{})}
}

// looked is a journal that was looked for: nothing was created.
type looked struct {
	journal.Journal
	exists bool
	create func(context.Context) error
	settle func(context.Context) error // where the journal is there: creates what else it needs, looks for the rights; or nil
}

// look looks for the journal.
func (h *Hub) look(ctx context.Context) (*looked, error) {
	if h.cfg.OpenJournal != nil {
		j, err := h.cfg.OpenJournal(ctx)
		return &looked{j, true, nil, nil}, err
	}
	return lookJournal(ctx, h.cfg.Journal)
}

// join is the first look for the journal. One that is not reached is looked for until it is
// (sit): machines start in any order. What is wrong for good ends the start.
func (h *Hub) join(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, joinWithin)
	defer cancel()
	err := h.tryJoin(ctx)
	if errors.Is(err, journal.ErrAway) {
		h.cluster.absent.Store(&err)
		return nil
	}
	return err
}

// follow begins to follow, in a hub whose doors are open.
func (h *Hub) follow() {
	following, stop := context.WithCancel(context.Background())
	h.cluster.stop = stop
	go func() {
		defer close(h.cluster.held)
		h.lead(following)
	}()
}

// sit returns the hub's seat. Where the journal is not reached it looks for it until ctx ends, less and
// less often.
func (h *Hub) sit(ctx context.Context) (*seat, error) {
	c := h.cluster
	for wait := leastLook; ; wait = min(2*wait, mostLook) {
		if at := c.seat.Load(); at != nil {
			return at, nil
		}
		h.log.Warn("the journal is not reached; it is looked for again", "in", wait, "since", time.Since(c.since).Round(time.Second), "error", *c.absent.Load())
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		err := h.tryJoin(ctx)
		switch {
		case errors.Is(err, journal.ErrAway):
			c.absent.Store(&err)
		case err != nil:
			return nil, err
		}
	}
}

// tryJoin opens the copy of the store and the journal. It creates a stream that is missing only where
// this hub may begin one, and it writes to an empty directory, and to the store of a hub alone, only
// when it has a journal. An error that has journal.ErrAway in its chain may be another one later.
func (h *Hub) tryJoin(ctx context.Context) (err error) {
	c := h.cluster
	holds := pebble.HoldsReplica // c.copied, from an earlier try
	if c.copied == nil {
		if err = pebble.FinishReplace(h.storeOptions()); err == nil {
			holds, err = pebble.Look(h.storeOptions())
		}
		if err == nil && holds == pebble.HoldsReplica {
			c.copied, err = pebble.OpenReplica(h.storeOptions())
		}
		if err != nil {
			return fmt.Errorf("%w%s", err, h.cfg.from("store"))
		}
	}
	j, err := h.look(ctx)
	if err != nil {
		return fmt.Errorf("open the journal: %w%s", err, h.cfg.from("journal"))
	}
	limits, err := h.found(ctx, j, holds)
	if err != nil {
		return errors.Join(err, j.Close())
	}
	h.take(j.Journal, limits.Durability, c.copied)
	return nil
}

// found makes sure that journal and directory are there and may be of one cluster, and opens the copy.
func (h *Hub) found(ctx context.Context, j *looked, holds pebble.Holding) (limits journal.Limits, err error) {
	c := h.cluster
	if err := h.checkProjection(ctx, j.Journal); err != nil {
		return limits, err
	}
	if !j.exists {
		if holds == pebble.HoldsReplica && c.copied.Position().Seq > 0 {
			return limits, fmt.Errorf("%w, and the copy in %s is at place %d of one; nothing was created%s",
				journal.ErrMissing, h.cfg.Store, c.copied.Position().Seq, h.cfg.from("journal", "store"))
		}
		if err := j.create(ctx); err != nil {
			return limits, fmt.Errorf("create the journal: %w%s", err, h.cfg.from("journal"))
		}
		h.log.Info("a new journal", "journal", JournalShown(h.cfg.Journal))
	} else if j.settle != nil {
		if err := j.settle(ctx); err != nil {
			return limits, fmt.Errorf("open the journal: %w%s", err, h.cfg.from("journal"))
		}
	}
	if limits, err = j.Limits(ctx); err != nil {
		return limits, fmt.Errorf("ask the journal for its limits: %w: %w%s", journal.ErrAway, err, h.cfg.from("journal"))
	}
	if holds == pebble.HoldsStore {
		if err := h.replicate(ctx, j); err != nil {
			return limits, err
		}
	}
	if c.copied == nil {
		if c.copied, err = pebble.OpenReplica(h.storeOptions()); err != nil {
			return limits, fmt.Errorf("%w%s", err, h.cfg.from("store"))
		}
	}
	return limits, nil
}

// replicate makes the store of a single hub the first member of a journal that has nothing yet.
func (h *Hub) replicate(ctx context.Context, j journal.Journal) error {
	last, err := j.Last(ctx)
	if err != nil {
		return fmt.Errorf("ask the journal whether it has anything: %w: %w%s", journal.ErrAway, err, h.cfg.from("journal"))
	}
	if last > 0 {
		return fmt.Errorf("%w: the one in %s is of a hub alone, and the journal has %d entries of others; a member of theirs is made of an empty directory, or of a backup of one%s",
			pebble.ErrAlone, h.cfg.Store, last, h.cfg.from("store", "journal"))
	}
	if err := pebble.Replicate(h.storeOptions()); err != nil {
		return fmt.Errorf("%w%s", err, h.cfg.from("store"))
	}
	h.log.Info("the store of a single hub becomes the first member of the journal", "store", h.cfg.Store)
	return nil
}

// notSeated says that the journal is not there yet, and why.
func (c *cluster) notSeated() *eventhub.Error {
	e := eventhub.Errorf(eventhub.CodeNotActive, "this hub looks for its journal, for %s", time.Since(c.since).Round(time.Second))
	if cause := c.absent.Load(); cause != nil {
		e.Err = *cause
	}
	return e
}

// close closes the copy of the store where nobody else has, and the journal.
func (c *cluster) close() error {
	if at := c.seat.Load(); at != nil {
		return errors.Join(at.replica.Close(), at.journal.Close())
	}
	if c.copied != nil {
		return c.copied.Close()
	}
	return nil
}
