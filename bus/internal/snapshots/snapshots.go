// Package snapshots writes the state of topics to their snapshot topics (eventhub.SnapshotTopic), where
// settings say so: from time to time, and after so many events.
//
// It owns when a snapshot is due, what the events of one are, and the notes in the store that say
// which snapshots there are (store.Notes). The settings are the bus's. The state is read from
// the index by key, or, where an expression says what the key of an event is, from the log (fold).
//
// # A snapshot
//
// Of each key one event with that key, in byte order, whose payload is a Row; then one without a key whose
// payload is a Marker. Both have the id of the snapshot. What has no marker is no snapshot: it was
// cut short, or is being written. So a reader takes the rows of one id, and as many as the marker says.
//
// # Invariants
//
//   - The rows of a snapshot are the state of the topic at Marker.Offset, as any other read of it has it.
//   - With the marker it is durable that the two newest snapshots are kept and what is before them is
//     not, and so is the note.
//   - No event that was erased is in a row: an erasure removes all snapshots of the topic in the same
//     commit, and what was read before is not written after it (job.Build).
//   - No snapshot is written while nothing has changed, and none without keys where there is no other.
//
// # Goroutines and locks
//
// One goroutine, from Start to Stop (package rounds), writes one snapshot at a time and rests while
// others commit. Committed runs on the committer's goroutine or its syncer; where no topic has
// snapshots it reads one atomic value. Runtime.mu is a leaf.
//
// The bus calls it. It reads the store and submits jobs to the committer.
package snapshots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/past"
	"eventhub/bus/internal/rounds"
	"eventhub/bus/internal/topiclog"
	"eventhub/store"
)

// Kept is how many snapshots of a topic are kept.
const Kept = 2

// every is the least time between two snapshots of a topic.
const every = time.Second

// Row is the payload of an event that has the value of one key.
type Row struct {
	Key     string          `json:"key"`
	Payload json.RawMessage `json:"payload"`
	// TS is that of the original, in epoch milliseconds; Offset and ID are its place and name.
	TS     int64  `json:"ts"`
	Offset uint64 `json:"offset"`
	ID     string `json:"id"`
	// EventKey is the original's own key, where that is another one.
	EventKey string `json:"event_key,omitempty"`
	Snapshot string `json:"snapshot"`
}

// Marker is the payload of the last event of a snapshot.
type Marker struct {
	Snapshot string `json:"snapshot"`
	// Offset is that in the topic of which the snapshot is the state, and TS is when it was read, in
	// epoch milliseconds.
	Offset uint64 `json:"offset"`
	TS     int64  `json:"ts"`
	// Count is the number of keys. First is the offset in the snapshot topic from which on its rows
	// are.
	Count uint64 `json:"count"`
	First uint64 `json:"first"`
}

// note is the note of a topic.
type note struct {
	Life uint64 `json:"life"` // of the topic
	Of   uint64 `json:"of"`   // the life of the snapshot topic
	Kept []made `json:"kept"` // the oldest first
	Keys uint64 `json:"keys"` // keysOf the settings that the newest one was made by
}

// made is a snapshot that was made.
type made struct {
	Marker
	// Least is the horizon that the topic had before it was read. What was removed meanwhile may be in
	// it.
	Least uint64 `json:"least"`
}

const notePrefix = "snapshots/"

// Policies say of which topics snapshots are made.
type Policies interface {
	// AnySnapshot reports whether they are made of some topic, there or not.
	AnySnapshot() bool
	// Snapshot returns when they are made of a topic, with the defaults; nil where they are not.
	Snapshot(topic string) *admin.Snapshot
}

// Store is what the runtime reads.
type Store interface {
	store.Log
	store.Topics
	store.Notes
}

// Options configure a Runtime. All are required.
type Options struct {
	Store     Store
	Committer *commit.Committer
	Logger    *slog.Logger
	Policies  Policies
	Logs      *topiclog.Logs
	// Walk is past.History.WalkKeys.
	Walk func(ctx context.Context, topic string, keys []string, at uint64, visit func([]store.Item) error) (past.Walked, error)
	// Wall is the wall clock, and Commits counts the commits so far.
	Wall    func() time.Time
	Commits func() uint64
	// Room refuses to write more where the disk is nearly full.
	Room func() error
}

