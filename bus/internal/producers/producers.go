// Package producers knows who numbers publications: it opens producers, and forgets them some
// time after their last user has left. The store keeps the numbers and what became of them
// (store.Sequence); this package keeps how many use a producer and since when nobody does.
//
// # Invariants
//
//   - A producer that is in use is not forgotten; one that nobody uses is, Options.Kept after its
//     last user has left or the hub has started.
//   - There are at most Options.Most producers. Another one takes the place of one that nobody uses,
//     in the same commit: of the principal that has the most, the one that was left first. So a
//     principal that opens very many takes its own places. Where there is none to take, or the principal
//     itself has the most and uses all of them, it is refused.
//   - A producer is forgotten under the epoch that it had when that was decided: one that was opened
//     again meanwhile stays.
//
// # Goroutines and locks
//
// One goroutine, from Start to Stop, with one timer. Runtime.mu is a leaf but for the committer's
// queue. The bus calls the package.
package producers

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

// forgottenTogether is how many producers are forgotten in one commit.
const forgottenTogether = 100

// Options configure a Runtime. All are required.
type Options struct {
	Store     store.Producers
	Committer *commit.Committer
	Logger    *slog.Logger
	Wall      func() time.Time
	// Kept is how long a producer is kept that nobody uses, and Most how many there are at most.
	Kept time.Duration
	Most int
}

// Runtime has the producers of a hub.
type Runtime struct {
	opts Options
	wake chan struct{} // a hint that the first of unused has changed
	stop chan struct{}
	done chan struct{} // closed when the goroutine has ended

	mu     sync.Mutex
	all    map[string]*entry // by the store's name
	unused list.List         // *entry, the one that was left first at the front
	owners map[string]int    // how many producers a principal has
}

// entry is one producer.
type entry struct {
	name  string
	epoch uint64 // that the store said last
	users int
	left  time.Time     // where nobody uses it
	place *list.Element // in unused; nil while somebody uses it
}

func (e *entry) owner() string {
	owner, _, _ := strings.Cut(e.name, "\x00")
	return owner
}

// New reads the producers of the store. Those count as left when the hub starts, in the order in
// which they were used.
func New(opts Options) (*Runtime, error) {
	r := &Runtime{opts: opts, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}), all: make(map[string]*entry), owners: make(map[string]int)}
	known, err := opts.Store.ListProducers(context.Background())
	if err != nil {
		return nil, store.Failed(err, "list the producers")
	}
	slices.SortStableFunc(known, func(a, b store.ProducerInfo) int { return cmp.Compare(a.Used, b.Used) })
	now := time.Now()
	for _, p := range known {
		e := &entry{name: p.Name, epoch: p.Epoch, left: now}
		e.place = r.unused.PushBack(e)
		r.add(e)
	}
	return r, nil
}

// Start starts the goroutine.
func (r *Runtime) Start() { go r.run() }

// Stop ends it. Nothing is forgotten any more.
func (r *Runtime) Stop() {
	close(r.stop)
	<-r.done
}

// Count returns how many producers there are, and how many of them somebody uses.
func (r *Runtime) Count() (all, used int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all), len(r.all) - r.unused.Len()
}

// nameOf is what the store calls a producer. A principal holds no 0x00.
func nameOf(o eventhub.ProducerOptions) string { return o.Owner + "\x00" + o.ID }

// Open implements eventhub.Producers.
func (r *Runtime) Open(ctx context.Context, o eventhub.ProducerOptions) (*eventhub.Producer, error) {
	if err := eventhub.ValidateProducer(o.ID); err != nil {
		return nil, err
	}
	name := nameOf(o)
	if len(name) > store.MaxProducerName {
		return nil, eventhub.Errorf(eventhub.CodeBadRequest, "the producer and the name of its principal have %d bytes; at most %d are allowed", len(name), store.MaxProducerName)
	}
	job, e, evicted, err := r.begin(name, o)
	if err != nil {
		return nil, err
	}
	if err := r.opts.Committer.Do(ctx, job); err != nil {
		r.failed(e, evicted, err)
		return nil, openError(err, o)
	}
	opened := job.Units[len(job.Units)-1].Producer
	r.mu.Lock()
	e.epoch = max(e.epoch, opened.NewEpoch)
	r.mu.Unlock()
	return &eventhub.Producer{ID: o.ID, Name: name, Epoch: opened.NewEpoch, Born: opened.Born, Last: opened.Last}, nil
}

// opening is the job that opens a producer, after the removal of another where that was needed.
type opening struct{ commit.Call }

// Done implements commit.Job: the last unit opens. One before it that is refused was opened again.
func (o *opening) Done(err error) {
	if last := &o.Units[len(o.Units)-1]; err == nil && !(last.Producer.Delete && errors.Is(last.Err, store.ErrFenced)) {
		err = last.Err
	}
	o.Answer(err)
}

