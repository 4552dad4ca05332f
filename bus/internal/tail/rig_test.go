package tail

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"eventhub"
	"eventhub/bus/internal/bustest"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/past"
	"eventhub/bus/internal/sched"
	"eventhub/bus/internal/topiclog"
	"eventhub/internal/bubble"
	"eventhub/internal/filter"
	"eventhub/internal/measure"
	"eventhub/internal/record"
	"eventhub/internal/record/layout"
	"eventhub/store"
	"eventhub/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var bg = context.Background()

// rig is what a bus is to its tails, and no more: a committer, the topic logs, a scheduler.
type rig struct {
	t         *testing.T
	store     *meter
	tails     *Tails
	logs      *topiclog.Logs
	sched     *sched.Scheduler
	committer *commit.Committer
}

// inBubble runs a test with a rig that is stopped at the end.
func inBubble(t *testing.T, test func(*rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := &rig{t: t, store: &meter{Store: memory.Open(memory.Options{MaxTopics: 100})}}
		r.start(1 << 20)
		synctest.Wait() // tests may put another store in between
		test(r)
		r.close()
	})
}

// open returns a rig in real time; close ends it.
func open(t *testing.T, cacheBytes int) *rig {
	r := &rig{t: t, store: &meter{Store: memory.Open(memory.Options{})}}
	r.start(cacheBytes)
	return r
}

func (r *rig) close() {
	r.t.Helper()
	r.stop()
	if err := r.store.Close(); err != nil {
		r.t.Error(err)
	}
}

// index has a topic indexed.
func (r *rig) index(ctx context.Context, topic string) error {
	return bustest.Index(ctx, r.store, topic)
}

// start makes tails over the rig's store, with a cache of some bytes.
func (r *rig) start(cacheBytes int) {
	quiet := slog.New(slog.DiscardHandler)
	clock := sched.NewClock(time.Now)
	r.logs, r.sched = topiclog.New(cacheBytes), sched.New(clock, 2)
	history := past.New(r.store, filter.Compile, r.index)
	r.tails = New(Options{
		Store: r.store, Logger: quiet, Logs: r.logs, Scheduler: r.sched, Clock: clock,
		EvaluationTime: 10 * time.Millisecond,
		State:          history.WalkState, Indexed: history.AwaitIndex, StateKeys: 1000, StateBytes: 1 << 20,
		Filter: func(f *eventhub.Filter) (Wants, bool, error) {
			p, err := filter.Compile(f)
			if err != nil || p == nil {
				return nil, false, err
			}
			return p.Match, p.Evaluates(), nil
		},
	})
	tails, logs := r.tails, r.logs
	r.committer = commit.New(commit.Options{
		Store: r.store, Logger: quiet, QueueBytes: 64 << 20, EarlyBytes: commit.EarlyBytes,
		Observe: func(time.Duration, []*store.Unit) {},
		Committed: func(jobs []*commit.Request) {
			for _, job := range jobs {
				for i := range job.Units {
					tails.TopicsCreated(job.Units[i].Created)
				}
			}
			logs.Committed(jobs)
			for _, job := range jobs {
				for i := range job.Units {
					if job.Units[i].Err == nil {
						tails.Removed(job.Units[i].Topics)
					}
				}
			}
		},
	})
}

func (r *rig) stop() {
	r.t.Helper()
	r.tails.End(commit.ErrStopped)
	r.sched.Stop()
	if err := r.committer.Stop(); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) restart() {
	r.stop()
	r.start(1 << 20)
}

// count returns how many tails there are.
func (r *rig) count() int {
	tails, _, _ := r.tails.Holds()
	return tails
}

// topics returns how many topics are read.
func (r *rig) topics() int {
	topics, _ := r.logs.Holds()
	return topics
}

// left returns how many tails, topics that are read and patterns there are.
func (r *rig) left() int {
	tails, patterns, _ := r.tails.Holds()
	return tails + patterns + r.topics()
}

// measured returns the counts of a topic's tails.
func (r *rig) measured(topic string) measure.Group {
	for _, g := range r.tails.Measure() {
		if g.Topic == topic {
			return g
		}
	}
	return measure.Group{}
}

// write is a job of one unit.
type write struct{ commit.Call }

