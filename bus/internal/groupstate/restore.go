package groupstate

import (
	"eventhub/admin"
	"eventhub/store"
)

// How a group begins, what is written of it, and where a seek puts it.

// Restore makes the group what the store has of it. base is where the cursor was when its
// epoch began, as far as the settings say; known may know better. It reports whether parts
// are left in the store that have nothing more to say.
func (g *Group) Restore(host Host, c Config, known Progress, base, epoch, cursor, runtime uint64) (outlived bool) {
	g.host, g.config, g.progress = host, c, known
	if g.progress.base == unknownBase {
		g.progress.base = base
	}
	for _, r := range g.progress.redriven {
		// The last attempt may have been cut short, as in Read.
		r.attempts = min(r.attempts, uint16(c.MaxAttempts)-1)
	}
	g.restart(epoch, cursor, runtime)
	return g.progress.outlived(cursor)
}

// restart begins again above cursor, with what g.progress has of it.
func (g *Group) restart(epoch, cursor, runtime uint64) {
	g.epoch, g.runtime = epoch, runtime
	g.window.reset(cursor)
	if g.ids == nil {
		g.ids = make(map[string]uint64)
	}
	clear(g.ids)
	g.letters = nil
	g.leases, g.retries = g.leases[:0], g.retries[:0]
	g.counts = [states]int{}
	g.suspects, g.probe = nil, 0
	if g.config.ByKey {
		g.keys = newKeyQueues()
	}
	g.reviveAll()
}

// Seek puts the cursor at to, in the next epoch: nothing that is under way counts any more.
// runtime is a number that no other run of a group has. The holders of the group begin with
// no leases (Holder.Void).
func (g *Group) Seek(to uint64, missing Missing, runtime uint64) {
	g.forgetIDs()
	before := g.progress
	g.progress = newProgress()
	g.progress.base, g.progress.reset = to, true
	g.progress.keepAgain(&before, to)
	g.restart(g.epoch+1, to, runtime)
	g.gapsDurable = g.gapsAdded
	g.lose(missing.After, missing.First)
	if g.progress.begin(missing); len(g.progress.notices.list) > 0 {
		g.gapsAdded++
	}
	g.host.Changed()
}

// Passage is what a seek passes without the group knowing which offsets have events: those
// above After, up to End. Those of Done are.
type Passage struct {
	After, End uint64
	Done       AckedRuns
}

// Undone returns how many offsets of it are not known to be done.
func (p *Passage) Undone() uint64 {
	return p.End - p.After - (p.Done.From(p.After+1) - p.Done.From(p.End+1))
}

// PlanSeek says what a seek would do to the events that the group knows, and what else it
// would pass. head is the last offset of the topic.
func (g *Group) PlanSeek(to, head uint64) (plan admin.SeekPlan, way Passage) {
	w, p := &g.window, &g.progress
	from := w.cursor()
	plan = admin.SeekPlan{From: from, To: to, Head: head, Epoch: g.epoch, Voided: g.Leased()}
	// What is acked above the cursor is not skipped, but delivered again where it
	// is above the new one.
	plan.Again = w.ackedAbove(to) + p.ackedFrom(max(w.next, to+1))
	if to < from {
		return plan, Passage{After: to, End: min(from, head)}
	}
	for e := range w.open() {
		if e.offset > to {
			break
		}
		plan.Skipped++
	}
	way = Passage{After: w.next - 1, End: min(to, head)}
	if way.After < way.End {
		way.Done = p.Acked()
	}
	return plan, way
}

// Parts returns what has to be written so that the store has what the group knows with this
// cursor, which is Cursor or CursorAfterCommit, and takes it for written. reset says that all
// parts that the store has are void. more says that there are more, for another write.
func (g *Group) Parts(cursor uint64) (parts []store.GroupPart, reset, more bool) {
	parts, reset = g.progress.parts(&g.window, cursor)
	return parts, reset, len(g.progress.noted) > 0
}

// Cursor returns the offset up to which all is done.
func (g *Group) Cursor() uint64 { return g.window.cursor() }

// CursorAfterCommit is Cursor once all that the commit under way settles is done.
func (g *Group) CursorAfterCommit() uint64 { return g.window.cursorAfterCommit() }

// Epoch, Runtime and Base return the number of times that the group was sought, as the epoch of
// its creation counts them; the number of this run, which is in its leases; and the cursor at the
// beginning of the epoch: what is done above that was acked or dead-lettered in this epoch.
func (g *Group) Epoch() uint64   { return g.epoch }
func (g *Group) Runtime() uint64 { return g.runtime }
func (g *Group) Base() uint64    { return g.progress.base }

// Next returns the offset to be read next.
func (g *Group) Next() uint64 { return g.window.next }

// Size returns how many events are between the cursor and Next.
func (g *Group) Size() uint64 { return g.window.size() }

// Lag returns how many events from a horizon on and up to head are not done. Of what was not read
// yet every offset counts.
func (g *Group) Lag(head, horizon uint64) uint64 {
	lag := g.window.openFrom(horizon)
	if from := g.Unread(horizon); from <= head {
		lag += head + 1 - from - min(head+1-from, g.progress.ackedFrom(from))
	}
	return lag
}

