package keyindex

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/internal/bubble"
	"eventhub/internal/record"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/storefault"
)

var bg = context.Background()

// policies are settings by name or pattern of package path.
type policies struct {
	mu sync.Mutex
	of map[string]admin.StateMode
}

func (p *policies) AnyState() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.of) > 0
}

func (p *policies) State(topic string) admin.StateMode {
	p.mu.Lock()
	defer p.mu.Unlock()
	if mode, ok := p.of[topic]; ok {
		return mode
	}
	for name, mode := range p.of {
		if is, _ := path.Match(name, topic); is {
			return mode
		}
	}
	return admin.StateAuto
}

// rig is a runtime over a memory store, in a synctest bubble.
type rig struct {
	t         *testing.T
	store     *storefault.Store
	over      store.Store // what the runtime and the committer see
	committer *commit.Committer
	runtime   *Runtime
	policies  policies
	commits   atomic.Uint64
	full      atomic.Bool // the disk
	said      bytes.Buffer
	mayFail   bool

	mu    sync.Mutex
	ready map[string]int
}

func inBubble(t *testing.T, test func(*rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t)
		test(r)
		r.stop()
		if err := r.store.Close(); err != nil {
			t.Error(err)
		}
		if !r.mayFail && bytes.Contains(r.said.Bytes(), []byte("level=ERROR")) {
			t.Errorf("it logged %s", &r.said)
		}
	})
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, ready: make(map[string]int)}
	r.policies.of = make(map[string]admin.StateMode)
	r.store = storefault.Wrap(memory.Open(memory.Options{}))
	r.over = r.store
	r.start()
	return r
}

func (r *rig) start() {
	logger := slog.New(slog.NewTextHandler(&r.said, nil))
	r.committer = commit.New(commit.Options{
		Store: r.over, Logger: logger, QueueBytes: 64 << 20, EarlyBytes: commit.EarlyBytes,
		Committed: func(jobs []*commit.Request) {
			for _, j := range jobs {
				for i := range j.Units {
					r.runtime.TopicsCreated(j.Units[i].Created)
				}
			}
		},
		Observe: func(time.Duration, []*store.Unit) { r.commits.Add(1) },
	})
	r.runtime = New(Options{Store: r.over, Committer: r.committer, Logger: logger, Policies: &r.policies, Commits: r.commits.Load,
		Room: func() error {
			if r.full.Load() {
				return eventhub.Errorf(eventhub.CodeOverloaded, "the disk is full")
			}
			return nil
		},
		Ready: func(topic string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.ready[topic]++
		}})
	r.runtime.Start()
}

func (r *rig) stop() {
	r.runtime.Stop()
	if err := r.committer.Stop(); err != nil {
		r.t.Error(err)
	}
}

// set changes the settings of a name; "" is none.
func (r *rig) set(name string, mode admin.StateMode) {
	r.policies.mu.Lock()
	if r.policies.of[name] = mode; mode == "" {
		delete(r.policies.of, name)
	}
	r.policies.mu.Unlock()
	r.runtime.Changed(name)
}

// publish adds so many events with one of three keys each.
func (r *rig) publish(topic string, n int) {
	r.t.Helper()
	var u store.Unit
	for i := range n {
		e := eventhub.Event{Topic: topic, ID: fmt.Sprint(topic, "-", r.commits.Load(), "-", i), Key: fmt.Sprint("k", i%3), Payload: []byte("1")}
		encoded, err := record.Append(nil, &e)
		if err != nil {
			r.t.Fatal(err)
		}
		u.Appends = append(u.Appends, store.Append{Topic: topic, ID: e.ID, Key: e.Key, Record: encoded})
	}
	if err := r.committer.Do(bg, commit.NewWrite(u, nil)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) deleteTopic(topic string) {
	r.t.Helper()
	err := r.committer.Between(bg, "", func() error { return r.over.DeleteTopic(bg, topic) })
	if err != nil {
		r.t.Fatal(err)
	}
}

// index is how far the index of a topic is once nothing moves any more.
func (r *rig) index(topic string) store.IndexStatus {
	r.t.Helper()
	synctest.Wait()
	info, err := r.store.Topic(bg, topic)
	if err != nil {
		r.t.Fatal(err)
	}
	return info.Index
}

func (r *rig) want(topic string, want store.IndexStatus) {
	r.t.Helper()
	if got := r.index(topic); got != want {
		r.t.Errorf("the index of %s is %s; want %s", topic, got, want)
	}
}

func wantCode(t *testing.T, err error, want eventhub.Code) *eventhub.Error {
	t.Helper()
	var e *eventhub.Error
	if !errors.As(err, &e) || e.Code != want {
		t.Fatalf("%v; want %s", err, want)
	}
	return e
}
