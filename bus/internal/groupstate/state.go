// Package groupstate is the state machine of one consumer group in one topic: which events
// are under way, who holds them since when, how often they were delivered, what is done, and
// what of all this is to be written.
//
// A Group has no lock, no clock, no store, no goroutine and no connection. It learns what
// happened, with the time as an argument (an event was read, delivered, acked, nacked, ran out,
// was given back, redriven, removed; the group was sought; a commit succeeded or was refused), and
// answers with what is to be done: which events are due, which are to be dead-lettered, which
// parts are to be written, when to look again. What it has to report in the middle of a call
// goes to its Host, and to the Member of the Holder that it is about.
//
// # Invariants
//
//   - An event is in one State at a time. The table below has all transitions; what it does
//     not have does not happen.
//   - The cursor is derived: it is just below the first event of the window that is not done.
//     No event is both in the window, not done, and on the list of redriven events.
//   - At most one event of a key is under way in a group that is ordered by key; the others
//     are Held, and become due in the order of their offsets.
//   - Whoever reads is notified of what was removed before the group was done with it, with
//     the next first delivery after that (gaps.go).
//   - A lease names an event by the runtime, the offset and a serial. Only the latest one of
//     an event counts; none counts after a Seek.
//   - What Parts returns, together with the cursor that it was called with, is enough to
//     restore the group as of then: Load and Restore are its inverse.
//
// # Callers
//
// Package bus is the only caller. Nothing here is safe for concurrent use: the lock of the
// group guards it, and is held in every call of Host and Member. These must not call the
// Group. An *Entry is good until the event is settled or the group is sought.
package groupstate

import (
	"eventhub"
)

// State says where an event of a group is.
type State uint8

const (
	none            State = iota // the group does not know it yet
	Waiting                      // to be delivered (again), at its time or later
	Held                         // another event of its key is under way
	Leased                       // a member has it until its deadline
	AckPending                   // to be acked together with what its holder publishes
	AckInCommit                  // … and that is in the commit under way
	LetterPending                // to be dead-lettered
	LetterInCommit               // its dead letter is in the commit under way
	RedriveInCommit              // redriven, and that is in the commit under way
	Done                         // acked, dead-lettered, or nobody is to get it
	states
)

// happening is what can happen to an event.
type happening uint8

const (
	wasRead          happening = iota // from the log, for the first time in this epoch
	wasListed                         // on the list of redriven events, for the commit that is built
	wasRedriven                       // the commit has it
	hasToQueue                        // another event of its key is under way
	becameFirst                       // no other event of its key is under way any more
	wasDelivered                      // to a holder that has reserved room
	wasUntaken                        // its receiver did not take it: it was not delivered
	wasAcked                          // by its holder, also late, or by being sent
	wasPassed                         // there is nothing to deliver: done before, or kept out by the filter
	wasRemoved                        // the log has it no longer
	wasExtended                       // its deadline changed
	failed                            // an attempt came to nothing, and it may have another
	gaveOut                           // … and it may not, or must not
	wasGivenBack                      // the attempt does not count
	joinedStep                        // its ack goes with what its holder publishes
	stepKept                          // that was not done: it is with its holder again
	stepLeft                          // that was not done: it has no holder any more
	enteredCommit                     // of its step
	leftCommit                        // which was refused
	wasCommitted                      // its step
	letterNotMade                     // it is put back for a last attempt
	wasAbandoned                      // given up without a dead letter, because it is one
	redriveOvertaken                  // the commit that settled it succeeded; a seek came in between
	happenings
)

