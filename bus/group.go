package bus

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/groupstate"
	"eventhub/bus/internal/judge"
	"eventhub/bus/internal/past"
	"eventhub/bus/internal/publish"
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

	life uint64 // of the topic; set with loaded

	mu       sync.Mutex
	ended    error // why nothing is delivered or settled any more
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
	counts   groupCounts
	awaited  map[uint64][]*ackWaiter // who waits for an offset to be done; nil: nobody

	fetch    *fetcher     // of the turn under way
	verdicts []verdict    // the turns' own: about events to be read again, rising
	warned   bool         // the turns' own: it was said that the filter costs too much
	steps    []*groupStep // of the commit that is being built; the committer's
}

// settings are what a group keeps for life, in the form in which they are
// stored.
type settings struct {
	Ordering     string `json:"ordering"`
	MaxAttempts  int    `json:"max_attempts"`
	MinBackoffMS int64  `json:"backoff_min_ms"`
	MaxBackoffMS int64  `json:"backoff_max_ms"`

	Filter *eventhub.Filter `json:"filter,omitempty"`

	// FirstEpoch is the epoch that the group was made with, and From the cursor. Groups of
	// earlier hubs have none; patterns have none either.
	FirstEpoch uint64 `json:"born,omitempty"`
	From       uint64 `json:"from,omitempty"`
}

// newState is the state of a new group that begins above a cursor. raw are its settings.
func (b *Bus) newState(raw json.RawMessage, cursor uint64) store.GroupState {
	epoch := b.newEpoch()
	raw = fmt.Appendf(bytes.TrimSuffix(slices.Clone(raw), []byte("}")), `,"born":%d,"from":%d}`, epoch, cursor)
	return store.GroupState{Epoch: epoch, Cursor: cursor, Settings: raw}
}

// settingsFor resolves the settings of a new group.
func settingsFor(o *eventhub.GroupOptions) settings {
	s := settings{
		Ordering:     cmp.Or(o.Ordering, eventhub.OrderingNone),
		MaxAttempts:  o.MaxAttempts,
		MinBackoffMS: o.Backoff.Min.Milliseconds(),
		MaxBackoffMS: o.Backoff.Max.Milliseconds(),
	}
	if !o.Filter.IsZero() {
		s.Filter = o.Filter
	}
	if s.MaxAttempts == 0 {
		s.MaxAttempts = eventhub.DefaultMaxAttempts
	}
	if s.MinBackoffMS == 0 {
		s.MinBackoffMS = eventhub.DefaultMinBackoff.Milliseconds()
		if s.MaxBackoffMS != 0 {
			s.MinBackoffMS = min(s.MinBackoffMS, s.MaxBackoffMS)
		}
	}
	if s.MaxBackoffMS == 0 {
		s.MaxBackoffMS = max(eventhub.DefaultMaxBackoff.Milliseconds(), s.MinBackoffMS)
	}
	return s
}

// match refuses options that ask for another setting than the group has.
func (s settings) match(o *eventhub.GroupOptions) error {
	if o.Ordering != "" && o.Ordering != s.Ordering {
		return eventhub.Errorf(eventhub.CodeGroupMismatch, "ordering is %q; group %q has %q since its creation", o.Ordering, o.Group, s.Ordering)
	}
	if o.Filter != nil && !o.Filter.Equal(s.Filter) {
		return eventhub.Errorf(eventhub.CodeGroupMismatch, "filter is %s; group %q has %s since its creation", o.Filter, o.Group, s.Filter)
	}
	for _, f := range []struct {
		name        string
		asked, have int64
	}{
		{"maxAttempts", int64(o.MaxAttempts), int64(s.MaxAttempts)},
		{"backoff.minMs", o.Backoff.Min.Milliseconds(), s.MinBackoffMS},
		{"backoff.maxMs", o.Backoff.Max.Milliseconds(), s.MaxBackoffMS},
	} {
		if f.asked != 0 && f.asked != f.have {
			return eventhub.Errorf(eventhub.CodeGroupMismatch, "%s is %d; group %q has %d since its creation", f.name, f.asked, o.Group, f.have)
		}
	}
	return nil
}

func newGroup(b *Bus, log *topiclog.Log, key groupKey) *group {
	return &group{bus: b, log: log, key: key, name: key.group, counts: newGroupCounts(key.topic, key.group)}
}

