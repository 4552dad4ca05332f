package client

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
	"sync"

	"eventhub"
	"eventhub/internal/record/layout"
)

// StateMap is the state by key of a topic, with payloads of one type, kept up to date: of each
// key the newest value, without the keys that have ended by the payload null. [State] makes one.
// Its methods are safe for concurrent use, also after its end: the values then stay as they are.
//
// Over lost connections and restarts of the hub the map goes on where it was, or is given the
// state anew: no key is missed, none stays that the topic has no more, and no key goes
// back to an older value, but where the newer one was erased, or lost by a hub that was restored.
// While there is no connection, it is what it was.
//
// It has an entry for each key in memory and, with OnChange, for each key whose change was not told yet.
type StateMap[T any] struct {
	topic  string
	sub    eventhub.Subscription
	change func(Change[T]) // nil: nobody wants to know
	filter *eventhub.Filter
	told   sync.WaitGroup // the goroutine that calls change

	mu      sync.RWMutex
	changed sync.Cond // on mu: what waiters wait for, and the goroutine that calls change
	entries map[string]entry[T]
	round   uint32 // of the state that came last, or is coming: entries of the state are of it
	offset  uint64
	loaded  bool
	ended   bool
	err     error
	owed    map[string]Change[T] // Old and Added of what is to be told, by key
	order   []string             // of owed
}

// entry is the value of a key.
type entry[T any] struct {
	value  T
	offset uint64
	id     uint64 // a hash of the event's: a hub that was restored gives offsets again
	round  uint32
}

// Change says that a key of a StateMap has another value. A callback that is slow is told of the
// newest one: those between the last that it was told and that are left out.
type Change[T any] struct {
	Key string
	// Old is the value before; the zero value where Added. New is the value; the zero value where
	// Removed.
	Old, New       T
	Added, Removed bool
	// Offset is that of the event with New; where Removed, one up to which the map was then.
	Offset uint64
	// Err says that the newest payload of the key is no T. The map does not have the key then.
	Err error
}

// StateOption changes what a StateMap has or tells.
type StateOption[T any] func(*StateMap[T])

// OnChange has f called for each change of a key, one after the other, also for each key that is
// there in the beginning. It runs on a goroutine of its own and may take its time. It must not
// call Close, which waits for it.
func OnChange[T any](f func(Change[T])) StateOption[T] {
	return func(m *StateMap[T]) { m.change = f }
}

// OnlyKeys limits the map to the keys that the pattern matches, which is that of
// eventhub.Filter.Key: one that ends in * is the beginning of what is wanted.
func OnlyKeys[T any](pattern string) StateOption[T] {
	return func(m *StateMap[T]) { m.filter = &eventhub.Filter{Key: pattern} }
}

// State returns the state by key of a topic as a map that is loaded, see
// [StateMap.WaitLoaded], and then kept up to date. hub is a *Client or a hub in this process; a
// client has at most one live tail of a topic, and this is one. It takes the right to subscribe
// to the topic and to read it. ctx bounds the call alone; Close ends the map.
func State[T any](ctx context.Context, hub eventhub.Subscriber, topic string, opts ...StateOption[T]) (*StateMap[T], error) {
	m := &StateMap[T]{topic: topic, entries: make(map[string]entry[T]), owed: make(map[string]Change[T])}
	m.changed.L = &m.mu
	for _, opt := range opts {
		opt(m)
	}
	sub, err := hub.Tail(ctx, eventhub.TailOptions{Topic: topic, Start: eventhub.Snapshot, Filter: m.filter, BatchSize: stateBatch}, m)
	if err != nil {
		return nil, fmt.Errorf("client: state of %s: %w", topic, err)
	}
	m.sub = sub
	if m.change != nil {
		m.told.Go(m.tell)
	}
	return m, nil
}

// stateBatch is how many events a map takes at once.
const stateBatch = 1000

// Get returns the value of a key, and whether it has one.
func (m *StateMap[T]) Get(key string) (T, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e, ok := m.entries[key]
	return e.value, ok
}

// All is a loop over the keys and their values as they are when it begins, in no order.
func (m *StateMap[T]) All() iter.Seq2[string, T] {
	return func(yield func(string, T) bool) {
		m.mu.RLock()
		entries := maps.Clone(m.entries) // the loop may take its time
		m.mu.RUnlock()
		for key, e := range entries {
			if !yield(key, e.value) {
				return
			}
		}
	}
}

// Len returns how many keys have a value.
func (m *StateMap[T]) Len() int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.entries)
}

// Offset returns the offset in the topic up to which the map has everything; 0 before it is loaded.
func (m *StateMap[T]) Offset() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.offset
}

// Err returns why the map is not kept up to date any more; nil while it is, and after Close.
func (m *StateMap[T]) Err() error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.err
}

