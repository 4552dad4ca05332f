package bus

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/groupstate"
	"eventhub/bus/internal/idle"
	"eventhub/bus/internal/past"
	"eventhub/bus/internal/publish"
	"eventhub/store"
)

// A group is loaded by the first who needs its runtime, and made where options say how. What
// it begins with is decided here: its place, its settings and its epoch.

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
		case o.NoCreate:
			if err = past.Missing(ctx, b.store, g.log.Topic(), g.name, o.Allowed, o.Shows); err == nil {
				continue // others have made it meanwhile
			}
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
	// A filter that an earlier hub took, and this one does not, keeps members out and nobody else.
	program, err := g.bus.filters.Compile(g.settings.Filter)
	g.outdated = outdated(g.name, err)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.settJSON, g.paused = state.Settings, state.Paused
	g.filter, g.Evaluates = g.bus.filters.Matcher(program), program.Evaluates()
	base := state.Cursor // what an earlier hub did with what is below is not known
	if g.settings.FirstEpoch != 0 {
		base = g.settings.From
	}
	g.bus.raised(state.Epoch) // should the group be deleted and made again
	outlived := g.state.Restore((*groupHost)(g), g.settings.config(), known, base, state.Epoch, state.Cursor, g.bus.runtimes.draw(g))
	g.restarted()
	if outlived {
		g.mustFlush()
	}
	return nil
}

// outdated is the error of who needs the filter of a group that was stored and does not compile any more. err says why.
func outdated(group string, err error) error {
	if err == nil {
		return nil
	}
	return eventhub.Wrap(eventhub.CodeGroupMismatch, err, "group %q has had a filter since its creation that this hub does not accept: %s; remove the group and make it anew with another one",
		group, eventhub.AsError(err).Message)
}

// accepts refuses a group whose settings were stored with a filter that does not compile any more.
func (b *Bus) accepts(group string, s settings) error {
	_, err := b.filters.Compile(s.Filter)
	return outdated(group, err)
}

// progressOf reads what the store has of a group besides its header.
func progressOf(ctx context.Context, s store.Store, topic, name string, cursor uint64) (groupstate.Progress, error) {
	parts, err := s.GroupParts(ctx, topic, name)
	if err != nil {
		return groupstate.Progress{}, groupError(err, topic, name)
	}
	return groupstate.Load(name, parts, cursor)
}

// create makes the group durable where the options say it starts, in that life of its
// topic or, where it is 0, with the topic. A runtime that has ended meanwhile makes
// nothing: its topic was deleted, and would come back.
func (g *group) create(ctx context.Context, life uint64, o *eventhub.GroupOptions) error {
	at, err := g.bus.startIn(ctx, store.TopicLife{Topic: g.log.Topic(), Life: life}, o)
	if err != nil {
		return err
	}
	unit := store.Unit{Groups: []store.GroupChange{g.bus.newGroup(g.name, at)}}
	back, ended := g.bus.idle.Returning(idle.Group{Topic: at.Topic, Name: g.name}, at.Life)
	if ended {
		unit.Notes = []store.NoteChange{back.Change()}
	}
	err = g.bus.committer.Do(ctx, commit.NewWrite(unit, func(*store.Unit) error { return g.whyEnded() }))
	switch {
	case err == nil && ended:
		g.bus.idle.Returned(back)
		if back.Told {
			g.mu.Lock()
			g.returned = &back.Ended
			g.mu.Unlock()
		}
	case errors.Is(err, store.ErrTopicLimit):
		return publish.UnitError(err)
	case errors.Is(err, store.ErrGone):
		return errDeleted(g.log.Topic())
	}
	return err
}

// groupStart is a group that is to be made in a topic: in that life of it or, where the life
// is 0, together with the topic.
type groupStart struct {
	store.TopicLife
	cursor uint64
	misses groupstate.Missing // what the start asks for and was removed
	raw    json.RawMessage    // settings
}

// startIn returns where a group begins in a topic in which it is not, and with which
// settings: as the options say or, where it has a pattern for the topic, as one that
// was created after the pattern.
func (b *Bus) startIn(ctx context.Context, topic store.TopicLife, o *eventhub.GroupOptions) (groupStart, error) {
	at := groupStart{TopicLife: topic}
	if kept, raw := b.patterns.settingsFor(o.Group, topic.Topic); raw != nil {
		at.raw = raw
		return at, cmp.Or(kept.match(o), b.accepts(o.Group, kept))
	}
	var err error
	if at.raw, err = encodeSettings(o); err != nil {
		return at, err
	}
	var gap *eventhub.Gap
	var marks store.Marks
	at.cursor, gap, marks, err = past.Begin(ctx, b.store, topic.Topic, o.Start)
	at.misses = missing(gap, marks)
	return at, err
}

// missing is what a group does not get that starts with a gap, where that is not nil, in a topic
// that has marks.
func missing(gap *eventhub.Gap, marks store.Marks) groupstate.Missing {
	m := groupstate.Missing{Knows: marks}
	if gap != nil {
		m.After, m.First = gap.After, gap.First
		m.Marks = store.Marks{Compacted: gap.Compacted, Tombstones: gap.Tombstones}
	}
	return m
}

// newGroup is the change that makes a group.
func (b *Bus) newGroup(name string, at groupStart) store.GroupChange {
	return store.GroupChange{
		Topic: at.Topic, Life: at.Life, Group: name, Create: true,
		State: b.newState(at.raw, at.cursor), Parts: groupstate.Begin(at.misses),
	}
}

// newState is the state of a new group that begins above a cursor. raw are its settings.
func (b *Bus) newState(raw json.RawMessage, cursor uint64) store.GroupState {
	epoch := b.newEpoch()
	raw = fmt.Appendf(bytes.TrimSuffix(slices.Clone(raw), []byte("}")), `,"born":%d,"from":%d}`, epoch, cursor)
	return store.GroupState{Epoch: epoch, Cursor: cursor, Settings: raw}
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