// load reads the group's state from the store. With options it creates a group
// that does not exist, durably at its resolved start, and checks the settings
// of one that does.
func (g *group) load(ctx context.Context, o *eventhub.GroupOptions) error {
	return g.loadIn(ctx, 0, o)
}

// loadIn is load for a group in one life of its topic, where life is not 0.
func (g *group) loadIn(ctx context.Context, life uint64, o *eventhub.GroupOptions) error {
	g.loading.Lock()
	defer g.loading.Unlock()
	if !g.loaded.Load() {
		now, state, known, err := g.findIn(ctx, life, o)
		if err != nil {
			return err
		}
		if err := g.restore(state, known); err != nil {
			return err
		}
		g.life = now
		g.loaded.Store(true)
	}
	switch {
	case life != 0 && life != g.life:
		return errDeleted(g.log.Topic())
	case o == nil:
		return nil
	}
	return g.settings.match(o)
}

// findIn returns the state of the group and its progress, and the life of the topic that
// they are of. With options it makes a group that is not there: once, for what is gone
// then was deleted. Others may do the same: a pattern brings it.
func (g *group) findIn(ctx context.Context, life uint64, o *eventhub.GroupOptions) (now uint64, state store.GroupState, _ groupstate.Progress, _ error) {
	b := g.bus
	for made := false; ; {
		var known groupstate.Progress // not the group's own: whoever ends the group looks at that
		now, err := past.Life(ctx, b.store, g.log.Topic())
		if err != nil {
			return 0, state, known, err
		}
		if now != life && (life != 0 || now == 0 && made) {
			return 0, state, known, errDeleted(g.log.Topic())
		}
		state, err = b.store.Group(ctx, g.log.Topic(), g.name)
		switch {
		case err == nil:
			known, err = progressOf(ctx, b.store, g.log.Topic(), g.name, state.Cursor)
		case o == nil || made || !errors.Is(err, store.ErrNotFound):
			err = groupError(err, g.log.Topic(), g.name)
		default:
			if err = g.create(ctx, now, o); err == nil || errors.Is(err, store.ErrExists) {
				made = err == nil
				continue
			}
		}
		if err != nil {
			return 0, state, known, err
		}
		// Both are of that life if it is not over: of a later one, life after life, they
		// may be a mixture.
		after, err := past.Life(ctx, b.store, g.log.Topic())
		if err == nil && after != now {
			err = errDeleted(g.log.Topic())
		}
		return now, state, known, err
	}
}