// WaitLoaded waits until the map is the state of the topic, once. It returns the error of the
// map where that has ended before, and the cause of ctx.
func (m *StateMap[T]) WaitLoaded(ctx context.Context) error {
	return m.wait(ctx, func() bool { return m.loaded })
}

// WaitOffset waits until the map has everything up to an offset, such as that of a receipt. It
// returns as WaitLoaded does. With OnlyKeys it is the offset of an event that the map wants.
func (m *StateMap[T]) WaitOffset(ctx context.Context, offset uint64) error {
	return m.wait(ctx, func() bool { return m.loaded && m.offset >= offset })
}

func (m *StateMap[T]) wait(ctx context.Context, done func() bool) error {
	defer context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.changed.Broadcast()
	})()
	m.mu.Lock()
	defer m.mu.Unlock()
	for !done() {
		switch {
		case m.err != nil:
			return m.err
		case m.ended:
			return fmt.Errorf("client: state of %s: %w", m.topic, ErrClosed)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		m.changed.Wait()
	}
	return nil
}

// Close ends the map. The values stay; nothing is told any more when it returns. Closing twice is
// harmless.
func (m *StateMap[T]) Close() error {
	m.sub.Drop(0)
	m.end(nil)
	m.told.Wait()
	return nil
}

// end ends the map, once.
func (m *StateMap[T]) end(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ended {
		m.ended, m.err = true, err
		m.changed.Broadcast()
	}
}

// Ended implements eventhub.Receiver.
func (m *StateMap[T]) Ended(err error) { m.end(fmt.Errorf("client: state of %s: %w", m.topic, err)) }

// Deliver implements eventhub.Receiver.
func (m *StateMap[T]) Deliver(batch []eventhub.Delivery) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return len(batch)
	}
	for i := range batch {
		d := &batch[i]
		switch s := d.State; {
		case s == nil:
			m.put(d)
			m.offset = d.Offset
		case s.Horizon != 0:
			m.retain(func(e *entry[T]) bool { return e.offset >= s.Horizon })
		case s.Complete:
			if s.Count == 0 {
				m.round++
			}
			m.retain(func(e *entry[T]) bool { return e.round == m.round })
			m.loaded, m.offset = true, s.Offset
		default:
			if s.Snapshot != "" {
				m.round++
			}
			m.put(d)
		}
	}
	m.changed.Broadcast()
	return len(batch)
}

var idSeed = maphash.MakeSeed()

// put takes an event. m.mu is held, here and below.
func (m *StateMap[T]) put(d *eventhub.Delivery) {
	key := string(d.Record.Key())
	if key == "" {
		return
	}
	before, had := m.entries[key]
	e := entry[T]{offset: d.Offset, id: maphash.Bytes(idSeed, d.Record.ID()), round: m.round}
	if had && before.offset == e.offset && before.id == e.id {
		before.round = m.round // it came before
		m.entries[key] = before
		return
	}
	payload := layout.Payload(d.Record)
	if layout.IsTombstone(d.Record) {
		m.remove(key, &before, had, nil)
		return
	}
	if err := json.Unmarshal(payload, &e.value); err != nil {
		m.remove(key, &before, had, fmt.Errorf("client: payload at offset %d of %s, key %q: %w", d.Offset, d.Topic, key, err))
		return
	}
	m.entries[key] = e
	m.owe(key, &before, had, nil)
}

// remove takes a key off.
func (m *StateMap[T]) remove(key string, before *entry[T], had bool, err error) {
	delete(m.entries, key)
	if had || err != nil {
		m.owe(key, before, had, err)
	}
}

// retain takes the keys off whose entry is not to be kept.
func (m *StateMap[T]) retain(keep func(*entry[T]) bool) {
	for key, e := range m.entries {
		if !keep(&e) {
			m.remove(key, &e, true, nil)
		}
	}
}

// owe notes that a change of a key is to be told.
func (m *StateMap[T]) owe(key string, before *entry[T], had bool, err error) {
	if m.change == nil {
		return
	}
	c, owed := m.owed[key]
	if !owed {
		c = Change[T]{Key: key, Old: before.value, Added: !had}
		m.order = append(m.order, key)
	}
	c.Err = err
	m.owed[key] = c
}

// tell calls change until the map has ended.
func (m *StateMap[T]) tell() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		for len(m.order) == 0 && !m.ended {
			m.changed.Wait()
		}
		if m.ended {
			return
		}
		key := m.order[0]
		m.order = m.order[1:]
		c := m.owed[key]
		delete(m.owed, key)
		e, has := m.entries[key]
		c.New, c.Removed, c.Offset = e.value, !has, e.offset
		if !has {
			c.Offset = m.offset
		}
		if c.Added && c.Removed && c.Err == nil {
			continue // it came and went
		}
		m.mu.Unlock()
		m.change(c)
		m.mu.Lock()
	}
}
