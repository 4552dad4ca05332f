package idle

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"eventhub/bus/internal/commit"
	"eventhub/store"
)

// The names of the notes.
const (
	clockRow    = "idle"
	stampPrefix = "idle/"
	endedPrefix = "ended/"
)

func (g Group) row(prefix string) string { return prefix + g.Topic + "\x00" + g.Name }

// groupOf reads the name of a group's note.
func groupOf(row, prefix string) (g Group, ok bool) {
	rest, ok := strings.CutPrefix(row, prefix)
	if ok {
		g.Topic, g.Name, ok = strings.Cut(rest, "\x00")
	}
	return g, ok
}

// savedTime is the note of the watched time.
type savedTime struct {
	WatchedMS int64 `json:"watched_ms"`
}

// stamp is the note of an idle group.
type stamp struct {
	SinceMS int64  `json:"since_ms"` // watched time
	Epoch   uint64 `json:"epoch"`
	Cursor  uint64 `json:"cursor"`
}

// rows are the notes that the store is to have, and which of these are not written.
type rows struct {
	values    map[string][]byte
	unwritten map[string]bool
	writing   int // commits under way that have some of them
}

// set has the store have a note.
func (n *rows) set(name string, value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("idle: a note of %T: %v", value, err)) // they are numbers and texts
	}
	n.values[name], n.unwritten[name] = text, true
	return text
}

// drop has the store not have a note.
func (n *rows) drop(name string) {
	if _, ok := n.values[name]; ok {
		delete(n.values, name)
		n.unwritten[name] = true
	}
}

func (n *rows) some() bool { return len(n.unwritten) > 0 }

// take returns what is to be written.
func (n *rows) take() (changes []store.NoteChange) {
	for name := range n.unwritten {
		changes = append(changes, n.change(name))
	}
	return changes
}

// change is the write of one note, which is taken for written.
func (n *rows) change(name string) store.NoteChange {
	delete(n.unwritten, name)
	value, ok := n.values[name]
	return store.NoteChange{Name: name, Delete: !ok, Value: value}
}

// load reads the notes.
func (r *Runtime) load() error {
	r.rows = rows{values: make(map[string][]byte), unwritten: make(map[string]bool)}
	ended := make(map[Group]Ended)
	list, err := r.opts.Store.ListNotes(context.Background())
	if err != nil {
		return store.Failed(err, "list the notes of idle groups")
	}
	for _, n := range list {
		var value any
		var keep func()
		if n.Name == clockRow {
			var t savedTime
			value, keep = &t, func() { r.clock.watched = time.Duration(t.WatchedMS) * time.Millisecond }
		} else if g, ok := groupOf(n.Name, endedPrefix); ok {
			var e Ended
			value, keep = &e, func() { ended[g] = e }
		} else if _, ok := groupOf(n.Name, stampPrefix); ok {
			value, keep = new(stamp), func() {}
		} else {
			continue // of a later version
		}
		if err := json.Unmarshal(n.Value, value); err != nil {
			r.opts.Logger.Error("the store has a note of idle groups that cannot be read; the time begins anew for it", "note", n.Name, "error", err)
			r.rows.unwritten[n.Name] = true
			continue
		}
		keep()
		r.rows.values[n.Name] = n.Value
	}
	r.ended.init(ended)
	r.atStart, r.saved = r.clock.watched, r.clock.watched
	return nil
}

// stamp has the note of an idle group written. r.mu is held.
func (r *Runtime) stamp(e *entry) {
	r.rows.set(e.group.row(stampPrefix), stamp{e.since.Milliseconds(), e.epoch, e.cursor})
	e.stamped = true
}

// unstamp takes the note of a group back. r.mu is held.
func (r *Runtime) unstamp(e *entry) {
	if e.stamped {
		e.stamped = false
		r.rows.drop(e.group.row(stampPrefix))
	}
}

// stampOf returns since when a group with that epoch and cursor has been idle, as far as the
// store knows. r.mu is held.
func (r *Runtime) stampOf(g Group, u *Use) (since time.Duration, ok bool) {
	if u.Busy || u.Last > 0 || r.made[g] > 0 {
		return 0, false
	}
	var s stamp
	value, ok := r.rows.values[g.row(stampPrefix)]
	if !ok || json.Unmarshal(value, &s) != nil || s.Epoch != u.Epoch || s.Cursor != u.Cursor {
		return 0, false
	}
	return min(time.Duration(s.SinceMS)*time.Millisecond, r.clock.watched), true
}

// dropStamps drops the notes of groups that are not watched. r.mu is held.
func (r *Runtime) dropStamps() {
	for name := range r.rows.values {
		if g, ok := groupOf(name, stampPrefix); ok && (r.entries[g] == nil || !r.entries[g].stamped) {
			r.rows.drop(name)
		}
	}
}

// writing is the commit of notes.
type writing struct {
	commit.Call
	r    *Runtime
	time bool // the watched time too, whatever else there is
}

// Build implements commit.Job.
func (w *writing) Build() bool {
	r := w.r
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.rows.some() || w.time:
	case r.rows.writing > 0: // in this commit, which is waited for
		r.rows.writing++
		return true
	default:
		w.Answer(nil)
		return false
	}
	r.rows.set(clockRow, savedTime{r.clock.time(r.Passed()).Milliseconds()})
	r.saved = r.clock.time(r.Passed())
	w.Units[0].Notes = r.rows.take()
	r.rows.writing++
	return true
}

// Done implements commit.Job.
func (w *writing) Done(err error) {
	w.r.mu.Lock()
	w.r.rows.writing--
	w.r.mu.Unlock()
	w.Call.Done(err)
}

// write makes the notes durable, and with them the watched time.
func (r *Runtime) write(ctx context.Context, time bool) error {
	w := &writing{r: r, time: time}
	w.Units, w.Durable = make([]store.Unit, 1), true
	return r.opts.Committer.Do(ctx, w)
}

// Sync returns when the store knows of all uses so far.
func (r *Runtime) Sync(ctx context.Context) error {
	r.mu.Lock()
	some := r.rows.some() || r.rows.writing > 0 // what is under way is waited for: the commit that this asks for comes after it
	r.mu.Unlock()
	if !some {
		return nil
	}
	return r.write(ctx, false)
}
