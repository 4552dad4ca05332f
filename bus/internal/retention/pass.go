package retention

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

const (
	// trimsPerCommit bounds the trims that go in one commit.
	trimsPerCommit = 256
	// mostMeasures bounds the calls of Measure for what one pass removes: what goes beyond is
	// left to the next one.
	mostMeasures = 16
	// warnHeld is from when on a clock that is held back is worth a warning.
	warnHeld = time.Hour
)

// run is the goroutine.
func (r *Runtime) run() {
	defer close(r.done)
	r.begin()
	timer := time.NewTimer(longestSleep)
	defer timer.Stop() // it has no effect before it is set
	for r.ctx.Err() == nil {
		r.takeChanges()
		r.mu.Lock()
		wait := r.wakeAt - r.now()
		r.mu.Unlock()
		if wait <= 0 {
			r.round()
			continue
		}
		var rings <-chan time.Time // none where nothing is due
		if wait < never-r.now() {
			timer.Reset(wait)
			rings = timer.C
		}
		select {
		case <-rings:
		case <-r.wake:
		case <-r.ctx.Done():
		}
	}
}

// begin sets the clock of ages, and finds the topics that have a policy.
func (r *Runtime) begin() {
	wall := r.opts.Wall().UnixMilli()
	newest := int64(0)
	err := r.eachTopic(func(t *store.TopicInfo) {
		newest = max(newest, t.LastTime)
		if t.Name == admin.AuditTopic || t.Name == admin.RedriveTopic {
			r.Look(t.Name)
		}
		r.enter(t.Name)
	})
	if err != nil && r.ctx.Err() == nil {
		r.opts.Logger.Error("cannot list the topics to find those with a retention; a change of settings or an event has them found", "error", err)
	}
	if newest == 0 {
		newest = wall
	}
	r.mu.Lock()
	r.ages = clock{now: min(newest, wall), wall: wall, at: r.now(), steady: r.now()}
	r.mu.Unlock()
	close(r.begun)
}

func (r *Runtime) eachTopic(visit func(*store.TopicInfo)) error {
	for t, err := range store.AllTopics(r.ctx, r.opts.Store, "") {
		if err != nil {
			return err
		}
		visit(&t)
	}
	return nil
}

// enter has a topic looked at if it has a policy.
func (r *Runtime) enter(topic string) {
	if !r.on.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entry(topic); e != nil {
		r.due(e, r.now())
	}
}

// takeChanges gives topics the policies that were changed.
func (r *Runtime) takeChanges() {
	r.mu.Lock()
	changed := r.changed
	if len(changed) == 0 {
		r.mu.Unlock()
		return // the map is still that of Changed
	}
	r.changed = make(map[string]bool)
	r.mu.Unlock()
	wide := false
	for name := range changed {
		wide = wide || eventhub.IsPattern(name)
		r.reenter(name)
	}
	if !wide {
		return
	}
	r.mu.Lock()
	known := slices.Collect(maps.Keys(r.entries))
	r.mu.Unlock()
	for _, topic := range known {
		r.reenter(topic)
	}
	if err := r.eachTopic(func(t *store.TopicInfo) { r.enter(t.Name) }); err != nil && r.ctx.Err() == nil {
		r.opts.Logger.Error("cannot list the topics for changed settings; events have those found that they are of", "error", err)
	}
}

// reenter gives a topic its present policy.
func (r *Runtime) reenter(topic string) {
	policy, marks := r.policy(topic)
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[topic]
	switch {
	case marks || e != nil && e.policy == policy:
		return
	case policy == (admin.Retention{}):
		if e != nil {
			e.recount() // the goroutine may have it
		}
		delete(r.entries, topic)
		return
	case e == nil:
		delete(r.entries, topic)
		if e = r.entry(topic); e == nil {
			return
		}
	}
	e.policy = policy
	e.last, e.rest = -Every, 0 // lowered limits count at once
	r.due(e, r.now())
}

// trim is a trim that a pass wants.
type trim struct {
	entry   *entry
	change  store.TopicChange
	removed store.Usage
}

// round makes a pass over all topics that are due.
func (r *Runtime) round() {
	began := r.now()
	due := r.take(began)
	again := false
	var trims []trim
	for i, e := range due {
		t, more, err := r.pass(e)
		if err != nil && r.ctx.Err() == nil {
			r.opts.Logger.Error("cannot find out what a topic does not keep any more; it is tried again", "topic", e.topic, "error", err)
		}
		r.planned(e, more, err)
		again = again || more
		if t.change.Horizon != 0 {
			trims = append(trims, t)
		}
		if len(trims) == trimsPerCommit || i == len(due)-1 {
			r.commit(trims)
			trims = trims[:0]
		}
	}
	for _, e := range due {
		r.finish(e)
	}
	r.end(began, again)
}

