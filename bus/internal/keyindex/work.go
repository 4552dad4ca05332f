package keyindex

import (
	"context"
	"errors"
	"slices"
	"time"

	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

// run is the goroutine.
func (r *Runtime) run() {
	defer close(r.done)
	for r.ctx.Err() == nil {
		r.findTopics()
		if topic, wait := r.next(); topic != "" {
			r.work(topic)
		} else {
			r.sleep(wait)
		}
	}
}

// sleep waits until there is something to do, or as long as it is told, 0 for ever.
func (r *Runtime) sleep(wait time.Duration) {
	var rings <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		rings = timer.C
	}
	select {
	case <-rings:
	case <-r.wake:
	case <-r.ctx.Done():
	}
}

// next takes the topic that is to be looked at next; "" where there is none, and after how long
// there is one again, 0 for never.
func (r *Runtime) next() (topic string, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.failed) > 0 {
		if wait = time.Until(r.retry); wait <= 0 {
			for _, t := range r.failed {
				r.push(t)
			}
			r.failed, wait = nil, 0
		}
	}
	if len(r.queue) == 0 {
		return "", wait
	}
	topic, r.queue = r.queue[0], r.queue[1:]
	delete(r.queued, topic)
	return topic, 0
}

// findTopics has the topics looked at whose index is not what their settings say, or is being built.
func (r *Runtime) findTopics() {
	r.mu.Lock()
	find := r.find
	r.find = false
	r.mu.Unlock()
	if !find {
		return
	}
	r.findThose(store.Indexing, func(admin.StateMode) bool { return true })
	if r.opts.Policies.AnyState() {
		r.findThose(store.NotIndexed, func(m admin.StateMode) bool { return m == admin.StateOn })
		r.findThose(store.Indexed, func(m admin.StateMode) bool { return m == admin.StateOff })
	}
}

// findThose has topics looked at whose index is so far, and whose settings say what is asked for.
func (r *Runtime) findThose(status store.IndexStatus, is func(admin.StateMode) bool) {
	names, err := r.opts.Store.TopicsIndexed(r.ctx, status)
	if err != nil {
		if r.ctx.Err() == nil {
			r.opts.Logger.Error("cannot list the topics to find those whose keys are to be indexed; a change of settings, or a question, has them found", "error", err)
		}
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		if is(r.opts.Policies.State(name)) {
			r.push(name)
		}
	}
}

// work does one step of a topic.
func (r *Runtime) work(topic string) {
	again, err := r.step(topic)
	r.mu.Lock()
	defer r.mu.Unlock()
	if again {
		r.push(topic)
		return
	}
	e := r.topics[topic]
	switch {
	case err == nil && r.queued[topic]: // somebody came meanwhile, and is answered after the next look
		return
	case err == nil:
		delete(r.topics, topic)
	case r.ctx.Err() == nil:
		r.fail(topic, err)
	}
	if e == nil {
		return
	}
	if err == nil && r.opts.Policies.State(topic) == admin.StateOff {
		err = refusal(topic)
	}
	for _, answered := range e.waiting {
		answered <- err
	}
	e.waiting = nil
}

// fail has a topic looked at again after a while. Each question about it meanwhile is another try. r.mu
// is held.
func (r *Runtime) fail(topic string, err error) {
	if slices.Contains(r.failed, topic) {
		return
	}
	r.opts.Logger.Error("cannot index the keys of a topic; it is tried again", "topic", topic, "error", err)
	if len(r.failed) == 0 {
		r.retry = time.Now().Add(retryAfter)
	}
	r.failed = append(r.failed, topic)
}

// step looks at a topic, and begins, drops or goes on with its index. It reports whether there is
// more to do.
func (r *Runtime) step(topic string) (again bool, err error) {
	info, err := r.opts.Store.Topic(r.ctx, topic)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, store.Failed(err, "look up topic %q", topic)
	}
	mode := r.opts.Policies.State(topic)
	switch {
	case mode == admin.StateOff && info.Index == store.NotIndexed, mode != admin.StateOff && info.Index == store.Indexed:
		return false, nil
	case mode == admin.StateOff:
		return false, r.drop(info)
	case mode != admin.StateOn && info.Index == store.NotIndexed && !r.isAsked(topic):
		return false, nil
	}
	if err := r.opts.Room(); err != nil {
		return false, err
	}
	if info.Index == store.NotIndexed {
		err := r.change(info, store.StartIndex)
		if errors.Is(err, store.ErrGone) {
			return true, nil // it is looked up again
		}
		if err != nil {
			return false, store.Failed(err, "begin the index of topic %q", topic)
		}
	}
	return r.build(topic)
}

