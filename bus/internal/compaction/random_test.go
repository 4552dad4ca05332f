package compaction

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/bustest"
	"eventhub/bus/internal/commit"
	"eventhub/internal/bubble"
	"eventhub/internal/record"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// policies are those of a test.
type policies struct {
	mu   sync.Mutex
	of   map[string]*admin.Compaction
	asks int
}

func (p *policies) AnyCompaction() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.of) > 0
}

func (p *policies) Compaction(topic string) *admin.Compaction {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asks++
	return p.of[topic]
}

func (p *policies) put(topic string, c *admin.Compaction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c == nil {
		delete(p.of, topic)
	} else {
		p.of[topic] = c
	}
}

// rig is a runtime over a memory store, in a synctest bubble.
type rig struct {
	t         *testing.T
	store     store.Store
	committer *commit.Committer
	runtime   *Runtime
	policies  policies
	commits   atomic.Uint64
	said      bytes.Buffer
}

func inBubble(t *testing.T, test func(*rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := &rig{t: t}
		r.policies.of = make(map[string]*admin.Compaction)
		r.store = memory.Open(memory.Options{})
		r.start()
		defer func() {
			r.stop()
			if err := r.store.Close(); err != nil {
				t.Error(err)
			}
			if bytes.Contains(r.said.Bytes(), []byte("level=ERROR")) {
				t.Errorf("it logged %s", &r.said)
			}
		}()
		test(r)
	})
}

func (r *rig) start() {
	logger := slog.New(slog.NewTextHandler(&r.said, nil))
	r.committer = commit.New(commit.Options{
		Store: r.store, Logger: logger, QueueBytes: 64 << 20, EarlyBytes: commit.EarlyBytes,
		Committed: func([]*commit.Request) {},
		Observe: func(_ time.Duration, units []*store.Unit) {
			r.commits.Add(1)
			r.runtime.Committed(units)
		},
	})
	r.runtime = New(Options{Store: r.store, Committer: r.committer, Logger: logger, Policies: &r.policies, Ages: steady{}, Wall: time.Now, Commits: r.commits.Load,
		Room: func() error { return nil }})
	r.runtime.Start()
}

// index has the keys of a topic indexed, as another room does.
func (r *rig) index(topic string) {
	r.t.Helper()
	if err := bustest.Index(context.Background(), r.store, topic); err != nil {
		r.t.Fatal(err)
	}
	r.runtime.Look(topic)
}

func (r *rig) stop() {
	r.runtime.Stop()
	if err := r.committer.Stop(); err != nil {
		r.t.Error(err)
	}
}

// do commits a unit.
func (r *rig) do(u store.Unit) store.Unit {
	r.t.Helper()
	j := new(job)
	j.Units = []store.Unit{u}
	if err := r.committer.Do(context.Background(), j); err != nil || j.Units[0].Err != nil {
		r.t.Fatal(err, j.Units[0].Err)
	}
	return j.Units[0]
}

// publish adds events with keys; one that begins with - is ended.
func (r *rig) publish(topic string, keys ...string) []store.Append {
	r.t.Helper()
	var u store.Unit
	for _, key := range keys {
		e := eventhub.Event{Topic: topic, ID: fmt.Sprint(topic, "-", r.commits.Load(), "-", len(u.Appends)), Key: key, Payload: []byte("1")}
		if key != "" && key[0] == '-' {
			e.Key, e.Payload = key[1:], []byte("null")
		}
		encoded, err := record.Append(nil, &e)
		if err != nil {
			r.t.Fatal(err)
		}
		u.Appends = append(u.Appends, store.Append{Topic: topic, ID: e.ID, Key: e.Key, Record: encoded})
	}
	u = r.do(u)
	for i := range u.Created {
		r.index(u.Created[i].Topic)
	}
	return u.Appends
}

// group puts the cursor of a group, which it makes where it is not there.
func (r *rig) group(topic, name string, cursor uint64) {
	r.t.Helper()
	_, err := r.store.Group(context.Background(), topic, name)
	r.do(store.Unit{Groups: []store.GroupChange{{Topic: topic, Group: name, Create: err != nil, State: store.GroupState{Epoch: 1, Cursor: cursor}}}})
}

