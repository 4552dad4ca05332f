package member

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"eventhub/store/journal"
)

// seenAgain is how often a hub has to say something after this one has, under the same id, to be one that
// is there: the last word of one that has ended may be late.
const seenAgain = 2

// twins finds hubs that have one member id. Each overwrites what the other has said, so each finds the
// other's word where it has left its own. The one that was there before goes on, and warns. The one that
// finds again who was there when it came ends with ErrTwin.
type twins struct {
	announced bool
	before    string // the run that was there first
	again     int    // how often it has come again
	warned    string // the run that has come since
	// other is, by id, what another run of that id has said last: twins may say more of their disks in turn
	// than one of them has.
	other map[string]journal.Member
	last  map[string]journal.Member
}

// look is told what was there when own was said.
func (w *twins) look(said []journal.Member, own *journal.Member, log *slog.Logger) error {
	w.note(said, own)
	found := ""
	if i := slices.IndexFunc(said, func(m journal.Member) bool { return m.ID == own.ID }); i >= 0 {
		found = said[i].Run
	}
	if !w.announced {
		w.announced, w.before = true, found
		return nil
	}
	switch found {
	case own.Run, "": // nobody, or a program that says no run
		w.again = 0
	case w.before:
		if w.again++; w.again == seenAgain {
			return fmt.Errorf("%w: %q; each hub that shares the journal needs a member_id of its own", ErrTwin, own.ID)
		}
	default:
		if w.warned != found {
			w.warned = found
			log.Error("another hub has started with the id of this member; it is to get a member_id of its own", "member", own.ID)
		}
	}
	return nil
}

// note keeps what other runs have said.
func (w *twins) note(said []journal.Member, own *journal.Member) {
	if w.other == nil {
		w.other, w.last = make(map[string]journal.Member), make(map[string]journal.Member)
	}
	for _, m := range withOwn(said, own) {
		if before, ok := w.last[m.ID]; ok && before.Run != m.Run {
			w.other[m.ID] = before
		}
		w.last[m.ID] = m
	}
	for _, m := range said { // what own has overwritten
		if m.ID == own.ID && m.Run != own.Run {
			w.other[m.ID] = m
		}
	}
}

// lowest returns the members, each with the lowest place that one of its runs has said within
// seenWithinFull.
func (w *twins) lowest(members []journal.Member) []journal.Member {
	lowest := slices.Clone(members)
	for i, m := range lowest {
		if other, ok := w.other[m.ID]; ok && m.Seen.Sub(other.Seen) <= seenWithinFull {
			lowest[i].Synced = min(m.Synced, other.Synced)
		}
	}
	return lowest
}

// withOwn returns what was said with own in its place.
func withOwn(said []journal.Member, own *journal.Member) []journal.Member {
	all := slices.DeleteFunc(slices.Clone(said), func(m journal.Member) bool { return m.ID == own.ID })
	all = append(all, *own)
	slices.SortFunc(all, func(a, b journal.Member) int { return strings.Compare(a.ID, b.ID) })
	return all
}