// build does one step of an index that was begun.
func (r *Runtime) build(topic string) (again bool, err error) {
	began, before := time.Now(), r.rested()
	part := began // when the part under way began
	pause := func(_ context.Context, p store.IndexProgress) (end bool) {
		r.note(topic, p)
		if end = time.Since(began) >= longestStep && r.isHeldUp(topic); !end && !r.isWanted() && r.othersCommit() {
			r.pause(min(politeRest*time.Since(part), longestPause))
		}
		part = time.Now()
		return end
	}
	p, done, err := r.opts.Store.IndexKeys(r.ctx, topic, pause)
	if err != nil {
		return false, store.Failed(err, "index the keys of topic %q", topic)
	}
	if done {
		r.opts.Ready(topic)
		return false, nil
	}
	r.note(topic, p)
	if !r.othersCommit() {
		return true, nil
	}
	if r.isWanted() {
		r.rest(min(time.Since(began)-(r.rested()-before), longestRest)) // for as long as it worked
	} else {
		r.pause(min(politeRest*time.Since(part), longestRest)) // a step that a sweep has waited for made no pauses; now nobody waits
	}
	return true, nil
}

// isHeldUp reports whether the step of a topic holds up something: another topic, or a change of settings, or the disk is nearly full, so that it
// is to keep nothing there that others have replaced.
func (r *Runtime) isHeldUp(topic string) bool {
	r.mu.Lock()
	waits := r.find || len(r.queue) > 1 || len(r.queue) == 1 && r.queue[0] != topic
	r.mu.Unlock()
	return waits || r.opts.Policies.State(topic) == admin.StateOff || r.opts.Room() != nil
}

// pause rests within a step, or after one, until somebody wants an index. It takes hints, because run looks at everything after a step.
func (r *Runtime) pause(d time.Duration) {
	began := time.Now()
	timer := time.NewTimer(d)
	defer timer.Stop()
	for isOver := false; !isOver && !r.isWanted(); {
		select {
		case <-r.wake:
		case <-timer.C:
			isOver = true
		case <-r.ctx.Done():
			isOver = true
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paused += time.Since(began)
}

// rested returns how long pause has rested in all.
func (r *Runtime) rested() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.paused
}

// othersCommit reports whether there were commits since it was called last.
func (r *Runtime) othersCommit() bool {
	before := r.commits
	r.commits = r.opts.Commits()
	return r.commits != before
}

// isWanted reports whether somebody waits for an index, or asked for one not long ago: a step of one topic holds up those of others.
func (r *Runtime) isWanted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, e := range r.topics {
		if !e.wanted.IsZero() && now.Sub(e.wanted) < hurry {
			return true
		}
	}
	return false
}

// note notes how far an index is.
func (r *Runtime) note(topic string, p store.IndexProgress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entry(topic)
	if e.at = p; !e.building {
		e.building, e.asked, e.began, e.paused, e.first = true, false, time.Now(), r.paused, p
	}
}

func (r *Runtime) isAsked(topic string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.topics[topic]
	return e != nil && e.asked
}

func (r *Runtime) rest(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.ctx.Done():
	}
}

// change commits a change of the index of a topic, durably.
func (r *Runtime) change(info store.TopicInfo, ch store.IndexChange) error {
	unit := store.Unit{Topics: []store.TopicChange{{Topic: info.Name, Life: info.Life, Index: ch}}}
	return r.opts.Committer.Do(r.ctx, commit.NewWrite(unit, nil))
}

// drop drops the index of a topic. A pass of the compaction that has begun is ended before: nobody
// else does that, because the settings do not have the topic compacted any more.
func (r *Runtime) drop(info store.TopicInfo) error {
	for {
		err := r.change(info, store.DropIndex)
		if err == nil || errors.Is(err, store.ErrGone) {
			return nil
		}
		if !errors.Is(err, store.ErrCompacting) {
			return store.Failed(err, "drop the index of topic %q", info.Name)
		}
		for done := false; !done; {
			if _, done, err = r.opts.Store.Compact(r.ctx, info.Name); err != nil {
				return store.Failed(err, "compact topic %q", info.Name)
			}
			if r.opts.Policies.State(info.Name) != admin.StateOff {
				return nil
			}
		}
	}
}
