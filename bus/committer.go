package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"eventhub"
	"eventhub/store"
)

const (
	// flushEvery is how long changed group state waits at most before it joins
	// a commit; with the commit itself it stays within the 50 ms that an ack's
	// OK promises.
	flushEvery = 25 * time.Millisecond
	// commitBytes bounds the records of one commit, and so the wait of those
	// that come after it.
	commitBytes = 16 << 20
)

// committer is the one writer of the store. Everything that waits when it comes
// around becomes one store.Commit, so that one fsync serves all (group commit).
//
// The order of submissions is the order of their commit. Group state is never
// handed over as a value that could grow old in the queue: submissions and the
// list of dirty groups name the group, and the committer asks it for its state
// when it builds the commit. What reaches the store is therefore as ordered as
// the changes were.
//
// A commit that has nothing but events of publishers need not be over for the next one
// to be built: while the syncer waits for its fsync and tells the publishers, in the
// order of the commits, another is put together where enough is waiting for it
// (pipeline.go). Every other commit begins when those before it are over, for what it
// writes depends on what became of them.
//
// With Options.SyncEvery commits do not wait for an fsync: one follows, for all that
// came since the last, that long after the first of them. Only those wait that have a
// durable submission.
//
// After a failed commit nothing is ever committed again: the store's contract
// leaves the outcome unknown, so all who wait get an error and Options.Fatal is
// told.
type committer struct {
	bus  *Bus
	wake chan struct{} // a hint that the fields below changed
	done chan struct{} // closed when run has ended

	mu       sync.Mutex
	queue    []*submission
	queued   int           // bytes in queue
	waiting  []*roomWaiter // submissions for which there is no room
	dirty    []*group      // groups whose state changed since their last snapshot
	flush    *time.Timer   // fires flushEvery after the first of them
	flushDue bool
	sync     *time.Timer // fires SyncEvery after the first commit that was not synced
	syncDue  bool
	stopping bool
	broken   error
	inSync   int // commits that the syncer was given and that are not over

	pipeline pipeline
	stall    stall

	// Of run's goroutine.
	batch     []*submission
	units     []*store.Unit
	exchanges []*exchange // taken from the queue and not committed yet, in order
	going     []*exchange // in the commit under way, all in joint's one unit
	joint     submission
	topics    map[string]bool // that are known to be there
	alone     bool            // nothing but dirty groups may go with c.batch
	unsynced  bool            // something was committed that no fsync has made durable
}

func newCommitter(b *Bus) *committer {
	c := &committer{bus: b, wake: make(chan struct{}, 1), done: make(chan struct{}), topics: make(map[string]bool)}
	c.flush = time.AfterFunc(time.Hour, c.flushNow)
	c.flush.Stop()
	c.sync = time.AfterFunc(time.Hour, c.syncNow)
	c.sync.Stop()
	c.stall.init(b.log)
	c.pipeline.begin(c)
	go c.run()
	return c
}

func (c *committer) hint() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// submit queues a submission, waiting while there is no room. On an error the
// submission was not queued and stays the caller's.
func (c *committer) submit(ctx context.Context, s *submission) error {
	c.mu.Lock()
	if err := c.refusal(); err != nil {
		c.mu.Unlock()
		return err
	}
	if len(c.waiting) == 0 && c.fits(s) {
		c.admit(s)
		c.mu.Unlock()
		return nil
	}
	w := &roomWaiter{submission: s, answer: make(chan error, 1)}
	c.waiting = append(c.waiting, w)
	c.mu.Unlock()
	select {
	case err := <-w.answer:
		return err
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.waiting, w)
	if i < 0 {
		return <-w.answer // it was admitted, or refused, meanwhile
	}
	c.waiting = slices.Delete(c.waiting, i, i+1)
	c.admitWaiting() // those after it may be smaller
	return eventhub.Wrap(eventhub.CodeOverloaded, ctx.Err(), "the hub had no room for the events in time; nothing was published")
}

// roomWaiter is a submission for which there is no room. They are admitted in the order
// in which they came: a large one would wait for ever if small ones went past it.
type roomWaiter struct {
	submission *submission
	answer     chan error // has room for the one there is
}

// fits reports whether there is room for a submission now. c.mu is held.
func (c *committer) fits(s *submission) bool {
	return c.queued == 0 || c.queued+s.bytes <= c.bus.opts.QueueBytes
}

