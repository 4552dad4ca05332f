package tail

import (
	"context"
	"slices"
	"sync"
	"time"

	"eventhub"
	"eventhub/bus/internal/past"
	"eventhub/bus/internal/sched"
	"eventhub/store"
)

// Tail is a live tail: a subscription without a group, which gets the events of its
// topics in their order and leaves no trace. What its receiver takes is done, so
// there are no leases and no window, only a place in each topic.
//
// While it keeps up, the shards of its topics serve it (shard.go). A part that could
// not be given all it should have been is behind; the tail's own turns read for such
// parts, from the cache or the store, one after the other in bounded rounds.
type Tail struct {
	sched.State
	tails     *Tails
	receiver  eventhub.Receiver
	wants     Wants              // nil: it wants all
	patterns  []eventhub.Pattern // those that may name topics not yet created
	allowed   *eventhub.TopicRules
	batchSize int
	conflates bool

	mu     sync.Mutex
	parts  []*part          // in no order
	index  map[string]*part // by topic; nil while there are few
	lag    []*part          // those that are behind, in the order in which they are served
	reach  int              // how many events the next turn of its own reads at once
	merged *conflation
	gaps   map[*sharedTopic]*eventhub.Gap // what it is to be told with the next event; nil for most
	snap   *stateful                      // of a tail with the state; nil for all others. Never changes
	// opening: Subscribe has not found all topics yet. paused: its owner wants nothing for now. full: the receiver took less than it was given.
	// left: nothing is delivered any more; ended says why if it was not its own wish.
	opening, paused, full, left bool
	reported                    int // gaps, while it is opened
	ended                       error
}

// part is the place of a tail in one topic.
type part struct {
	tail  *Tail
	shard *shard

	// Guarded by tail.mu.
	next   uint64      // events below it were handed over, or are not wanted
	knows  store.Marks // of the topic: the tail's owner knows that it may miss what these say
	behind bool        // in tail.lag
}

// expect notes the patterns that may name topics which are not created yet, and refuses
// a start that means a place in one topic where there may be more.
func (t *Tail) expect(patterns []eventhub.Pattern, start eventhub.Start) error {
	for _, p := range patterns {
		if eventhub.IsPattern(p.String()) {
			t.patterns = append(t.patterns, p)
		}
	}
	if len(patterns) == 1 && len(t.patterns) == 0 {
		return nil
	}
	switch start.Kind {
	case eventhub.StartAfterID:
		return eventhub.Errorf(eventhub.CodeBadRequest, "after_id is %q; it is a place in one topic, and more are asked for", start.AfterID)
	case eventhub.StartOffset:
		return eventhub.Errorf(eventhub.CodeBadRequest, "offset is %d; it is a place in one topic, and more are asked for", start.Offset)
	}
	return nil
}

// open puts the tail at its place, or else at its start, in every topic that is
// there, and at the first event in those that it does not know, and lets it begin.
// Topics that are created meanwhile join by themselves.
func (t *Tail) open(ctx context.Context, patterns []eventhub.Pattern, knows known, opts *eventhub.TailOptions) error {
	topics, err := past.Allowed(ctx, t.tails.store, patterns, opts.Allowed)
	if err != nil {
		return err
	}
	places := make(map[string]eventhub.Place, len(opts.Places))
	for _, p := range opts.Places {
		places[p.Topic] = p
	}
	for _, at := range topics {
		place, placed := places[at.Topic]
		delete(places, at.Topic)
		if t.snap != nil {
			placed, place = false, eventhub.Place{}
		}
		if err := t.follow(ctx, at.Topic, knows.start(at.Life, opts.Start), place, placed); err != nil {
			return err
		}
	}
	t.reportGone(places, patterns)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.opening = false
	if t.snap != nil && !t.left {
		t.beginLoad()
	}
	t.proceed()
	return t.ended
}

