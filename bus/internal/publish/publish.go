// Package publish makes units of the store of events: it validates and encodes each event
// once, says which publications are refused and why, and gives receipts when the commit is
// over. Publications of clients, imports, and the events that the hub itself makes come
// through here, so that all of them have the same record, links and errors.
//
// # Invariants
//
//   - A publication is a unit or nothing: of one that is refused no event stays, and the
//     others of the call are not affected.
//   - An event is encoded on the goroutine of the caller. Records share one buffer; they are
//     cut out of it when all are encoded, because it does not move any more then.
//   - The buffers of a Job are used again when it is done, unless somebody has kept a record
//     (commit.Request.Kept).
//
// It takes no lock, starts no goroutine and knows neither groups nor the room on the disk:
// its callers, the bus and what it wires, ask for room and submit. Whoever lets publications
// wait for groups has a say by the interface Waits, the settings of topics by Rules. It imports the committer's jobs, the
// contract of the store, and what encodes a record.
package publish

import (
	"slices"
	"sync"
	"time"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

// Waits lets publications of a call wait for groups, and may refuse those that want to.
type Waits interface {
	// Check is asked before the events of a publication are looked at.
	Check(p *eventhub.Publication, now time.Time) error
	// Prepare is asked when nothing else refuses the publication any more.
	Prepare(p *eventhub.Publication) error
	// Begin gets the publications of the call when their commit is over, and calls done
	// when none of them waits any more.
	Begin(pubs []eventhub.Publication, done func([]eventhub.Publication))
}

// Rules are what the settings of topics say about the events that they take.
type Rules interface {
	// KeyRequired reports whether the topic takes no event without a key. It is asked for
	// each event.
	KeyRequired(topic string) bool
}

// obey refuses an event of a client that the settings of its topic do not take.
func obey(rules Rules, e *eventhub.Event) error {
	if e.Key == "" && rules.KeyRequired(e.Topic) {
		return eventhub.Errorf(eventhub.CodeBadEvent, "the event has no key; the settings of topic %q require one", e.Topic)
	}
	return nil
}

// Job is the job of one call of Enqueue. Jobs are pooled.
type Job struct {
	Batch
	done  func([]eventhub.Publication)
	waits Waits // nil: nothing waits
	// Refused, where not nil, is called with the error of each publication that is refused, and
	// returns what its publisher is told.
	Refused func(error) error
}

var jobs = sync.Pool{New: func() any { return new(Job) }}

// keptBuffer is the largest buffer that goes back into the pool.
const keptBuffer = 1 << 20

// NewJob encodes publications. Where full is not nil, it is why all of them are refused. Where any
// of them waits for groups, waits is not nil. done is
// called with them by Done, which the caller calls itself where it does not submit the job.
func NewJob(pubs []eventhub.Publication, now time.Time, full error, rules Rules, waits Waits, done func([]eventhub.Publication)) *Job {
	j := jobs.Get().(*Job)
	j.pubs, j.done, j.waits = pubs, done, waits
	j.Plain = waits == nil
	if full == nil {
		j.buf = slices.Grow(j.buf, min(SizeOf(pubs), keptBuffer)) // at once, not by doubling it
	}
	j.encode(now, full, rules, waits)
	return j
}

// SizeOf returns about how many bytes the records of publications have.
func SizeOf(pubs []eventhub.Publication) (n int) {
	const others = 160 // members that each record has
	for i := range pubs {
		for j := range pubs[i].Events {
			n += len(pubs[i].Events[j].Payload) + others
		}
	}
	return n
}

// IsEmpty reports whether nothing is to be committed: all was refused.
func (j *Job) IsEmpty() bool { return len(j.Units) == 0 }

// Done implements commit.Job: it answers the publishers. The job is not the caller's any
// more.
func (j *Job) Done(err error) {
	for i := range j.pubs {
		p := &j.pubs[i]
		switch u, delayed := j.Unit(i); {
		case u == nil: // refused before, p.Err says why
		case err != nil:
			p.Err = err
		case u.Err != nil:
			p.SeqUsed = usesNumber(u)
			if u.Err != store.ErrRefused || u.Sequence.Repeated { // else p.Err says why
				p.Err = RefusedError(u, delayed)
			}
		case u.Sequence != nil && u.Sequence.First != nil:
			p.SeqUsed = true
			p.Receipts = firstReceipts(p, u.Sequence.First)
			p.Err = notWaited(p)
		default:
			p.Receipts = Receipts(p.Receipts, u, delayed)
			if p.SeqUsed = u.Sequence != nil; p.SeqUsed {
				p.Err = notWaited(p)
			}
		}
		if p.Err != nil && j.Refused != nil {
			p.Err = j.Refused(p.Err)
		}
	}
	pubs, done, waits := j.pubs, j.done, j.waits
	j.recycle()
	if waits != nil {
		waits.Begin(pubs, done)
		return
	}
	done(pubs)
}

func (j *Job) recycle() {
	buf := j.buf[:0]
	if j.Kept || cap(buf) > keptBuffer {
		buf = nil
	}
	clear(j.Units)
	clear(j.appends)
	clear(j.delays)
	*j = Job{Batch: Batch{
		Request: commit.Request{Units: j.Units[:0]},
		encoder: encoder{appends: j.appends[:0], buf: buf},
		delays:  j.delays[:0], delayed: j.delayed[:0], parts: j.parts[:0], sequences: j.sequences[:0],
	}}
	jobs.Put(j)
}

// Call is the job of one unit of events whose caller waits.
type Call struct{ commit.Call }

// Done implements commit.Job.
func (c *Call) Done(err error) {
	if u := &c.Units[0]; err == nil && u.Err != nil {
		err = RefusedError(u, nil)
	}
	c.Answer(err)
}

// Receipts returns the receipts of the events, when they are committed.
func (c *Call) Receipts() []eventhub.Receipt { return Receipts(nil, &c.Units[0], nil) }

// NewUnit returns the job of one unit of events.
func NewUnit(events *Events) *Call {
	c := new(Call)
	events.Fill(&c.Request)
	c.Plain = true
	return c
}
