package delayed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/internal/bubble"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/storefault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var bg = context.Background()

// rig is a mover with a committer over a memory store in a synctest bubble: time passes
// only when a test says so.
type rig struct {
	t         *testing.T
	backend   store.Store
	faults    *storefault.Store
	store     *layer
	skew      atomic.Int64 // of the wall clock
	log       *slog.Logger
	full      atomic.Bool // there is no room
	linked    int         // events that got their links
	committer *commit.Committer
	mover     *Mover
}

// layer is a store in whose reads and commits a test can interfere.
type layer struct {
	store.Store
	mu       sync.Mutex
	hold     chan struct{}               // where not nil, Commit waits until it is closed
	refuse   func(*store.Unit) error     // where not nil, decides about units
	fails    func(at, until int64) error // where not nil, decides about reads
	afterDue func()                      // called once, after a read of what is due that has found some
	afterAll func()                      // called once, after a read of whatever comes next
}

func (l *layer) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

func (l *layer) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	l.mu.Lock()
	hold, refuse := l.hold, l.refuse
	l.mu.Unlock()
	if hold != nil {
		<-hold
	}
	var kept []*store.Unit
	refused := make(map[*store.Unit]error)
	for _, u := range units {
		if refuse != nil {
			if err := refuse(u); err != nil {
				refused[u] = err
				continue
			}
		}
		kept = append(kept, u)
	}
	err := l.Store.Commit(ctx, kept, sync)
	for u, why := range refused {
		u.Err = why
	}
	return err
}

func (l *layer) Delayed(ctx context.Context, at int64, seq uint64, until int64, limit, maxBytes int) ([]store.Delayed, error) {
	l.mu.Lock()
	fails := l.fails
	l.mu.Unlock()
	if fails != nil {
		if err := fails(at, until); err != nil {
			return nil, err
		}
	}
	page, err := l.Store.Delayed(ctx, at, seq, until, limit, maxBytes)
	var f func()
	l.set(func() {
		switch {
		case until == never:
			f, l.afterAll = l.afterAll, nil
		case len(page) > 0:
			f, l.afterDue = l.afterDue, nil
		}
	})
	if f != nil {
		f()
	}
	return page, err
}

// inBubble runs a test with a rig that is stopped at the end.
func inBubble(t *testing.T, test func(*rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := &rig{t: t, log: slog.New(slog.DiscardHandler)}
		r.backend = memory.Open(memory.Options{Now: r.now})
		r.faults = storefault.Wrap(r.backend)
		r.store = &layer{Store: r.faults}
		r.start()
		synctest.Wait() // for the look at the start
		test(r)
		r.stop()
		if err := r.backend.Close(); err != nil {
			t.Error(err)
		}
	})
}

// now is the wall clock.
func (r *rig) now() time.Time { return time.Now().Add(time.Duration(r.skew.Load())) }

func (r *rig) start() {
	r.committer = commit.New(commit.Options{
		Store: r.store, Logger: r.log, QueueBytes: 64 << 20, EarlyBytes: commit.EarlyBytes,
		Committed: func(requests []*commit.Request) {
			for _, q := range requests {
				for i := range q.Units {
					if u := &q.Units[i]; u.Err == nil && len(u.Delays) > 0 {
						r.mover.Committed(u.Delays)
					}
				}
			}
		},
		Observe: func(time.Duration, []*store.Unit) {},
	})
	r.mover = New(Options{
		Store: r.store, Committer: r.committer, Logger: r.log, Now: r.now,
		Room: func() error {
			if r.full.Load() {
				return eventhub.Errorf(eventhub.CodeOverloaded, "full")
			}
			return nil
		},
		Link: func(*store.Append) { r.linked++ },
	})
	r.mover.Start()
}

func (r *rig) stop() {
	r.mover.Stop()
	if err := r.committer.Stop(); err != nil {
		r.t.Errorf("stop: %v", err)
	}
}

// schedule commits delayed events of topic t, in one unit, and returns when the first is
// due.
func (r *rig) schedule(delay time.Duration, ids ...string) int64 {
	r.t.Helper()
	at := r.now().Add(delay).UnixMilli()
	u := store.Unit{}
	for _, id := range ids {
		u.Delays = append(u.Delays, store.Delay{Topic: "t", ID: id, Record: encoded("t", id, id), At: at})
	}
	if err := r.committer.Do(bg, commit.NewWrite(u, nil)); err != nil {
		r.t.Error(err)
	}
	return at
}

// encoded is the record of an event whose payload is a text.
func encoded(topic, id, payload string) eventhub.Record {
	return eventhub.Record(fmt.Sprintf(`{"ts":%s,"id":%q,"topic":%q,"payload":%q}`, "1000000000000", id, topic, payload))
}

// publish commits an event that is not delayed.
func (r *rig) publish(topic, id string) {
	u := store.Unit{Appends: []store.Append{{Topic: topic, ID: id, Record: encoded(topic, id, id)}}}
	if err := r.committer.Do(bg, commit.NewWrite(u, nil)); err != nil {
		r.t.Error(err)
	}
}

// heldUp runs something while a commit waits for the store, which ends when it returns.
func (r *rig) heldUp(do func()) {
	held := make(chan struct{})
	r.store.set(func() { r.store.hold = held })
	go r.publish("other", "x") // is in the commit that waits
	synctest.Wait()
	do()
	r.store.set(func() { r.store.hold = nil })
	close(held)
	synctest.Wait()
}

// after lets time pass and the mover do what is to be done then.
func (r *rig) after(d time.Duration) {
	time.Sleep(d) // the bubble's clock
	synctest.Wait()
}

// events reads topic t.
func (r *rig) events() []store.Item {
	r.t.Helper()
	synctest.Wait()
	var batch store.Batch
	if err := r.backend.Read(bg, "t", 1, 10_000, 1<<30, &batch); err != nil {
		r.t.Fatal(err)
	}
	return batch.Items
}

// logged checks which events topic t has, by their ids.
func (r *rig) logged(when string, want ...string) {
	r.t.Helper()
	var ids []string
	for _, item := range r.events() {
		ids = append(ids, string(item.Record.ID()))
	}
	if !slices.Equal(ids, want) {
		r.t.Errorf("the log %s has %q; want %q", when, ids, want)
	}
}

// waiting checks which events are delayed.
func (r *rig) waiting(want ...string) {
	r.t.Helper()
	list, err := r.mover.List(bg, admin.ScheduleQuery{Limit: 1000})
	if err != nil {
		r.t.Error(err)
	}
	var ids []string
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	if !slices.Equal(ids, want) {
		r.t.Errorf("delayed are %q; want %q", ids, want)
	}
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %v; want %v", what, got, want)
	}
}

var errDisk = errors.New("no disk")
