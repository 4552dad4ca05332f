package hub

import (
	"context"
	"errors"
	"fmt"
	"time"

	"eventhub/store/journal"
	"eventhub/store/pebble"
)

// JournalReseed is a new journal that is to begin with the copy of a member, after the one before was lost.
type JournalReseed struct {
	Dir          string
	Place, Epoch uint64          // of the last entry that the copy has
	Ahead        []JournalMember // members that have said that they have more on their disks
	Heard        int             // how many members have said anything

	cfg Config
}

// PlanReseed looks at the copy in Config.Store, and at Config.Journal, where the new journal is to be. It changes nothing.
// What would lose anything that is still there is refused: a journal that has entries. What
// members have said of their disks is in the plan, there and beside the journal that was lost, where lost has its
// Journal: a stream of another name knows nothing of them.
func PlanReseed(ctx context.Context, cfg Config, lost *Config) (*JournalReseed, error) {
	cfg = cfg.WithDefaults()
	h := &Hub{cfg: cfg, log: cfg.Logger}
	p := &JournalReseed{Dir: cfg.Store, cfg: cfg}
	at, err := h.placeOfCopy()
	if err != nil {
		return nil, err
	}
	p.Place, p.Epoch = at.Seq, at.Epoch
	j, err := h.look(ctx)
	if err != nil {
		return nil, fmt.Errorf("journal %s: %w", JournalShown(cfg.Journal), err)
	}
	defer j.Close()
	if j.exists {
		if err := refuseEntries(ctx, j, at, cfg.Store); err != nil {
			return nil, err
		}
	}
	if err := p.hear(ctx, j.Journal); err != nil {
		return nil, err
	}
	if lost != nil {
		before, err := (&Hub{cfg: lost.WithDefaults()}).look(ctx)
		if err != nil {
			return nil, fmt.Errorf("the journal that was lost, %s: %w", JournalShown(lost.Journal), err)
		}
		defer before.Close()
		if err := p.hear(ctx, before.Journal); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// hear notes what the members have said in a journal.
func (p *JournalReseed) hear(ctx context.Context, j journal.Journal) error {
	members, err := (&Journal{j}).Members(ctx)
	for _, m := range members {
		if m.Released {
			continue
		}
		p.Heard++
		if m.Synced > p.Place {
			p.Ahead = append(p.Ahead, m)
		}
	}
	return err
}

// placeOfCopy returns the position of the copy in the directory.
func (h *Hub) placeOfCopy() (at journal.Position, err error) {
	switch holds, err := pebble.Look(h.storeOptions()); {
	case err != nil:
		return at, err
	case holds == pebble.HoldsNothing:
		return at, fmt.Errorf("%s is empty: a new journal begins with the directory of a member", h.cfg.Store)
	case holds == pebble.HoldsStore:
		return at, fmt.Errorf("%s has the store of a hub alone, which begins a journal by itself: eventhub serve --journal URL --store %s", h.cfg.Store, h.cfg.Store)
	}
	r, err := pebble.OpenReplica(h.storeOptions())
	if err != nil {
		return at, err
	}
	at = r.Position()
	founds := r.Founds()
	if err := r.Close(); err != nil {
		return at, err
	}
	if founds {
		return at, fmt.Errorf("%s is to begin a journal already: eventhub serve --journal URL --store %s", h.cfg.Store, h.cfg.Store)
	}
	if at.Seq == 0 {
		return at, fmt.Errorf("%s has no entry of a journal yet: nothing can begin with it", h.cfg.Store)
	}
	return at, nil
}

// refuseEntries refuses a journal that has entries, and says what they are to the copy.
func refuseEntries(ctx context.Context, j journal.Journal, at journal.Position, dir string) error {
	last, err := j.Last(ctx)
	if err != nil {
		return err
	}
	if last == 0 {
		return nil
	}
	if last >= at.Seq {
		entry, err := j.Read(ctx, at.Seq)
		switch {
		case errors.Is(err, journal.ErrTrimmed):
			return fmt.Errorf("the journal has entries up to %d, and begins after %d, where %s is: a member of it is made of a copy of its active hub", last, at.Seq, dir)
		case err != nil:
			return err
		case journal.Hash(entry) == at.Chain:
			return fmt.Errorf("the journal is not lost: it has the entry of %s at %d, and goes on up to %d; start a hub on that directory", dir, at.Seq, last)
		}
	}
	return fmt.Errorf("the stream has entries up to %d that are not those of %s: of another cluster, or of a journal that lost some. "+
		"A new journal needs a stream of another name, or this one removed with the tools of NATS when nobody needs what is in it", last, dir)
}

// Carry makes the copy a store that begins a journal, and forgets what members have said of the one that was lost. The
// hub that is started on it is the first member.
func (p *JournalReseed) Carry(ctx context.Context) error {
	h := &Hub{cfg: p.cfg, log: p.cfg.Logger}
	j, err := h.look(ctx)
	if err != nil {
		return err
	}
	defer j.Close()
	if err := pebble.Detach(h.storeOptions()); err != nil {
		return err
	}
	said, err := j.Announce(ctx, journal.Member{})
	if err != nil {
		return err
	}
	for _, m := range said {
		m.Released, m.Active, m.Synced, m.Seen = true, false, 0, time.Time{}
		if _, err := j.Announce(ctx, m); err != nil {
			return err
		}
	}
	return nil
}
