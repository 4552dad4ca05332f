// Package storefault is the one way to interfere with a store, for tests of what runs
// on one. It wraps any backend, counts what is asked of it, fails the calls that a test
// picks, calls the test before and after a call, which may hold it up there, hides
// events as if the log had let them go, and reports whatever room on the disk a test
// wants.
//
// It is deterministic: what fails is decided by the number of a call and nothing
// else, and it has no goroutine, clock or random choice of its own. With no fault
// put in it keeps the contract of package store as its backend does; with one it
// keeps what the contract says of failures, so a Commit that failed breaks the
// store.
//
// It is no store.Pipeline, whatever its backend is. So the tests of bus that hold up or
// fail one half of a commit (meter, interposed), and those that refuse single units by
// what is in them (picky, layer), have wrappers of their own; the test command of
// cmd/eventhub has one that knows of a commit whether the store broke before it.
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
	Commit        Op = "Commit"
	Read          Op = "Read"
	Head          Op = "Head"
	Find          Op = "Find"
	SeekTime      Op = "SeekTime"
	Latest        Op = "Latest"
	State         Op = "State"
	KeyEvents     Op = "KeyEvents"
	ListTopics    Op = "ListTopics"
	Topic         Op = "Topic"
	Lives         Op = "Lives"
	DeleteTopic   Op = "DeleteTopic"
	Sweep         Op = "Sweep"
	Group         Op = "Group"
	GroupParts    Op = "GroupParts"
	ListGroups    Op = "ListGroups"
	DeletedEpoch  Op = "DeletedEpoch"
	ListPatterns  Op = "ListPatterns"
	ListSettings  Op = "ListSettings"
	ListNotes     Op = "ListNotes"
	ListProducers Op = "ListProducers"
	Delayed       Op = "Delayed"
	FindDelayed   Op = "FindDelayed"
	Places        Op = "Places"
	Effects       Op = "Effects"
	Correlated    Op = "Correlated"
	Measure       Op = "Measure"
	Compact       Op = "Compact"
	IndexKeys     Op = "IndexKeys"
	Checkpoint    Op = "Checkpoint"
	Size          Op = "Size"
	Space         Op = "Space"
	Shrink        Op = "Shrink"
	Close         Op = "Close"

	TopicsIndexed Op = "TopicsIndexed"

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

// Call is one call of a store, with what its Op has of the following.
type Call struct {
	Op    Op
	Topic string        // of Read, Head, DeleteTopic and whatever else names one
	Units []*store.Unit // of Commit
	Sync  bool          // of Commit
	Batch *store.Batch  // of Read
	Err   error         // after the call
}

