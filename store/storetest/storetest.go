// Package storetest is the contract of package store as tests. Each backend
// runs it; a duty that is written there and has no test here is not a duty.
//
// What a backend can not do it says in its Capabilities; the suite looks there,
// and nowhere else, and tests what follows from either value.
package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/internal/record"
	"eventhub/internal/record/layout"
	"eventhub/store"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Options are what the suite wants a store opened with.
type Options struct {
	Now       func() time.Time
	MaxTopics int // 0: no bound
}

// Backend is one place for data.
type Backend struct {
	// Open opens the store there, for the first time on no data. The suite
	// closes it. Opened again after a Close, a store with
	// Capabilities.Persistent has what was committed, any other one nothing.
	Open func(Options) (store.Store, error)

	// HoldSync makes the next synced Commit stop short of durable: reached is
	// closed when it has done all but that, and it goes on after release. A
	// backend whose Durability is "sync" needs it; others may leave it nil.
	HoldSync func() (reached <-chan struct{}, release func())

	// Copy names a place for a checkpoint, which does not exist yet, and opens the
	// store there. A backend whose stores are persistent needs it; others leave it nil.
	Copy func() (dir string, open func(Options) (store.Store, error))

	// OneClock: no commit has an earlier time than one before it, in whatever topic, also
	// where the clock goes back.
	OneClock bool
}

// Factory returns a new place without data.
type Factory func(t testing.TB) Backend

// Run tests a backend: all groups of tests, or those that are named.
func Run(t *testing.T, factory Factory, only ...string) {
	for _, group := range []struct {
		name  string
		tests []test
	}{
		{"Offsets", offsetTests},
		{"Units", unitTests},
		{"Dedupe", dedupeTests},
		{"Expect", expectTests},
		{"Time", timeTests},
		{"Read", readTests},
		{"Latest", latestTests},
		{"State", stateTests},
		{"KeyEvents", keyEventTests},
		{"Groups", groupTests},
		{"Parts", partTests},
		{"Delays", delayedTests},
		{"Patterns", patternTests},
		{"Settings", settingTests},
		{"Notes", noteTests},
		{"Producers", producerTests},
		{"Links", linkTests},
		{"Keep", keepTests},
		{"Checkpoint", checkpointTests},
		{"Topics", topicTests},
		{"DeleteTopic", deleteTopicTests},
		{"Lives", lifeTests},
		{"Removal", removalTests},
		{"Compaction", compactionTests},
		{"Visibility", visibilityTests},
		{"Concurrency", concurrencyTests},
		{"Lifecycle", lifecycleTests},
		{"Index", indexTests},
	} {
		if len(only) > 0 && !slices.Contains(only, group.name) {
			continue
		}
		t.Run(group.name, func(t *testing.T) {
			for _, tt := range group.tests {
				t.Run(tt.name, func(t *testing.T) { tt.run(t, open(t, factory, tt.options)) })
			}
		})
	}
	if len(only) > 0 {
		return
	}
	// What reads the key index, once more, where topics have it from their beginning.
	t.Run("IndexedFirst", func(t *testing.T) {
		for _, tt := range slices.Concat(latestTests, stateTests, removalTests, compactionTests) {
			t.Run(tt.name, func(t *testing.T) {
				s := open(t, factory, tt.options)
				s.eager = true
				tt.run(t, s)
			})
		}
	})
	t.Run("Model", func(t *testing.T) { testModel(t, factory) })
}

type test struct {
	name    string
	options Options // Now is the suite's
	run     func(t *testing.T, s *env)
}

// env is an open store with the clock it runs on.
type env struct {
	store.Store
	backend Backend
	options Options
	clock   *clock
	// eager: the index of a topic is started as soon as it is there; else when it is read.
	eager bool
}

// startTime is what the clock of a test shows first, in epoch milliseconds.
const startTime = 1_723_140_000_000

// clock is a clock that moves only when a test moves it.
type clock struct {
	mu sync.Mutex
	ms int64
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.UnixMilli(c.ms)
}

// set moves the clock to startTime+ms, which may be backwards.
func (c *clock) set(ms int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ms = startTime + ms
}

// failer is what testing.T and rapid.T have in common.
type failer interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

func open(t testing.TB, factory Factory, options Options) *env {
	t.Helper()
	s := &env{backend: factory(t), options: options, clock: &clock{ms: startTime}}
	s.options.Now = s.clock.now
	s.open(t)
	t.Cleanup(func() { s.close(t) })
	return s
}

func (s *env) open(t failer) {
	t.Helper()
	var err error
	if s.Store, err = s.backend.Open(s.options); err != nil {
		t.Fatalf("open: %v", err)
	}
}

func (s *env) close(t failer) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// reopen closes the store and opens it on the same data.
func (s *env) reopen(t failer) {
	t.Helper()
	s.close(t)
	s.open(t)
}

// commit commits the units with sync and fails the test on an error.
func (s *env) commit(t failer, units ...*store.Unit) {
	t.Helper()
	if err := s.Commit(context.Background(), units, true); err != nil {
		t.Fatalf("Commit: %v", err)
	}
}

// add commits one unit of appends, which must not be refused, and returns them
// with their results.
func (s *env) add(t failer, appends ...store.Append) []store.Append {
	t.Helper()
	u := unit(appends...)
	s.commit(t, u)
	if u.Err != nil {
		t.Fatalf("a unit of %d appends was refused: %v", len(appends), u.Err)
	}
	return u.Appends
}

func unit(appends ...store.Append) *store.Unit { return &store.Unit{Appends: appends} }

