package snapshots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/publish"
	"eventhub/bus/internal/rounds"
	"eventhub/bus/internal/topiclog"
	"eventhub/internal/eventid"
	"eventhub/internal/strictjson"
	"eventhub/store"
)

// The bounds of a piece, which is one unit.
const (
	pieceRows  = 1000
	pieceBytes = 1 << 20
)

// politeRest is for how many times the length of a piece the writing rests after it, where others commit.
const politeRest = 4

var (
	// errErased says that events were erased since they were read.
	errErased = errors.New("snapshots: events were erased meanwhile")
	// errMoved says that the state at the offset of the snapshot is not known any more.
	errMoved = errors.New("snapshots: the state has moved on meanwhile")
)

// writing is one snapshot that is being written.
type writing struct {
	runtime  *Runtime
	topic    string
	policy   *admin.Snapshot
	info, of store.TopicInfo // as they were before
	// least is the time of the last event, or of the snapshot before: they may have that of a clock that was ahead, and the
	// snapshot is not older.
	least    int64
	log      *topiclog.Log
	erasures uint64
	isVoid   bool          // it is to end; guarded by Runtime.mu
	ended    chan struct{} // closed when it has ended

	marker Marker
	life   uint64 // of the snapshot topic, as of the first rows
	note   note   // with the snapshot
	rows   publish.Events
	count  int  // in rows
	begun  bool // some rows are committed
	// isNothing: there are no keys, and the snapshot topic has no other ones.
	isNothing bool
	began     time.Time
	commits   uint64
}

// run writes the snapshot.
func (w *writing) run(ctx context.Context) error {
	if err := w.runtime.opts.Room(); err != nil {
		return err
	}
	w.log = w.runtime.opts.Logs.Use(w.topic)
	defer w.runtime.opts.Logs.Leave(w.log)
	w.erasures = w.log.Erasures()
	w.began, w.commits = time.Now(), w.runtime.opts.Commits()
	w.marker = Marker{Snapshot: eventid.New(), TS: max(w.runtime.opts.Wall().UnixMilli(), w.least), First: w.of.Head + 1}
	err := w.state(ctx)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrGone):
		return err
	case eventhub.ErrorCode(err) == eventhub.CodeGone:
		return errMoved
	case err != nil:
		return err
	}
	if w.count > 0 {
		if err := w.flush(ctx); err != nil {
			return err
		}
	}
	return w.end(ctx)
}

