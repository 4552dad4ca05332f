package past

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/bustest"
	"eventhub/internal/bubble"
	"eventhub/internal/filter"
	"eventhub/internal/record"
	"eventhub/internal/record/layout"
	"eventhub/store"
	"eventhub/store/memory"
)

var bg = context.Background()

// rig is a history over a memory store in a synctest bubble.
type rig struct {
	t       *testing.T
	store   store.Store
	history *History
}

func inBubble(t *testing.T, test func(*rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		s := memory.Open(memory.Options{})
		test(&rig{t: t, store: s, history: New(s, filter.Compile, indexNow(s))})
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// indexNow has a store index the keys of a topic at once.
func indexNow(s store.Store) func(context.Context, string) error {
	return func(ctx context.Context, topic string) error { return bustest.Index(ctx, s, topic) }
}

// commit appends events in one commit, as the engine does.
func (r *rig) commit(events ...eventhub.Event) {
	r.t.Helper()
	u := r.unit(events...)
	if err := r.store.Commit(bg, []*store.Unit{u}, true); err != nil || u.Err != nil {
		r.t.Fatal(err, u.Err)
	}
}

// commitTimes commits an event without id n times. It is encoded once, which for a large one
// costs more than all else.
func (r *rig) commitTimes(n int, e eventhub.Event) {
	r.t.Helper()
	encoded := r.unit(e).Appends[0]
	for range n {
		a := encoded
		a.Record = bytes.Clone(encoded.Record)
		u := &store.Unit{Appends: []store.Append{a}}
		if err := r.store.Commit(bg, []*store.Unit{u}, true); err != nil || u.Err != nil {
			r.t.Fatal(err, u.Err)
		}
	}
}

func (r *rig) unit(events ...eventhub.Event) *store.Unit {
	r.t.Helper()
	u := &store.Unit{}
	for _, e := range events {
		a := store.Append{Topic: e.Topic, ID: e.ID, NewID: e.ID == "", Key: e.Key,
			CausedBy: e.CausedBy, Correlation: eventhub.Correlation(e.Headers)}
		if a.NewID {
			e.ID = layout.IDRoom
		}
		if e.Payload == nil {
			e.Payload = []byte(`1`)
		}
		encoded, err := record.Append(nil, &e)
		if err != nil {
			r.t.Fatal(err)
		}
		a.Record = encoded
		u.Appends = append(u.Appends, a)
	}
	return u
}

// publish adds n events to a topic.
func (r *rig) publish(topic string, n int) {
	r.t.Helper()
	events := make([]eventhub.Event, n)
	for i := range events {
		events[i].Topic = topic
	}
	r.commit(events...)
}

// publishEvents commits each event by itself and a second after the one before.
func (r *rig) publishEvents(events ...eventhub.Event) {
	r.t.Helper()
	for _, e := range events {
		r.commit(e)
		time.Sleep(time.Second)
	}
}

// remove removes events of a topic: those below a horizon, and single ones.
func (r *rig) remove(topic string, horizon uint64, erase ...uint64) {
	r.t.Helper()
	u := store.Unit{Topics: []store.TopicChange{{Topic: topic, Horizon: horizon, Erase: erase}}}
	if err := r.store.Commit(bg, []*store.Unit{&u}, true); err != nil || u.Err != nil {
		r.t.Fatal(err, u.Err)
	}
}

func (r *rig) deleteTopic(topic string) {
	r.t.Helper()
	if err := r.store.DeleteTopic(bg, topic); err != nil {
		r.t.Fatal(err)
	}
}

// replay returns "topic/offset" of what a replay visits.
func (r *rig) replay(q admin.ReplayQuery) []string {
	r.t.Helper()
	seen := []string{}
	err := r.history.Replay(context.Background(), q, func(topic string, item eventhub.Item) error {
		seen = append(seen, fmt.Sprint(topic, "/", item.Offset))
		return nil
	})
	if err != nil {
		r.t.Errorf("Replay(%+v): %v", q, err)
	}
	return seen
}

func second[T any](_ T, err error) error { return err }

func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	g, _ := json.Marshal(got)
	w, _ := json.Marshal(want)
	if string(g) != string(w) {
		t.Errorf("%s = %s; want %s", what, g, w)
	}
}

func wantCode(t *testing.T, err error, code eventhub.Code) {
	t.Helper()
	if eventhub.ErrorCode(err) != code {
		t.Errorf("error %v has code %q; want %q", err, eventhub.ErrorCode(err), code)
	}
}
