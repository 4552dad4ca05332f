// Package storefault puts faults into a store, for tests of what runs on one. It
// wraps any backend, fails the calls that a test picks, holds commits up where a
// test says so, counts what is asked of the store and reports whatever room on the
// disk a test wants.
//
// It is deterministic: what fails is decided by the number of a call and nothing
// else, and it has no goroutine, clock or random choice of its own. With no fault
// put in it keeps the contract of package store as its backend does; with one it
// keeps what the contract says of failures, so a Commit that failed breaks the
// store.
package storefault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"eventhub/store"
)

// Op names a method of a store.
type Op string

// The methods that are counted and can fail: all but Capabilities.
const (
	Commit       Op = "Commit"
	Read         Op = "Read"
	Head         Op = "Head"
	Find         Op = "Find"
	SeekTime     Op = "SeekTime"
	Latest       Op = "Latest"
	ListTopics   Op = "ListTopics"
	Topic        Op = "Topic"
	Lives        Op = "Lives"
	DeleteTopic  Op = "DeleteTopic"
	Sweep        Op = "Sweep"
	Group        Op = "Group"
	GroupParts   Op = "GroupParts"
	ListGroups   Op = "ListGroups"
	DeletedEpoch Op = "DeletedEpoch"
	ListPatterns Op = "ListPatterns"
	Delayed      Op = "Delayed"
	FindDelayed  Op = "FindDelayed"
	Places       Op = "Places"
	Effects      Op = "Effects"
	Correlated   Op = "Correlated"
	Checkpoint   Op = "Checkpoint"
	Size         Op = "Size"
	Space        Op = "Space"
	Shrink       Op = "Shrink"
	Close        Op = "Close"

	// Any stands for all of them.
	Any Op = ""
)

// Fault makes calls fail. It sees the calls of its Op that begin after it was
// put in, lets Skip of them pass, and fails the next Times ones, or all where
// Times is 0. So the k-th call alone is {Skip: k - 1, Times: 1}.
//
// A Commit that it fails does nothing, and breaks the store: every later Commit
// fails with store.ErrBroken and Err. One whose Err is a context's or
// store.ErrClosed breaks nothing, for these come before anything is written. A
// Close that it fails closes the store all the same.
type Fault struct {
	Op          Op
	Skip, Times int
	Err         error
	// Applied lets a Commit do its work before it fails: the error of a Commit
	// does not say that nothing happened.
	Applied bool
}

// CommitHook is called at the beginning of a Commit, with its arguments and on
// its goroutine. Until it returns, the Commit waits; no other call does.
type CommitHook func(ctx context.Context, units []*store.Unit, sync bool)

// Store is a store with faults. Its own methods, too, are safe for concurrent
// use.
type Store struct {
	backend store.Store

	mu     sync.Mutex
	calls  map[Op]int
	faults []*fault
	failed int
	broken error // what the first Commit that broke the store returned
	hook   CommitHook
	space  func() (store.Space, error)
}

type fault struct {
	Fault
	seen int
}

var _ store.Store = (*Store)(nil)

// Wrap returns the backend without any fault. The Store owns it: to close the
// one is to close the other.
func Wrap(backend store.Store) *Store {
	return &Store{backend: backend, calls: make(map[Op]int)}
}

// Inject puts a fault in. Where several fail one call, the error is that of the
// first put in; the others have seen that call too. It panics where Err is nil.
func (s *Store) Inject(f Fault) {
	if f.Err == nil {
		panic(fmt.Sprintf("storefault: fault %+v has no error", f))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &fault{Fault: f})
}

// Clear takes all faults out. A store that is broken stays so.
func (s *Store) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// BeforeCommit sets the hook of all Commits that begin from now on; nil is none.
// A Commit is counted before it, and meets faults after it.
func (s *Store) BeforeCommit(hook CommitHook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = hook
}

// SetSpace sets what Space answers from now on; nil is the backend's answer. It
// is called with no lock held.
func (s *Store) SetSpace(space func() (store.Space, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.space = space
}

// Calls returns how many calls of op have begun, those that failed included.
func (s *Store) Calls(op Op) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if op != Any {
		return s.calls[op]
	}
	total := 0
	for _, n := range s.calls {
		total += n
	}
	return total
}

// Failed returns how many calls faults have failed. A Commit that failed because
// the store was broken already is none of them.
func (s *Store) Failed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// count counts a call.
func (s *Store) count(op Op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[op]++
}

// meet returns the fault that fails this call, or nil.
func (s *Store) meet(op Op) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first *Fault
	for _, f := range s.faults {
		if f.Op != op && f.Op != Any {
			continue
		}
		f.seen++
		if first == nil && f.seen > f.Skip && (f.Times == 0 || f.seen <= f.Skip+f.Times) {
			first = &f.Fault
		}
	}
	if first != nil {
		s.failed++
	}
	return first
}

// enter counts a call and returns the error that it fails with, or nil.
func (s *Store) enter(op Op) error {
	s.count(op)
	if f := s.meet(op); f != nil {
		return f.Err
	}
	return nil
}

// beforeWriting reports whether a Commit's error says that nothing was written.
func beforeWriting(err error) bool {
	return slices.ContainsFunc([]error{context.Canceled, context.DeadlineExceeded, store.ErrClosed},
		func(target error) bool { return errors.Is(err, target) })
}

