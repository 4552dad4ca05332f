package projection

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"

	"eventhub"
	"eventhub/internal/mongotest"
	"eventhub/internal/record"
	"eventhub/store"
	"eventhub/store/memory"
)

// within is how long anything may take before a test fails.
const within = 30 * time.Second

func TestMain(m *testing.M) {
	code := mongotest.Run(m)
	if err := goleak.Find(); err != nil && code == 0 {
		println(err.Error())
		code = 1
	}
	os.Exit(code)
}

func limited(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	t.Cleanup(cancel)
	return ctx
}

// rig is a store in memory whose commits a projection follows, as those of a hub that leads. Its place is the number
// of commits.
type rig struct {
	t     testing.TB
	db    *mongo.Database
	store *memory.Store
	state []eventhub.Pattern
	place atomic.Uint64
	epoch uint64
	p     *Projection
	stop  context.CancelFunc
	ended sync.WaitGroup
}

func newRig(t testing.TB, state ...string) *rig {
	r := &rig{t: t, db: mongotest.Database(t), store: memory.Open(memory.Options{})}
	for _, text := range state {
		pattern, err := eventhub.ParsePattern(text)
		if err != nil {
			t.Fatal(err)
		}
		r.state = append(r.state, pattern)
	}
	t.Cleanup(func() {
		r.end()
		if err := r.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// lead has a new projection follow the store, in the next epoch.
func (r *rig) lead() {
	r.end()
	r.epoch++
	r.p = r.projection(r.db)
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	p, epoch := r.p, r.epoch
	r.ended.Go(func() { p.Run(ctx, r.store, epoch, r.place.Load) })
}

func (r *rig) projection(db *mongo.Database) *Projection {
	return New(Options{Database: db, Ferret: !mongotest.Real(), State: r.state, Logger: slog.New(slog.DiscardHandler)})
}

// end is the death of the hub.
func (r *rig) end() {
	if r.stop != nil {
		r.stop()
		r.ended.Wait()
		r.stop = nil
	}
}

// commit commits units; the projection is told unless there is none.
func (r *rig) commit(units ...*store.Unit) {
	r.t.Helper()
	var begun uint64
	if r.p != nil {
		begun = r.p.Begin(r.place.Load())
	}
	err := r.store.Commit(context.Background(), units, true)
	place := r.place.Add(1)
	if r.p != nil {
		r.p.Note(begun, place, units, "")
	}
	if err != nil {
		r.t.Fatal(err)
	}
	for _, u := range units {
		if u.Err != nil {
			r.t.Fatalf("a unit was refused: %v", u.Err)
		}
	}
}

func (r *rig) deleteTopic(name string) {
	r.t.Helper()
	begun := r.p.Begin(r.place.Load())
	err := r.store.DeleteTopic(context.Background(), name)
	r.p.Note(begun, r.place.Add(1), nil, name)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		r.t.Fatal(err)
	}
}

func (r *rig) publish(events ...eventhub.Event) {
	r.t.Helper()
	u := new(store.Unit)
	for i := range events {
		e := &events[i]
		if e.Payload == nil {
			e.Payload = []byte(`{}`)
		}
		bytes, err := record.AppendMade(nil, e)
		if err != nil {
			r.t.Fatal(err)
		}
		u.Appends = append(u.Appends, store.Append{Topic: e.Topic, ID: e.ID, Key: e.Key, Record: bytes})
	}
	r.commit(u)
}

func (r *rig) cursor(topic, group string, at uint64, create bool) {
	r.t.Helper()
	r.commit(&store.Unit{Groups: []store.GroupChange{{Topic: topic, Group: group, Create: create, State: store.GroupState{Epoch: 1, Cursor: at}}}})
}

func (r *rig) change(c store.TopicChange) {
	r.t.Helper()
	r.commit(&store.Unit{Topics: []store.TopicChange{c}})
}

// settle waits until everything is projected.
func (r *rig) settle() {
	r.t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(5 * time.Millisecond) {
		s := r.p.Status()
		if s.Entries == 0 && s.Lag == 0 {
			return
		}
		if time.Now().After(end) {
			r.t.Fatalf("the projection is behind: %+v", s)
		}
	}
}

// same compares the projections with what the store shows.
func (r *rig) same() {
	r.t.Helper()
	ctx := limited(r.t)
	want := make(map[string]string)
	cursors := make(map[string]uint64)
	state := make(map[string]map[string]string)
	for info, err := range store.AllTopics(ctx, r.store, "") {
		if err != nil {
			r.t.Fatal(err)
		}
		newest := make(map[string]string)
		var page store.Batch
		if err := r.store.Read(ctx, info.Name, 1, 1<<20, 1<<30, &page); err != nil {
			r.t.Fatal(err)
		}
		for _, item := range page.Items {
			key := r.p.key(item.Record.Key())
			text := fmt.Sprintf("%s %s", item.Record.ID(), key)
			want[eventID(info.Name, item.Offset)] = text
			if key != "" {
				if newest[key] = text; item.Record.IsTombstone() {
					delete(newest, key)
				}
			}
		}
		groups, err := r.store.ListGroups(ctx, info.Name)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, g := range groups {
			cursors[cursorID(info.Name, g.Group)] = g.State.Cursor
		}
		if r.p.asks(info.Name) {
			state[info.Name] = newest
		}
	}
	r.compare(Events, want, func(d bson.Raw) string { return textOf(d, "id") + " " + textOf(d, "key") })
	at := make(map[string]string)
	for id, offset := range cursors {
		at[id] = fmt.Sprint(offset)
	}
	r.compare(Cursors, at, func(d bson.Raw) string { return fmt.Sprint(d.Lookup("offset").AsInt64()) })
	for name, newest := range state {
		r.compare(StatePrefix+name, newest, func(d bson.Raw) string { return textOf(d, "id") + " " + textOf(d, "_id") })
	}
}

func textOf(d bson.Raw, field string) string {
	text, _ := d.Lookup(field).StringValueOK()
	return text
}

// compare compares a collection with what it is to have, by _id.
func (r *rig) compare(collection string, want map[string]string, of func(bson.Raw) string) {
	r.t.Helper()
	got := make(map[string]string)
	for _, d := range r.all(collection) {
		got[textOf(d, "_id")] = of(d)
	}
	for id, text := range want {
		if got[id] != text {
			r.t.Errorf("%s: %q is %q; want %q", collection, id, got[id], text)
		}
	}
	for id, text := range got {
		if _, ok := want[id]; !ok {
			r.t.Errorf("%s: %q is %q, and the log does not show it", collection, id, text)
		}
	}
}

func (r *rig) all(collection string) (all []bson.Raw) {
	r.t.Helper()
	found, err := r.db.Collection(collection).Find(limited(r.t), bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err == nil {
		err = found.All(limited(r.t), &all)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}