// Runtime makes snapshots.
type Runtime struct {
	opts   Options
	rounds *rounds.Runtime
	folds  map[string]*fold // the goroutine's

	mu     sync.Mutex
	topics map[string]*entry
}

// entry is a topic of which there are snapshots.
type entry struct {
	note
	last     time.Time // when the newest one was made; the zero value where that is not known
	armed    bool      // a pass comes without Touch
	soon     bool      // what there was is gone, and not because its own settings do not keep it
	empty    uint64    // the head of the topic when it had no keys, and its snapshot topic no events
	emptyBy  uint64    // keysOf the settings then
	enoughAt uint64    // an event at or above it has the topic looked at, also where a pass comes anyway
	writing  *writing
	failed   string // why the last one was not made
}

// New reads what the store has, and returns a Runtime that does nothing before Start.
func New(opts Options) (*Runtime, error) {
	r := &Runtime{opts: opts, folds: make(map[string]*fold), topics: make(map[string]*entry)}
	notes, err := opts.Store.ListNotes(context.Background())
	if err != nil {
		return nil, store.Failed(err, "list the notes on snapshots")
	}
	now, wall := time.Now(), opts.Wall()
	for _, n := range notes {
		topic, ok := strings.CutPrefix(n.Name, notePrefix)
		if !ok {
			continue
		}
		e := &entry{}
		if err := json.Unmarshal(n.Value, &e.note); err != nil {
			return nil, eventhub.Wrap(eventhub.CodeInternal, err, "The note on the snapshots of topic %q cannot be read.", topic)
		}
		if newest := e.newest(); newest != nil {
			e.last = now.Add(-max(wall.Sub(time.UnixMilli(newest.TS)), 0))
		}
		r.topics[topic] = e
	}
	r.rounds = rounds.New(rounds.Options{
		Store: opts.Store, Logger: opts.Logger, What: "write a snapshot of", Every: every,
		Any: opts.Policies.AnySnapshot, Has: func(topic string) bool { return opts.Policies.Snapshot(topic) != nil }, Pass: r.pass,
	})
	return r, nil
}

// Start starts the goroutine, which looks at all topics first of which snapshots are made.
func (r *Runtime) Start() { r.rounds.Start() }

// Stop ends the goroutine, which was started, and returns when it has ended. A snapshot that is being
// written is cut short. The committer still runs.
func (r *Runtime) Stop() {
	r.rounds.Stop()
	for topic := range r.folds {
		r.unfold(topic)
	}
}

// Changed says that the settings of a name, a topic's or a pattern, have changed. It does not block.
func (r *Runtime) Changed(name string) {
	r.mu.Lock()
	for topic, e := range r.topics {
		if topic == name || eventhub.IsPattern(name) {
			e.armed = false
		}
	}
	r.mu.Unlock()
	r.rounds.Changed(name)
}

// Forget forgets a topic that was deleted. Its snapshots are a topic of their own, and stay. Where that one
// was deleted there is another one soon.
func (r *Runtime) Forget(topic string) {
	r.rounds.Forget(topic)
	if of := eventhub.SourceTopic(topic); topic == eventhub.SnapshotTopic(of) {
		r.replace(of)
		r.rounds.Touch(of)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.topics, topic)
}

// Committed takes note of what a commit has added and removed.
func (r *Runtime) Committed(units []*store.Unit) {
	if !r.rounds.On() {
		return
	}
	last := ""
	for _, u := range units {
		if u.Err != nil {
			continue
		}
		for i := range u.Appends {
			// Of a run of one topic the last one has the highest offset.
			if a := &u.Appends[i]; i+1 == len(u.Appends) || u.Appends[i+1].Topic != a.Topic {
				r.added(a, &last)
			}
		}
		for i := range u.Topics {
			if ch := &u.Topics[i]; ch.Removes() {
				r.removed(ch)
			}
		}
	}
}