// admit queues a submission. c.mu is held.
func (c *committer) admit(s *submission) {
	c.queue = append(c.queue, s)
	c.queued += s.bytes
	if len(c.queue) == 1 || c.inSync > 0 && c.queued >= c.bus.opts.EarlyBytes && c.queued-s.bytes < c.bus.opts.EarlyBytes {
		c.hint()
	}
}

// admitWaiting admits those who wait for room, as far as there is some, or refuses all of
// them where nothing is taken any more. c.mu is held.
func (c *committer) admitWaiting() {
	refusal := c.refusal()
	n := 0
	for ; n < len(c.waiting) && (refusal != nil || c.fits(c.waiting[n].submission)); n++ {
		w := c.waiting[n]
		if refusal == nil {
			c.admit(w.submission)
		}
		w.answer <- refusal
	}
	c.waiting = slices.Delete(c.waiting, 0, n)
}

// wait commits one unit of the bus itself and waits until it is durable, also with
// Options.SyncEvery: these are what operators and members ask for once, as that a group
// is there, or an event is not delivered. Once it is queued, ctx is not
// looked at: a commit always ends, and what is kept in memory beside the store, as the
// patterns of groups, has to know what became of it, whoever is gone by then. prepare,
// where not nil, fills the unit in when its commit is built; its error drops the unit
// and is returned.
func (c *committer) wait(ctx context.Context, unit store.Unit, prepare func(*submission) error) error {
	answered := make(chan error, 1)
	s := &submission{units: []store.Unit{unit}, durable: true}
	if prepare != nil {
		s.prepare = func(s *submission) bool {
			err := prepare(s)
			if err != nil {
				answered <- err
			}
			return err == nil
		}
	}
	s.finish = func(s *submission, err error) {
		if err == nil {
			err = s.units[0].Err
		}
		if err == nil {
			c.bus.known.add(s.units[0].Groups)
		}
		answered <- err
	}
	if err := c.submit(ctx, s); err != nil {
		return err
	}
	return <-answered
}

// refusal says why nothing is taken any more. c.mu is held.
func (c *committer) refusal() error {
	if c.broken != nil {
		return c.broken
	}
	if c.stopping {
		return errShuttingDown
	}
	return nil
}

// markDirty asks for the group's state to be made durable within flushEvery.
// The caller holds g.mu and has made sure that g is not on the list.
func (c *committer) markDirty(g *group) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dirty = append(c.dirty, g)
	if len(c.dirty) == 1 && !c.stopping {
		c.flush.Reset(flushEvery)
	}
}

func (c *committer) syncNow() {
	c.mu.Lock()
	c.syncDue = true
	c.mu.Unlock()
	c.hint()
}

func (c *committer) flushNow() {
	c.mu.Lock()
	c.flushDue = true
	c.mu.Unlock()
	c.hint()
}

// stop commits what is queued and dirty and ends the goroutine. It returns the
// error that broke the store, if one did.
func (c *committer) stop() error {
	c.mu.Lock()
	c.stopping = true
	c.flush.Stop()
	c.sync.Stop()
	c.admitWaiting()
	c.mu.Unlock()
	c.hint()
	<-c.done
	c.stall.timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

func (c *committer) queuedBytes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queued
}

func (c *committer) run() {
	defer close(c.done)
	defer c.pipeline.end()
	for range c.wake {
		for !c.tooEarly() {
			dirty, last := c.take()
			if len(c.batch) == 0 && len(dirty) == 0 && len(c.exchanges) == 0 {
				if c.syncDurable(last); last {
					return
				}
				break
			}
			c.commit(dirty)
			c.syncDurable(false)
		}
	}
}

// syncDurable makes what was not synced durable when it is time.
func (c *committer) syncDurable(last bool) {
	c.mu.Lock()
	due := last || c.syncDue
	c.syncDue = false
	c.mu.Unlock()
	if c.unsynced && due {
		c.units = c.units[:0]
		_ = c.put(true) // who was promised more was not
	}
}

