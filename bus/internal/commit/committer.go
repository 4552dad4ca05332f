// Package commit is the one writer of the store. It owns the queue of what is to be
// written, the order in which it is, and the memory of a store that has failed.
//
// Everything that waits when the committer comes around becomes one store.Commit, so
// that one fsync serves all (group commit). What waits is of three kinds: jobs (job.go),
// and each job has its own answer; steps, which settle events of a group and publish
// others, and all steps in a commit are one unit (joint.go); and what is done
// between two commits, like the deletion of a topic.
//
// # Invariants
//
//   - The order of submissions is the order of their commits, except that steps come
//     after everything else of their commit, and that those which go alone let the
//     others of their commit go ahead.
//   - The durable state of a group is never handed over as a value that could grow old
//     in the queue: jobs, steps and the list of changed states name the group, and the
//     committer asks for its state when it builds the commit. What reaches the store is
//     therefore as ordered as the changes were.
//   - A job is done after the commit that has it, and jobs are done in the order of the
//     commits. Options.Committed comes before.
//   - After a failed commit nothing is ever committed again: the store's contract
//     leaves the outcome unknown, so all who wait get an error and Options.Fatal is
//     called.
//
// # Goroutines and locks
//
// One committer, which builds commits, and one syncer, which waits for those that are
// pipelined (pipeline.go) while the committer builds the next. Committer.mu is a leaf: no
// other lock is taken and nothing of a caller's is called under it. Build, Done and the methods of
// State and Step are called under no lock.
package commit

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"eventhub"
	"eventhub/store"
)

const (
	// FlushEvery is how long the changed state of a group waits at most before it joins
	// a commit; with the commit itself it stays within the 50 ms that an ack's OK
	// promises.
	FlushEvery = 25 * time.Millisecond
	// commitBytes bounds the records of one commit, and so the wait of those that come
	// after it. The store writes a commit of this size with memory that it keeps; under
	// overload all commits are as large as they may be.
	commitBytes = 4 << 20
)

// ErrStopped says that nothing is taken any more.
var ErrStopped = eventhub.Errorf(eventhub.CodeShuttingDown, "the hub is shutting down")

// Options configure a Committer. All are required but SyncEvery, Fatal and Answer.
type Options struct {
	Store  store.Store
	Logger *slog.Logger

	// QueueBytes bounds what waits; who submits more waits for room.
	QueueBytes int
	// MostWait is how long what is submitted may wait until its commit is over, before Room refuses more; 0: for
	// ever.
	MostWait time.Duration
	// EarlyBytes is how many bytes have to wait for a commit to be built while another,
	// which has as many, is being synced.
	EarlyBytes int
	// SyncEvery, where not 0, lets commits not wait for an fsync: one follows, for all
	// that came since the last, that long after the first of them. Only jobs that are
	// Durable wait.
	SyncEvery time.Duration
	// Fatal, where not nil, is called once when the store has failed a commit.
	Fatal func(error)
	// Answer, where not nil, says what is answered when the store has failed a commit by that cause:
	// inDoubt to those whose outcome is not known by it, and otherwise to those whose units
	// were never given to the store. Nil is an error with CodeInternal.
	Answer func(cause error, inDoubt bool) *eventhub.Error
	// Committed is called after each commit with its jobs, before they are done: what
	// they have is in the store. It runs where Job.Done does.
	Committed func([]*Request)
	// Observe is called after each commit with how long it took.
	Observe func(time.Duration, []*store.Unit)
}

// State is the durable state of something that changes in memory first.
type State interface {
	// Snapshot returns what is to be made durable as of now; ok is false where it no
	// longer exists. Only the committer calls it.
	Snapshot() (change store.GroupChange, ok bool)
	// Refused says that the store refused the change.
	Refused(err error)
}