// take returns the topics that are due, and takes them off the plan.
func (r *Runtime) take(now time.Duration) (due []*entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold(now)
	for _, e := range r.entries {
		if e != nil && e.next <= now {
			e.next, e.isPassing = never, true
			due = append(due, e)
		}
	}
	slices.SortFunc(due, func(a, b *entry) int { return strings.Compare(a.topic, b.topic) })
	return due
}

// hold moves the clock of ages on. r.mu is held.
func (r *Runtime) hold(now time.Duration) {
	held, was := r.ages.advance(now, r.opts.Wall().UnixMilli()), r.stats.Held
	if held < time.Second {
		held = 0 // the two clocks are never quite the same
	}
	r.stats.Held = held
	switch {
	case held >= warnHeld && was < held-warnHeld:
		r.opts.Logger.Warn("the clock is ahead of the time that has passed since the newest event; retention by age removes at most an hour of events a minute for a while",
			"ahead", held.Round(time.Second))
	case held == 0 && was > 0:
		r.opts.Logger.Info("retention by age goes by the wall clock again")
	}
}

// end ends a round. One that has to go on rests for as long as it took.
func (r *Runtime) end(began time.Duration, again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	r.stats.Rounds++
	r.roundAt = now
	next := time.Duration(never)
	for _, e := range r.entries {
		if e != nil {
			next = min(next, e.next)
		}
	}
	rest := Every
	if again {
		rest = min(now-began, Every)
	}
	if r.stats.Held > 0 {
		next = min(next, now+mostInterval) // the clock of ages goes on
	}
	if next != never {
		next = max(next, now+rest)
	}
	r.wakeAt = next
}

// pass finds out what a topic does not keep. more: it has to go on at once.
func (r *Runtime) pass(e *entry) (t trim, more bool, err error) {
	t.entry = e
	info, err := r.opts.Store.Topic(r.ctx, e.topic)
	if errors.Is(err, store.ErrNotFound) {
		r.gone(e)
		return t, false, nil
	}
	if err != nil {
		return t, false, err
	}
	if more, err = r.count(e, info.Horizon); more || err != nil {
		return t, more, err
	}
	to, more, err := r.aim(e, info.Horizon)
	if err != nil || to <= info.Horizon {
		return t, more, err
	}
	removed, reached, err := Below(r.ctx, r.opts.Store, e.topic, info.Horizon, to, mostMeasures)
	if err != nil {
		return t, false, err
	}
	more = more || reached < to
	if reached > info.Horizon {
		t.change = store.TopicChange{Topic: e.topic, Life: info.Life, Horizon: reached, ForgetIDs: e.policy.Bytes != 0}
		t.removed = removed
	}
	return t, more, nil
}

// count counts what a topic with a cap keeps, where that is not known, a part at a time.
func (r *Runtime) count(e *entry, horizon uint64) (more bool, err error) {
	r.mu.Lock()
	if e.measured || !e.isCapped() {
		r.mu.Unlock()
		return false, nil
	}
	e.counting, e.recent = true, e.recent[:0]
	from, outside := max(e.from, horizon), e.outside
	r.mu.Unlock()
	u, next, done, err := r.opts.Store.Measure(r.ctx, e.topic, from, store.Usage{})
	r.mu.Lock()
	defer r.mu.Unlock()
	e.counting = false
	if err != nil || outside != e.outside {
		return err == nil, err
	}
	e.counted.Events += u.Events
	e.counted.Bytes += u.Bytes
	if e.from = next; !done {
		return true, nil
	}
	e.usage, e.upTo, e.measured = e.counted, next, true
	for _, s := range e.recent {
		if s.offset >= next {
			e.usage.Events++
			e.usage.Bytes += s.bytes
		}
	}
	e.recent, e.counted, e.from = nil, store.Usage{}, 0
	return false, nil
}