// OpenFrom returns how many events from a horizon on were read and are not done.
func (g *Group) OpenFrom(horizon uint64) uint64 { return g.window.openFrom(horizon) }

// Unread returns the first offset, from a horizon on, that was not read.
func (g *Group) Unread(horizon uint64) uint64 { return max(g.window.next, horizon) }

// Acked returns which events that were not read since were done.
func (g *Group) Acked() AckedRuns { return g.progress.Acked() }

// Leased, Waiting, Held and Listed return how many events take room of a holder, are to be
// delivered, wait for others of their key, and are on the list of redriven events.
func (g *Group) Leased() int  { return g.counts[Leased] + g.counts[AckPending] + g.counts[AckInCommit] }
func (g *Group) Waiting() int { return g.counts[Waiting] }
func (g *Group) Held() int    { return g.counts[Held] }
func (g *Group) Listed() int  { return len(g.progress.redriven) }

// UnderWay returns how many events somebody has, or the hub is about to settle.
func (g *Group) UnderWay() (n int) {
	for s := Leased; s < Done; s++ {
		n += g.counts[s]
	}
	return n
}

// NotDone returns how many events that were read are not done.
func (g *Group) NotDone() int { return g.Waiting() + g.Held() + g.UnderWay() }

// What an event takes in memory that is not done, and what is kept of its last attempts: of one or two, each further one takes some 70 B.
const (
	notDoneBytes = 192
	historyBytes = 256
)

// Memory returns how many bytes, about, the events take that are not done.
func (g *Group) Memory() int64 {
	return int64(g.NotDone())*notDoneBytes + int64(len(g.progress.history))*historyBytes
}

// IsListed reports whether an event is on the list of redriven events.
func (g *Group) IsListed(offset uint64) bool { return g.progress.redriven[offset] != nil }

// Mark returns the id of the mark of a redriven event, "" where it is none.
func (g *Group) Mark(offset uint64) string { return g.progress.Mark(offset) }

// History returns the last attempts of an event that came to nothing. It must not be changed.
func (g *Group) History(offset uint64) []admin.Attempt { return g.progress.history[offset] }

// IsDone reports whether the event at offset is acked or dead-lettered, or nothing is there.
func (g *Group) IsDone(offset uint64) bool {
	if e := g.window.find(offset); e != nil {
		return e.state == Done
	}
	return offset < g.window.next || g.progress.IsAcked(offset)
}

// IsSettled is IsDone, except for an event that was redriven since.
func (g *Group) IsSettled(offset uint64) bool { return !g.IsListed(offset) && g.IsDone(offset) }

// Oldest returns the first event that is not done, or nil.
func (g *Group) Oldest() *Entry { return g.window.oldest() }

// FirstHeld returns the key of the first event that is Held, and the event of that key that is
// under way; nil where none is Held.
func (g *Group) FirstHeld() (key string, e *Entry) {
	q := g.keys.oldest()
	if q == nil {
		return "", nil
	}
	return q.key, g.Find(q.first)
}

// Deadlines returns how many ends of leases are noted, with those that are void.
func (g *Group) Deadlines() int { return len(g.leases) }

// Idle reports whether nothing is under way, and so nothing is kept besides the cursor and what
// is to be written: appointments that are void have passed, too.
func (g *Group) Idle() bool {
	p := &g.progress
	return g.Leased()+g.Waiting()+g.Held()+g.Listed() == 0 && len(g.window.blocks) == 0 && g.window.acked == 0 &&
		len(g.leases)+len(g.retries)+len(g.ids)+len(g.letters)+len(g.suspects)+g.keys.len() == 0 &&
		len(p.history)+len(p.moved)+len(p.listed) == 0
}

// Describe says what the group knows of the event at f.Offset, whose id is in f, with times
// drift ms later.
func (g *Group) Describe(f *admin.InFlight, drift int64) {
	e := g.Find(f.Offset)
	switch {
	case e != nil && e.state != Done:
		id := f.ID
		*f = e.InFlight(drift)
		f.ID = id
	case e != nil || f.Offset < g.window.next:
		f.State = "done"
	default:
		f.State = "ahead"
		g.progress.describeAhead(f)
	}
}

// Describe says what the store knows of the event at f.Offset in a group with that cursor.
func (p *Progress) Describe(f *admin.InFlight, cursor uint64) {
	switch r := p.redriven[f.Offset]; {
	case r != nil:
		f.State, f.Attempt, f.Redriven = "waiting", int(r.attempts), int(r.Entry.redriven)
	case f.Offset <= cursor:
		f.State = "done"
	default:
		p.describeAhead(f)
	}
	f.History = p.history[f.Offset]
}

func (p *Progress) describeAhead(f *admin.InFlight) {
	if f.Attempt = p.Attempts(f.Offset); p.IsAcked(f.Offset) {
		f.State = "done"
	}
}

// History returns the last attempts of an event that came to nothing. It must not be changed.
func (p *Progress) History(offset uint64) []admin.Attempt { return p.history[offset] }

// Attempts returns how many attempts an event had that was not read since and was not done.
func (p *Progress) Attempts(offset uint64) int {
	return int(max(p.restoredAs(offset), withAttempts) - withAttempts)
}

// IsAcked reports whether the event at offset, which was not read since, was done.
func (p *Progress) IsAcked(offset uint64) bool { return p.restoredAs(offset) == acked }