// restore takes over durable state, and what was read of its progress. Nobody else loads
// the group, but it may be ended meanwhile.
func (g *group) restore(state store.GroupState, known groupstate.Progress) error {
	if err := json.Unmarshal(state.Settings, &g.settings); err != nil {
		return eventhub.Wrap(eventhub.CodeInternal, err, "The stored settings of group %q cannot be read.", g.name)
	}
	program, err := g.bus.filters.Compile(g.settings.Filter)
	if err != nil {
		return eventhub.Wrap(eventhub.CodeInternal, err, "The stored filter of group %q cannot be used: %v", g.name, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.settJSON, g.paused = state.Settings, state.Paused
	g.filter, g.Evaluates = g.bus.matcher(program), program.Evaluates()
	base := state.Cursor // what an earlier hub did with what is below is not known
	if g.settings.FirstEpoch != 0 {
		base = g.settings.From
	}
	g.bus.raised(state.Epoch) // should the group be deleted and made again
	outlived := g.state.Restore((*groupHost)(g), g.settings.config(), known, base, state.Epoch, state.Cursor, g.bus.runtimes.draw(g))
	g.restarted()
	if outlived {
		g.touch()
	}
	return nil
}

// config is what the settings say to the state of the group.
func (s settings) config() groupstate.Config {
	return groupstate.Config{
		MaxAttempts: s.MaxAttempts, MaxBackoff: s.MaxBackoffMS, ByKey: s.Ordering == eventhub.OrderingKey,
		Backoff: func(attempts int) int64 { return s.backoff(attempts).Milliseconds() },
	}
}

// progressOf reads what the store has of a group besides its header.
func progressOf(ctx context.Context, s store.Store, topic, name string, cursor uint64) (groupstate.Progress, error) {
	parts, err := s.GroupParts(ctx, topic, name)
	if err != nil {
		return groupstate.Progress{}, groupError(err, topic, name)
	}
	return groupstate.Load(name, parts, cursor)
}

// groupHost is a group as its state knows it. The group's lock is held in its methods.
type groupHost group

// Changed implements groupstate.Host.
func (h *groupHost) Changed() { (*group)(h).touch() }

// Settled implements groupstate.Host: it counts the event, and notifies whoever waits for it.
func (h *groupHost) Settled(offset uint64, how groupstate.Ending, held, age int64) {
	g := (*group)(h)
	gaveUp := ""
	switch how {
	case groupstate.Acked:
		g.counts.acked(held, age)
	case groupstate.DeadLettered:
		g.counts.DeadLettered++
		gaveUp = gaveUpDead
	case groupstate.LateLetter:
		gaveUp = gaveUpDead
	case groupstate.Abandoned:
		gaveUp = gaveUpAbandoned
	}
	if len(g.awaited) > 0 {
		g.notify(offset, gaveUp)
	}
}

// restarted does what comes after the state of the group began again. g.mu is held.
func (g *group) restarted() {
	g.setReserved(nil)
	for _, m := range g.members {
		m.forget()
	}
	g.notifyPassed()
}

// create makes the group durable where the options say it starts, in that life of its
// topic or, where it is 0, with the topic. A runtime that has ended meanwhile makes
// nothing: its topic was deleted, and would come back.
func (g *group) create(ctx context.Context, life uint64, o *eventhub.GroupOptions) error {
	at, err := g.bus.startIn(ctx, store.TopicLife{Topic: g.log.Topic(), Life: life}, o)
	if err != nil {
		return err
	}
	unit := store.Unit{Groups: []store.GroupChange{{
		Topic: g.log.Topic(), Life: life, Group: g.name, Create: true, State: g.bus.newState(at.raw, at.cursor),
	}}}
	err = g.bus.committer.Do(ctx, commit.NewWrite(unit, func(*store.Unit) error { return g.whyEnded() }))
	switch {
	case errors.Is(err, store.ErrTopicLimit):
		return publish.UnitError(err)
	case errors.Is(err, store.ErrGone):
		return errDeleted(g.log.Topic())
	}
	return err
}

// isOutdated reports whether a unit was refused since it changes a group that was
// deleted, alone or with its topic.
func isOutdated(err error) bool {
	return errors.Is(err, store.ErrStaleEpoch) || errors.Is(err, store.ErrGone)
}

// newEpoch returns an epoch for a new group, above those of all groups that ever
// had its name in this life of the topic: the clock's milliseconds, or the next number
// where the clock does not move or has gone back. Over a restart it is the store that
// knows the epochs of groups that were deleted.
func (b *Bus) newEpoch() uint64 {
	for {
		last := b.epochs.Load()
		epoch := max(uint64(b.clock.Wall().UnixMilli()), last+1)
		if b.epochs.CompareAndSwap(last, epoch) {
			return epoch
		}
	}
}

// raised notes an epoch that a group has.
func (b *Bus) raised(epoch uint64) {
	for last := b.epochs.Load(); last < epoch && !b.epochs.CompareAndSwap(last, epoch); last = b.epochs.Load() {
	}
}

// position returns epoch and cursor.
func (g *group) position() (epoch, cursor uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state.Epoch(), g.state.Cursor()
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

// touch notes that durable state changed. g.mu is held.
func (g *group) touch() {
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
}

// end ends the group once and returns the members that are to be notified. Attempts
// under way are given back: it was not the members who gave up. g.mu is held.
func (g *group) end(err error) (members []*member) {
	if g.ended != nil {
		return nil
	}
	g.state.End()
	g.ended = err
	g.notifyEnded()
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

// backoff is the wait before the attempt after the given one: it doubles from
// the group's minimum up to its maximum, and jitter takes up to half of it
// away, so that events which failed together do not all come back together. An
// attempt that was given back (0) waits like the first.
func (s settings) backoff(attempt int) time.Duration {
	ms := s.MaxBackoffMS
	if shift := max(attempt, 1) - 1; shift < 32 && s.MinBackoffMS<<shift < ms {
		ms = s.MinBackoffMS << shift
	}
	return time.Duration(ms-rand.Int64N(ms/2+1)) * time.Millisecond
}