// follow attaches the tail to a topic, after its place where it has one.
func (t *Tail) follow(ctx context.Context, topic string, start eventhub.Start, place eventhub.Place, placed bool) error {
	ts := t.tails
	ts.mu.Lock()
	at := ts.use(topic)
	ts.mu.Unlock()
	head, err := ts.store.Head(ctx, topic)
	if err != nil {
		err = store.Failed(err, "read the head of topic %q", topic)
	}
	from := beginning{cursor: head}
	switch {
	case err != nil:
	case t.snap != nil: // the load finds out
	case placed:
		from, err = t.goOn(ctx, place)
	case start.Kind != eventhub.StartLatest:
		from, err = t.begin(ctx, topic, start)
	}
	if err != nil {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		ts.leave(at)
		return err
	}
	t.attach(at, head, from)
	return nil
}

// attach adds a part, unless the tail has one of that topic or
// has ended; the use of the topic goes over to it. head is as for topiclog.Log.Learn.
func (t *Tail) attach(topic *sharedTopic, head uint64, from beginning) {
	t.mu.Lock()
	if !t.left && !t.has(topic.name) {
		p := &part{tail: t, next: from.cursor + 1, knows: from.knows}
		if from.gap != nil {
			t.owe(topic, from.gap)
		}
		topic.attach(t.tails, p, head)
		t.add(p)
		if p.behind = p.behind || t.snap != nil; p.behind {
			t.lag = append(t.lag, p)
			t.proceed()
		}
		t.mu.Unlock()
		return
	}
	t.mu.Unlock()
	t.tails.mu.Lock()
	defer t.tails.mu.Unlock()
	t.tails.leave(topic)
}

// fewParts is how many topics a tail has without an index over them.
const fewParts = 16

// has reports whether the tail has a part of a topic.
func (t *Tail) has(topic string) bool {
	if t.index != nil {
		return t.index[topic] != nil
	}
	return slices.ContainsFunc(t.parts, func(p *part) bool { return p.shard.topic.name == topic })
}

func (t *Tail) add(p *part) {
	t.parts = append(t.parts, p)
	switch {
	case t.index != nil:
		t.index[p.shard.topic.name] = p
	case len(t.parts) > fewParts:
		t.index = make(map[string]*part, 2*fewParts)
		for _, p := range t.parts {
			t.index[p.shard.topic.name] = p
		}
	}
}

// blocked reports whether the tail takes no events now. t.mu is held, here and
// below where nothing else is said.
func (t *Tail) blocked() bool {
	if t.merged != nil {
		return t.opening || t.left || t.merged.brimful()
	}
	return t.opening || t.left || t.paused || t.full || t.snap.lacks()
}

// proceed asks for a turn of the tail's own where there is something to do in it.
func (t *Tail) proceed() {
	if len(t.lag) > 0 && !t.blocked() {
		t.tails.sched.Schedule(t)
	}
}

// awaits reports whether a shard has to read events up to head for a part. One that
// takes nothing now falls behind instead. t.mu is not held.
func (t *Tail) awaits(p *part, head uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left || p.behind {
		return false
	}
	if p.reach(); p.next > head {
		return false
	}
	if t.blocked() || t.Evaluates {
		t.fallBehind(p)
		t.proceed()
		return false
	}
	return true
}

// reach moves a part that is kept up over offsets that have no events. Only the shard's turn
// calls it, and tail.mu is held.
func (p *part) reach() { p.next = max(p.next, p.shard.next) }

// fallBehind leaves a part to the tail's own turns.
func (t *Tail) fallBehind(p *part) {
	p.behind = true
	t.lag = append(t.lag, p)
}