// transitions is the whole machine: what happens, and which state follows on which. Where
// a state is not named, what happened means nothing for an event in that state: the caller
// gets no for an answer, and nothing changes.
//
// With each transition the room of the holder is given back or counted (State.TakesRoom), the
// part of the event is to be written, and the host is notified; what was read, listed or
// redriven is in the store as it is. The column on the right says what is to be done besides that.
//
// Two calls are about all events at once: Seek makes them none, except that redriven ones below
// the new cursor are RedriveInCommit where a commit has them, and otherwise wasRedriven; and
// End does wasGivenBack with all.
var transitions = [happenings][states]State{
	wasRead:          {none: Waiting},
	wasListed:        {none: RedriveInCommit},
	wasRedriven:      {none: Waiting, RedriveInCommit: Waiting}, // due at once
	hasToQueue:       {Waiting: Held},
	becameFirst:      {Held: Waiting},                                          // due at once
	wasDelivered:     {Waiting: Leased},                                        // attempts + 1; deadline
	wasUntaken:       {Leased: Waiting},                                        // as it was before; due when it was
	wasAcked:         {Leased: Done, Waiting: Done},                            // settled; next of its key is first
	wasPassed:        {Waiting: Done},                                          // settled; next of its key is first
	wasRemoved:       {Waiting: Done, LetterPending: Done},                     // settled; next of its key is first; gap
	wasExtended:      {Leased: Leased},                                         // deadline
	failed:           {Leased: Waiting, Waiting: Waiting},                      // history; due after a backoff
	gaveOut:          {Leased: LetterPending, Waiting: LetterPending},          // history; dead letter
	wasGivenBack:     {Leased: Waiting},                                        // attempts − 1; due at once
	joinedStep:       {Leased: AckPending, Waiting: AckPending},                // room is kept
	stepKept:         {AckPending: Leased},                                     // deadline
	stepLeft:         {AckPending: Waiting},                                    // attempts − 1; due
	enteredCommit:    {AckPending: AckInCommit, LetterPending: LetterInCommit}, // counts as done in what is written
	leftCommit:       {AckInCommit: AckPending, LetterInCommit: LetterPending}, // all is written again
	wasCommitted:     {AckInCommit: Done, LetterInCommit: Done},                // settled; next of its key is first
	letterNotMade:    {LetterPending: Waiting},                                 // attempts − 1; due after the longest backoff
	wasAbandoned:     {LetterPending: Done},                                    // settled; next of its key is first
	redriveOvertaken: {RedriveInCommit: Done},                                  // settled
}

// Cause says why an attempt came to nothing.
type Cause uint8

const (
	Nacked       Cause = iota
	Refused            // nacked, and never to be delivered again
	Expired            // its lease
	Disconnected       // its member
	causes
)

// causeRows says what a Cause means. A new reason to dead-letter is a Cause and its row.
var causeRows = [causes]struct {
	why    string // in histories, which are stored: a name is for ever
	reason string // of the dead letter, where the member gave none
	alive  bool   // the holder is there and says so: nothing speaks against the event
	final  bool   // the event is dead-lettered, whatever attempts it has left
	atOnce bool   // it comes again without a backoff
}{
	Nacked:       {why: "nacked", reason: "nacked", alive: true},
	Refused:      {why: "nacked", reason: "nacked", alive: true, final: true},
	Expired:      {why: "expired", reason: "lease expired"},
	Disconnected: {why: "disconnected", reason: "member disconnected", atOnce: true},
}

// Ending says how an event became done.
type Ending uint8

const (
	Acked        Ending = iota
	DeadLettered        // its dead letter is in the log
	LateLetter          // … by a commit that a seek has overtaken
	Abandoned           // given up without a dead letter
	Passed              // nobody was to get it, or it had been done before
	Removed             // it is gone from the log
)

// TakesRoom reports whether an event in that state takes room of its holder.
func (s State) TakesRoom() bool { return s == Leased || s == AckPending || s == AckInCommit }

// InCommit reports whether an event in that state is done if the commit under way succeeds.
func (s State) InCommit() bool { return s == AckInCommit || s == LetterInCommit }

// Config is what the settings of a group say.
type Config struct {
	MaxAttempts int
	// Backoff returns how long, in ms, an event waits after so many attempts, and MaxBackoff
	// is the longest of these times.
	Backoff    func(attempts int) int64
	MaxBackoff int64
	ByKey      bool // the events of a key are delivered one after the other
}

