// Package keyindex has the store index the keys of the topics whose state somebody wants: those
// whose settings say so, those that are compacted, and those whose state was asked for once.
//
// It owns which topics are looked at next, who waits for which of them, and how far each is. The
// settings are the bus's. Whether a topic has the index, and how much of it, is the store's, and
// outlives the process (store.Indexes).
//
// # Invariants
//
//   - Who has the answer nil of Ask reads an index that is ready, unless settings drop it meanwhile,
//     which the read says (store.ErrNotIndexed).
//   - The commit that begins an index is durable before the store indexes what was there before.
//   - An index that was begun is built to its end, also after a restart, and kept, unless settings
//     drop it.
//   - Where no topic has such a setting and nobody asks nothing runs, and a commit costs nothing.
//
// # Goroutines and locks
//
// One goroutine, from Start to Stop. It does one step of one topic at a time, in turn, so a
// small topic does not wait for a large one, and rests while others commit: long, within a step, where nobody has asked for an index; such a
// step ends early where it holds up something. It has a timer only while it rests, and while something has failed. Runtime.mu is a leaf.
//
// The bus calls it. It reads the store and submits jobs to the committer.
package keyindex

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

const (
	// retryAfter is the rest of a topic after a step that failed.
	retryAfter = time.Minute
	// While others commit, the goroutine rests after each part of a step, of some milliseconds, for politeRest times as long as
	// the part took, at most for longestPause within a step, for whose end others may wait, and for longestRest after it. Where somebody has asked
	// for an index in the last hurry, it rests only after a step, for as long as that worked, at most for longestRest.
	politeRest   = 24
	longestPause = time.Second
	longestRest  = 10 * time.Second
	hurry        = 2 * time.Minute
	// longestStep is after how long a step ends that holds up something.
	longestStep = 10 * time.Second
)

// Policies say which topics have the index.
type Policies interface {
	// AnyState reports whether some topic, there or not, has it always or never.
	AnyState() bool
	// State returns when a topic has it: always where it is compacted.
	State(topic string) admin.StateMode
}

// Store is what the runtime reads.
type Store interface {
	store.Topics
	store.Retention
	store.Indexes
}

// Options configure a Runtime. All are required.
type Options struct {
	Store     Store
	Committer *commit.Committer
	Logger    *slog.Logger
	Policies  Policies
	// Commits counts the commits so far.
	Commits func() uint64
	// Room refuses to write more where the disk is nearly full.
	Room func() error
	// Ready is called when the index of a topic has become ready. It must not block.
	Ready func(topic string)
}

// Runtime has topics indexed.
type Runtime struct {
	opts   Options
	ctx    context.Context // ends with Stop
	cancel context.CancelFunc
	wake   chan struct{}
	done   chan struct{} // closed when the goroutine has ended

	commits uint64 // the goroutine's: how many there were after the last step

	mu     sync.Mutex
	find   bool     // settings of a pattern were changed, or nothing was looked at yet
	queue  []string // topics to be looked at, each once
	queued map[string]bool
	failed []string // topics to be looked at when the timer rings
	retry  time.Time
	paused time.Duration     // in all, while nobody waited
	topics map[string]*entry // those that are asked for or built
}

// entry is a topic whose index somebody waits for, or that is being built.
type entry struct {
	asked    bool      // somebody asked for it, and it was not begun yet
	wanted   time.Time // when somebody asked for it last
	waiting  []chan error
	building bool
	began    time.Time
	paused   time.Duration // Runtime.paused at that time
	at       store.IndexProgress
	first    store.IndexProgress // when it was known first since the start
}

