package retention

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/publish"
	"eventhub/internal/bubble"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/pebble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// policies are those of a test.
type policies struct {
	mu   sync.Mutex
	of   map[string]admin.Retention
	asks int
}

func (p *policies) Any() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.of) > 0
}

func (p *policies) Retention(topic string) admin.Retention {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asks++
	return p.of[topic]
}

// rig is a runtime over a store, in a synctest bubble whose wall clock can be set.
type rig struct {
	t         *testing.T
	mem       *vfs.MemFS // of a store on disk
	store     store.Store
	measures  atomic.Int64
	broken    atomic.Bool // Measure fails
	refusing  atomic.Bool // no trim is taken
	committer *commit.Committer
	runtime   *Runtime
	policies  policies
	set       atomic.Int64 // how far the wall clock was set
	marks     func(ctx context.Context, from uint64) (uint64, bool, error)
	said      bytes.Buffer
	commits   int // with trims
	reclaimed []store.TopicChange
	looks     atomic.Pointer[func() func()] // what is done before, and after, the next look at a topic
}

// counted is the store with its calls of Measure counted.
type counted struct {
	store.Store
	r *rig
}

func (c counted) Measure(ctx context.Context, topic string, from uint64, until store.Usage) (store.Usage, uint64, bool, error) {
	c.r.measures.Add(1)
	if c.r.broken.Load() {
		return store.Usage{}, 0, false, errors.New("no measure")
	}
	return c.Store.Measure(ctx, topic, from, until)
}

func (c counted) Topic(ctx context.Context, name string) (store.TopicInfo, error) {
	looks := c.r.looks.Swap(nil)
	if looks == nil {
		return c.Store.Topic(ctx, name)
	}
	defer (*looks)()()
	return c.Store.Topic(ctx, name)
}

func (c counted) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	if c.r.refusing.Load() {
		units = slices.DeleteFunc(slices.Clone(units), func(u *store.Unit) bool {
			if len(u.Topics) > 0 {
				u.Err = errors.New("no trims")
			}
			return u.Err != nil
		})
	}
	return c.Store.Commit(ctx, units, sync)
}

func (r *rig) wall() time.Time { return time.Now().Add(time.Duration(r.set.Load())) }

// inBubble runs a test with a rig over a memory store.
func inBubble(t *testing.T, test func(*rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := &rig{t: t}
		r.policies.of = make(map[string]admin.Retention)
		r.store = memory.Open(memory.Options{Now: r.wall})
		r.start()
		defer r.close()
		test(r)
	})
}

// onDisk runs a test with a rig over the embedded store, on a file system that shows what a
// power loss leaves.
func onDisk(t *testing.T, test func(*rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := &rig{t: t, mem: vfs.NewCrashableMem()}
		r.policies.of = make(map[string]admin.Retention)
		r.open()
		r.start()
		defer r.close()
		test(r)
	})
}

func (r *rig) open() {
	r.t.Helper()
	var err error
	r.store, err = pebble.Open(pebble.Options{
		Dir: "data", FS: r.mem, Logger: slog.New(slog.DiscardHandler), Now: r.wall,
		Fatal: func(cause error) { r.t.Errorf("Fatal(%v)", cause) },
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) start() {
	logger := slog.New(slog.NewTextHandler(&r.said, nil))
	s := counted{r.store, r}
	r.committer = commit.New(commit.Options{
		Store: s, Logger: logger, QueueBytes: 64 << 20, EarlyBytes: commit.EarlyBytes,
		Committed: r.committed, Observe: func(time.Duration, []*store.Unit) {},
	})
	if r.marks == nil {
		r.marks = func(_ context.Context, from uint64) (uint64, bool, error) { return from, true, nil }
	}
	r.runtime = New(Options{Store: s, Committer: r.committer, Logger: logger, Policies: &r.policies, Wall: r.wall,
		Marks: func(ctx context.Context, from uint64) (uint64, bool, error) { return r.marks(ctx, from) }})
	r.runtime.Start()
}

// committed does what the bus does after a commit.
func (r *rig) committed(jobs []*commit.Request) {
	r.runtime.Committed(jobs)
	trims := false
	for _, job := range jobs {
		for i := range job.Units {
			if u := &job.Units[i]; u.Err == nil && len(u.Topics) > 0 {
				r.runtime.Removed(u.Topics)
				r.reclaimed = append(r.reclaimed, u.Topics...)
				trims = true
			}
		}
	}
	if trims {
		r.commits++
	}
}

func (r *rig) stop() {
	r.t.Helper()
	r.runtime.Stop()
	if err := r.committer.Stop(); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) close() {
	r.t.Helper()
	r.stop()
	if err := r.store.Close(); err != nil {
		r.t.Error(err)
	}
}

// restart ends the runtime and starts another one: over the same store, or, on disk, over
// what a power loss at this moment leaves.
func (r *rig) restart(rng *rand.Rand) {
	r.t.Helper()
	if r.mem == nil {
		r.stop()
	} else {
		image := r.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rand.New(rand.NewPCG(rng.Uint64(), 0))})
		r.close()
		r.mem = image
		r.open()
	}
	r.start()
}