func (r *rig) offsets(topic string) (offsets []uint64) {
	r.t.Helper()
	var b store.Batch
	if err := r.store.Read(context.Background(), topic, 1, 1<<20, 1<<40, &b); err != nil {
		r.t.Fatal(err)
	}
	for _, item := range b.Items {
		offsets = append(offsets, item.Offset)
	}
	return offsets
}

func (r *rig) info(topic string) store.TopicInfo {
	r.t.Helper()
	info, err := r.store.Topic(context.Background(), topic)
	if err != nil {
		r.t.Fatal(err)
	}
	return info
}

// fixedSeed runs one history again.
var fixedSeed = flag.Uint64("seed", 0, "seed of the history that is to be run again; 0 draws many")

// TestRandomHistories: topics that are published to and read by groups, with settings that
// change, while the runtime starts again. The mark is never above what the settings allow, it
// is there when nothing more happens, and what is kept is the newest event of each key up to
// it, and everything above.
func TestRandomHistories(t *testing.T) {
	first, n := rand.Uint64(), uint64(testsize.Of(1000, 60))
	if *fixedSeed != 0 {
		first, n = *fixedSeed, 1
	}
	var met meets
	for i := range n {
		inBubble(t, func(r *rig) {
			m := &model{rig: r, rng: rand.New(rand.NewPCG(first+i, 0)), topics: make(map[string]*modelTopic), met: &met}
			for range 40 {
				m.step()
			}
		})
		if t.Failed() {
			t.Fatalf("again with -seed=%d", first+i)
		}
	}
	t.Logf("%+v", met)
	if n > 5 && min(met.compacted, met.held, met.overtaken, met.buried, met.starts) == 0 {
		t.Errorf("the histories did not meet everything: %+v", met)
	}
}

// meets counts what the histories met, to show that they met it.
type meets struct{ compacted, held, overtaken, buried, starts int }

type model struct {
	*rig
	rng    *rand.Rand
	topics map[string]*modelTopic
	met    *meets
}

type modelTopic struct {
	name    string
	met     *meets
	policy  *admin.Compaction
	events  []modelEvent
	cursors map[string]uint64
	may     uint64 // the highest mark that was ever allowed
	mayEnd  uint64 // likewise, of tombstones
}

type modelEvent struct {
	offset uint64
	key    string
	isEnd  bool
	at     int64
}

func (m *model) step() {
	m.allow()
	p := m.topics[fmt.Sprint("t", m.rng.IntN(3))]
	if p == nil {
		name := fmt.Sprint("t", m.rng.IntN(3))
		if p = m.topics[name]; p == nil {
			p = &modelTopic{name: name, met: m.met, cursors: make(map[string]uint64)}
			m.topics[name] = p
		}
	}
	switch k := m.rng.IntN(20); {
	case k < 9 || len(p.events) == 0:
		var keys []string
		for range 1 + m.rng.IntN(6) {
			keys = append(keys, []string{"a", "b", "c", "-a", "-b", ""}[m.rng.IntN(6)])
		}
		for i, a := range m.publish(p.name, keys...) {
			p.events = append(p.events, modelEvent{a.Offset, a.Key, keys[i] != "" && keys[i][0] == '-', a.CommitTime})
		}
	case k < 13:
		name := fmt.Sprint("g", m.rng.IntN(2))
		last := p.events[len(p.events)-1].offset
		p.cursors[name] = min(last, p.cursors[name]+uint64(m.rng.IntN(8)))
		m.group(p.name, name, p.cursors[name])
	case k < 16:
		p.policy = nil
		if m.rng.IntN(4) > 0 {
			age := func() admin.Period { return admin.Period(time.Duration(1+m.rng.IntN(3000)) * time.Second) }
			p.policy = &admin.Compaction{MinAge: age(), Hold: age(), Grace: age()}
		}
		m.policies.put(p.name, p.policy)
		m.runtime.Changed(p.name)
	case k < 17:
		m.met.starts++
		m.stop()
		m.start()
	}
	m.allow()
	synctest.Wait()
	m.check(p, 0)
	time.Sleep([]time.Duration{time.Second, time.Minute, 20 * time.Minute}[m.rng.IntN(3)])
	if m.rng.IntN(3) == 0 {
		time.Sleep(3 * Every)
		synctest.Wait() // a pass may have begun just now
		m.allow()
		for _, p := range m.topics {
			m.check(p, 2*Every)
		}
	}
}

