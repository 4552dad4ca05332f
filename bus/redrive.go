package bus

import (
	"context"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/deadletter"
	"eventhub/bus/internal/groupstate"
	"eventhub/bus/internal/publish"
	"eventhub/internal/eventid"
	"eventhub/internal/filter"
	"eventhub/store"
)

// A redrive reads dead letters and puts their events in the lists of their groups
// (groupstate), some at a time: all of one group in one unit with their marks. So a
// dead letter has its mark if, and only if, its group has, or had, the event again.

var _ admin.Redriver = (*Bus)(nil)

const (
	// A redrive gives back what its rate lets through in redriveTick, at most
	// redriveEvents in one unit.
	redriveTick   = 50 * time.Millisecond
	redriveEvents = 512
	// redriveCatchUp is how much of the rate is made up for at most, on a machine that is
	// slow for a while.
	redriveCatchUp = time.Second
	// redriveProgress is how often somebody is notified how far it is.
	redriveProgress = time.Second
	// redriveRoom is the wait for a group that has groupstate.MostRedriven on its list.
	redriveRoom = 100 * time.Millisecond
)

// Why a dead letter is skipped, as in admin.RedriveResult.
const (
	skipWaiting = "waiting"
	skipOpen    = "open"
	skipNoGroup = "no_group"
	skipGone    = "gone"
	skipFilter  = "filter"
)

// DeadLetters implements admin.Redriver.
func (b *Bus) DeadLetters(ctx context.Context, q admin.DeadLetterQuery, visit func(*admin.DeadLetter) error) error {
	return b.letters.Each(ctx, q, &redriveLists{bus: b}, visit)
}

// redrive is one call of Redrive.
type redrive struct {
	bus      *Bus
	query    admin.RedriveQuery
	result   admin.RedriveResult
	topic    string // of the dead letters
	batch    []admin.DeadLetter
	most     int       // a batch
	next     time.Time // when the rate lets more through
	reported time.Time
	read     store.Batch
	planned  map[groupKey]map[uint64]bool // without Apply: what would be on the lists
}

// Redrive implements admin.Redriver.
func (b *Bus) Redrive(ctx context.Context, q admin.RedriveQuery) (admin.RedriveResult, error) {
	if q.Rate == 0 {
		q.Rate = admin.DefaultRedriveRate
	}
	if q.Rate < 1 || q.Rate > admin.MaxRedriveRate {
		return admin.RedriveResult{}, eventhub.Errorf(eventhub.CodeBadRequest, "rate is %d a second; 1 to %d are allowed", q.Rate, admin.MaxRedriveRate)
	}
	now := time.Now()
	r := redrive{bus: b, query: q, next: now, reported: now, planned: make(map[groupKey]map[uint64]bool),
		most: min(max(int(int64(q.Rate)*int64(redriveTick)/int64(time.Second)), 1), redriveEvents)}
	r.result = admin.RedriveResult{Topic: q.Topic, Applied: q.Apply, Groups: make(map[string]int), Skipped: make(map[string]int), After: q.After}
	r.topic = deadletter.Topic(q.Topic)
	err := b.DeadLetters(ctx, q.DeadLetterQuery, func(d *admin.DeadLetter) error { return r.take(ctx, d) })
	if err == nil {
		err = r.flush(ctx)
	}
	return r.result, err
}

func (r *redrive) take(ctx context.Context, d *admin.DeadLetter) error {
	kept := *d
	kept.Record = nil
	r.batch = append(r.batch, kept)
	if len(r.batch) < r.most {
		return nil
	}
	return r.flush(ctx)
}

// flush gives back what was gathered, a group at a time.
func (r *redrive) flush(ctx context.Context) error {
	batch := r.batch
	r.batch = r.batch[:0]
	byGroup := make(map[string][]admin.DeadLetter)
	var names []string
	for i := range batch {
		name := batch[i].Group
		if byGroup[name] == nil {
			names = append(names, name)
		}
		byGroup[name] = append(byGroup[name], batch[i])
	}
	for _, name := range names {
		if err := r.give(ctx, groupKey{topic: batch[0].Topic, group: name}, byGroup[name]); err != nil {
			return err
		}
	}
	if n := len(batch); n > 0 {
		r.result.After = batch[n-1].Offset
	}
	if r.query.Progress != nil && time.Since(r.reported) >= redriveProgress {
		r.reported = time.Now()
		r.query.Progress(r.result)
	}
	return nil
}