// Committer is the one writer of a store.
type Committer struct {
	opts Options
	wake chan struct{} // a hint that the fields below changed
	done chan struct{} // closed when run has ended

	mu       sync.Mutex
	queue    []item
	queued   int           // bytes in queue, and of steps that have not gone
	waiting  []*roomWaiter // for which there is no room
	dirty    []State       // what has changed since its last snapshot
	flush    *time.Timer   // fires FlushEvery after the first of them
	flushDue bool
	sync     *time.Timer // fires SyncEvery after the first commit that was not synced
	syncDue  bool
	stopping bool
	failed   error // what they are answered whose commit has failed; nil while none has
	broken   error // what they are answered who come after that
	inSync   int   // commits that the syncer was given and that are not over

	pipeline pipeline
	stall    stall
	pace     pace

	// Of run's goroutine.
	batch    []Job
	bytes    int64     // of its jobs
	taken    time.Time // when it was
	between  func()    // what comes before batch, which is empty then
	requests []*Request
	units    []*store.Unit
	joint    joint
	topics   map[string]bool // that are known to be there
	alone    bool            // nothing but states may go with batch
	unsynced bool            // something was committed that no fsync has made durable
}

// item is what one submission puts into the queue: one of the three.
type item struct {
	job     Job
	steps   []Step
	between func()
	bytes   int
}

// New starts a committer. Its owner ends it with Stop.
func New(opts Options) *Committer {
	c := &Committer{opts: opts, wake: make(chan struct{}, 1), done: make(chan struct{}), topics: make(map[string]bool)}
	c.flush = time.AfterFunc(time.Hour, c.Flush)
	c.flush.Stop()
	c.sync = time.AfterFunc(time.Hour, c.syncNow)
	c.sync.Stop()
	c.stall.init(opts.Logger)
	c.pace.most = opts.MostWait
	c.pipeline.begin(c)
	go c.run()
	return c
}

func (c *Committer) hint() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Submit queues a job, waiting while there is no room, and returns without waiting for
// its commit. On an error, with CodeOverloaded where ctx ended first, the job was not
// queued and stays the caller's.
func (c *Committer) Submit(ctx context.Context, j Job) error {
	return c.submit(ctx, item{job: j, bytes: j.request().Bytes})
}

func (c *Committer) submit(ctx context.Context, it item) error {
	c.mu.Lock()
	if err := c.refusal(); err != nil {
		c.mu.Unlock()
		return err
	}
	if len(c.waiting) == 0 && c.fits(it.bytes) {
		c.admit(it)
		c.mu.Unlock()
		return nil
	}
	w := &roomWaiter{item: it, answer: make(chan error, 1)}
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
	item   item
	answer chan error // has room for the one there is
}

// fits reports whether there is room now. c.mu is held.
func (c *Committer) fits(bytes int) bool {
	return c.queued == 0 || c.queued+bytes <= c.opts.QueueBytes
}

// admit queues an item. c.mu is held.
func (c *Committer) admit(it item) {
	c.queue = append(c.queue, it)
	c.queued += it.bytes
	if it.job != nil {
		c.pace.pending.Add(int64(it.bytes))
	}
	if len(c.queue) == 1 || c.inSync > 0 && c.queued >= c.opts.EarlyBytes && c.queued-it.bytes < c.opts.EarlyBytes {
		c.hint()
	}
}

// admitWaiting admits those who wait for room, as far as there is some, or refuses all of
// them where nothing is taken any more. c.mu is held.
func (c *Committer) admitWaiting() {
	refusal := c.refusal()
	n := 0
	for ; n < len(c.waiting) && (refusal != nil || c.fits(c.waiting[n].item.bytes)); n++ {
		w := c.waiting[n]
		if refusal == nil {
			c.admit(w.item)
		}
		w.answer <- refusal
	}
	c.waiting = slices.Delete(c.waiting, 0, n)
}

// refusal says why nothing is taken any more. c.mu is held.
func (c *Committer) refusal() error {
	if c.broken != nil {
		return c.broken
	}
	if c.stopping {
		return ErrStopped
	}
	return nil
}

// MarkDirty asks for a state to be made durable within 25 ms and the time of a commit.
// The caller makes sure that the state is not marked already: Snapshot ends that.
func (c *Committer) MarkDirty(s State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dirty = append(c.dirty, s)
	if len(c.dirty) == 1 && !c.stopping {
		c.flush.Reset(FlushEvery)
	}
}