// Host is what a Group reports to.
type Host interface {
	// Changed says that there is something to be written.
	Changed()
	// Settled says that an event is done. held is for how many ms its holder had it, age how
	// old it was then; they mean something for Acked.
	Settled(offset uint64, how Ending, held, age int64)
}

// Member is what a Group reports to about one Holder.
type Member interface {
	// Freed says that the room of one lease is free.
	Freed()
	// Forgot says that verdicts on an event can name it by its id no longer.
	Forgot(id string)
	// KeepsLeases reports whether leases of the member count although it may have left.
	KeepsLeases() bool
}

// Holder is a member as a Group knows it: who may hold events.
type Holder struct {
	Member  Member
	Peer    *eventhub.Peer // for histories, which outlive the member
	Timeout int64          // of a lease, in ms
	leases  int
}

// Leases is how many events take room of the holder in this group.
func (h *Holder) Leases() int { return h.leases }

// Void returns Leases and makes it 0: the group has been sought.
func (h *Holder) Void() (leases int) {
	leases, h.leases = h.leases, 0
	return leases
}

// Group is the state of a group. The zero value becomes usable with Restore.
type Group struct {
	host   Host
	config Config

	epoch   uint64
	runtime uint64 // part of every lease
	window  window
	ids     map[string]uint64 // offsets, by id, of events that were delivered and are not done
	letters []Letter          // to be dead-lettered, and not taken by TakeLetters
	leases  appointments      // deadlines
	retries appointments      // waiting events
	counts  [states]int       // of window and list; those that are done are not counted

	keys     *keyQueues // nil without ordering
	suspects []uint64   // offsets of due events that are delivered one at a time
	probe    uint64     // the suspect that was delivered last
	progress Progress

	// How many gaps were noted, how many of them are in the store, and the offsets of all.
	gapsAdded, gapsDurable, lost uint64

	ended, deleted bool
}

// move does what the table says happens to an entry, and reports whether it says anything.
func (g *Group) move(e *Entry, what happening) bool {
	to := transitions[what][e.state]
	if to == none {
		return false
	}
	switch had, has := e.state.TakesRoom(), to.TakesRoom(); {
	case had && !has:
		e.holder.leases--
		e.holder.Member.Freed()
	case has && !had:
		e.holder.leases++
	}
	g.counts[e.state]--
	g.counts[to]++
	e.state = to
	return true
}

// become is move, and has the new state written.
func (g *Group) become(e *Entry, what happening) bool {
	if !g.move(e, what) {
		return false
	}
	if e.redriven > 0 {
		g.progress.moved[e.offset] = true
	} else {
		g.progress.mark(e.offset)
	}
	g.host.Changed()
	return true
}

// settle makes an entry done where the table says so.
func (g *Group) settle(e *Entry, what happening, how Ending, now int64) bool {
	offset, redriven, held := e.offset, e.redriven > 0, now-e.since
	age := held + int64(e.age)
	if !g.become(e, what) {
		return false
	}
	if e.id != "" {
		delete(g.ids, e.id)
		e.forget()
	}
	if redriven {
		delete(g.progress.redriven, offset)
	} else {
		g.window.settle(e)
		if g.progress.redriven[offset] != nil {
			return true // it was done before and is read again; its history and its key queue are the other's
		}
	}
	g.progress.forget(offset)
	if g.progress.hasGaps() {
		g.endGap(offset, how)
	}
	g.host.Settled(offset, how, held, age)
	if next := g.keys.leave(offset); next != 0 {
		g.retry(g.Find(next), becameFirst, 0)
	}
	return true
}

// retry has an entry delivered again at a time.
func (g *Group) retry(e *Entry, what happening, at int64) bool {
	if !g.become(e, what) {
		return false
	}
	e.at = at
	g.retries.push(timed{at, e.offset})
	return true
}
