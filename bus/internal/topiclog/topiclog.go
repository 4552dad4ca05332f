// Package topiclog knows of each topic that is read how far its log goes, holds its
// newest events in memory, and wakes who reads it. Topics that nobody reads have no log
// here, whatever is published to them.
//
// It owns the durable heads as the committer last left them, the tail cache with its
// bound, and the lists of who is woken. All that it knows of what it wakes is that it is a
// Watcher: groups and the shards of live tails are.
//
// # Invariants
//
//   - A log holds every event of its topic with an offset above its gap and up to its
//     head, and none that was removed. What is at or below the gap is read from the store.
//   - A head never falls, and is never above what is durable: only Committed moves it,
//     except for the first one, which is the store's (Learn).
//   - A watcher is woken after the head has moved. Whoever reads the head and finds
//     nothing new is woken for what comes later.
//   - All logs together hold no more bytes of records than New allowed, except while
//     Committed adds to them: what came first goes first.
//
// # Goroutines and locks
//
// Committed and Forget run on the committer's goroutine or, for commits that are
// pipelined, on the syncer's, never on both at once; the bound of the cache is theirs.
// Everything else may be called from anywhere. Logs.mu comes before Log.mu, and neither
// is held while a watcher is woken, so callers may hold any lock of theirs that Wake does
// not take.
//
// The bus calls it, for groups, and so do live tails. It imports the commit
// pipeline, since a commit's jobs are what it is handed, and the store's types.
package topiclog

import (
	"bytes"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"eventhub/store"
)

// Watcher is woken when a topic has new events. Wake must not block.
type Watcher interface{ Wake() }

// Log is what is known of one topic.
type Log struct {
	topic string
	users int // guarded by Logs.mu

	removals atomic.Uint64
	erasures atomic.Uint64

	mu       sync.Mutex
	head     uint64
	gap      uint64
	tail     []store.Item
	known    bool // head has been the store's once, so the log gets all that follows
	watchers []Watcher
}

// Topic returns the topic's name.
func (l *Log) Topic() string { return l.topic }

// Removals returns how many commits have removed events of the topic, or have let compaction
// remove them, which is more when it was deleted. Whoever asks before reading an event, and finds the number changed, may have read
// what is gone.
func (l *Log) Removals() uint64 { return l.removals.Load() }

// Erasures is more when a commit was built that erases single events of the topic, when it is over, and when
// the topic was deleted. Whoever asks before reading events, and finds the number changed when a commit is built,
// does not write what was read.
func (l *Log) Erasures() uint64 { return l.erasures.Load() }

// Learn takes over the store's head, where the log does not know it yet, and returns its
// own. The store has to be asked after Logs.Use: commits that came earlier are in its
// head then, and the log is notified of later ones.
//
// Only the first one counts: the committer may be about to report the commit that made
// this head, and what the log releases for a head without events others may want to read.
func (l *Log) Learn(head uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.known {
		l.known = true
		l.raise(head)
	}
	return l.head
}

// Watch adds a watcher, once the log knows its head (Learn). It is woken for everything
// that comes above the head which the log has when Watch returns.
func (l *Log) Watch(w Watcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watchers = append(l.watchers, w)
}

// Unwatch takes a watcher off, if it is there. It may be woken once more.
func (l *Log) Unwatch(w Watcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.watchers, w); i >= 0 {
		// A copy: the committer reads what add has returned.
		l.watchers = append(l.watchers[:i:i], l.watchers[i+1:]...)
	}
}

// Head returns the highest offset that is durable, as far as the log was notified.
func (l *Log) Head() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head
}

// Read appends the events from offset from on, up to limit, to items. ok is false where
// the log does not know: it does not reach back to from, or not up to it. The store shows a
// commit before the committer has reported it, so a reader may know an event above the
// head, and must not take it for gone.
func (l *Log) Read(items []store.Item, from uint64, limit int) (_ []store.Item, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if from <= l.gap || from > l.head {
		return items, false
	}
	first := l.search(from)
	return append(items, l.tail[first:min(first+limit, len(l.tail))]...), true
}

// search returns the index of the first event at or above offset. l.mu is held.
func (l *Log) search(offset uint64) int {
	return sort.Search(len(l.tail), func(i int) bool { return l.tail[i].Offset >= offset })
}

// raise moves the head without events for the tail. l.mu is held.
func (l *Log) raise(head uint64) {
	if head > l.head {
		l.head, l.gap = head, head
		l.tail = nil
	}
}

func (l *Log) watched() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.watchers) > 0
}

// add takes committed events and returns how many bytes of them it keeps, the last of
// them, and whom to wake. Without any watcher it keeps nothing. With own it keeps copies.
func (l *Log) add(appends []store.Append, own bool) (kept int, last uint64, watchers []Watcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range appends {
		a := &appends[i]
		if a.Duplicate || a.Offset <= l.head {
			continue
		}
		if len(l.watchers) == 0 {
			l.raise(a.Offset)
			continue
		}
		l.head = a.Offset
		record := a.Record
		if own {
			record = bytes.Clone(record)
		}
		l.tail = append(l.tail, store.Item{Offset: a.Offset, Record: record})
		kept += len(a.Record)
	}
	return kept, l.head, l.watchers
}

// forget releases the tail up to and including offset.
func (l *Log) forget(offset uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset <= l.gap {
		return
	}
	n := l.search(offset + 1)
	clear(l.tail[:n])
	l.tail = l.tail[n:]
	l.gap = offset
}

// remove releases the events below an offset, and those at single offsets, which a commit has
// removed. What compaction may remove below its mark counts as removed: an erasure does not find
// it any more, so nobody may still have it from here.
func (l *Log) remove(below uint64, erased []uint64) {
	defer l.removals.Add(1) // when the log has it no longer
	if len(erased) > 0 {
		l.erasures.Add(1)
	}
	if below > 0 {
		l.forget(min(below-1, l.Head()))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, offset := range erased {
		if i := l.search(offset); i < len(l.tail) && l.tail[i].Offset == offset {
			l.tail = slices.Delete(l.tail, i, i+1)
		}
	}
}

// held returns how many bytes of records the log holds.
func (l *Log) held() (bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, item := range l.tail {
		bytes += len(item.Record)
	}
	return bytes
}