func (c *Committer) syncNow() {
	c.mu.Lock()
	c.syncDue = true
	c.mu.Unlock()
	c.hint()
}

// Flush has the states that are marked join the next commit.
func (c *Committer) Flush() {
	c.mu.Lock()
	c.flushDue = true
	c.mu.Unlock()
	c.hint()
}

// Stop commits what is queued and marked and ends the goroutines. It returns the
// error that broke the store, if one did. Stopping twice is harmless.
func (c *Committer) Stop() error {
	c.mu.Lock()
	c.stopping = true
	c.flush.Stop()
	c.sync.Stop()
	c.admitWaiting()
	c.mu.Unlock()
	c.hint()
	<-c.done
	c.stall.timer.Stop()
	return c.Broken()
}

// Pending returns how many submissions are queued, of how many bytes, and how many states
// wait for a commit.
func (c *Committer) Pending() (submissions, bytes, states int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue), c.queued, len(c.dirty)
}

// Waiting returns how long the store has ended no commit while one is under way, else 0.
func (c *Committer) Waiting() time.Duration { return c.stall.waited() }

// Broken returns why nothing is committed any more, or nil.
func (c *Committer) Broken() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

func (c *Committer) run() {
	defer close(c.done)
	defer c.pipeline.end()
	for range c.wake {
		for !c.tooEarly() {
			dirty, last := c.take()
			if len(c.batch) == 0 && c.between == nil && len(dirty) == 0 && c.joint.isEmpty() {
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
func (c *Committer) syncDurable(last bool) {
	c.mu.Lock()
	due := last || c.syncDue
	c.syncDue = false
	c.mu.Unlock()
	if c.unsynced && due {
		c.units = c.units[:0]
		_ = c.put(true) // who was promised more was not
	}
}

// take moves what waits into c.batch, c.joint and c.between, up to commitBytes, and
// returns the states that are due. last says that nothing can come any more.
// The bytes of steps count as queued until they go: one may wait for others.
func (c *Committer) take() (dirty []State, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, bytes := 0, 0
	c.batch, c.between, c.alone = c.batch[:0], nil, false
	c.bytes, c.taken = 0, time.Now()
	for n < len(c.queue) && (n == 0 || bytes+c.queue[n].bytes <= commitBytes) {
		it := &c.queue[n]
		alone := it.between != nil || it.job != nil && it.job.request().Alone && c.mayRefuse(it.job)
		if alone && n > 0 {
			break // it waits for those before it
		}
		bytes += it.bytes
		n++
		if len(it.steps) > 0 {
			c.joint.waiting = append(c.joint.waiting, it.steps...)
			continue
		}
		c.queued -= it.bytes
		if it.between != nil {
			c.between = it.between
		} else {
			c.batch = append(c.batch, it.job)
			c.bytes += int64(it.bytes)
		}
		if c.alone = alone; alone {
			break // and those after it for it
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

// mayRefuse reports whether the store may refuse a job, by a topic too many.
func (c *Committer) mayRefuse(j Job) bool {
	units := j.request().Units
	return slices.ContainsFunc(units, func(u store.Unit) bool { return c.creates(&u) })
}

// shift removes the first n elements in place.
func shift[T any](s []T, n int) []T {
	rest := copy(s, s[n:])
	clear(s[rest:])
	return s[:rest]
}

// commit builds one store.Commit from c.batch, the steps and the states, and answers
// everybody.
func (c *Committer) commit(dirty []State) {
	if c.isPlain(dirty) && c.isWorthIt() {
		c.start()
		return
	}
	c.pipeline.drain()
	defer func() { c.pace.over(c.bytes, c.taken, time.Now()) }()
	if c.between != nil {
		c.stall.begin(time.Now())
		c.between()
		c.stall.end(time.Now())
		c.between = nil
	}
	c.units = c.units[:0]
	// Snapshots go first: what Build adds is newer.
	flushed := make([]store.Unit, len(dirty))
	for i, s := range dirty {
		if change, ok := s.Snapshot(); ok {
			flushed[i].Groups = []store.GroupChange{change}
			c.units = append(c.units, &flushed[i])
		}
	}
	kept, sync := c.batch[:0], c.opts.SyncEvery == 0
	c.requests = c.requests[:0]
	for _, j := range c.batch {
		if !j.Build() {
			continue
		}
		r := j.request()
		kept, sync = append(kept, j), sync || r.Durable
		c.requests = append(c.requests, r)
		for i := range r.Units {
			c.units = append(c.units, &r.Units[i])
		}
	}
	clear(c.batch[len(kept):])
	c.batch = kept
	// Steps go last: what they take for done no other write of their group may.
	joined := !c.alone && c.join()
	if joined {
		c.requests = append(c.requests, &c.joint.Request)
		c.units = append(c.units, &c.joint.Units[0])
	}
	if len(c.units) == 0 {
		return
	}
	err := c.put(sync)
	if err == nil {
		c.opts.Committed(c.requests)
	}
	for _, j := range c.batch {
		j.Done(err)
	}
	if joined {
		c.finishJoint(err)
	}
	for i, s := range dirty {
		if flushed[i].Err != nil {
			s.Refused(flushed[i].Err)
		}
	}
	clear(c.batch)
	clear(c.requests)
	clear(c.units)
}

// put is the commit itself, with the memory of an earlier failure.
func (c *Committer) put(sync bool) error {
	if broken := c.Broken(); broken != nil {
		return broken
	}
	began := time.Now()
	c.stall.begin(began)
	err := c.opts.Store.Commit(context.Background(), c.units, sync)
	took := time.Since(began)
	c.stall.end(began.Add(took))
	if err == nil {
		if !sync && !c.unsynced {
			c.sync.Reset(c.opts.SyncEvery)
		}
		c.unsynced = !sync
		c.opts.Observe(took, c.units)
		return nil
	}
	return c.Fail(err)
}

// Fail ends all committing for good, since the outcome of a write is unknown, and returns
// what those are answered whose write it was.
func (c *Committer) Fail(err error) error {
	failed, broken := c.answer(err, true), c.answer(err, false)
	c.mu.Lock()
	if c.broken != nil { // by the commit before, which is known
		defer c.mu.Unlock()
		return c.failed
	}
	c.failed, c.broken = failed, broken
	c.admitWaiting()
	c.mu.Unlock()
	c.opts.Logger.Error("the store failed a commit; nothing is acknowledged any more", "error", err)
	if c.opts.Fatal != nil {
		c.opts.Fatal(err)
	}
	return failed
}

// answer returns what is answered where the store has failed a commit.
func (c *Committer) answer(cause error, inDoubt bool) error {
	if c.opts.Answer != nil {
		if e := c.opts.Answer(cause, inDoubt); e != nil {
			return e
		}
	}
	return eventhub.Wrap(eventhub.CodeInternal, cause, "The store failed; the events may or may not be published.")
}

// mostTopics bounds the topics that the committer remembers.
const mostTopics = 10_000

// creates reports whether a unit may create a topic.
func (c *Committer) creates(u *store.Unit) bool {
	for i := range u.Appends {
		if !c.isThere(u.Appends[i].Topic) {
			return true
		}
	}
	for i := range u.Delays {
		if !c.isThere(u.Delays[i].Topic) {
			return true
		}
	}
	return false
}

// isThere reports whether a topic exists for sure.
func (c *Committer) isThere(topic string) bool {
	if c.topics[topic] {
		return true
	}
	if _, err := c.opts.Store.Topic(context.Background(), topic); err != nil {
		return false // a read that failed too: to go alone is never wrong
	}
	if len(c.topics) >= mostTopics {
		clear(c.topics)
	}
	c.topics[topic] = true
	return true
}

// ForgetTopic says that a topic was deleted. It is called between two commits.
func (c *Committer) ForgetTopic(topic string) { delete(c.topics, topic) }
