package commit

import (
	"context"

	"eventhub"
	"eventhub/store"
)

// Job is what one caller asks of the committer: some units, which go in one commit.
// Whatever embeds a Request and says what Done means is a job.
type Job interface {
	request() *Request
	// Build is called once, on the committer's goroutine, when the job's commit is built,
	// and fills in what depends on that moment. False takes the job out: nothing of it is
	// committed and Done is not called, so Build has answered the caller.
	Build() bool
	// Done is called once, in the order of the commits, with the error of the whole
	// commit; each unit has its own, besides its results. It runs on the goroutine of the
	// committer or, for commits that were pipelined, of the syncer, never on both at
	// once, and must not block.
	Done(err error)
}

// Request is the part that all jobs have; a job embeds it. It is the caller's until the
// job is submitted, and again from Done on.
type Request struct {
	Units []store.Unit
	// Bytes is the size of what the units append and schedule. It counts against
	// Options.QueueBytes.
	Bytes int
	// Durable jobs are on disk when they are done, also with Options.SyncEvery.
	Durable bool
	// Plain says that the units have events and delayed events and nothing else, that
	// Build does nothing, and that nothing in them depends on how the commit before
	// ends: the commit may be pipelined.
	Plain bool
	// Alone says that no other change of a group may share the commit with the job where
	// the store may refuse it, by a topic too many: the job changes a group in its unit,
	// and what that change took for written is not, once it is refused.
	Alone bool

	// Records is the buffer that holds the records of the units, where they share one.
	// Kept says that somebody has kept parts of it: nobody may write to it again.
	Records []byte
	Kept    bool
}

func (r *Request) request() *Request { return r }

// Build says that there is nothing to fill in.
func (r *Request) Build() bool { return true }

// Call is embedded by jobs whose caller waits in Do.
type Call struct {
	Request
	answered chan error
}

func (c *Call) call() *Call { return c }

// Answer gives Do what it returns. It is called once: by Build where that returns false,
// else by Done.
func (c *Call) Answer(err error) { c.answered <- err }

// Done answers with the error of the commit, or of the first unit.
func (c *Call) Done(err error) {
	if err == nil {
		err = c.Units[0].Err
	}
	c.Answer(err)
}

// CallJob is a job that embeds a Call.
type CallJob interface {
	Job
	call() *Call
}

// Do submits a job and returns what it was answered. Only the wait for room ends with ctx:
// once a job is queued it is always answered, and what is kept in memory besides the store
// has to know what became of it, whoever is gone by then.
func (c *Committer) Do(ctx context.Context, j CallJob) error {
	answered := j.call()
	answered.answered = make(chan error, 1)
	if err := c.Submit(ctx, j); err != nil {
		return err
	}
	return <-answered.answered
}

// DoWithin is Do for a caller who need not know the outcome: when ctx ends it returns an
// error with CodeShuttingDown which says that the outcome, named by what, is unknown. The
// job goes on, and is its own from then on.
func (c *Committer) DoWithin(ctx context.Context, j CallJob, what string) error {
	answered := j.call()
	answered.answered = make(chan error, 1)
	if err := c.Submit(ctx, j); err != nil {
		return err
	}
	return c.within(ctx, answered.answered, what)
}

func (c *Committer) within(ctx context.Context, answered <-chan error, what string) error {
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return eventhub.Wrap(eventhub.CodeShuttingDown, ctx.Err(), "gave up waiting; %s", what)
	}
}

// Write is a job of one unit whose caller waits.
type Write struct {
	Call
	// Prepare, where not nil, fills the unit in when its commit is built. Its error takes
	// the unit out and is the answer.
	Prepare func(*store.Unit) error
}

// NewWrite returns a job that commits a unit durably.
func NewWrite(unit store.Unit, prepare func(*store.Unit) error) *Write {
	w := &Write{Prepare: prepare}
	w.Units, w.Durable = []store.Unit{unit}, true
	return w
}

// Build implements Job.
func (w *Write) Build() bool {
	if w.Prepare == nil {
		return true
	}
	err := w.Prepare(&w.Units[0])
	if err != nil {
		w.Answer(err)
	}
	return err == nil
}

// Between runs f between two commits, when all that was submitted before is over, and
// returns its error. When ctx ends it returns as DoWithin does, and f runs all the same.
func (c *Committer) Between(ctx context.Context, what string, f func() error) error {
	answered := make(chan error, 1)
	if err := c.submit(ctx, item{between: func() { answered <- f() }}); err != nil {
		return err
	}
	return c.within(ctx, answered, what)
}
