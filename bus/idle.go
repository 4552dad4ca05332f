package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/idle"
	"eventhub/bus/internal/past"
	"eventhub/bus/internal/publish"
	"eventhub/internal/when"
	"eventhub/store"
)

// Groups that nobody uses end (package bus/internal/idle says which, and when). The end is that of
// a deleted group, in one unit with the event of system.audit that says so and the note that is
// told when the group is made again; dead letters stay, as after a deletion.

// idleGroups is the bus as the runtime knows it that watches groups.
type idleGroups Bus

// noteUse notes that somebody uses the group, or has just done so.
func (g *group) noteUse() {
	g.used.Store(int64(max(g.bus.idle.Passed(), 1)))
	g.bus.idle.Used(g.key.topic, g.name)
}

// Use implements idle.Groups.
func (h *idleGroups) Use(ctx context.Context, key idle.Group) (idle.Use, error) {
	b := (*Bus)(h)
	b.mu.RLock()
	g := b.groups[groupKey{topic: key.Topic, group: key.Name}]
	users := 0
	if g != nil {
		users = g.users
	}
	b.mu.RUnlock()
	if g != nil && g.loaded.Load() {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.use(users), nil
	}
	state, err := b.store.Group(ctx, key.Topic, key.Name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return idle.Use{}, nil
	case err != nil:
		return idle.Use{}, groupError(err, key.Topic, key.Name)
	}
	return idle.Use{Exists: true, Busy: users > 0, Epoch: state.Epoch, Cursor: state.Cursor}, nil
}

// use says how the group is used, which has so many users. g.mu is held.
func (g *group) use(users int) idle.Use {
	return idle.Use{
		Exists: !g.deleted, Members: len(g.members) > 0,
		Busy: users > 0 || len(g.members) > 0 || g.state.UnderWay() > 0 || g.waits.Len() > 0 || g.dirty || g.writing,
		Last: time.Duration(g.used.Load()), Epoch: g.state.Epoch(), Cursor: g.state.Cursor(),
	}
}

// Patterns implements idle.Groups.
func (h *idleGroups) Patterns(key idle.Group) []string {
	return h.patterns.coveringAll(key.Name, key.Topic)
}

// Brought implements idle.Groups.
func (h *idleGroups) Brought(ctx context.Context, name, pattern string) (topics []string, _ error) {
	p, err := eventhub.ParsePattern(pattern)
	if err != nil {
		return nil, err
	}
	lives, err := past.Matching(ctx, h.store, []eventhub.Pattern{p})
	for _, at := range lives {
		if h.patterns.brings(name, pattern, at.Topic) {
			topics = append(topics, at.Topic)
		}
	}
	return topics, err
}

// End implements idle.Groups.
func (h *idleGroups) End(ctx context.Context, end *idle.End) (bool, error) {
	b := (*Bus)(h)
	if end.Pattern == "" {
		return b.endIdle(ctx, end)
	}
	pg := b.patterns.acquire(end.Name)
	defer b.patterns.release(pg)
	pg.mu.Lock() // nobody subscribes by a pattern of the group, and no new topic gets it
	defer pg.mu.Unlock()
	topics, err := h.Brought(ctx, end.Name, end.Pattern)
	if err != nil || !b.patterns.hasPattern(pg, end.Pattern) || len(topics) != len(end.Watched()) {
		return false, err
	}
	ended, err := b.endIdle(ctx, end)
	if ended {
		_, subs := b.patterns.forget(pg, end.Pattern)
		for _, s := range subs {
			s.end(eventhub.Errorf(eventhub.CodeNotSubscribed, "pattern %q of group %q has ended: nobody had used it", end.Pattern, end.Name))
		}
		b.idle.PatternRemoved()
	}
	return ended, err
}

// endIdle ends groups if nobody uses them.
func (b *Bus) endIdle(ctx context.Context, end *idle.End) (bool, error) {
	ended, err := b.submitEnd(ctx, end, true)
	if errors.Is(err, store.ErrTopicLimit) {
		b.log.Warn("there is no room for another topic, so no event says which group ended", "topic", admin.AuditTopic, "group", end.Name)
		ended, err = b.submitEnd(ctx, end, false)
	}
	if ended && b.log.Enabled(ctx, slog.LevelInfo) {
		first := end.Groups
		if len(first) == 0 {
			first = end.Watched()
		}
		b.log.Info("a group has ended: nobody has used it", "group", end.Name, "topic", first[0].Topic, "topics", len(end.Groups),
			"pattern", end.Pattern, "idle", when.Format(end.Idle.Truncate(time.Second)))
	}
	return ended, err
}

