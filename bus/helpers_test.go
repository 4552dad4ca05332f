package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"eventhub"
	"eventhub/bus/internal/bustest"
	"eventhub/bus/internal/commit"
	"eventhub/internal/bubble"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/storefault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a bus over a memory store in a synctest bubble: time passes only when
// a test says so, and synctest.Wait means that the bus has done all it can.
type rig struct {
	t     *testing.T
	store *meter
	bus   *Bus
}

// inBubble runs a test with a rig whose bus is closed at the end.
func inBubble(t *testing.T, test func(*rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := &rig{t: t, store: &meter{Store: memory.Open(memory.Options{MaxTopics: 100})}}
		r.start(Options{})
		synctest.Wait() // tests may put another store in between
		test(r)
		r.stop()
		if err := r.store.Close(); err != nil {
			t.Error(err)
		}
	})
}

func (r *rig) start(o Options) {
	r.t.Helper()
	o.Store = r.store
	var err error
	if r.bus, err = New(o); err != nil {
		r.t.Fatal(err)
	}
}

// faulty puts a store between the rig's and the backend in which a test can interfere.
func (r *rig) faulty() *storefault.Store {
	s := storefault.Wrap(r.store.Store)
	r.store.Store = s
	return s
}

func (r *rig) stop() {
	r.t.Helper()
	if err := r.bus.Close(); err != nil {
		r.t.Errorf("Close: %v", err)
	}
}

// restart takes the engine down in order and starts another one over the store.
func (r *rig) restart() {
	r.stop()
	r.start(Options{})
}

// publish adds n events with payloads first, first+1, … and returns their
// receipts.
func (r *rig) publish(topic string, first, n int) []eventhub.Receipt {
	r.t.Helper()
	var events []eventhub.Event
	for i := range n {
		events = append(events, eventhub.Event{Topic: topic, Payload: fmt.Appendf(nil, "%d", first+i)})
	}
	receipts, err := r.bus.Publish(context.Background(), events...)
	if err != nil {
		r.t.Error(err) // and not Fatal: tests publish from goroutines too
	}
	return receipts
}

// trim removes what is below a horizon of a topic, through the committer as retention does.
func (r *rig) trim(topic string, horizon uint64) {
	r.t.Helper()
	if err := removeFrom(r.bus, store.TopicChange{Topic: topic, Horizon: horizon}); err != nil {
		r.t.Fatal(err)
	}
}

// erase removes single events.
func (r *rig) erase(topic string, offsets ...uint64) {
	r.t.Helper()
	if err := removeFrom(r.bus, store.TopicChange{Topic: topic, Erase: offsets}); err != nil {
		r.t.Fatal(err)
	}
}

// removeFrom commits a change of a topic.
func removeFrom(b *Bus, ch store.TopicChange) error {
	return b.committer.Do(context.Background(), commit.NewWrite(store.Unit{Topics: []store.TopicChange{ch}}, nil))
}

// subscribe joins with a receiver that takes everything.
func (r *rig) subscribe(o eventhub.GroupOptions) *inbox {
	r.t.Helper()
	in := &inbox{Inbox: bustest.Inbox{T: r.t, Room: -1}}
	sub, err := r.bus.Subscribe(context.Background(), o, in)
	if err != nil {
		r.t.Fatal(err)
	}
	in.Sub = sub
	synctest.Wait()
	return in
}

// tail is subscribe for a live tail.
func (r *rig) tail(o eventhub.TailOptions) *inbox {
	r.t.Helper()
	in := &inbox{Inbox: bustest.Inbox{T: r.t, Room: -1}}
	sub, err := r.bus.Tail(context.Background(), o, in)
	if err != nil {
		r.t.Fatal(err)
	}
	in.Sub = sub
	synctest.Wait()
	return in
}

// tailFrom asks for a tail from the first event on.
// fullMember returns the only member of a group of p.*, which has room for one event and
// holds that of the topic held. In each other topic an event waits for the room, in order.
func (r *rig) fullMember(held string, waiting ...string) (*inbox, []got) {
	r.t.Helper()
	o := opts("p.*", "g")
	o.MaxInFlight = 1
	in := r.subscribe(o)
	r.publish(held, 1, 1)
	first := in.Take()
	equal(r.t, "held", places(first), []string{held + "/1"})
	for _, topic := range waiting {
		r.publish(topic, 1, 1)
		synctest.Wait()
	}
	return in, first
}