// keepUp gives a part what its shard has read. Where that is to be judged by an
// expression it takes a turn of the tail's own. horizon is as for overtaken, and f has the
// marks. t.mu is not held.
func (t *Tail) keepUp(p *part, deliveries []eventhub.Delivery, horizon uint64, f *feed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left || p.behind {
		return
	}
	p.reach()
	t.overtaken(p, horizon, f.marks)
	if t.snap.lacks() {
		t.fallBehind(p)
		t.tails.sched.Schedule(t) // for another state, or the notice of a horizon
		return
	}
	// Nobody else moves the place of a part that is kept up.
	if deliveries = since(deliveries, p.next); len(deliveries) == 0 {
		return
	}
	all := !t.Evaluates
	for all && len(deliveries) > 0 {
		n, passed := len(deliveries), deliveries
		if t.wants != nil {
			t.mu.Unlock()
			n, _ = t.judge(deliveries, f, time.Time{})
			passed = f.passed
			t.mu.Lock()
			if t.left || p.behind {
				return
			}
		}
		all = !t.blocked() && !t.isStale(p, f) && t.hand(p, passed, deliveries[n-1].Offset+1)
		deliveries = deliveries[n:]
	}
	if t.merged != nil {
		t.handMerged(t.tails.clock.Now(), f)
	}
	if !all {
		t.fallBehind(p)
	}
	if !all || t.merged != nil {
		t.proceed()
	}
}

// hand gives deliveries of a part, all that it wants of those before next, to the
// receiver, or merges them, and reports whether all are dealt with. p.next is after the
// last one that is.
func (t *Tail) hand(p *part, ds []eventhub.Delivery, next uint64) (all bool) {
	if t.merged != nil {
		if !t.merge(p, ds) {
			return false
		}
		p.next = next
		return true
	}
	if t.snap != nil {
		ds = since(ds, p.next) // what was removed since it was read
		next = max(next, p.next)
	}
	if g := t.gaps[p.shard.topic]; g != nil && len(ds) > 0 {
		first := []eventhub.Delivery{ds[0]} // other tails have the same slice
		first[0].Gap = g
		if t.receiver.Deliver(first) == 0 {
			p.next = ds[0].Offset
			t.full = true
			return false
		}
		delete(t.gaps, p.shard.topic)
		p.shard.topic.handed.Add(1)
		ds = ds[1:]
	}
	for len(ds) > 0 {
		batch := ds[:min(t.batchSize, len(ds)):min(t.batchSize, len(ds))]
		taken := t.receiver.Deliver(batch)
		p.shard.topic.handed.Add(uint64(taken))
		if taken < len(batch) {
			p.next = batch[taken].Offset
			t.full = true
			return false
		}
		p.next = batch[taken-1].Offset + 1
		ds = ds[len(batch):]
	}
	p.next = next
	return true
}

// overtaken notes that all below a horizon was removed, where that is above the place of a
// part: the part goes on there, and the next event that the tail is handed of the topic says
// so. It does likewise where the topic was compacted up to marks that are above the place, and
// above those that the tail's owner knows. Where the tail was not handed an event since it was
// overtaken before, both are one gap.
func (t *Tail) overtaken(p *part, horizon uint64, marks store.Marks) {
	first := max(p.next, horizon)
	passed := marks.Above(first-1, p.knows)
	if first == p.next && passed == (store.Marks{}) {
		return
	}
	g := &eventhub.Gap{Topic: p.shard.topic.name, After: p.next - 1, First: first}
	if before := t.gaps[p.shard.topic]; before != nil {
		if g.After = before.After; first == p.next {
			g.First = before.First
		}
		passed = passed.Max(store.Marks{Compacted: before.Compacted, Tombstones: before.Tombstones}).From(g.First)
	}
	if t.snap != nil && passed.Tombstones > 0 {
		t.snap.stale = true // ends of keys may be gone that nothing else tells
		return
	}
	g.Compacted, g.Tombstones = passed.Compacted, passed.Tombstones
	p.knows = p.knows.Max(marks)
	t.owe(p.shard.topic, g)
	p.next = first
}

// owe has the next event of a topic say a gap.
func (t *Tail) owe(topic *sharedTopic, g *eventhub.Gap) {
	if t.gaps == nil {
		t.gaps = make(map[*sharedTopic]*eventhub.Gap)
	}
	t.gaps[topic] = g
}