// errInUse says that a group is not idle any more.
var errInUse = errors.New("a group is used again")

// submitEnd commits the end of groups, which are loaded for that. Nobody notices that as a use.
func (b *Bus) submitEnd(ctx context.Context, end *idle.End, marked bool) (ended bool, err error) {
	job := &idleEnd{bus: b, end: end, over: make(chan struct{})}
	job.Units, job.Durable = make([]store.Unit, 1), true
	defer job.release()
	for _, key := range end.Watched() {
		g, err := b.acquire(groupKey{topic: key.Topic, group: key.Name})
		if err != nil {
			return false, err
		}
		job.watched = append(job.watched, g)
		if err := g.load(ctx, nil); err != nil {
			if eventhub.ErrorCode(err) == eventhub.CodeNotSubscribed {
				return false, nil // somebody has deleted it
			}
			return false, err
		}
		if slices.Contains(end.Groups, key) {
			job.goes = append(job.goes, g)
			_, cursor := g.position()
			job.cursors = append(job.cursors, cursor)
		}
	}
	if marked {
		if err := job.mark(); err != nil {
			return false, err
		}
	}
	err = b.committer.Do(ctx, job)
	if errors.Is(err, errInUse) {
		return false, nil
	}
	return err == nil, err
}

// idleEnd is the job that ends groups that nobody uses.
type idleEnd struct {
	commit.Call
	bus     *Bus
	end     *idle.End
	watched []*group // that have to be idle; the job uses them
	goes    []*group // that end, in the order of end.Groups
	cursors []uint64 // of these
	built   bool
	over    chan struct{} // closed when it is known what became of it
}

// markedTopics bounds the topics that the event of system.audit names.
const markedTopics = 100

// mark adds the event that says which group ended.
func (j *idleEnd) mark() error {
	m := admin.GroupEndMark{
		Action: "group_end", By: "group_idle_expiry", Group: j.end.Name, Pattern: j.end.Pattern,
		IdleMS: j.end.Idle.Milliseconds(), Topics: len(j.goes), Ended: []admin.GroupEnded{},
	}
	for i, g := range j.goes[:min(len(j.goes), markedTopics)] {
		m.Ended = append(m.Ended, admin.GroupEnded{Topic: g.log.Topic(), Cursor: j.cursors[i]})
	}
	payload, err := json.Marshal(&m)
	if err != nil {
		return err
	}
	var events publish.Events
	if err := events.AddMade(&eventhub.Event{Topic: admin.AuditTopic, Payload: payload}); err != nil {
		return err
	}
	j.Units[0], j.Bytes, j.Alone = events.Unit(), events.Bytes(), true
	return nil
}

// Build implements commit.Job. It has the locks of all groups at once, which nobody else does.
func (j *idleEnd) Build() bool {
	b := j.bus
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, g := range j.watched {
		g.mu.Lock()
		defer g.mu.Unlock()
	}
	if j.isUsed() || !j.end.Confirm() {
		j.Answer(errInUse)
		return false
	}
	unit, ended := &j.Units[0], make([]idle.Ended, len(j.goes))
	for i, g := range j.goes {
		ended[i] = idle.Ended{
			TS: b.clock.Wall().UnixMilli(), Cursor: j.cursors[i], Epoch: g.state.Epoch(), Life: g.life, IdleMS: j.end.Idle.Milliseconds(),
		}
		change := g.header(g.state.Cursor())
		change.Delete = true
		unit.Groups = append(unit.Groups, change)
		g.delete()
		g.end(&idleEnded{
			eventhub.Errorf(eventhub.CodeNotSubscribed, "group %q of topic %q has ended: nobody had used it", g.name, g.log.Topic()), j.over,
		})
	}
	if j.end.Pattern != "" {
		unit.Patterns = []store.PatternChange{{Group: j.end.Name, Pattern: j.end.Pattern, Delete: true}}
	}
	unit.Notes = j.end.Rows(ended)
	j.built = true
	return true
}

// isUsed reports whether one of the groups is used, or not where it was. Their locks are held.
func (j *idleEnd) isUsed() bool {
	for i, g := range j.goes {
		if g.state.Cursor() != j.cursors[i] {
			return true
		}
	}
	return slices.ContainsFunc(j.watched, func(g *group) bool { return g.ended != nil || g.use(g.users-1).Busy })
}