// New returns a Runtime that does nothing before Start.
func New(opts Options) *Runtime {
	r := &Runtime{opts: opts, wake: make(chan struct{}, 1), done: make(chan struct{}), find: true,
		queued: make(map[string]bool), topics: make(map[string]*entry)}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// Start starts the goroutine, which first goes on with what was being built.
func (r *Runtime) Start() { go r.run() }

// Stop ends the goroutine, which was started, and returns when it has ended. Whoever waits is
// told. The committer still runs.
func (r *Runtime) Stop() {
	r.cancel()
	<-r.done
}

// Changed says that the settings of a name, a topic's or a pattern, have changed. It does not
// block.
func (r *Runtime) Changed(name string) {
	r.mu.Lock()
	if eventhub.IsPattern(name) {
		r.find = true
	} else {
		r.push(strings.Clone(name))
	}
	r.mu.Unlock()
	r.hint()
}

// TopicsCreated has those of new topics indexed whose settings say so. It does not block.
func (r *Runtime) TopicsCreated(created []store.TopicLife) {
	if !r.opts.Policies.AnyState() {
		return
	}
	for _, t := range created {
		if r.opts.Policies.State(t.Topic) == admin.StateOn {
			r.mu.Lock()
			r.push(strings.Clone(t.Topic))
			r.mu.Unlock()
			r.hint()
		}
	}
}

// push has a topic looked at. r.mu is held.
func (r *Runtime) push(topic string) {
	if !r.queued[topic] {
		r.queued[topic] = true
		r.queue = append(r.queue, topic)
	}
}

func (r *Runtime) hint() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Progress returns how far the index of a topic is that is being built.
func (r *Runtime) Progress(topic string) store.IndexProgress {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.topics[topic]; e != nil {
		return e.at
	}
	return store.IndexProgress{}
}

// Stats returns how many indexes are being built, and how many offsets these have before them as far
// as that is known.
func (r *Runtime) Stats() (building int, left uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.topics {
		if e.building {
			building++
			left += e.at.Total - e.at.Done
		}
	}
	return building, left
}

// Ask returns nil when the index of a topic is ready, and begins it where it is not there. A topic
// that does not exist has nothing to index. It waits for admin.IndexWait at most.
func (r *Runtime) Ask(ctx context.Context, topic string) error {
	if r.opts.Policies.State(topic) == admin.StateOff {
		return refusal(topic)
	}
	info, err := r.opts.Store.Topic(ctx, topic)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return store.Failed(err, "look up topic %q", topic)
	case info.Index == store.Indexed:
		return nil
	}
	answered := r.wait(topic)
	defer r.leave(topic, answered)
	timer := time.NewTimer(admin.IndexWait)
	defer timer.Stop()
	select {
	case err = <-answered:
		return err
	case <-timer.C:
		return r.busy(topic)
	case <-ctx.Done():
		return eventhub.AsError(ctx.Err())
	case <-r.ctx.Done():
		return commit.ErrStopped
	}
}

// Begin has the index of a topic begun that somebody needs and does not wait for, and returns the
// error that says so: CodeOverloaded with a time after which to try again, or that of Ask where
// settings have the topic have none. It does not block.
func (r *Runtime) Begin(topic string) error {
	if r.opts.Policies.State(topic) == admin.StateOff {
		return refusal(topic)
	}
	topic = strings.Clone(topic)
	r.mu.Lock()
	e := r.entry(topic)
	e.asked, e.wanted = true, time.Now()
	r.push(topic)
	r.mu.Unlock()
	r.hint()
	return r.busy(topic)
}

func refusal(topic string) error {
	return eventhub.Errorf(eventhub.CodeUnsupportedOp, "topic %q keeps no state by key: its settings have state off", topic)
}

// wait has a topic looked at, and returns where the outcome is sent.
func (r *Runtime) wait(topic string) chan error {
	answered := make(chan error, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	topic = strings.Clone(topic)
	e := r.entry(topic)
	e.asked, e.wanted = true, time.Now()
	e.waiting = append(e.waiting, answered)
	r.push(topic)
	r.hint()
	return answered
}

// entry returns the entry of a topic, and makes it. r.mu is held.
func (r *Runtime) entry(topic string) *entry {
	e := r.topics[topic]
	if e == nil {
		e = &entry{}
		r.topics[topic] = e
	}
	return e
}

func (r *Runtime) leave(topic string, answered chan error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.topics[topic]; e != nil {
		e.waiting = slices.DeleteFunc(e.waiting, func(c chan error) bool { return c == answered })
	}
}

// busy says how far the index of a topic is, and when to ask again. store.ErrNotIndexed is its cause,
// so that who waits knows it from an index that cannot be built, because the disk is nearly full.
func (r *Runtime) busy(topic string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := &eventhub.Error{Code: eventhub.CodeOverloaded, RetryAfter: time.Second, Err: store.ErrNotIndexed,
		Message: fmt.Sprintf("the state of topic %q is about to be indexed", topic)}
	if e := r.topics[topic]; e != nil && e.at.Total > 0 {
		err.Message = fmt.Sprintf("the state of topic %q is being indexed: %d %% of %d offsets", topic, e.at.Done*100/e.at.Total, e.at.Total)
		err.RetryAfter = e.left(time.Now(), r.paused)
	}
	return err
}

// left guesses how long the rest takes for somebody who waits, from a second to half a minute. paused is Runtime.paused.
func (e *entry) left(now time.Time, paused time.Duration) time.Duration {
	done, rest := e.at.Done-min(e.at.Done, e.first.Done), e.at.Total-e.at.Done
	if done == 0 {
		return time.Second
	}
	guess := time.Duration(float64(now.Sub(e.began)-(paused-e.paused)) * float64(rest) / float64(done))
	return min(max(guess.Round(time.Second), time.Second), 30*time.Second)
}