// commit publishes events in one commit and returns when it is over.
func (r *rig) commit(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	w := &write{}
	w.Units = make([]store.Unit, 1)
	for _, e := range events {
		a := store.Append{Topic: e.Topic, ID: e.ID, NewID: e.ID == "", Key: e.Key, KeepOffset: e.Offset}
		if e.Offset != 0 {
			a.KeepTime = e.TS
		}
		if e.ID == "" {
			e.ID = layout.IDRoom
		}
		encoded, err := record.Append(nil, &e)
		if err != nil {
			return nil, err
		}
		a.Record = encoded
		w.Bytes += len(encoded)
		w.Units[0].Appends = append(w.Units[0].Appends, a)
	}
	return nil, r.committer.Do(ctx, w)
}

// publish adds n events with payloads first, first+1, …
func (r *rig) publish(topic string, first, n int) {
	r.t.Helper()
	var events []eventhub.Event
	for i := range n {
		events = append(events, eventhub.Event{Topic: topic, Payload: fmt.Appendf(nil, "%d", first+i)})
	}
	if _, err := r.commit(bg, events...); err != nil {
		r.t.Error(err) // and not Fatal: tests publish from goroutines too
	}
}

// publishKeys adds an event for each key, in one commit.
func (r *rig) publishKeys(topic string, keys ...string) {
	r.t.Helper()
	var events []eventhub.Event
	for _, key := range keys {
		events = append(events, eventhub.Event{Topic: topic, Key: key, Payload: []byte(`1`)})
	}
	if _, err := r.commit(bg, events...); err != nil {
		r.t.Fatal(err)
	}
}

// remove removes events of a topic: those below a horizon, and single ones.
func (r *rig) remove(topic string, horizon uint64, erase ...uint64) {
	r.t.Helper()
	r.change(store.TopicChange{Topic: topic, Horizon: horizon, Erase: erase})
}

// change removes events, and compacts the topic.
func (r *rig) change(ch store.TopicChange) {
	r.t.Helper()
	w := &write{}
	w.Units = []store.Unit{{Topics: []store.TopicChange{ch}}}
	if err := r.committer.Do(bg, w); err != nil {
		r.t.Error(err)
	}
	if err := bustest.Index(bg, r.store, ch.Topic); err != nil {
		r.t.Error(err)
	}
	if _, _, err := r.store.Compact(bg, ch.Topic); err != nil {
		r.t.Error(err)
	}
}

// sparse adds events at the given offsets.
func (r *rig) sparse(topic string, offsets ...uint64) {
	r.t.Helper()
	for _, offset := range offsets {
		e := eventhub.Event{Topic: topic, ID: fmt.Sprint("e", offset), Offset: offset, TS: 1, Payload: []byte(`1`)}
		if _, err := r.commit(bg, e); err != nil {
			r.t.Fatal(err)
		}
	}
}

// deleteTopic deletes a topic as the bus does.
func (r *rig) deleteTopic(topic string) error {
	return r.committer.Between(bg, "", func() error {
		err := r.store.DeleteTopic(bg, topic)
		r.committer.ForgetTopic(topic)
		r.logs.Forget(topic)
		r.tails.ForgetTopic(topic)
		return err
	})
}

// tail opens a tail whose receiver takes everything.
func (r *rig) tail(o eventhub.TailOptions) *inbox {
	r.t.Helper()
	in := &inbox{T: r.t, Room: -1}
	sub, err := r.tails.Open(bg, o, in)
	if err != nil {
		r.t.Fatal(err)
	}
	in.Sub = sub
	synctest.Wait()
	return in
}

// got is one delivery as an inbox keeps it.
type got = bustest.Got

// inbox is a Receiver that notes what it is given.
type inbox = bustest.Inbox

func byID(g got) eventhub.Ref { return eventhub.Ref{ID: g.ID()} }

func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	g, _ := json.Marshal(got)
	w, _ := json.Marshal(want)
	if string(g) != string(w) {
		t.Errorf("%s = %s; want %s", what, g, w)
	}
}

func wantCode(t *testing.T, err error, code eventhub.Code) {
	t.Helper()
	if eventhub.ErrorCode(err) != code {
		t.Errorf("error %v has code %q; want %q", err, eventhub.ErrorCode(err), code)
	}
}