// Done implements commit.Job. Where it was refused, the groups are loaded anew by who needs them.
func (j *idleEnd) Done(err error) {
	if err == nil {
		err = j.Units[0].Err
	}
	for _, g := range j.goes {
		if err == nil {
			j.bus.forgetDeleted(g)
		} else {
			j.bus.forgetRuntime(g)
		}
	}
	if err != nil {
		j.end.Failed()
	}
	close(j.over)
	j.Answer(err)
}

// release ends the use of the groups.
func (j *idleEnd) release() {
	for _, g := range j.watched {
		j.bus.releaseUnused(g)
	}
}

// idleEnded is why a group delivers nothing any more that nobody used. Who comes just then waits
// until that is over, and makes it again.
type idleEnded struct {
	error
	over <-chan struct{}
}

func (e *idleEnded) Unwrap() error { return e.error }

// waitIdleEnd waits until a group has ended that is why of an error, and reports whether there
// is one.
func waitIdleEnd(ctx context.Context, err error) bool {
	var e *idleEnded
	if !errors.As(err, &e) {
		return false
	}
	select {
	case <-e.over:
		return true
	case <-ctx.Done():
		return false
	}
}

// returned notes that the group had ended in a topic in which the subscription has made it.
func (s *subscription) returned(topic string, e idle.Ended) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endedBefore = append(s.endedBefore, eventhub.EndedGroup{Topic: topic, TS: e.TS, Cursor: e.Cursor})
}

// tellReturned tells who subscribes.
func (s *subscription) tellReturned() {
	s.mu.Lock()
	list := s.endedBefore
	s.endedBefore = nil
	s.mu.Unlock()
	if s.opts.OnEnded == nil {
		return
	}
	for _, e := range list {
		s.opts.OnEnded(e)
	}
}

// planEnds says which of the groups would end now, with these expiries.
func (b *Bus) planEnds(ctx context.Context, plan *admin.SettingsPlan, groups []idle.Group, expiry func(topic string) time.Duration) error {
	ends, err := b.idle.Plan(ctx, groups, expiry)
	if err != nil {
		return err
	}
	for _, end := range ends {
		for _, g := range end.Groups {
			plan.Ends++
			if len(plan.Groups) == admin.MaxPage {
				continue
			}
			u, err := (*idleGroups)(b).Use(ctx, g)
			if err != nil {
				return err
			}
			plan.Groups = append(plan.Groups, admin.IdleGroup{Topic: g.Topic, Group: g.Name, Pattern: end.Pattern, IdleMS: end.Idle.Milliseconds(), Cursor: u.Cursor})
		}
	}
	return nil
}

// idleInfo describes for how long nobody has used a group; nil where that has no end.
func (b *Bus) idleInfo(g idle.Group) *admin.GroupIdle {
	s, ok := b.idle.Status(g)
	if !ok {
		return nil
	}
	info := &admin.GroupIdle{Expiry: admin.Period(s.Expiry), IdleMS: s.Idle.Milliseconds(), Patterns: b.patterns.coveringAll(g.Name, g.Topic)}
	if s.Counting && !b.opts.NoMaintenance {
		info.EndsTS = b.clock.Wall().Add(s.Left).UnixMilli()
	}
	return info
}

// shownEnded bounds the groups that have ended which the description of a topic has.
const shownEnded = 100

// describeIdle says which groups of a topic end and have ended.
func (b *Bus) describeIdle(ctx context.Context, info *admin.TopicInfo) error {
	life, err := past.Life(ctx, b.store, info.Topic)
	if err != nil {
		return err
	}
	ended := b.idle.Ended(info.Topic, life)
	if len(ended) == 0 && b.topics.GroupExpiry(info.Topic) == 0 {
		return nil
	}
	info.Idle = &admin.TopicIdle{Ended: []admin.EndedGroup{}}
	next, left, count := b.idle.Next(info.Topic)
	if info.Idle.Groups = count; count > 0 && !b.opts.NoMaintenance {
		info.Idle.Next, info.Idle.NextTS = next, b.clock.Wall().Add(left).UnixMilli()
	}
	for name, e := range ended {
		info.Idle.Ended = append(info.Idle.Ended, admin.EndedGroup{Group: name, TS: e.TS, Cursor: e.Cursor})
	}
	slices.SortFunc(info.Idle.Ended, func(a, b admin.EndedGroup) int {
		return cmp.Or(cmp.Compare(b.TS, a.TS), cmp.Compare(a.Group, b.Group))
	})
	info.Idle.Ended = info.Idle.Ended[:min(len(info.Idle.Ended), shownEnded)]
	return nil
}
