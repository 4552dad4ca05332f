package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"eventhub/hub/internal/member"
	"eventhub/store/journal"
)

// Journal is a journal that somebody looks after beside the hubs that share it.
type Journal struct {
	journal journal.Journal
}

// JournalMember is a hub that shares a journal, as it said itself. It does so every 10 seconds.
type JournalMember struct {
	ID       string
	URLs     []string
	Active   bool          // it led when it said so
	Synced   uint64        // the place up to which its copy is on its disk
	Seen     time.Time     // when it said so, by the clock of the journal's servers
	Ago      time.Duration // how long ago that was
	Released bool          // nobody waits for it
}

// JournalTally is what was read of a journal.
type JournalTally = journal.Tally

// LookAfter opens the journal of a configuration, which has to be there; nothing is created. IsJournalAway tells
// an error that says that its servers are not reached.
func LookAfter(ctx context.Context, cfg Config) (*Journal, error) {
	if cfg.OpenJournal != nil {
		j, err := cfg.OpenJournal(ctx)
		return &Journal{j}, err
	}
	j, err := lookJournal(ctx, cfg.Journal)
	if err != nil {
		return nil, fmt.Errorf("journal %s: %w", JournalShown(cfg.Journal), err)
	}
	if !j.exists {
		return nil, errors.Join(fmt.Errorf("journal %s: %w", JournalShown(cfg.Journal), journal.ErrMissing), j.Close())
	}
	return &Journal{j.Journal}, nil
}

// IsJournalAway reports whether the servers of a journal were not reached.
func IsJournalAway(err error) bool { return errors.Is(err, journal.ErrAway) }

// Close ends the connection.
func (j *Journal) Close() error { return j.journal.Close() }

// Members returns the hubs that share the journal, by ID.
func (j *Journal) Members(ctx context.Context) (all []JournalMember, err error) {
	said, now, err := j.said(ctx)
	for _, m := range said {
		all = append(all, JournalMember{ID: m.ID, URLs: m.URLs, Active: m.Active, Synced: m.Synced, Seen: m.Seen, Ago: now.Sub(m.Seen), Released: m.Released})
	}
	return all, err
}

// said returns what the members have said, and what the clock says by which they were seen: that of this machine may
// say something else.
func (j *Journal) said(ctx context.Context) (all []journal.Member, now time.Time, err error) {
	if all, err = j.journal.Announce(ctx, journal.Member{}); err == nil && len(all) > 0 {
		now, err = j.journal.Now(ctx)
	}
	return all, now, err
}

// stillThere is how long ago a member that is there may have said something: three times in a row.
const stillThere = 30 * time.Second

// Release says for a member that it does not come back: the journal is trimmed without regard to it, unless it says
// something itself. It returns what the member has said last. One that has said something within half a
// minute is refused.
func (j *Journal) Release(ctx context.Context, id string) (JournalMember, error) {
	said, now, err := j.said(ctx)
	if err != nil {
		return JournalMember{}, err
	}
	at := slices.IndexFunc(said, func(m journal.Member) bool { return m.ID == id })
	if at < 0 {
		var known []string
		for _, m := range said {
			known = append(known, fmt.Sprintf("%q", m.ID))
		}
		if known == nil {
			known = []string{"none"}
		}
		return JournalMember{}, fmt.Errorf("there is no member %q; known are: %s", id, strings.Join(known, ", "))
	}
	m := said[at]
	ago := now.Sub(m.Seen)
	if ago < stillThere && !m.Released {
		return JournalMember{}, fmt.Errorf("the member %q has said something %s ago: stop its hub first, and wait half a minute", id, max(ago, 0).Round(time.Second))
	}
	released := JournalMember{ID: m.ID, URLs: m.URLs, Synced: m.Synced, Seen: m.Seen, Ago: ago, Released: true}
	if m.Released {
		return released, nil
	}
	m.Released, m.Active = true, false
	_, err = j.journal.Announce(ctx, m)
	return released, err
}

// Verify reads all of the journal, and holds each entry against the one before. It calls seen after each place. Of a
// journal that is damaged the tally says how far all is well.
func (j *Journal) Verify(ctx context.Context, seen func(*JournalTally)) (JournalTally, error) {
	return journal.New(j.journal).Verify(ctx, seen)
}

// JournalTrim says what of a journal nobody needs.
type JournalTrim struct {
	First, Last uint64   // the places that there are
	UpTo        uint64   // nobody needs what is up to here; 0: everything is needed
	Used        uint64   // bytes of all places
	Holds       []string // the members that hold the rest
	Why         string   // why everything is needed, where it is
}

// PlanTrim says what of the journal nobody needs: what two members have on their disks at least, and all that were
// seen within a day. Hubs leave it an hour longer, for copies that are on their way to another machine.
func (j *Journal) PlanTrim(ctx context.Context) (p JournalTrim, err error) {
	said, now, err := j.said(ctx)
	if err != nil {
		return p, err
	}
	limits, err := j.journal.Limits(ctx)
	if err != nil {
		return p, err
	}
	if p.Last, err = j.journal.Last(ctx); err != nil {
		return p, err
	}
	p.First, p.Used = limits.First, limits.Used
	p.UpTo = member.Trimmable(said, now, member.SeenWithin)
	count := 0
	for _, m := range said {
		if m.Released || now.Sub(m.Seen) > member.SeenWithin {
			continue
		}
		if count++; m.Synced == p.UpTo {
			p.Holds = append(p.Holds, m.ID)
		}
	}
	if count < 2 {
		p.Holds, p.Why = nil, fmt.Sprintf("%d members were seen within a day, and two at least have to have what goes", count)
	}
	return p, nil
}

// Trim removes the entries up to a place, but the last one.
func (j *Journal) Trim(ctx context.Context, upTo uint64) error { return j.journal.Trim(ctx, upTo) }