// storedPatterns returns the patterns in the store, and checks that the bus lists as many for
// the group.
func (r *rig) storedPatterns(group string) []store.PatternInfo {
	r.t.Helper()
	stored, err := r.store.ListPatterns(bg)
	if err != nil {
		r.t.Fatal(err)
	}
	if list, err := r.bus.Patterns(bg, group); err != nil || len(list) != len(stored) {
		r.t.Errorf("listed %v, %v; stored %v", list, err, stored)
	}
	return stored
}

func tailFrom(topic string) eventhub.TailOptions {
	return eventhub.TailOptions{Topic: topic, Start: eventhub.Earliest}
}

func (r *rig) cursor(topic, group string) Cursor {
	r.t.Helper()
	c, err := r.bus.Cursor(context.Background(), topic, group)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// stored is the group's state as a restart would find it.
func (r *rig) stored(topic, group string) store.GroupState {
	r.t.Helper()
	s, err := r.store.Group(context.Background(), topic, group)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// events reads a topic from the store.
func (r *rig) events(topic string) []eventhub.Event {
	r.t.Helper()
	var batch store.Batch
	if err := r.store.Read(context.Background(), topic, 1, 1000, 1<<30, &batch); err != nil {
		r.t.Fatal(err)
	}
	var events []eventhub.Event
	for _, item := range batch.Items {
		e, err := item.Record.Event(item.Offset)
		if err != nil {
			r.t.Fatal(err)
		}
		events = append(events, e)
	}
	return events
}

// got is one delivery as an inbox keeps it.
type got = bustest.Got

// inbox is a Receiver that notes what it is given.
type inbox struct{ bustest.Inbox }

func byLease(g got) eventhub.Ref { return eventhub.Ref{Lease: g.Lease} }
func byID(g got) eventhub.Ref    { return eventhub.Ref{ID: g.ID()} }

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

// indexOf returns the index that an error has, -1 for none.
func indexOf(err error) int {
	if e := eventhub.AsError(err); e != nil && e.Index != nil {
		return *e.Index
	}
	return -1
}

// meter counts the calls that reach a store, can hold commits up, and can fail
// them.
type meter struct {
	store.Store
	mu    sync.Mutex
	calls map[string]int
	hold  chan struct{} // where not nil, Commit waits until it is closed
	fail  error

	failSync   error         // of the second half of the next Start
	failHeadOf string        // the topic whose Head fails
	after      chan struct{} // where not nil, Commit is done and returns when it is closed
}

func (m *meter) count(name string) (hold chan struct{}, fail error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.calls == nil {
		m.calls = make(map[string]int)
	}
	m.calls[name]++
	return m.hold, m.fail
}

// total returns the number of calls so far.
func (m *meter) total() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, c := range m.calls {
		n += c
	}
	return n
}

func (m *meter) set(hold chan struct{}, fail error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hold, m.fail = hold, fail
}

func (m *meter) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	hold, fail := m.count("Commit")
	if hold != nil {
		<-hold
		_, fail = m.count("Commit after the wait")
	}
	if fail != nil {
		return fail
	}
	err := m.Store.Commit(ctx, units, sync)
	m.mu.Lock()
	after := m.after
	m.mu.Unlock()
	if after != nil {
		<-after
	}
	return err
}

// Start is Commit in two halves: what holds commits up, or fails them, is in front of
// the first, and what comes after them in front of the other.
func (m *meter) Start(ctx context.Context, units []*store.Unit) (func() error, error) {
	hold, fail := m.count("Commit")
	if hold != nil {
		<-hold
		_, fail = m.count("Commit after the wait")
	}
	if fail != nil {
		return nil, fail
	}
	p, ok := m.Store.(store.Pipeline)
	if !ok {
		p = commit.Unpipelined{Log: m.Store}
	}
	wait, err := p.Start(ctx, units)
	if err != nil {
		return nil, err
	}
	return func() error {
		err := wait()
		m.mu.Lock()
		after := m.after
		m.mu.Unlock()
		if after != nil {
			<-after
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		err, m.failSync = cmp.Or(err, m.failSync), nil
		return err
	}, nil
}

func (m *meter) setAfter(after chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.after = after
}

func (m *meter) Read(ctx context.Context, topic string, from uint64, limit, maxBytes int, batch *store.Batch) error {
	m.count("Read")
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

var bg = context.Background()

// atOnce returns the options with that many handlers at once.
func atOnce(n int, opts eventhub.GroupOptions) eventhub.GroupOptions {
	opts.Concurrency = n
	return opts
}