// put changes a policy and says so.
func (r *rig) put(topic string, policy admin.Retention) {
	r.policies.mu.Lock()
	if policy == (admin.Retention{}) {
		delete(r.policies.of, topic)
	} else {
		r.policies.of[topic] = policy
	}
	r.policies.mu.Unlock()
	r.runtime.Changed(topic)
}

// publish adds n events with payloads of so many digits and returns their receipts.
func (r *rig) publish(topic string, n, digits int) []store.Append {
	r.t.Helper()
	var events publish.Events
	for range n {
		if err := events.AddMade(&eventhub.Event{Topic: topic, Payload: bytes.Repeat([]byte("1"), digits)}); err != nil {
			r.t.Fatal(err)
		}
	}
	job := publish.NewUnit(&events)
	if err := r.committer.Do(context.Background(), job); err != nil {
		r.t.Fatal(err)
	}
	return job.Units[0].Appends
}

// remove commits a change of a topic as somebody else does.
func (r *rig) remove(ch store.TopicChange) {
	r.t.Helper()
	if err := r.committer.Do(context.Background(), commit.NewWrite(store.Unit{Topics: []store.TopicChange{ch}}, nil)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) deleteTopic(topic string) {
	r.t.Helper()
	err := r.committer.Between(context.Background(), "", func() error {
		err := r.store.DeleteTopic(context.Background(), topic)
		r.committer.ForgetTopic(topic)
		r.runtime.Forget(topic)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// kept returns the offsets and sizes of the events of a topic.
func (r *rig) kept(topic string) (offsets, sizes []uint64) {
	r.t.Helper()
	var batch store.Batch
	for from := uint64(1); ; from = batch.Items[len(batch.Items)-1].Offset + 1 {
		batch.Reset()
		if err := r.store.Read(context.Background(), topic, from, 1000, 1<<20, &batch); err != nil {
			r.t.Fatal(err)
		}
		if len(batch.Items) == 0 {
			return offsets, sizes
		}
		for _, item := range batch.Items {
			offsets, sizes = append(offsets, item.Offset), append(sizes, uint64(len(item.Record)))
		}
	}
}

// wantKept fails unless a topic keeps the events from first to last and no other.
func (r *rig) wantKept(topic string, first, last uint64) {
	r.t.Helper()
	var want []uint64
	for offset := first; offset <= last; offset++ {
		want = append(want, offset)
	}
	if got, _ := r.kept(topic); !slices.Equal(got, want) {
		if len(got) > 0 {
			r.t.Errorf("topic %q keeps %d events, %d to %d; want %d to %d", topic, len(got), got[0], got[len(got)-1], first, last)
		} else {
			r.t.Errorf("topic %q keeps no events; want %d to %d", topic, first, last)
		}
	}
}

// pass lets time pass and waits until nothing more happens.
func (r *rig) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (r *rig) commitUnit(u store.Unit) {
	r.t.Helper()
	if err := r.committer.Do(context.Background(), commit.NewWrite(u, nil)); err != nil {
		r.t.Fatal(err)
	}
}