// Turn serves the parts that are behind, and hands over what is due. Only one runs
// at a time for a tail. t.mu is not held.
func (t *Tail) Turn() {
	f := feeds.Get().(*feed)
	defer f.release()
	began := time.Now()
	t.Strained = false
	if t.snap != nil && !t.turnState(f, began) {
		return
	}
	for events, n := 0, 0; n < turnRounds && events < roundEvents && !t.Strained; n++ {
		if !t.round(f, began) {
			return
		}
		events += len(f.items)
	}
	t.tails.sched.Schedule(t)
}

// round reads for the part whose turn it is. It reports whether another round may
// find more to do. t.mu is not held.
func (t *Tail) round(f *feed, began time.Time) bool {
	p, from, limit := t.plan(f)
	if p == nil {
		return false
	}
	log := p.shard.log
	head := log.Head()
	if !f.cached(log, from, limit) && f.stored(t.tails, log, from, limit) != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		if !t.left {
			t.tails.sched.ScheduleAt(t, t.tails.clock.After(readAgain))
		}
		return false
	}
	if f.horizon > from || f.marks.Compacted >= from {
		t.mu.Lock()
		t.overtaken(p, f.horizon, f.marks)
		lacks := t.snap.lacks()
		t.mu.Unlock()
		if lacks {
			t.tails.sched.Schedule(t) // for another state
			return false
		}
	}
	deliveries := f.prepare(log.Topic(), f.items)
	if len(deliveries) == 0 {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.blocked() {
			return t.merged != nil && !t.left // a hand-over may make room
		}
		if t.isStale(p, f) {
			return true
		}
		p.next = max(p.next, head+1) // a gap
		t.served(p, true)
		return true
	}
	for len(deliveries) > 0 && !t.Strained {
		n, passed := len(deliveries), deliveries
		if t.wants != nil {
			n, t.Strained = t.judge(deliveries, f, began)
			passed = f.passed
		}
		t.mu.Lock()
		if t.blocked() {
			defer t.mu.Unlock()
			return t.merged != nil && !t.left
		}
		if t.isStale(p, f) {
			defer t.mu.Unlock()
			return true // it is read again
		}
		all := t.hand(p, passed, deliveries[n-1].Offset+1)
		if deliveries = deliveries[n:]; !all || len(deliveries) == 0 || t.Strained {
			defer t.mu.Unlock()
			t.served(p, all)
			return true
		}
		t.mu.Unlock()
	}
	return true
}

// served puts the part whose turn it was where it belongs: all says that it was given
// all that was read for it.
func (t *Tail) served(p *part, all bool) {
	t.grow(all)
	if all && p.next > p.shard.log.Head() {
		p.behind = false
		t.lag = slices.Delete(t.lag, 0, 1)
	} else if all {
		copy(t.lag, t.lag[1:]) // the others first
		t.lag[len(t.lag)-1] = p
	}
}

// plan hands over what is due and says what to read next, nil for nothing. t.mu is
// not held.
func (t *Tail) plan(f *feed) (p *part, from uint64, limit int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left {
		return nil, 0, 0
	}
	if t.merged != nil {
		t.merged.armed = false // the alarm has one time for each task; it may be gone
		t.handMerged(t.tails.clock.Now(), f)
	}
	if len(t.lag) == 0 {
		t.lag = nil
		return nil, 0, 0
	}
	if t.blocked() {
		return nil, 0, 0
	}
	return t.lag[0], t.lag[0].next, t.reach
}

// grow lets a tail that takes all read more at once, and one that does not, less:
// what is not taken is read again.
func (t *Tail) grow(all bool) {
	if t.reach *= 2; !all {
		t.reach = t.batchSize
	}
	t.reach = min(t.reach, roundEvents)
}

