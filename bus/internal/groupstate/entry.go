package groupstate

import (
	"iter"
	"strings"

	"eventhub"
	"eventhub/admin"
)

// Entry is one event between the cursor and the read position of a group, or one that was
// redriven. There may be a million: it fills a line of the processor's cache, and no more.
type Entry struct {
	offset uint64
	serial uint64  // of the last lease; 0 before the first
	at     int64   // the lease's deadline, or when it may be delivered again
	since  int64   // the start of the last lease; 0 before the first
	holder *Holder // who holds or last held it
	id     string  // known from the first lease on
	// age is how old the event was when it was leased, in ms; up to 49 days.
	age      uint32
	attempts uint16
	state    State
	redriven uint8 // how often, where it is in the list of these and not in the window
}

func (e *Entry) Offset() uint64  { return e.offset }
func (e *Entry) ID() string      { return e.id }
func (e *Entry) State() State    { return e.state }
func (e *Entry) Holder() *Holder { return e.holder }
func (e *Entry) Attempts() int   { return int(e.attempts) }
func (e *Entry) Redriven() int   { return int(e.redriven) }
func (e *Entry) Serial() uint64  { return e.serial }
func (e *Entry) Since() int64    { return e.since }

// givenBefore is the start of the last lease of an event that was given to somebody before the
// process was started.
const givenBefore = -1

// wasGiven reports whether the event was ever delivered in this epoch.
func (e *Entry) wasGiven() bool { return e.attempts > 0 || e.since != 0 }

// forget has its holder forget the entry's id.
func (e *Entry) forget() {
	if e.holder != nil {
		e.holder.Member.Forgot(e.id)
	}
}

// forgetIDs has all holders forget the ids that they have of the group, also those that
// have left it: what they held means nothing any more.
func (g *Group) forgetIDs() {
	for _, offset := range g.ids {
		if e := g.Find(offset); e != nil {
			e.forget()
		}
	}
}

// Find returns the entry at offset that is not done, or one that is and is not yet
// forgotten, or nil.
func (g *Group) Find(offset uint64) *Entry {
	if r := g.progress.redriven[offset]; r != nil {
		return &r.Entry
	}
	return g.window.find(offset)
}

// Open yields all entries that are not done: those of the window, then those that
// were redriven, both in order. None may be added or settled in the meantime.
func (g *Group) Open() iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for e := range g.window.open() {
			if !yield(e) {
				return
			}
		}
		for _, r := range g.progress.Redriven() {
			if !yield(&r.Entry) {
				return
			}
		}
	}
}

// OfLease returns the entry whose last lease that is, nil where there is none.
func (g *Group) OfLease(l eventhub.Lease) *Entry {
	if l.Serial == 0 || l.Runtime != g.runtime {
		return nil // serial 0 is that of events which nobody ever had
	}
	if e := g.Find(l.Offset); e != nil && e.state != Done && e.serial == l.Serial {
		return e
	}
	return nil
}

// OfID returns the entry with that id whose last holder is h, nil where there is none.
func (g *Group) OfID(id string, h *Holder) *Entry {
	offset, ok := g.ids[id]
	if !ok {
		return nil
	}
	if e := g.Find(offset); e != nil && e.holder == h {
		return e
	}
	return nil
}

// Number gives the entry's lease its serial, and returns the lease.
func (g *Group) Number(e *Entry, serial uint64) eventhub.Lease {
	e.serial = serial
	return eventhub.Lease{Runtime: g.runtime, Offset: e.offset, Serial: serial}
}

// InFlight shows an entry that is not done, with its times drift ms later.
func (e *Entry) InFlight(drift int64) admin.InFlight {
	f := admin.InFlight{Offset: e.offset, ID: strings.Clone(e.id), Attempt: int(e.attempts), Redriven: int(e.redriven)}
	switch e.state {
	case Leased:
		f.State, f.SinceTS, f.Deadline = "leased", e.since+drift, e.at+drift
		f.Member = e.holder.Peer.Clone()
	case Waiting, RedriveInCommit:
		f.State = "waiting"
		if e.at != 0 { // else it was always due
			f.DueTS = e.at + drift
		}
	case Held:
		f.State = "held"
	case AckPending, AckInCommit:
		f.State, f.SinceTS = "ack_and_publish", e.since+drift
		f.Member = e.holder.Peer.Clone()
	default:
		f.State = "dead_lettering"
	}
	return f
}