// begin notes another user of a producer, and returns what opens it, and which one gives way.
func (r *Runtime) begin(name string, o eventhub.ProducerOptions) (job *opening, e, evicted *entry, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	job = new(opening)
	job.Durable = true
	e = r.all[name]
	if e == nil && o.Epoch != 0 {
		return nil, nil, nil, unknown(o)
	}
	if e == nil {
		if len(r.all) >= r.opts.Most {
			if evicted = r.victim(o.Owner); evicted == nil {
				return nil, nil, nil, &eventhub.Error{
					Code: eventhub.CodeOverloaded, RetryAfter: r.opts.Kept,
					Message: "the hub has as many producers as it may, and all that might give way are in use",
				}
			}
			job.Units = append(job.Units, r.forget(evicted))
		}
		e = &entry{name: name}
		r.add(e)
	}
	if e.place != nil {
		r.unused.Remove(e.place)
		e.place = nil
	}
	e.users++
	job.Units = append(job.Units, store.Unit{Producer: &store.ProducerChange{Name: name, Epoch: o.Epoch, At: r.opts.Wall().UnixMilli()}})
	return job, e, evicted, nil
}

// add notes a producer. r.mu is held.
func (r *Runtime) add(e *entry) {
	r.all[e.name] = e
	r.owners[e.owner()]++
}

// victim returns what gives way to another producer of a principal; nil: nothing does. r.mu is held.
func (r *Runtime) victim(owner string) *entry {
	var victim *entry
	for at := r.unused.Front(); at != nil; at = at.Next() {
		e := at.Value.(*entry)
		if victim == nil || r.owners[e.owner()] > r.owners[victim.owner()] {
			victim = e
		}
	}
	if victim != nil && victim.owner() != owner && r.owners[victim.owner()] < r.owners[owner] {
		return nil
	}
	return victim
}

// forget takes a producer out that nobody uses, and returns the unit that removes it. r.mu is held.
func (r *Runtime) forget(e *entry) store.Unit {
	r.unused.Remove(e.place)
	e.place = nil
	delete(r.all, e.name)
	if r.owners[e.owner()]--; r.owners[e.owner()] == 0 {
		delete(r.owners, e.owner())
	}
	return store.Unit{Producer: &store.ProducerChange{Name: e.name, Epoch: e.epoch, Delete: true}}
}

// failed takes back what begin has noted. A producer that the store does not have is forgotten, and one
// that was to give way stays.
func (r *Runtime) failed(e, evicted *entry, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leave(e)
	if e.place != nil && (e.epoch == 0 || errors.Is(err, store.ErrUnknownProducer)) {
		r.forget(e)
	}
	if evicted != nil && r.all[evicted.name] == nil {
		evicted.place = r.unused.PushFront(evicted)
		r.add(evicted)
	}
}

func openError(err error, o eventhub.ProducerOptions) error {
	switch {
	case errors.Is(err, store.ErrFenced):
		return eventhub.Wrap(eventhub.CodeFenced, err, "producer %q was opened by another connection after epoch %d", o.ID, o.Epoch)
	case errors.Is(err, store.ErrUnknownProducer):
		return unknown(o)
	}
	return err
}

func unknown(o eventhub.ProducerOptions) error {
	return eventhub.Errorf(eventhub.CodeUnknownProducer, "the hub does not know producer %q with epoch %d", o.ID, o.Epoch)
}

// Leave implements eventhub.Producers.
func (r *Runtime) Leave(p *eventhub.Producer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.all[p.Name]; e != nil {
		r.leave(e)
	}
}

// leave notes one user less. r.mu is held.
func (r *Runtime) leave(e *entry) {
	if e.users--; e.users > 0 {
		return
	}
	e.left = time.Now()
	if e.place = r.unused.PushBack(e); r.unused.Len() == 1 {
		r.hint()
	}
}

func (r *Runtime) hint() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Runtime) run() {
	defer close(r.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-r.stop:
			return
		case <-r.wake:
		case <-timer.C:
		}
		again, err := r.forgetUnused()
		if err != nil && eventhub.ErrorCode(err) != eventhub.CodeShuttingDown {
			r.opts.Logger.Error("forgetting producers that nobody uses", "error", err)
			return // the store has failed
		}
		timer.Stop()
		if again > 0 {
			timer.Reset(again)
		}
	}
}

// forgetUnused forgets the producers that nobody has used for long enough. It returns after how long
// it is to be called again; 0: when somebody has left the first one.
func (r *Runtime) forgetUnused() (again time.Duration, err error) {
	for {
		var job opening
		r.mu.Lock()
		for len(job.Units) < forgottenTogether {
			first := r.unused.Front()
			if first == nil {
				again = 0
				break
			}
			e := first.Value.(*entry)
			if again = time.Until(e.left.Add(r.opts.Kept)); again > 0 {
				break
			}
			job.Units = append(job.Units, r.forget(e))
		}
		r.mu.Unlock()
		if len(job.Units) == 0 {
			return again, nil
		}
		if err := r.opts.Committer.Do(context.Background(), &job); err != nil {
			return 0, err
		}
	}
}