// allow notes where the marks may be now.
func (m *model) allow() {
	for _, p := range m.topics {
		if p.policy != nil {
			p.may = max(p.may, p.mark(time.Now()))
			p.mayEnd = max(p.mayEnd, p.before(p.policy.Grace, time.Now()))
		}
	}
}

// mark returns where the mark may be at a time. The events are those that no mark has removed.
func (p *modelTopic) mark(now time.Time) (mark uint64) {
	mark = p.before(p.policy.MinAge, now)
	held := p.before(p.policy.Hold, now)
	for _, cursor := range p.cursors {
		i := slices.IndexFunc(p.events, func(e modelEvent) bool { return e.offset > cursor })
		switch {
		case i < 0 || p.events[i].offset > mark:
		case p.events[i].offset <= held:
			p.met.overtaken++
		default:
			p.met.held++
			mark = p.events[i].offset - 1
		}
	}
	return mark
}

// before returns the last offset whose event is older than an age at a time.
func (p *modelTopic) before(age admin.Period, now time.Time) (last uint64) {
	for _, e := range p.events {
		if e.at <= now.Add(-time.Duration(age)).UnixMilli() {
			last = e.offset
		}
	}
	return last
}

// check compares a topic with what it is to be. Where nothing has happened for that long, the
// mark is where it was allowed to be that long ago.
func (m *model) check(p *modelTopic, quiet time.Duration) {
	m.t.Helper()
	if len(p.events) == 0 {
		return
	}
	info, now := m.info(p.name), time.Now()
	if p.last(info.Compacted) > p.last(p.may) {
		m.t.Errorf("topic %s is compacted up to %d, allowed up to %d; %+v", p.name, info.Compacted, p.may, p.policy)
	}
	p.compact(info) // before: the mark may be over events that are gone
	if p.last(info.Tombstones) > p.last(p.mayEnd) {
		m.t.Errorf("topic %s has no tombstones up to %d, allowed up to %d; %+v", p.name, info.Tombstones, p.mayEnd, p.policy)
	}
	if quiet > 0 && p.policy != nil {
		// A group may have been made since that holds it where it was.
		if least := min(p.mark(now.Add(-quiet)), p.mark(now)); info.Compacted < p.last(least) {
			m.t.Errorf("topic %s is compacted up to %d, %v after it could be up to %d", p.name, info.Compacted, quiet, least)
		}
		if least := min(p.before(p.policy.Grace, now.Add(-quiet)), info.Compacted); info.Tombstones < p.last(least) {
			m.t.Errorf("topic %s has tombstones above %d, %v after they could go up to %d", p.name, info.Tombstones, quiet, least)
		}
	}
	var want []uint64
	for _, e := range p.events {
		want = append(want, e.offset)
	}
	if got := m.offsets(p.name); !slices.Equal(got, want) {
		m.t.Errorf("topic %s has %v, want %v, at the marks %+v", p.name, got, want, info)
	}
}

// last returns the last event at or below an offset: marks between the same events are the same.
func (p *modelTopic) last(offset uint64) (last uint64) {
	for _, e := range p.events {
		if e.offset <= offset {
			last = e.offset
		}
	}
	return last
}

// compact removes what the marks of a topic leave over.
func (p *modelTopic) compact(info store.TopicInfo) {
	newest := make(map[string]uint64)
	for _, e := range p.events {
		if e.key != "" && e.offset <= info.Compacted {
			newest[e.key] = e.offset
		}
	}
	p.events = slices.DeleteFunc(p.events, func(e modelEvent) bool {
		switch {
		case e.key == "" || e.offset > info.Compacted:
			return false
		case newest[e.key] != e.offset:
			p.met.compacted++
			return true
		case e.isEnd && e.offset <= info.Tombstones:
			p.met.buried++
			return true
		}
		return false
	})
}