// Settle implements eventhub.Subscription: there are no leases to find.
func (t *Tail) Settle(_ context.Context, s eventhub.Settlement) ([]eventhub.Outcome, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended != nil {
		return nil, t.ended
	}
	outcomes := make([]eventhub.Outcome, len(s.Refs))
	for i := range outcomes {
		outcomes[i] = eventhub.Stale
		if s.Verdict == eventhub.Extend {
			outcomes[i] = eventhub.Unknown
		}
	}
	return outcomes, nil
}

// AckAndPublish implements eventhub.Subscription.
func (t *Tail) AckAndPublish(_ context.Context, hs []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
	for i := range hs {
		hs[i].Err = eventhub.Errorf(eventhub.CodeBadRequest, "a live tail has nothing to ack")
	}
	done(hs)
}

// Ready implements eventhub.Subscription.
func (t *Tail) Ready() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.full {
		t.full = false
		t.tails.sched.Schedule(t)
	}
}

// Unsubscribe implements eventhub.Subscription.
func (t *Tail) Unsubscribe(context.Context) error {
	t.leave()
	return nil
}

// Drop implements eventhub.Subscription.
func (t *Tail) Drop(int) { t.leave() }

// Sent implements eventhub.Subscription. A tail has nothing to settle.
func (t *Tail) Sent(int) {}

// Pause implements eventhub.Subscription.
func (t *Tail) Pause(context.Context) error { return t.setPaused(true) }

// Resume implements eventhub.Subscription.
func (t *Tail) Resume(context.Context) error { return t.setPaused(false) }

func (t *Tail) setPaused(paused bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended != nil {
		return t.ended
	}
	was := t.paused
	t.paused = paused
	switch {
	case paused && !was && t.snap != nil && !t.opening:
		t.suspend()
	case !paused && was && t.snap != nil && !t.opening && t.snap.phase == loading:
		t.beginLoad()
	}
	if !paused {
		t.tails.sched.Schedule(t)
	}
	return nil
}

// leave ends the tail by its owner's wish. t.mu is not held.
func (t *Tail) leave() { t.end(nil) }

// shut ends the tail and notifies its receiver why. t.mu is not held.
func (t *Tail) shut(why error) {
	if notify := t.end(why); notify {
		t.receiver.Ended(why)
	}
}

// end takes the tail off its topics, once. notify: its owner has it, and does not know
// yet. When it returns nothing is delivered any more. t.mu is not held.
func (t *Tail) end(why error) (notify bool) {
	t.mu.Lock()
	if t.left {
		t.mu.Unlock()
		return false
	}
	t.left, t.ended = true, why
	parts := t.parts
	if t.snap != nil {
		t.release()
		if t.snap.cancel != nil {
			t.snap.cancel()
		}
	}
	t.parts, t.index, t.lag, t.merged, t.gaps = nil, nil, nil, nil, nil
	notify = !t.opening
	t.mu.Unlock()
	t.tails.sched.Forget(t)
	t.tails.forget(t)
	for _, p := range parts {
		p.shard.topic.detach(p)
	}
	t.tails.mu.Lock()
	defer t.tails.mu.Unlock()
	for _, p := range parts {
		t.tails.leave(p.shard.topic)
	}
	return notify
}

// judge puts those of a tail's next events that it wants into f.passed, until it has as
// many as the tail is handed at once, and returns how many it has looked at. began is when
// the turn began. t.mu is not held.
func (t *Tail) judge(ds []eventhub.Delivery, f *feed, began time.Time) (n int, spent bool) {
	clear(f.passed)
	f.passed = f.passed[:0]
	for ; n < len(ds) && len(f.passed) < t.batchSize && !spent; n++ {
		if t.wants(ds[n].Record, ds[n].Offset) {
			f.passed = append(f.passed, ds[n])
		}
		spent = t.Evaluates && time.Since(began) >= t.tails.opts.EvaluationTime
	}
	return n, spent
}