// pace waits until the rate lets n events through.
func (r *redrive) pace(ctx context.Context, n int) error {
	now := time.Now()
	if err := sleep(ctx, r.next.Sub(now)); err != nil {
		return err
	}
	if late := now.Add(-redriveCatchUp); r.next.Before(late) {
		r.next = late
	}
	r.next = r.next.Add(time.Duration(n) * time.Second / time.Duration(r.query.Rate))
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// give gives the events of one group's dead letters back to it, or counts what would
// be.
func (r *redrive) give(ctx context.Context, key groupKey, letters []admin.DeadLetter) error {
	b := r.bus
	r.result.Matched += len(letters)
	g, err := b.acquire(key)
	if err != nil {
		return err
	}
	defer b.release(g)
	if err := g.load(ctx, nil); err != nil {
		if eventhub.ErrorCode(err) == eventhub.CodeNotSubscribed {
			r.skip(skipNoGroup, len(letters))
			return nil
		}
		return err
	}
	if g.outdated != nil {
		r.skip(skipFilter, len(letters))
		return nil
	}
	there := letters[:0:0]
	for i := range letters {
		if !g.gaveUp(&letters[i]) {
			r.skip(skipNoGroup, 1)
			continue
		}
		ok, err := r.isThere(ctx, &letters[i])
		if err != nil {
			return err
		}
		if !ok {
			r.skip(skipGone, 1)
			continue
		}
		if !g.wants(r.read.Items[0]) {
			r.skip(skipNoGroup, 1)
			continue
		}
		there = append(there, letters[i])
	}
	if len(there) == 0 {
		return nil
	}
	if !r.query.Apply {
		r.plan(g, there)
		return nil
	}
	if err := r.pace(ctx, len(there)); err != nil {
		return err
	}
	for !g.hasRoom(len(there)) {
		if err := sleep(ctx, redriveRoom); err != nil {
			return err
		}
	}
	return r.giveBack(ctx, g, there)
}

// gaveUp reports whether the dead letter is of this group, and not of an earlier one of its
// name. Of a group without one the name counts.
func (g *group) gaveUp(d *admin.DeadLetter) bool {
	epoch, _ := g.position()
	return g.settings.FirstEpoch <= d.Epoch && d.Epoch <= epoch
}

// wants reports whether an event passes the group's filter.
func (g *group) wants(item store.Item) bool {
	if g.filter == nil {
		return true
	}
	return g.bus.filters.Judge(g.filter, item.Record, item.Offset) == filter.Passes
}

func (r *redrive) skip(why string, n int) {
	if n > 0 {
		r.result.Skipped[why] += n
	}
}

// isThere reports whether the topic has the event that the dead letter is about.
func (r *redrive) isThere(ctx context.Context, d *admin.DeadLetter) (bool, error) {
	r.read.Reset()
	if err := r.bus.store.Read(ctx, d.Topic, d.Event, 1, 0, &r.read); err != nil {
		return false, storeError(err, "read topic %q at offset %d", d.Topic, d.Event)
	}
	return len(r.read.Items) == 1 && r.read.Items[0].Offset == d.Event && string(r.read.Items[0].Record.ID()) == d.EventID, nil
}

// hasRoom reports whether the list takes n more; one of a group that has ended would
// not get any.
func (g *group) hasRoom(n int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ended != nil || g.state.Listed()+n <= groupstate.MostRedriven
}

// whyNot says why an event is not put on the list, "" where it may be. g.mu is held.
func (g *group) whyNot(offset uint64) string {
	switch {
	case g.state.IsListed(offset):
		return skipWaiting
	case !g.state.IsDone(offset):
		return skipOpen
	}
	return ""
}

// plan counts what giveBack would do.
func (r *redrive) plan(g *group, letters []admin.DeadLetter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	listed := r.planned[g.key]
	if listed == nil {
		listed = make(map[uint64]bool)
		r.planned[g.key] = listed
	}
	for i := range letters {
		why := g.whyNot(letters[i].Event)
		if why == "" && listed[letters[i].Event] {
			why = skipWaiting
		}
		if why != "" {
			r.skip(why, 1)
			continue
		}
		listed[letters[i].Event] = true
		r.count(g.name, 1)
		if len(r.result.Samples) < admin.RedriveSamples {
			r.result.Samples = append(r.result.Samples, letters[i])
		}
	}
}

func (r *redrive) count(group string, n int) {
	if n > 0 {
		r.result.Redriven += n
		r.result.Groups[group] += n
	}
}

// redriveMark is the id of a mark, and how often the event was redriven.
type redriveMark struct {
	id    string
	times int
}

// redriveJob is one unit that puts events on a group's list.
type redriveJob struct {
	commit.Call

	group   *group
	letters []admin.DeadLetter
	marks   []redriveMark          // parallel to letters
	added   []*groupstate.Redriven // those that were put on the list
	skipped map[string]int
}

// giveBack makes the list, and the marks, durable, and has the events delivered.
func (r *redrive) giveBack(ctx context.Context, g *group, letters []admin.DeadLetter) error {
	b := r.bus
	if err := b.space.Check(); err != nil {
		return err
	}
	p := &redriveJob{group: g, letters: letters, skipped: make(map[string]int)}
	p.Durable, p.Alone = true, true
	if err := r.encode(ctx, p); err != nil {
		return err
	}
	// It is waited for whatever happens to ctx, so that the result says what was done.
	err := b.committer.Do(ctx, p)
	for why, n := range p.skipped {
		r.skip(why, n)
	}
	if err == nil {
		r.count(g.name, len(p.added))
	}
	return err
}

// times counts the redrives of a dead letter's event, this one included.
func (r *redrive) times(ctx context.Context, d *admin.DeadLetter) (int, error) {
	times := d.Redriven
	for _, m := range d.Marks {
		times = max(times, m.Redriven)
	}
	if len(d.Marks) == admin.MaxRedriveMarks { // there may be more
		_, last, err := r.bus.letters.LastRedrive(ctx, d.ID)
		if err != nil {
			return 0, err
		}
		times = max(times, last.Redriven)
	}
	return min(times+1, groupstate.MaxRedrives), nil
}

// encode makes the marks of a redriveJob.
func (r *redrive) encode(ctx context.Context, p *redriveJob) error {
	var marks publish.Events
	for i := range p.letters {
		d := &p.letters[i]
		times, err := r.times(ctx, d)
		if err != nil {
			return err
		}
		id := eventid.New()
		mark, err := deadletter.Mark(id, &admin.RedriveMark{
			By: r.query.By, Topic: d.Topic, Group: d.Group, Offset: d.Event, Redriven: times,
			DeadLetter: eventhub.Place{Topic: r.topic, Offset: d.Offset}, DeadLetterID: d.ID,
		})
		if err == nil {
			err = marks.AddMade(&mark)
		}
		if err != nil {
			return err
		}
		p.marks = append(p.marks, redriveMark{id, times})
	}
	marks.Fill(&p.Request)
	return nil
}

// Build implements commit.Job: it puts the events on the list, those that may be, and
// fills the unit in.
func (p *redriveJob) Build() bool {
	g := p.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.deleted {
		p.skipped[skipNoGroup] = len(p.letters)
		p.Answer(nil)
		return false
	}
	u := &p.Units[0]
	marks := u.Appends
	u.Appends = nil
	for i := range p.letters {
		d := &p.letters[i]
		if why := g.whyNot(d.Event); why != "" {
			p.skipped[why]++
			continue
		}
		p.added = append(p.added, g.state.List(d.Event, p.marks[i].times, p.marks[i].id, d.Key))
		u.Appends = append(u.Appends, marks[i])
	}
	if len(p.added) == 0 {
		p.Answer(nil)
		return false
	}
	u.Groups = []store.GroupChange{g.change(g.state.Cursor())}
	return true
}

// Done implements commit.Job: it has the events delivered, or takes them off the list.
func (p *redriveJob) Done(err error) {
	g := p.group
	refused := err == nil && p.Units[0].Err != nil
	g.mu.Lock()
	g.state.ListCommitted(p.added, err == nil && !refused)
	if refused {
		g.state.Rewrite()
		err = g.bus.stepError(&p.Units[0], nil)
	}
	g.mu.Unlock()
	g.bus.sched.Schedule(g)
	p.Answer(err)
}