// given is an append whose id came from outside.
func given(topic, id string) store.Append { return newAppend(topic, id, "", 0) }

// keyed is given with a key.
func keyed(topic, id, key string) store.Append { return newAppend(topic, id, key, 0) }

// made is an append whose id the store is to make.
func made(topic string) store.Append {
	a := newAppend(topic, layout.IDRoom, "", 0)
	a.ID, a.NewID = "", true
	return a
}

// newAppend builds an append whose payload has its id; ts is the publisher's
// own time, or 0.
func newAppend(topic, id, key string, ts int64) store.Append {
	payload, err := json.Marshal("payload of " + id)
	if err != nil {
		panic(err)
	}
	bytes, err := record.Append(nil, &eventhub.Event{Topic: topic, ID: id, Key: key, TS: ts, Payload: payload})
	if err != nil {
		panic(err)
	}
	return store.Append{Topic: topic, ID: id, Key: key, Record: bytes}
}

func create(topic, group string, s store.GroupState) store.GroupChange {
	return store.GroupChange{Topic: topic, Group: group, Create: true, State: s}
}

func update(topic, group string, s store.GroupState) store.GroupChange {
	return store.GroupChange{Topic: topic, Group: group, State: s}
}

// row is an event as the tests compare it.
type row struct {
	Offset uint64
	Record string
}

func rowOf(a store.Append) row { return row{a.Offset, string(a.Record)} }

func rowsOf(appends []store.Append) []row {
	var rows []row
	for _, a := range appends {
		rows = append(rows, rowOf(a))
	}
	return rows
}

const noLimit = 1 << 30

// readFrom reads with the given bounds into a batch of its own.
func (s *env) readFrom(t failer, topic string, from uint64, limit, maxBytes int) []row {
	t.Helper()
	var b store.Batch
	if err := s.Read(context.Background(), topic, from, limit, maxBytes, &b); err != nil {
		t.Fatalf("Read(%q, %d, %d, %d): %v", topic, from, limit, maxBytes, err)
	}
	return batchRows(&b)
}

func batchRows(b *store.Batch) []row {
	var rows []row
	for _, item := range b.Items {
		rows = append(rows, row{item.Offset, string(item.Record)})
	}
	return rows
}

func (s *env) readAll(t failer, topic string) []row {
	t.Helper()
	return s.readFrom(t, topic, 0, noLimit, noLimit)
}

func (s *env) head(t failer, topic string) uint64 {
	t.Helper()
	head, err := s.Head(context.Background(), topic)
	if err != nil {
		t.Fatalf("Head(%q): %v", topic, err)
	}
	return head
}

// find returns 0 for an id that is not there.
func (s *env) find(t failer, topic, id string) uint64 {
	t.Helper()
	offset, err := s.Find(context.Background(), topic, id)
	notFound(t, err, fmt.Sprintf("Find(%q, %q)", topic, id))
	return offset
}

// latest returns the zero row where there is none.
func (s *env) latest(t failer, topic, key string, at uint64) row {
	t.Helper()
	item, err := s.Latest(context.Background(), topic, key, at)
	notFound(t, err, fmt.Sprintf("Latest(%q, %q, %d)", topic, key, at))
	return row{item.Offset, string(item.Record)}
}

func (s *env) seekTime(t failer, topic string, ts int64) uint64 {
	t.Helper()
	offset, err := s.SeekTime(context.Background(), topic, ts)
	if err != nil {
		t.Fatalf("SeekTime(%q, %d): %v", topic, ts, err)
	}
	return offset
}

// group returns nil for a group that is not there.
func (s *env) group(t failer, topic, group string) *store.GroupState {
	t.Helper()
	state, err := s.Group(context.Background(), topic, group)
	if notFound(t, err, fmt.Sprintf("Group(%q, %q)", topic, group)) {
		return nil
	}
	return &state
}

func (s *env) listGroups(t failer, topic string) []store.GroupInfo {
	t.Helper()
	list, err := s.ListGroups(context.Background(), topic)
	if err != nil {
		t.Fatalf("ListGroups(%q): %v", topic, err)
	}
	return list
}

// listTopics returns the names and heads of the topics.
func (s *env) listTopics(t failer, after string, limit int) []store.TopicInfo {
	t.Helper()
	list := s.topicInfos(t, after, limit)
	for i := range list {
		list[i].Horizon, list[i].LastTime = 0, 0
	}
	return list
}

// topicInfos also holds Topic to what the list says.
func (s *env) topicInfos(t failer, after string, limit int) []store.TopicInfo {
	t.Helper()
	list, err := s.ListTopics(context.Background(), after, limit)
	if err != nil {
		t.Fatalf("ListTopics(%q, %d): %v", after, limit, err)
	}
	for i, info := range list {
		one, err := s.Topic(context.Background(), info.Name)
		if err != nil || one != info || info.Life == 0 {
			t.Errorf("Topic(%q) = %+v, %v; the list has %+v", info.Name, one, err, info)
		}
		list[i].Life, list[i].Index = 0, 0 // testLives and the tests of the index look at these
	}
	if _, err := s.Topic(context.Background(), after+"!"); !notFound(t, err, "Topic") {
		t.Errorf("Topic finds %q, which nobody made", after+"!")
	}
	return list
}

// same fails the test unless got is want; an empty list equals none.
func same(t failer, what string, want, got any) {
	if reflect.DeepEqual(want, got) { // the usual case, and much the cheaper one
		return
	}
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", what, diff)
	}
}
