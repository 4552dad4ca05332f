package bus

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"eventhub/bus/internal/ackwait"
	"eventhub/bus/internal/groupstate"
	"eventhub/bus/internal/idle"
	"eventhub/bus/internal/judge"
	"eventhub/bus/internal/sched"
	"eventhub/bus/internal/topiclog"
	"eventhub/store"
)

// group is the runtime of one consumer group in one topic: its state (groupstate), and what
// that needs of the world: the lock, members, turns, the store and whoever waits. It is loaded
// by its first member and then stays, so that attempts and acks above the cursor outlive
// members that come and go.
type group struct {
	bus  *Bus
	log  *topiclog.Log
	key  groupKey
	name string // key.group

	users  int         // guarded by bus.mu
	loaded atomic.Bool // set once, under loading
	// loading serialises what reads or creates the durable state. It is taken
	// before mu and held over store calls.
	loading sync.Mutex

	sched.State

	used atomic.Int64 // when it was, by idle.Runtime.Passed; 0: not since it is loaded

	life     uint64 // of the topic; set with loaded
	outdated error  // why nobody can be a member: what is wrong with the stored filter; set with loaded

	mu       sync.Mutex
	ended    error // why nothing is delivered or settled any more
	bytes    int64 // what it has of Bus.groupBytes
	deleted  bool  // … for good; nothing is written any more either
	settings settings
	settJSON json.RawMessage  // settings as stored
	filter   judge.Matcher    // of settings; nil: none
	state    groupstate.Group // of its events; it reports to groupHost
	members  []*member
	reserved *member // who is kept free for a suspect (isolate.go)
	owes     bool    // a member that has left took the last suspect: others come first
	turnTo   int     // index of the member that is served next
	paused   bool    // nothing is delivered
	dirty    bool    // on the committer's list
	writing  bool    // a gapsJob is under way
	counts   groupCounts
	waits    *ackwait.Group // who waits for its events
	returned *idle.Ended    // it had ended, and is made again; until somebody is told

	fetch    *fetcher                    // of the turn under way
	verdicts []verdict                   // the turns' own: about events to be read again, rising
	told     struct{ costs, fails bool } // the turns' own: it was said that the filter costs too much, and fails
	steps    []*groupStep                // of the commit that is being built; the committer's
}

func newGroup(b *Bus, log *topiclog.Log, key groupKey) *group {
	g := &group{bus: b, log: log, key: key, name: key.group, counts: newGroupCounts(key.topic, key.group)}
	g.waits = ackwait.NewGroup(key.topic, key.group, &g.mu, &g.state, g.noteUse)
	return g
}

// groupHost is a group as its state knows it. The group's lock is held in its methods.
type groupHost group

// Changed implements groupstate.Host.
func (h *groupHost) Changed() { (*group)(h).touch() }

// Settled implements groupstate.Host: it counts the event, and notifies whoever waits for it.
func (h *groupHost) Settled(offset uint64, how groupstate.Ending, held, age int64) {
	g := (*group)(h)
	switch how {
	case groupstate.Acked:
		g.counts.acked(held, age)
	case groupstate.DeadLettered:
		g.counts.DeadLettered++
	}
	g.waits.Settled(offset, how)
}

// restarted does what comes after the state of the group began again. g.mu is held.
func (g *group) restarted() {
	g.setReserved(nil)
	for _, m := range g.members {
		m.forget()
	}
	g.waits.Passed()
}

// isOutdated reports whether a unit was refused since it changes a group that was
// deleted, alone or with its topic.
func isOutdated(err error) bool {
	return errors.Is(err, store.ErrStaleEpoch) || errors.Is(err, store.ErrGone)
}

// position returns epoch and cursor.
func (g *group) position() (epoch, cursor uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state.Epoch(), g.state.Cursor()
}

// wakeAt has the group get a turn at a time of the bus's clock, unless it has ended. g.mu is held.
func (g *group) wakeAt(at int64) {
	if g.ended == nil {
		g.bus.sched.ScheduleAt(g, at)
	}
}

// Wake implements topiclog.Watcher.
func (g *group) Wake() { g.bus.sched.Schedule(g) }

// Snapshot implements commit.State.
func (g *group) Snapshot() (_ store.GroupChange, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dirty = false
	if g.deleted {
		return store.GroupChange{}, false
	}
	return g.change(g.state.Cursor()), true
}

// Refused implements commit.State.
func (g *group) Refused(err error) { g.shut(fmt.Errorf("write the state of the group: %w", err)) }

// change builds a write of all that has changed in the group, with the given
// cursor. g.mu is held, by the committer.
func (g *group) change(cursor uint64) store.GroupChange {
	ch := g.header(cursor)
	var more bool
	if ch.Parts, ch.Reset, more = g.state.Parts(cursor); more {
		g.touch()
	}
	return ch
}

func (g *group) header(cursor uint64) store.GroupChange {
	return store.GroupChange{Topic: g.log.Topic(), Life: g.life, Group: g.name,
		State: store.GroupState{Epoch: g.state.Epoch(), Cursor: cursor, Paused: g.paused, Settings: g.settJSON}}
}

// touch notes that durable state changed, by some use of the group. g.mu is held.
func (g *group) touch() {
	if !g.dirty && len(g.members) == 0 {
		g.noteUse()
	}
	g.mustFlush()
}

// mustFlush has the state written. g.mu is held.
func (g *group) mustFlush() {
	if !g.dirty {
		g.dirty = true
		g.bus.committer.MarkDirty(g)
	}
}

// shut ends the group: members are notified why, and nothing is delivered or
// settled any more.
func (g *group) shut(err error) {
	g.mu.Lock()
	members := g.end(err)
	g.mu.Unlock()
	g.dismiss(members)
}

// delete says that the group is deleted. g.mu is held.
func (g *group) delete() {
	g.deleted = true
	g.state.Delete()
	g.waits.Delete()
}

// end ends the group once and returns the members that are to be notified. Attempts
// under way are given back: it was not the members who gave up. g.mu is held.
func (g *group) end(err error) (members []*member) {
	if g.ended != nil {
		return nil
	}
	g.state.End()
	g.ended = err
	g.weigh()
	g.bus.sched.Forget(g) // the end of a lease may be hours away, and all that it holds would stay until then
	g.waits.End(err)
	members, g.members = g.members, nil
	return members
}

// dismiss notifies members that their group has ended. g.mu is not held.
func (g *group) dismiss(members []*member) {
	if len(members) > 0 {
		g.log.Unwatch(g)
	}
	for _, m := range members {
		m.sub.end(g.ended)
	}
}