// Store is a store with faults. Its own methods, too, are safe for concurrent
// use.
type Store struct {
	backend store.Store

	mu     sync.Mutex
	calls  map[Op]int
	faults []*fault
	failed int
	broken error // what the first Commit that broke the store returned
	before map[Op]func(*Call) error
	after  map[Op]func(*Call)
	hidden map[string][]uint64
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
	return &Store{backend: backend, calls: make(map[Op]int), hidden: make(map[string][]uint64),
		before: make(map[Op]func(*Call) error), after: make(map[Op]func(*Call))}
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

// Before sets what is called at the beginning of each call of op from now on, on its
// goroutine; nil is nothing. The call is counted before it, waits until it returns, and
// meets faults after it. Where it returns an error, the call returns that and does nothing;
// unlike a fault that breaks no store.
func (s *Store) Before(op Op, hook func(*Call) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before[op] = hook
}

// After sets what is called at the end of each call of op from now on, on its goroutine,
// with what came of it; nil is nothing. The call returns when it does.
func (s *Store) After(op Op, hook func(*Call)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.after[op] = hook
}

// Hide sets the offsets of a topic that Read passes over from now on, as if the log had
// let go of them; none hides nothing.
func (s *Store) Hide(topic string, offsets ...uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hidden[topic] = offsets
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

// call counts a call, does it between its hooks, unless a fault or a hook fails it, and
// returns its error.
func (s *Store) call(c *Call, do func() error) error {
	s.mu.Lock()
	s.calls[c.Op]++
	before, after := s.before[c.Op], s.after[c.Op]
	s.mu.Unlock()
	if before != nil {
		c.Err = before(c)
	}
	if c.Err == nil {
		c.Err = do()
	}
	if after != nil {
		after(c)
	}
	return c.Err
}

// enter is call for a method that a fault keeps from its backend.
func (s *Store) enter(c Call, do func() error) error {
	return s.call(&c, func() error {
		if f := s.meet(c.Op); f != nil {
			return f.Err
		}
		return do()
	})
}

// beforeWriting reports whether a Commit's error says that nothing was written.
func beforeWriting(err error) bool {
	return slices.ContainsFunc([]error{context.Canceled, context.DeadlineExceeded, store.ErrClosed},
		func(target error) bool { return errors.Is(err, target) })
}

// Commit implements store.Log.
func (s *Store) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	return s.call(&Call{Op: Commit, Units: units, Sync: sync}, func() error { return s.commit(ctx, units, sync) })
}

func (s *Store) commit(ctx context.Context, units []*store.Unit, sync bool) error {
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
	return s.enter(Call{Op: Read, Topic: topic, Batch: batch}, func() error {
		s.mu.Lock()
		hidden := s.hidden[topic]
		s.mu.Unlock()
		if len(hidden) == 0 {
			return s.backend.Read(ctx, topic, from, limit, maxBytes, batch)
		}
		return s.readAround(ctx, topic, from, limit, maxBytes, batch, hidden)
	})
}

// readAround reads one event after the other, until there are enough that are not hidden.
func (s *Store) readAround(ctx context.Context, topic string, from uint64, limit, maxBytes int, batch *store.Batch, hidden []uint64) error {
	var one store.Batch
	for n, bytes := 0, 0; n < limit; {
		one.Reset()
		err := s.backend.Read(ctx, topic, from, 1, maxBytes, &one)
		batch.Horizon = one.Horizon
		if err != nil || len(one.Items) == 0 {
			return err
		}
		item := one.Items[0]
		from = item.Offset + 1
		if slices.Contains(hidden, item.Offset) {
			continue
		}
		if bytes += len(item.Record); n > 0 && bytes > maxBytes {
			return nil
		}
		batch.Add(item.Offset, item.Record)
		n++
	}
	return nil
}

// Head implements store.Log.
func (s *Store) Head(ctx context.Context, topic string) (n uint64, err error) {
	err = s.enter(Call{Op: Head, Topic: topic}, func() error {
		n, err = s.backend.Head(ctx, topic)
		return err
	})
	return n, err
}

// Find implements store.Log.
func (s *Store) Find(ctx context.Context, topic, id string) (n uint64, err error) {
	err = s.enter(Call{Op: Find, Topic: topic}, func() error {
		n, err = s.backend.Find(ctx, topic, id)
		return err
	})
	return n, err
}

// SeekTime implements store.Log.
func (s *Store) SeekTime(ctx context.Context, topic string, ts int64) (n uint64, err error) {
	err = s.enter(Call{Op: SeekTime, Topic: topic}, func() error {
		n, err = s.backend.SeekTime(ctx, topic, ts)
		return err
	})
	return n, err
}

// Latest implements store.Log.
func (s *Store) Latest(ctx context.Context, topic, key string, at uint64) (got store.Item, err error) {
	err = s.enter(Call{Op: Latest, Topic: topic}, func() error {
		got, err = s.backend.Latest(ctx, topic, key, at)
		return err
	})
	return got, err
}

// State implements store.Log.
func (s *Store) State(ctx context.Context, q store.StateQuery, batch *store.Batch) (page store.StatePage, err error) {
	err = s.enter(Call{Op: State, Topic: q.Topic}, func() error {
		page, err = s.backend.State(ctx, q, batch)
		return err
	})
	return page, err
}

// KeyEvents implements store.Log.
func (s *Store) KeyEvents(ctx context.Context, topic, key string, before uint64, limit, maxBytes int, batch *store.Batch) (next uint64, err error) {
	err = s.enter(Call{Op: KeyEvents, Topic: topic}, func() error {
		next, err = s.backend.KeyEvents(ctx, topic, key, before, limit, maxBytes, batch)
		return err
	})
	return next, err
}

// ListTopics implements store.Topics.
func (s *Store) ListTopics(ctx context.Context, after string, limit int) (got []store.TopicInfo, err error) {
	err = s.enter(Call{Op: ListTopics}, func() error {
		got, err = s.backend.ListTopics(ctx, after, limit)
		return err
	})
	return got, err
}

// Topic implements store.Topics.
func (s *Store) Topic(ctx context.Context, name string) (got store.TopicInfo, err error) {
	err = s.enter(Call{Op: Topic, Topic: name}, func() error {
		got, err = s.backend.Topic(ctx, name)
		return err
	})
	return got, err
}

// Lives implements store.Topics.
func (s *Store) Lives(ctx context.Context) (got store.Lives, err error) {
	err = s.enter(Call{Op: Lives}, func() error {
		got, err = s.backend.Lives(ctx)
		return err
	})
	return got, err
}

// Group implements store.Groups.
func (s *Store) Group(ctx context.Context, topic, group string) (got store.GroupState, err error) {
	err = s.enter(Call{Op: Group, Topic: topic}, func() error {
		got, err = s.backend.Group(ctx, topic, group)
		return err
	})
	return got, err
}

// GroupParts implements store.Groups.
func (s *Store) GroupParts(ctx context.Context, topic, group string) (got []store.GroupPart, err error) {
	err = s.enter(Call{Op: GroupParts, Topic: topic}, func() error {
		got, err = s.backend.GroupParts(ctx, topic, group)
		return err
	})
	return got, err
}

// ListGroups implements store.Groups.
func (s *Store) ListGroups(ctx context.Context, topic string) (got []store.GroupInfo, err error) {
	err = s.enter(Call{Op: ListGroups, Topic: topic}, func() error {
		got, err = s.backend.ListGroups(ctx, topic)
		return err
	})
	return got, err
}

// DeletedEpoch implements store.Groups.
func (s *Store) DeletedEpoch(ctx context.Context) (n uint64, err error) {
	err = s.enter(Call{Op: DeletedEpoch}, func() error {
		n, err = s.backend.DeletedEpoch(ctx)
		return err
	})
	return n, err
}

// Size implements store.Maintenance.
func (s *Store) Size() (n uint64, err error) {
	err = s.enter(Call{Op: Size}, func() error {
		n, err = s.backend.Size()
		return err
	})
	return n, err
}

// Space implements store.Maintenance.
func (s *Store) Space() (space store.Space, err error) {
	err = s.enter(Call{Op: Space}, func() error {
		s.mu.Lock()
		room := s.space
		s.mu.Unlock()
		space, err = s.backend.Space()
		if err == nil && room != nil {
			space, err = room()
		}
		return err
	})
	return space, err
}

// Shrink implements store.Maintenance.
func (s *Store) Shrink(ctx context.Context) error {
	return s.enter(Call{Op: Shrink}, func() error { return s.backend.Shrink(ctx) })
}

// Capabilities implements store.Store.
func (s *Store) Capabilities() store.Capabilities { return s.backend.Capabilities() }

// Close implements store.Store.
func (s *Store) Close() error {
	return s.call(&Call{Op: Close}, func() error {
		err := s.backend.Close()
		if f := s.meet(Close); f != nil {
			err = errors.Join(f.Err, err)
		}
		return err
	})
}