// added has the topic of an event looked at, unless that is due anyway. last is the topic that was looked at
// before it.
func (r *Runtime) added(a *store.Append, last *string) {
	if *last == a.Topic {
		return
	}
	r.mu.Lock()
	e := r.topics[a.Topic]
	idle := e != nil && e.armed && a.Offset < e.enoughAt
	r.mu.Unlock()
	if idle {
		return
	}
	*last = a.Topic
	r.rounds.Touch(a.Topic)
}

// removed has a topic looked at of which events, or snapshots, were removed.
func (r *Runtime) removed(ch *store.TopicChange) {
	topic := eventhub.SourceTopic(ch.Topic)
	if ch.Topic != eventhub.SnapshotTopic(topic) {
		topic = ch.Topic
	}
	// An erasure has emptied the snapshot topic, or its event has hidden an earlier one of the key.
	if ch.Topic != topic && ch.Horizon == eventhub.MaxOffset || ch.Topic == topic && len(ch.Erase) > 0 {
		r.replace(topic)
	}
	r.rounds.Touch(topic)
}

// replace has the next snapshot of a topic made as soon as it is looked at.
func (r *Runtime) replace(topic string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.topics[topic]; e != nil {
		e.soon, e.armed, e.empty = true, false, 0
	}
}

func (n *note) newest() *made {
	if len(n.Kept) == 0 {
		return nil
	}
	return &n.Kept[len(n.Kept)-1]
}

// Status is what is said of the snapshots of a topic.
type Status struct {
	Kept    []Marker // the newest first
	Next    time.Duration
	Pending bool // there will be one after Next, where nothing else changes
	Writing bool
	Failed  string
}