// Commit implements store.Log.
func (s *Store) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	s.count(Commit)
	s.mu.Lock()
	hook := s.hook
	s.mu.Unlock()
	if hook != nil {
		hook(ctx, units, sync)
	}
	s.mu.Lock()
	broken := s.broken
	s.mu.Unlock()
	if broken != nil {
		// An end of the store or of the context is reported first; the backend knows it.
		if err := s.backend.Commit(ctx, nil, false); err != nil {
			return err
		}
		return broken
	}
	f := s.meet(Commit)
	if f == nil {
		return s.backend.Commit(ctx, units, sync)
	}
	if beforeWriting(f.Err) {
		return f.Err
	}
	s.mu.Lock()
	if s.broken == nil {
		s.broken = fmt.Errorf("%w: %w", store.ErrBroken, f.Err)
	}
	broken = s.broken
	s.mu.Unlock()
	if f.Applied {
		return errors.Join(broken, s.backend.Commit(ctx, units, sync))
	}
	return broken
}

// Read implements store.Log.
func (s *Store) Read(ctx context.Context, topic string, from uint64, limit, maxBytes int, batch *store.Batch) error {
	if err := s.enter(Read); err != nil {
		return err
	}
	return s.backend.Read(ctx, topic, from, limit, maxBytes, batch)
}

// Head implements store.Log.
func (s *Store) Head(ctx context.Context, topic string) (uint64, error) {
	if err := s.enter(Head); err != nil {
		return 0, err
	}
	return s.backend.Head(ctx, topic)
}

// Find implements store.Log.
func (s *Store) Find(ctx context.Context, topic, id string) (uint64, error) {
	if err := s.enter(Find); err != nil {
		return 0, err
	}
	return s.backend.Find(ctx, topic, id)
}

// SeekTime implements store.Log.
func (s *Store) SeekTime(ctx context.Context, topic string, ts int64) (uint64, error) {
	if err := s.enter(SeekTime); err != nil {
		return 0, err
	}
	return s.backend.SeekTime(ctx, topic, ts)
}

// Latest implements store.Log.
func (s *Store) Latest(ctx context.Context, topic, key string, at uint64) (store.Item, error) {
	if err := s.enter(Latest); err != nil {
		return store.Item{}, err
	}
	return s.backend.Latest(ctx, topic, key, at)
}

// ListTopics implements store.Topics.
func (s *Store) ListTopics(ctx context.Context, after string, limit int) ([]store.TopicInfo, error) {
	if err := s.enter(ListTopics); err != nil {
		return nil, err
	}
	return s.backend.ListTopics(ctx, after, limit)
}

// Topic implements store.Topics.
func (s *Store) Topic(ctx context.Context, name string) (store.TopicInfo, error) {
	if err := s.enter(Topic); err != nil {
		return store.TopicInfo{}, err
	}
	return s.backend.Topic(ctx, name)
}

// Lives implements store.Topics.
func (s *Store) Lives(ctx context.Context) (store.Lives, error) {
	if err := s.enter(Lives); err != nil {
		return store.Lives{}, err
	}
	return s.backend.Lives(ctx)
}

// Group implements store.Groups.
func (s *Store) Group(ctx context.Context, topic, group string) (store.GroupState, error) {
	if err := s.enter(Group); err != nil {
		return store.GroupState{}, err
	}
	return s.backend.Group(ctx, topic, group)
}

// GroupParts implements store.Groups.
func (s *Store) GroupParts(ctx context.Context, topic, group string) ([]store.GroupPart, error) {
	if err := s.enter(GroupParts); err != nil {
		return nil, err
	}
	return s.backend.GroupParts(ctx, topic, group)
}

// ListGroups implements store.Groups.
func (s *Store) ListGroups(ctx context.Context, topic string) ([]store.GroupInfo, error) {
	if err := s.enter(ListGroups); err != nil {
		return nil, err
	}
	return s.backend.ListGroups(ctx, topic)
}

// DeletedEpoch implements store.Groups.
func (s *Store) DeletedEpoch(ctx context.Context) (uint64, error) {
	if err := s.enter(DeletedEpoch); err != nil {
		return 0, err
	}
	return s.backend.DeletedEpoch(ctx)
}

// Size implements store.Maintenance.
func (s *Store) Size() (uint64, error) {
	if err := s.enter(Size); err != nil {
		return 0, err
	}
	return s.backend.Size()
}

// Space implements store.Maintenance.
func (s *Store) Space() (store.Space, error) {
	if err := s.enter(Space); err != nil {
		return store.Space{}, err
	}
	s.mu.Lock()
	room := s.space
	s.mu.Unlock()
	space, err := s.backend.Space()
	if err != nil || room == nil {
		return space, err
	}
	return room()
}

// Shrink implements store.Maintenance.
func (s *Store) Shrink(ctx context.Context) error {
	if err := s.enter(Shrink); err != nil {
		return err
	}
	return s.backend.Shrink(ctx)
}

// Capabilities implements store.Store.
func (s *Store) Capabilities() store.Capabilities { return s.backend.Capabilities() }

// Close implements store.Store.
func (s *Store) Close() error { return errors.Join(s.enter(Close), s.backend.Close()) }