// meter counts the calls that reach a store, and can hold commits up and fail reads.
type meter struct {
	store.Store
	mu         sync.Mutex
	calls      map[string]int
	failHeadOf string        // the topic whose Head fails
	after      chan struct{} // where not nil, Commit is done and returns when it is closed
	beforeRead func(topic string)
	afterRead  func()
}

func (m *meter) count(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.calls == nil {
		m.calls = make(map[string]int)
	}
	m.calls[name]++
}

func (m *meter) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	m.count("Commit")
	err := m.Store.Commit(ctx, units, sync)
	m.mu.Lock()
	after := m.after
	m.mu.Unlock()
	if after != nil {
		<-after
	}
	return err
}

func (m *meter) setAfter(after chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.after = after
}

func (m *meter) Read(ctx context.Context, topic string, from uint64, limit, maxBytes int, batch *store.Batch) error {
	m.count("Read")
	if m.beforeRead != nil {
		m.beforeRead(topic)
	}
	if m.afterRead != nil {
		defer m.afterRead()
	}
	return m.Store.Read(ctx, topic, from, limit, maxBytes, batch)
}

func (m *meter) Head(ctx context.Context, topic string) (uint64, error) {
	m.count("Head")
	if topic == m.failHeadOf {
		time.Sleep(time.Millisecond) // others go on meanwhile
		return 0, errors.New("no luck")
	}
	return m.Store.Head(ctx, topic)
}

// count1 returns the number of calls of one method so far.
func (m *meter) count1(name string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[name]
}

var fixedSeed = flag.Uint64("seed", 0, "seed of the tests that draw one; 0 draws it")

func drawSeed(t *testing.T) uint64 {
	seed := cmp.Or(*fixedSeed, rand.Uint64())
	t.Logf("seed %d", seed)
	return seed
}

// orderly is a Receiver that wants the events of each topic without a gap.
type orderly struct {
	t     *testing.T
	sub   eventhub.Subscription
	all   bool // from the first one on
	picky bool // takes as many as there is room for

	room    atomic.Int64
	gone    atomic.Bool   // it has left
	starved chan struct{} // a picky one was given more than it takes
	done    chan struct{} // it has as many as it waits for

	mu   sync.Mutex
	want int
	last map[string]uint64
}

func newOrderly(t *testing.T, picky bool, want int) *orderly {
	return &orderly{t: t, picky: picky, want: want, starved: make(chan struct{}, 1), done: make(chan struct{}), last: make(map[string]uint64)}
}

func (o *orderly) Deliver(batch []eventhub.Delivery) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone.Load() {
		o.t.Errorf("%d events came after the tail had left", len(batch))
	}
	if room := int(o.room.Load()); o.picky && len(batch) > room {
		batch = batch[:room]
		select {
		case o.starved <- struct{}{}:
		default:
		}
	}
	if o.picky {
		o.room.Add(-int64(len(batch)))
	}
	for _, d := range batch {
		last, seen := o.last[d.Topic]
		if d.Offset != last+1 && (seen || o.all) {
			o.t.Errorf("offset %d of %s after %d", d.Offset, d.Topic, last)
		}
		o.last[d.Topic] = d.Offset
		if o.want--; o.want == 0 {
			close(o.done)
		}
	}
	return len(batch)
}

func (o *orderly) Ended(err error) {
	if o.want > 0 {
		o.t.Errorf("a tail ended: %v", err)
	}
}

// follow makes room until all has come.
func (o *orderly) follow(rng *rand.Rand) {
	for {
		select {
		case <-o.starved:
			o.room.Store(int64(1 + rng.IntN(300)))
			o.sub.Ready()
		case <-o.done:
			return
		}
	}
}

// counter is a Receiver that counts.
type counter struct {
	delivered *atomic.Int64
	want      int64
	done      chan struct{} // closed by who brings delivered to want
}

func (r counter) Deliver(batch []eventhub.Delivery) int {
	if r.delivered.Add(int64(len(batch))) == r.want {
		close(r.done)
	}
	return len(batch)
}

func (counter) Ended(error) {}