// take moves what waits into c.batch and c.exchanges, up to commitBytes, and
// returns the groups whose state is due. last says that nothing can come any more.
// The bytes of exchanges count as queued until they go: one may wait for others.
func (c *committer) take() (dirty []*group, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, bytes := 0, 0
	c.batch, c.alone = c.batch[:0], false
	for n < len(c.queue) && (n == 0 || bytes+c.queue[n].bytes <= commitBytes) {
		s := c.queue[n]
		alone := s.drop != "" || s.gives && c.mayRefuse(s)
		if alone && n > 0 {
			break // it waits for those before it
		}
		bytes += s.bytes
		n++
		if len(s.exchanges) > 0 {
			c.exchanges = append(c.exchanges, s.exchanges...)
			continue
		}
		c.queued -= s.bytes
		c.batch = append(c.batch, s)
		if c.alone = alone; alone {
			break // and those behind it for it
		}
	}
	c.queue = shift(c.queue, n)
	if n > 0 {
		c.admitWaiting()
	}
	if c.flushDue || c.stopping {
		dirty, c.dirty, c.flushDue = c.dirty, nil, false
	}
	return dirty, c.stopping && len(c.queue) == 0
}

// mayRefuse reports whether the store may refuse a redrive, by a topic too many. What its
// group's state has in it was not written then, so no other write of the group may go with
// it: a seek would lose its reset, and be answered all the same.
func (c *committer) mayRefuse(s *submission) bool {
	return c.creates(&store.Unit{Appends: s.appends})
}

// shift drops the first n elements in place.
func shift[T any](s []T, n int) []T {
	rest := copy(s, s[n:])
	clear(s[rest:])
	return s[:rest]
}

// commit builds one store.Commit from c.batch and the dirty groups, and tells
// everybody what became of it.
func (c *committer) commit(dirty []*group) {
	if c.isPlain(dirty) && c.isWorthIt() {
		c.start()
		return
	}
	c.pipeline.drain()
	if len(c.batch) == 1 && c.batch[0].drop != "" {
		c.bus.drop(c.batch[0])
		c.batch = c.batch[:0]
	}
	c.units = c.units[:0]
	// Snapshots go first: what prepare adds is newer.
	flushed := make([]store.Unit, len(dirty))
	for i, g := range dirty {
		if change, ok := g.snapshot(); ok {
			flushed[i].Groups = []store.GroupChange{change}
			c.units = append(c.units, &flushed[i])
		}
	}
	kept, sync := c.batch[:0], c.bus.opts.SyncEvery == 0
	for _, s := range c.batch {
		if s.prepare != nil && !s.prepare(s) {
			continue
		}
		kept, sync = append(kept, s), sync || s.durable
		for i := range s.units {
			c.units = append(c.units, &s.units[i])
		}
	}
	c.batch = kept
	// Exchanges go last: what they take for done no other write of their group may.
	if !c.alone && c.join() {
		c.batch = append(c.batch, &c.joint)
		c.units = append(c.units, &c.joint.units[0])
	}
	if len(c.units) == 0 {
		return
	}
	err := c.put(sync)
	if err == nil {
		c.bus.committed(c.batch)
	}
	for _, s := range c.batch {
		s.finish(s, err)
	}
	for i, g := range dirty {
		if flushed[i].Err != nil {
			g.shut(fmt.Errorf("write the state of the group: %w", flushed[i].Err))
		}
	}
	clear(c.batch)
	clear(c.units)
}

// put is the commit itself, with the memory of an earlier failure.
func (c *committer) put(sync bool) error {
	if broken := c.whyBroken(); broken != nil {
		return broken
	}
	began := time.Now()
	c.stall.begin(began)
	err := c.bus.store.Commit(context.Background(), c.units, sync)
	took := time.Since(began)
	c.stall.end(began.Add(took))
	if err == nil {
		if !sync && !c.unsynced {
			c.sync.Reset(c.bus.opts.SyncEvery)
		}
		c.unsynced = !sync
		c.bus.counts.commit(took, c.units)
		return nil
	}
	return c.fail(err)
}

// fail ends all committing for good.
func (c *committer) fail(err error) error {
	broken := eventhub.Wrap(eventhub.CodeInternal, err, "The store failed; the events may or may not be published.")
	c.mu.Lock()
	if c.broken != nil { // by the commit before, which is told of
		defer c.mu.Unlock()
		return c.broken
	}
	c.broken = broken
	c.admitWaiting()
	c.mu.Unlock()
	c.bus.log.Error("the store failed a commit; nothing is acknowledged any more", "error", err)
	if c.bus.opts.Fatal != nil {
		c.bus.opts.Fatal(err)
	}
	return broken
}

// unitError translates why the store refused one unit.
func unitError(err error) error {
	if errors.Is(err, store.ErrTopicLimit) {
		return eventhub.Wrap(eventhub.CodeOverloaded, err, "the hub holds as many topics as it may; no topic was created")
	}
	return eventhub.Wrap(eventhub.CodePublishFailed, err, "the store refused the events: %v", err)
}
