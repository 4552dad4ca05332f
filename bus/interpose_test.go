package bus

import (
	"context"
	"runtime"
	"sync"

	"eventhub/bus/internal/commit"
	"eventhub/store"
)

// interposed is a store in which something else happens at a chosen point of a call:
// after a read that others are to go on from, before a commit, or after it. What
// is done there runs on a goroutine of its own, so that it may wait for a lock which the
// caller holds: then the caller goes on.
type interposed struct {
	store.Store

	mu    sync.Mutex
	point string
	free  int // passes of the point before it happens
	do    func()
	waits bool // the caller goes on when it is done, whatever time passes until then
	wg    sync.WaitGroup
	met   map[string]int // how often something was done at a point
	lost  error          // where not nil, commits fail
}

// The points. Those of reads are after them.
const (
	atCommit       = "commit"
	afterCommit    = "after the commit"
	atDelayed      = "delayed"
	atGroup        = "group"
	atParts        = "group parts"
	atTopics       = "topics"
	atTopic        = "topic"
	atHead         = "head"
	atRead         = "read"
	atFind         = "find"
	atState        = "state"
	beforeDeletion = "delete"
)

// mostYields is how long a caller waits for what is done meanwhile, which may wait for
// the caller.
const mostYields = 300

func (s *interposed) when(point string, free int, do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.point, s.free, s.do, s.waits = point, free, do, false
}

// whenWaiting is when at a point whose callers hold nothing that is needed meanwhile: they wait.
func (s *interposed) whenWaiting(point string, free int, do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.point, s.free, s.do, s.waits = point, free, do, true
}

// off forgets what was not met, and waits for what was.
func (s *interposed) off() {
	s.when("", 0, nil)
	s.wg.Wait()
}

// isOver reports whether what was to be done at a point was begun.
func (s *interposed) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.do == nil
}

func (s *interposed) at(point string) {
	s.mu.Lock()
	if s.do == nil || s.point != point {
		s.mu.Unlock()
		return
	}
	if s.free--; s.free >= 0 {
		s.mu.Unlock()
		return
	}
	do, waits := s.do, s.waits
	s.do = nil
	if s.met == nil {
		s.met = make(map[string]int)
	}
	s.met[point]++
	done := make(chan struct{})
	s.wg.Go(func() {
		defer close(done)
		do()
	})
	s.mu.Unlock()
	if waits {
		<-done
	}
	for range mostYields {
		select {
		case <-done:
			return
		default:
			runtime.Gosched()
		}
	}
}

// fail has all commits fail from now on, or none.
func (s *interposed) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = err
}

func (s *interposed) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

func (s *interposed) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	s.at(atCommit)
	if err := s.failure(); err != nil {
		return err
	}
	err := s.Store.Commit(ctx, units, sync)
	s.at(afterCommit)
	return err
}

func (s *interposed) Start(ctx context.Context, units []*store.Unit) (func() error, error) {
	s.at(atCommit)
	if err := s.failure(); err != nil {
		return nil, err
	}
	p, ok := s.Store.(store.Pipeline)
	if !ok {
		p = commit.Unpipelined{Log: s.Store}
	}
	wait, err := p.Start(ctx, units)
	if err != nil {
		return nil, err
	}
	return func() error {
		err := wait()
		s.at(afterCommit)
		return err
	}, nil
}

func (s *interposed) Delayed(ctx context.Context, afterAt int64, afterSeq uint64, until int64, limit, maxBytes int) ([]store.Delayed, error) {
	defer s.at(atDelayed)
	return s.Store.Delayed(ctx, afterAt, afterSeq, until, limit, maxBytes)
}

func (s *interposed) Group(ctx context.Context, topic, group string) (store.GroupState, error) {
	defer s.at(atGroup)
	return s.Store.Group(ctx, topic, group)
}

func (s *interposed) GroupParts(ctx context.Context, topic, group string) ([]store.GroupPart, error) {
	defer s.at(atParts)
	return s.Store.GroupParts(ctx, topic, group)
}

func (s *interposed) ListTopics(ctx context.Context, after string, limit int) ([]store.TopicInfo, error) {
	defer s.at(atTopics)
	return s.Store.ListTopics(ctx, after, limit)
}

func (s *interposed) Topic(ctx context.Context, name string) (store.TopicInfo, error) {
	defer s.at(atTopic)
	return s.Store.Topic(ctx, name)
}

func (s *interposed) Head(ctx context.Context, topic string) (uint64, error) {
	defer s.at(atHead)
	return s.Store.Head(ctx, topic)
}

func (s *interposed) Read(ctx context.Context, topic string, from uint64, limit, maxBytes int, batch *store.Batch) error {
	defer s.at(atRead)
	return s.Store.Read(ctx, topic, from, limit, maxBytes, batch)
}

func (s *interposed) Find(ctx context.Context, topic, id string) (uint64, error) {
	defer s.at(atFind)
	return s.Store.Find(ctx, topic, id)
}

func (s *interposed) FindDelayed(ctx context.Context, topic, id string) (store.Delayed, error) {
	defer s.at(atFind)
	return s.Store.FindDelayed(ctx, topic, id)
}

func (s *interposed) State(ctx context.Context, q store.StateQuery, batch *store.Batch) (store.StatePage, error) {
	defer s.at(atState)
	return s.Store.State(ctx, q, batch)
}

func (s *interposed) Latest(ctx context.Context, topic, key string, at uint64) (store.Item, error) {
	defer s.at(atFind)
	return s.Store.Latest(ctx, topic, key, at)
}

func (s *interposed) DeleteTopic(ctx context.Context, name string) error {
	s.at(beforeDeletion)
	return s.Store.DeleteTopic(ctx, name)
}