// aim returns the first offset that a topic keeps.
func (r *Runtime) aim(e *entry, horizon uint64) (to uint64, more bool, err error) {
	if e.marks {
		first, done, err := r.opts.Marks(r.ctx, horizon)
		return first, !done, err
	}
	r.mu.Lock()
	policy, over := e.policy, e.excess()
	r.mu.Unlock()
	to = horizon
	if policy.Age != 0 {
		if to, err = r.aged(e, policy.Age, horizon); err != nil {
			return 0, false, err
		}
	}
	for _, until := range []store.Usage{{Events: over.Events}, {Bytes: over.Bytes}} {
		if until == (store.Usage{}) {
			continue
		}
		_, next, done, err := r.opts.Store.Measure(r.ctx, e.topic, horizon, until)
		if err != nil {
			return 0, false, err
		}
		to, more = max(to, next), more || !done
	}
	return to, more, nil
}

// aged returns the first offset that is young enough.
func (r *Runtime) aged(e *entry, age admin.Period, horizon uint64) (uint64, error) {
	r.mu.Lock()
	cutoff := r.ages.cutoff(time.Duration(age))
	r.mu.Unlock()
	at, err := r.opts.Store.SeekTime(r.ctx, e.topic, cutoff)
	return max(at, horizon), err
}

// firstTime returns the commit time of the first event from an offset on, 0 where there is
// none.
func (r *Runtime) firstTime(topic string, from uint64) (int64, error) {
	var batch store.Batch
	batch.Grow(4 << 10)
	if err := r.opts.Store.Read(r.ctx, topic, from, 1, 0, &batch); err != nil || len(batch.Items) == 0 {
		return 0, err
	}
	return batch.Items[0].Record.CommitTime(), nil
}

// planned enters when a topic is looked at again, as far as that follows from a pass and not
// from the trim that comes of it.
func (r *Runtime) planned(e *entry, more bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	e.last = now
	switch {
	case err != nil:
		e.fail(now)
	case more:
		e.next = now
	}
}

// fail has a topic rest, whatever else there is to do in it. Runtime.mu is held.
func (e *entry) fail(now time.Duration) {
	e.rest = now + retryAfter
	e.next = e.rest
}

// finish ends a pass: its topic is due again when its first event is too old, or when it is
// above a cap.
func (r *Runtime) finish(e *entry) {
	first := int64(0)
	if e.policy.Age != 0 && r.ctx.Err() == nil {
		var err error
		if first, err = r.firstTime(e.topic, 1); err != nil {
			first = r.opts.Wall().UnixMilli() // as if it came now; the next pass reads it again
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e.isPassing, e.trimming = false, 0
	if r.entries[e.topic] != e {
		return // it has no policy any more, or is gone
	}
	now := r.now()
	if e.policy.Age != 0 && first != 0 {
		e.next = min(e.next, max(now+max(r.untilAged(e, first), interval(e.policy.Age)), e.rest))
	}
	if e.measured {
		r.consider(e, now)
	}
	r.statsOf(e.topic).LastPass = r.opts.Wall().UnixMilli()
}

// commit removes what passes have found.
func (r *Runtime) commit(trims []trim) {
	if len(trims) == 0 {
		return
	}
	j := new(job)
	j.Units, j.Durable = make([]store.Unit, len(trims)), true
	r.mu.Lock()
	for i := range trims {
		j.Units[i].Topics = []store.TopicChange{trims[i].change}
		trims[i].entry.trimming = trims[i].change.Horizon
	}
	r.mu.Unlock()
	err := r.opts.Committer.Do(r.ctx, j)
	for i := range trims {
		t := &trims[i]
		if failed := errors.Join(err, j.Units[i].Err); failed != nil {
			r.refused(t, failed)
			continue
		}
		r.trimmed(t)
	}
}

// job is the commit of some trims. Its units are independent: each has an error of its own.
type job struct{ commit.Call }

// Done implements commit.Job.
func (j *job) Done(err error) { j.Answer(err) }

// refused is after a trim that the store, or the committer, has refused.
func (r *Runtime) refused(t *trim, err error) {
	if errors.Is(err, store.ErrGone) {
		r.gone(t.entry) // the next event of its next life has it looked at again
		return
	}
	if r.ctx.Err() == nil {
		r.opts.Logger.Error("cannot remove events; it is tried again", "topic", t.change.Topic, "horizon", t.change.Horizon, "error", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t.entry.fail(r.now())
}

// trimmed counts a trim that is over.
func (r *Runtime) trimmed(t *trim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := t.entry
	if e.measured {
		e.usage.Events -= min(e.usage.Events, t.removed.Events)
		e.usage.Bytes -= min(e.usage.Bytes, t.removed.Bytes)
	}
	s := r.statsOf(e.topic)
	s.Events += t.removed.Events
	s.Bytes += t.removed.Bytes
}