// state writes the rows, and notes of which offset they are.
func (w *writing) state(ctx context.Context) error {
	if w.policy.KeySource != "" {
		return w.folded(ctx)
	}
	walked, err := w.runtime.opts.Walk(ctx, w.topic, w.policy.BatchKeys, 0, func(items []store.Item) error {
		for i := range items {
			if err := w.add(ctx, string(items[i].Record.Key()), &items[i]); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case walked.Life != w.info.Life:
		return store.ErrGone
	}
	w.marker.Offset = walked.At
	return nil
}

// add writes the row of a key.
func (w *writing) add(ctx context.Context, key string, item *store.Item) error {
	original, err := item.Record.Event(item.Offset)
	if err != nil {
		return err
	}
	payload := strictjson.AppendString([]byte(`{"key":`), key)
	payload = append(append(payload, `,"payload":`...), original.Payload...)
	payload = fmt.Appendf(payload, `,"ts":%d,"offset":%d,"id":`, original.TS, item.Offset)
	payload = strictjson.AppendString(payload, original.ID)
	if original.Key != "" && original.Key != key {
		payload = strictjson.AppendString(append(payload, `,"event_key":`...), original.Key)
	}
	payload = append(strictjson.AppendString(append(payload, `,"snapshot":`...), w.marker.Snapshot), '}')
	if err := w.rows.AddMade(&eventhub.Event{Topic: eventhub.SnapshotTopic(w.topic), Key: key, Payload: payload}); err != nil {
		return err
	}
	w.marker.Count++
	if w.count++; w.count >= pieceRows || w.rows.Bytes() >= pieceBytes {
		return w.flush(ctx)
	}
	return nil
}

// flush commits the rows that were added, and rests where others commit.
func (w *writing) flush(ctx context.Context) error {
	unit, bytes := w.rows.Unit(), w.rows.Bytes()
	w.rows, w.count = publish.Events{}, 0
	first, err := w.commit(ctx, unit, bytes, false)
	if err != nil {
		return err
	}
	if !w.begun {
		w.begun, w.marker.First = true, first
		of, err := w.runtime.of(ctx, w.topic)
		if err != nil {
			return err
		}
		if w.life = of.Life; w.life == 0 {
			return errErased
		}
	}
	before := w.commits + 1 // its own
	if w.commits = w.runtime.opts.Commits(); w.commits > before {
		if err := rounds.Rest(ctx, w.began, politeRest); err != nil {
			return err
		}
	}
	w.began = time.Now()
	return w.runtime.opts.Room()
}

// end commits the marker, with which the snapshot is one, and what is before the two newest is gone.
func (w *writing) end(ctx context.Context) error {
	of, err := w.runtime.of(ctx, w.topic)
	if err != nil {
		return err
	}
	switch {
	case w.begun && of.Life != w.life || !w.begun && of.Life != w.of.Life:
		return errErased // somebody has deleted it
	case !w.begun && (of.Life == 0 || of.Horizon > of.Head):
		w.isNothing = true
		return nil
	}
	payload, err := json.Marshal(&w.marker)
	if err != nil {
		return err
	}
	var events publish.Events
	if err := events.AddMade(&eventhub.Event{Topic: eventhub.SnapshotTopic(w.topic), Payload: payload, Tags: []string{MarkerTag}}); err != nil {
		return err
	}
	unit := events.Unit()
	w.note.Keys = keysOf(w.policy)
	w.runtime.mu.Lock()
	var kept []made
	if e := w.runtime.topics[w.topic]; e != nil {
		kept = e.thatAre(w.info.Life, of)
	}
	w.runtime.mu.Unlock()
	kept = kept[max(0, len(kept)-Kept+1):]
	w.note.Life, w.note.Of, w.note.Kept = w.info.Life, of.Life, append(append([]made{}, kept...), made{w.marker, w.info.Horizon})
	unit.Topics = []store.TopicChange{{Topic: of.Name, Life: of.Life, Horizon: w.note.Kept[0].First, ForgetIDs: true}}
	value, err := json.Marshal(&w.note)
	if err != nil {
		return err
	}
	unit.Notes = []store.NoteChange{{Name: notePrefix + w.topic, Value: value}}
	_, err = w.commit(ctx, unit, events.Bytes(), true)
	return err
}

// discard removes the rows of a snapshot that is not completed.
func (w *writing) discard(ctx context.Context) error {
	of, err := w.runtime.of(ctx, w.topic)
	if err != nil || of.Life != w.life {
		return err
	}
	for from := max(w.marker.First, of.Horizon); from <= of.Head; {
		ch := store.TopicChange{Topic: of.Name, Life: of.Life, ForgetIDs: true}
		for ; from <= of.Head && len(ch.Erase) < store.MaxErase; from++ {
			ch.Erase = append(ch.Erase, from)
		}
		if err := w.runtime.opts.Committer.Do(ctx, commit.NewWrite(store.Unit{Topics: []store.TopicChange{ch}}, nil)); err != nil {
			return err
		}
	}
	return nil
}

// MarkerTag is a tag of markers.
const MarkerTag = "snapshot"

// job commits a part of a snapshot.
type job struct {
	commit.Call
	writing *writing
}

// Build implements commit.Job. What erases in the same commit, and comes before, was counted when it was built; what comes after
// removes this too, or looks for snapshots again.
func (j *job) Build() bool {
	r := j.writing.runtime
	r.mu.Lock()
	isVoid := j.writing.isVoid
	r.mu.Unlock()
	if isVoid || j.writing.log.Erasures() != j.writing.erasures {
		j.Answer(errErased)
		return false
	}
	return true
}

// commit commits a unit, and returns the offset of its first event.
func (w *writing) commit(ctx context.Context, unit store.Unit, bytes int, durable bool) (first uint64, err error) {
	j := &job{writing: w}
	j.Units, j.Bytes, j.Durable = []store.Unit{unit}, bytes, durable
	err = w.runtime.opts.Committer.Do(ctx, j)
	switch {
	case errors.Is(err, store.ErrTopicLimit):
		return 0, publish.UnitError(err)
	case errors.Is(err, store.ErrGone):
		return 0, errErased // the snapshot topic was deleted; the topic itself is there
	}
	if err != nil {
		return 0, err
	}
	return j.Units[0].Appends[0].Offset, nil
}
