package idle

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/internal/bubble"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/pebble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a runtime over a store in a synctest bubble, with groups that have no engine. It is
// their bus.
type rig struct {
	t         *testing.T
	mem       *vfs.MemFS // of a store on disk
	store     store.Store
	committer *commit.Committer
	runtime   *Runtime
	set       atomic.Int64 // how far the wall clock was set

	mu       sync.Mutex
	expiries map[string]time.Duration
	busy     map[Group]int
	last     map[Group]time.Duration
	patterns map[string][]string // of groups, by name
	ends     int
}

func (r *rig) wall() time.Time { return time.Now().Add(time.Duration(r.set.Load())) }

// inBubble runs a test over a memory store, or on disk over one that shows what a power loss leaves.
func inBubble(t *testing.T, onDisk bool, test func(*rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := &rig{t: t, expiries: make(map[string]time.Duration), patterns: make(map[string][]string)}
		if onDisk {
			r.mem = vfs.NewCrashableMem()
			r.open()
		} else {
			r.store = memory.Open(memory.Options{Now: r.wall})
		}
		r.start()
		defer func() {
			r.stop()
			if err := r.store.Close(); err != nil {
				t.Error(err)
			}
		}()
		test(r)
	})
}

func (r *rig) open() {
	r.t.Helper()
	var err error
	r.store, err = pebble.Open(pebble.Options{Dir: "data", FS: r.mem, Logger: slog.New(slog.DiscardHandler), Now: r.wall,
		Fatal: func(cause error) { r.t.Errorf("Fatal(%v)", cause) }})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) start() {
	r.t.Helper()
	r.busy, r.last = make(map[Group]int), make(map[Group]time.Duration)
	logger := slog.New(slog.DiscardHandler)
	r.committer = commit.New(commit.Options{
		Store: r.store, Logger: logger, QueueBytes: 1 << 20, EarlyBytes: commit.EarlyBytes,
		Committed: r.committed, Observe: func(time.Duration, []*store.Unit) {},
	})
	var err error
	r.runtime, err = New(Options{Store: r.store, Committer: r.committer, Logger: logger, Policies: (*policies)(r), Groups: (*groups)(r), Wall: r.wall})
	if err != nil {
		r.t.Fatal(err)
	}
	r.runtime.Start()
}

func (r *rig) committed(jobs []*commit.Request) {
	for _, j := range jobs {
		for i := range j.Units {
			if j.Units[i].Err == nil {
				r.runtime.Committed(j.Units[i].Groups)
			}
		}
	}
}

func (r *rig) stop() {
	r.t.Helper()
	r.runtime.Stop()
	if err := r.committer.Stop(); err != nil {
		r.t.Error(err)
	}
}

// crash starts again over what is left: on disk of what a power loss leaves, in memory of what
// was committed.
func (r *rig) crash(rng *rand.Rand) {
	r.t.Helper()
	if r.mem != nil {
		image := r.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rand.New(rand.NewPCG(rng.Uint64(), 0))})
		r.stop()
		if err := r.store.Close(); err != nil {
			r.t.Error(err)
		}
		r.mem = image
		r.open()
	} else {
		r.runtime.cancel() // and writes nothing
		<-r.runtime.done
		if err := r.committer.Stop(); err != nil {
			r.t.Error(err)
		}
	}
	r.start()
}

// policies are those of a rig.
type policies rig

func (p *policies) AnyGroupExpiry() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.expiries) > 0
}

func (p *policies) GroupExpiry(topic string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.expiries[topic]
}

func (r *rig) expire(topic string, after time.Duration) {
	r.mu.Lock()
	if r.expiries[topic] = after; after == 0 {
		delete(r.expiries, topic)
	}
	r.mu.Unlock()
	r.runtime.Changed(topic)
}

// groups are those of a rig.
type groups rig

func (h *groups) Use(ctx context.Context, g Group) (Use, error) {
	state, err := h.store.Group(ctx, g.Topic, g.Name)
	if err != nil {
		return Use{}, nil // there is none: nothing else goes wrong
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return Use{Exists: true, Busy: h.busy[g] > 0, Members: h.busy[g] > 0, Last: h.last[g], Epoch: state.Epoch, Cursor: state.Cursor}, nil
}

func (h *groups) Patterns(g Group) (list []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, text := range h.patterns[g.Name] {
		if p, _ := eventhub.ParsePattern(text); p.Match(g.Topic) {
			list = append(list, text)
		}
	}
	return list
}

func (h *groups) Brought(ctx context.Context, _, pattern string) (topics []string, err error) {
	p, err := eventhub.ParsePattern(pattern)
	for t, err := range store.AllTopics(ctx, h.store, "") {
		if err != nil {
			return nil, err
		}
		if p.Match(t.Name) {
			topics = append(topics, t.Name)
		}
	}
	return topics, err
}

func (h *groups) End(ctx context.Context, e *End) (bool, error) {
	r := (*rig)(h)
	var unit store.Unit
	job := commit.NewWrite(unit, func(u *store.Unit) error {
		r.mu.Lock()
		for _, g := range e.Watched() {
			if r.busy[g] > 0 {
				defer r.mu.Unlock()
				return context.Canceled
			}
		}
		r.mu.Unlock()
		if !e.Confirm() {
			return context.Canceled
		}
		var ended []Ended
		for _, g := range e.Groups {
			state, err := r.store.Group(ctx, g.Topic, g.Name)
			if err != nil {
				return err
			}
			u.Groups = append(u.Groups, store.GroupChange{Topic: g.Topic, Group: g.Name, Delete: true, State: state})
			ended = append(ended, Ended{TS: r.wall().UnixMilli(), Cursor: state.Cursor, Epoch: state.Epoch, Life: 1})
		}
		u.Notes = e.Rows(ended)
		return nil
	})
	err := r.committer.Do(ctx, job)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ends++
		return true, nil
	}
	return false, nil
}

func (r *rig) change(ch store.GroupChange, notes ...store.NoteChange) {
	r.t.Helper()
	if err := r.committer.Do(context.Background(), commit.NewWrite(store.Unit{Groups: []store.GroupChange{ch}, Notes: notes}, nil)); err != nil {
		r.t.Error(err) // and not Fatal: goroutines change groups too
	}
}

func (r *rig) has(g Group) bool {
	_, err := r.store.Group(context.Background(), g.Topic, g.Name)
	return err == nil
}