// Status says which snapshots of a topic there are. Errors are the store's.
func (r *Runtime) Status(ctx context.Context, topic string) (s Status, err error) {
	info, err := r.opts.Store.Topic(ctx, topic)
	if err != nil {
		return s, err
	}
	of, err := r.of(ctx, topic)
	if err != nil {
		return s, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.topics[topic]
	if e == nil {
		e = &entry{}
	}
	kept := e.thatAre(info.Life, of)
	s.Writing, s.Failed = e.writing != nil, e.failed
	if s.Failed == "" && len(kept) == 0 && e.newest() != nil && e.Life == info.Life && !e.soon {
		s.Failed = fmt.Sprintf("the last one was removed from topic %q: its own settings do not keep as much, or somebody has trimmed it", eventhub.SnapshotTopic(topic))
	}
	for _, m := range slices.Backward(kept) {
		s.Kept = append(s.Kept, m.Marker)
	}
	if policy := r.opts.Policies.Snapshot(topic); policy != nil {
		s.Next, s.Pending = e.until(time.Now(), &info, of, policy)
	}
	return s, nil
}

// of returns what there is of the snapshot topic of a topic; its zero value where there is none.
func (r *Runtime) of(ctx context.Context, topic string) (store.TopicInfo, error) {
	info, err := r.opts.Store.Topic(ctx, eventhub.SnapshotTopic(topic))
	if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	return info, err
}

// thatAre returns the snapshots of that life of the topic that are whole in the snapshot topic.
func (n *note) thatAre(life uint64, of store.TopicInfo) []made {
	if n.Life != life || n.Of != of.Life {
		return nil
	}
	kept := n.Kept
	for len(kept) > 0 && kept[0].First < of.Horizon {
		kept = kept[1:]
	}
	return kept
}

// until returns how long it takes until the next snapshot is due, which may be long ago; pending is
// false where there is none.
func (e *entry) until(now time.Time, info *store.TopicInfo, of store.TopicInfo, policy *admin.Snapshot) (wait time.Duration, pending bool) {
	kept := e.thatAre(info.Life, of)
	if len(kept) == 0 {
		if e.newest() != nil && e.Life == info.Life && !e.soon {
			wait = e.last.Add(time.Duration(policy.Every)).Sub(now)
		}
		return wait, info.Head > e.empty || of.Horizon <= of.Head && of.Head > 0 || keysOf(policy) != e.emptyBy
	}
	newest := kept[len(kept)-1]
	changes := info.Head - min(info.Head, newest.Offset)
	isOther := info.Horizon > kept[0].Least || keysOf(policy) != e.Keys
	switch {
	case changes == 0 && !isOther:
		return 0, false
	case policy.Changes != 0 && changes >= policy.Changes:
		return e.last.Add(every).Sub(now), true
	case !isOther && changes < newest.Count/100:
		return e.last.Add(admin.SnapshotSkips * time.Duration(policy.Every)).Sub(now), true
	}
	return e.last.Add(time.Duration(policy.Every)).Sub(now), true
}

// enough returns the offset of the event after head with which the next snapshot is due sooner; the
// highest there is where none is.
func (n *note) enough(head uint64, policy *admin.Snapshot) uint64 {
	least := uint64(math.MaxUint64)
	if newest := n.newest(); newest != nil {
		for _, changes := range []uint64{newest.Count / 100, policy.Changes} {
			if at := newest.Offset + changes; at > head {
				least = min(least, at)
			}
		}
	}
	return least
}

// keysOf stands for the keys that a snapshot has by its settings.
func keysOf(policy *admin.Snapshot) uint64 {
	h := fnv.New64a()
	for _, text := range append([]string{policy.KeySource}, policy.BatchKeys...) {
		_, _ = io.WriteString(h, text+"\x00")
	}
	return h.Sum64()
}

// pass makes a snapshot of a topic where it is due.
func (r *Runtime) pass(ctx context.Context, topic string) (again time.Duration, err error) {
	policy := r.opts.Policies.Snapshot(topic)
	if policy == nil {
		r.unfold(topic)
		return 0, nil
	}
	info, err := r.opts.Store.Topic(ctx, topic)
	if err != nil {
		r.unfold(topic)
		return 0, err
	}
	of, err := r.of(ctx, topic)
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	e := r.topics[topic]
	if e == nil {
		e = &entry{}
		r.topics[strings.Clone(topic)] = e
	}
	e.enoughAt = e.enough(info.Head, policy)
	wait, pending := e.until(time.Now(), &info, of, policy)
	e.armed = pending
	if !pending || wait > 0 {
		r.mu.Unlock()
		return max(wait, 0), nil
	}
	w := &writing{runtime: r, topic: topic, policy: policy, info: info, of: of, least: info.LastTime, ended: make(chan struct{})}
	if newest := e.newest(); newest != nil {
		w.least = max(w.least, newest.TS)
	}
	e.writing, e.soon = w, false
	r.mu.Unlock()
	err = w.run(ctx)
	if err != nil && w.begun {
		if lost := w.discard(ctx); lost != nil && ctx.Err() == nil {
			r.opts.Logger.Warn("what there is of a snapshot that was not completed stays until there are two others", "topic", topic, "error", lost)
		}
	}
	return r.end(e, w, err)
}

// CutShort ends a snapshot of a topic that is being written, and returns when nothing of it is written
// any more. There is another one soon.
func (r *Runtime) CutShort(ctx context.Context, topic string) error {
	r.mu.Lock()
	var w *writing
	if e := r.topics[topic]; e != nil && e.writing != nil {
		w = e.writing
		w.isVoid = true
	}
	r.mu.Unlock()
	if w == nil {
		return nil
	}
	select {
	case <-w.ended:
		return nil
	case <-ctx.Done():
		return eventhub.AsError(ctx.Err())
	}
}

// end takes note of how a snapshot has ended.
func (r *Runtime) end(e *entry, w *writing, err error) (again time.Duration, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(w.ended)
	e.writing, e.armed = nil, false
	switch {
	case errors.Is(err, errErased):
		e.soon = true
		return every, nil // from what there is now
	case errors.Is(err, errMoved):
		e.failed = "events were removed faster than the snapshot could be written"
		return time.Duration(w.policy.Every), nil
	case err != nil:
		e.failed = eventhub.AsError(err).Message
		return 0, err
	}
	if w.isNothing {
		if e.soon { // something was erased meanwhile
			return every, nil
		}
		e.empty, e.emptyBy, e.failed = w.marker.Offset, keysOf(w.policy), ""
		return every, nil
	}
	e.note, e.last, e.failed = w.note, time.Now(), ""
	r.opts.Logger.Debug("wrote a snapshot", "topic", w.topic, "offset", w.marker.Offset, "keys", w.marker.Count)
	return every, nil // there may be more
}
