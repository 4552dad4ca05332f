package projection

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/mongotest"
	"eventhub/store"
	mongojournal "eventhub/store/journal/mongo"
)

// histories is how many random histories there are; scripts/soak has more.
var histories = flag.Int("projection.histories", 6, "random histories")

// TestOldLeader: a hub that was frozen within a batch, and goes on when another one has led and removed what
// is in it, takes back what it inserts, and writes no more.
func TestOldLeader(t *testing.T) {
	r := newRig(t)
	r.lead()
	r.publish(eventhub.Event{Topic: "orders", ID: "a"})
	r.settle()
	old := r.p
	frozen, thaw := make(chan struct{}), make(chan struct{})
	armed := true
	old.events = r.monitored(t, func(c *event.CommandStartedEvent) {
		if c.CommandName == "insert" && armed {
			armed = false
			close(frozen)
			<-thaw
		}
	}).Collection(Events)
	stop, oldEnded := r.stop, &r.ended
	r.stop = nil
	r.publish(eventhub.Event{Topic: "orders", ID: "erased"}, eventhub.Event{Topic: "orders", ID: "kept"})
	<-frozen
	r.epoch++
	r.p = r.projection(r.db)
	r.p.Begin(0)
	r.p.Note(0, r.place.Load(), nil, "orders")
	r.change(store.TopicChange{Topic: "orders", Erase: []uint64{2}})
	next := r.run()
	r.settle()
	r.same()
	close(thaw)
	oldEnded.Wait()
	if err := old.Status().Err; !errors.Is(err, errFenced) {
		t.Errorf("the old hub ended with %v", err)
	}
	r.same()
	stop()
	next()
}

// run has the projection of the rig follow until the result is called.
func (r *rig) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	p, epoch := r.p, r.epoch
	ended.Go(func() { p.Run(ctx, r.store, epoch, r.place.Load) })
	return func() {
		cancel()
		ended.Wait()
	}
}

// monitored returns the database by a client of which each command is seen before it is sent.
func (r *rig) monitored(t *testing.T, started func(*event.CommandStartedEvent)) *mongo.Database {
	t.Helper()
	monitor := &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) { started(e) }}
	client, err := mongo.Connect(options.Client().ApplyURI(mongotest.URI(t)).SetMonitor(monitor))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(limited(t)) })
	return client.Database(r.db.Name())
}

// TestRandomHistories: whatever is done, and wherever hubs die and others take over, with what is noted lost each
// time, in the end the projections are what the log shows.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(*histories) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := newRig(t, "a.*")
			r.lead()
			random := rand.New(rand.NewPCG(seed, 1))
			topics := []string{"a.x", "a.y", "b"}
			n := 0
			for range 40 {
				topic := topics[random.IntN(len(topics))]
				info, err := r.store.Topic(limited(t), topic)
				exists := err == nil
				switch what := random.IntN(12); {
				case what < 5 || !exists:
					var all []eventhub.Event
					for range 1 + random.IntN(5) {
						n++
						e := eventhub.Event{Topic: topic, ID: fmt.Sprint("e", n), Payload: []byte("1")}
						if random.IntN(4) > 0 {
							e.Key = fmt.Sprint("k", random.IntN(4))
							if random.IntN(4) == 0 {
								e.Payload = []byte("null")
							}
						}
						all = append(all, e)
					}
					r.publish(all...)
				case what == 5:
					r.change(store.TopicChange{Topic: topic, Horizon: info.Horizon + random.Uint64N(4)})
				case what == 6 && info.Head > 0:
					r.erase(topic, 1+random.Uint64N(info.Head))
				case what == 7 && info.Head > 0:
					if info.Index == store.NotIndexed {
						r.change(store.TopicChange{Topic: topic, Index: store.StartIndex})
					}
					upTo := random.Uint64N(info.Head + 1)
					r.compact(topic, upTo, random.Uint64N(upTo+1))
				case what == 8 && random.IntN(3) == 0:
					r.deleteTopic(topic)
				case what == 9:
					r.moveCursor(topic, fmt.Sprint("g", random.IntN(2)), info.Head, random)
				case what == 10:
					r.settle()
				case what == 11: // it dies wherever it is
					time.Sleep(time.Duration(random.IntN(150)) * time.Millisecond)
					r.lead()
				}
			}
			r.settle()
			r.same()
			r.lead()
			r.settle()
			r.same()
		})
	}
}

// erase erases an event as the engine does: with a mark in the audit.
func (r *rig) erase(topic string, offset uint64) {
	r.publish(eventhub.Event{Topic: admin.AuditTopic, ID: fmt.Sprint("mark", r.place.Load()), Payload: fmt.Appendf(nil, `{"action":"erase","by":"x","topic":%q}`, topic)})
	r.change(store.TopicChange{Topic: topic, Erase: []uint64{offset}})
}

func (r *rig) moveCursor(topic, group string, head uint64, random *rand.Rand) {
	at, err := r.store.Group(limited(r.t), topic, group)
	if err != nil {
		epoch, err := r.store.DeletedEpoch(limited(r.t))
		if err != nil {
			r.t.Fatal(err)
		}
		r.commit(&store.Unit{Groups: []store.GroupChange{{Topic: topic, Group: group, Create: true, State: store.GroupState{Epoch: epoch + 1}}}})
		return
	}
	at.Cursor = min(at.Cursor+random.Uint64N(3), head)
	r.commit(&store.Unit{Groups: []store.GroupChange{{Topic: topic, Group: group, Delete: random.IntN(5) == 0, State: at}}})
}

// TestBeyondThePosition: what a hub has inserted that died before it had written the position, and was erased since, goes.
func TestBeyondThePosition(t *testing.T) {
	r := newRig(t)
	r.lead()
	r.publish(eventhub.Event{Topic: "orders", ID: "a"})
	r.settle()
	r.end()
	r.p = nil
	r.publish(eventhub.Event{Topic: "orders", ID: "b"})
	d := bson.D{{Key: "_id", Value: "orders::2"}, {Key: "topic", Value: "orders"}, {Key: "offset", Value: int64(2)}, {Key: "id", Value: "b"}, {Key: "life", Value: int64(1)}, {Key: "epoch", Value: int64(1)}}
	if _, err := r.db.Collection(Events).InsertOne(limited(t), d); err != nil {
		t.Fatal(err)
	}
	r.change(store.TopicChange{Topic: "orders", Erase: []uint64{2}})
	r.lead()
	r.settle()
	r.same()
}

// TestAuditIsTrimmed: where the marks of erasures are not there any more, everything is compared.
func TestAuditIsTrimmed(t *testing.T) {
	r := newRig(t)
	r.lead()
	r.publish(eventhub.Event{Topic: "orders", ID: "a"}, eventhub.Event{Topic: "orders", ID: "b"}, eventhub.Event{Topic: admin.AuditTopic, ID: "x"})
	r.settle()
	r.end()
	r.p = nil // nobody notes anything
	r.erase("orders", 1)
	r.publish(eventhub.Event{Topic: admin.AuditTopic, ID: "y"})
	r.change(store.TopicChange{Topic: admin.AuditTopic, Horizon: 3})
	r.lead()
	r.settle()
	r.same()
}

// TestRebuild: all is removed and made anew, also what somebody has changed there.
func TestRebuild(t *testing.T) {
	r := newRig(t, "orders")
	if _, err := Look(limited(t), r.db); !errors.Is(err, ErrNone) {
		t.Errorf("Look: %v", err)
	}
	if err := Rebuild(limited(t), r.db); !errors.Is(err, ErrNone) {
		t.Errorf("Rebuild: %v", err)
	}
	r.lead()
	r.publish(eventhub.Event{Topic: "orders", ID: "a", Key: "k"}, eventhub.Event{Topic: "orders", ID: "b", Key: "l"}, eventhub.Event{Topic: "others", ID: "c"})
	r.cursor("orders", "g", 1, true)
	r.settle()
	for _, name := range []string{Events, StatePrefix + "orders", Cursors} {
		if _, err := r.db.Collection(name).DeleteMany(limited(t), bson.D{}); err != nil {
			t.Fatal(err)
		}
	}
	r.end()
	if err := Rebuild(limited(t), r.db); err != nil {
		t.Fatal(err)
	}
	if s, err := Look(limited(t), r.db); err != nil || !s.Asked || s.Begun {
		t.Errorf("Look = %+v, %v", s, err)
	}
	r.lead()
	r.settle()
	r.same()
	s, err := Look(limited(t), r.db)
	if err != nil || s.Asked || s.Wrote != 3 || s.Whole != 3 || s.Place != r.place.Load() || s.Epoch != 2 {
		t.Errorf("Look = %+v, %v; want 3 of 3, place %d", s, err, r.place.Load())
	}
	// A hub that leads already finds the wish with its next pass.
	if err := Rebuild(limited(t), r.db); err != nil {
		t.Fatal(err)
	}
	r.publish(eventhub.Event{Topic: "orders", ID: "d", Key: "k"})
	r.settle()
	r.same()
	if s, err = Look(limited(t), r.db); err != nil || s.Asked || s.Whole != 4 {
		t.Errorf("Look = %+v, %v; want 4 events", s, err)
	}
}

// TestStateIsAskedFor: a collection of the state is made when it is asked for, and goes when it is not any more.
func TestStateIsAskedFor(t *testing.T) {
	r := newRig(t)
	r.lead()
	r.publish(eventhub.Event{Topic: "orders", ID: "a", Key: "k"}, eventhub.Event{Topic: "orders", ID: "b", Key: "k"}, eventhub.Event{Topic: "orders", ID: "c", Key: "l"},
		eventhub.Event{Topic: "orders", ID: "d", Key: "l", Payload: []byte("null")})
	r.settle()
	pattern, err := eventhub.ParsePattern("orders")
	if err != nil {
		t.Fatal(err)
	}
	r.state = []eventhub.Pattern{pattern}
	r.lead()
	r.settle()
	r.same()
	if all := r.all(StatePrefix + "orders"); len(all) != 1 || textOf(all[0], "_id") != "k" || textOf(all[0], "topic") != "orders" || textOf(all[0], "id") != "b" {
		t.Errorf("the state is %s", all)
	}
	r.state = nil
	r.lead()
	r.settle()
	if all := r.all(StatePrefix + "orders"); len(all) != 0 {
		t.Errorf("the state is %s", all)
	}
}

// TestForeign: what somebody else has put there is refused at a start, or told later; nothing is written over.
func TestForeign(t *testing.T) {
	unique := func(field string) func(*rig) {
		return func(r *rig) {
			m := mongo.IndexModel{Keys: bson.D{{Key: field, Value: 1}}, Options: options.Index().SetUnique(true)}
			if _, err := r.db.Collection(Events).Indexes().CreateOne(limited(r.t), m); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	put := func(collection string, d bson.D) func(*rig) {
		return func(r *rig) {
			if _, err := r.db.Collection(collection).InsertOne(limited(r.t), d); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	for want, fill := range map[string]func(*rig){
		"the collection events has documents of somebody else, as":           put(Events, bson.D{{Key: "id", Value: "x"}}),
		"the collection cursors has documents of somebody else, as":          put(Cursors, bson.D{{Key: "_id", Value: "a::b"}}),
		"eventhub_projection has documents of somebody else, as":             put(Positions, bson.D{{Key: "_id", Value: "x"}}),
		`eventhub_projection has a document of somebody else at _id ":head"`: put(Positions, bson.D{{Key: "_id", Value: headID}}),
		"they have version 2, and this program has version 1":                put(Positions, bson.D{{Key: "_id", Value: headID}, {Key: "kind", Value: headKind}, {Key: "version", Value: 2}}),
		"the collection events has the index id_1, which is unique":          unique("id"),
	} {
		t.Run(want, func(t *testing.T) {
			r := newRig(t)
			fill(r)
			err := Check(limited(t), r.db)
			var refused *mongojournal.ConfigError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), r.db.Name()) {
				t.Errorf("Check: %v; want %q", err, want)
			}
			names, err := r.db.ListCollectionNames(limited(t), bson.D{})
			if err != nil || len(names) != 1 {
				t.Errorf("the collections are %v, %v", names, err)
			}
		})
	}
	r := newRig(t)
	r.lead()
	r.settle()
	put(Events, bson.D{{Key: "_id", Value: "mine"}, {Key: "topic", Value: "orders"}, {Key: "offset", Value: int64(2)}})(r)
	r.publish(eventhub.Event{Topic: "orders", ID: "a"}, eventhub.Event{Topic: "orders", ID: "b"})
	for end := time.Now().Add(within); ; time.Sleep(5 * time.Millisecond) {
		if s := r.p.Status(); s.Err != nil && s.Errors > 0 && s.Lag > 0 {
			if !strings.Contains(s.Err.Error(), "documents of somebody else") {
				t.Errorf("the error is %v", s.Err)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatal("a document of somebody else is not told")
		}
	}
	if _, err := r.db.Collection(Events).DeleteOne(limited(t), byID("mine")); err != nil {
		t.Fatal(err)
	}
	r.settle()
	r.same()
}

// TestDocuments: what becomes of values.
func TestDocuments(t *testing.T) {
	for payload, want := range map[string]string{
		`{"a":1,"b":-0,"c":1.0,"d":9223372036854775807,"e":9223372036854775808,"f":1e3}`: `{"a":{"$numberLong":"1"},"b":{"$numberDouble":"-0.0"},"c":{"$numberDouble":"1.0"},"d":{"$numberLong":"9223372036854775807"},"e":{"$numberDouble":"9.223372036854776E+18"},"f":{"$numberDouble":"1000.0"}}`,
		`{"$date":"x","":{},"a.b":[null,true,"é"]}`:                                      `{"$date":"x","":{},"a.b":[null,true,"é"]}`,
		`1e400`:        "json",
		`{"\u0000":1}`: "json",
		strings.Repeat("[", 200) + strings.Repeat("]", 200): "json",
		"[" + strings.Repeat("[],", 300000) + "[]]":         "",
	} {
		record := []byte(`{"ts":1723140000000,"id":"x","topic":"t","payload":` + payload + `}`)
		d, err := encode("t", store.Item{Offset: 7, Record: record}, 1, 1)
		if err != nil {
			t.Errorf("%.40s: %v", payload, err)
			continue
		}
		raw := bson.Raw(d.raw)
		if want == "json" {
			if textOf(raw, "json") != string(record) || textOf(raw, "id") != "x" || raw.Lookup("ts").AsInt64() != 1723140000000 {
				t.Errorf("%.40s became %.200s", payload, raw)
			}
			continue
		}
		var got bson.D
		if err := raw.Lookup("payload").Unmarshal(&got); want != "" && err != nil {
			t.Fatal(err)
		}
		text, err := bson.MarshalExtJSON(got, true, false)
		if want != "" && (err != nil || string(text) != want) {
			t.Errorf("%s became %s, %v; want %s", payload, text, err, want)
		}
		if len(raw) > mostDocument {
			t.Errorf("%.40s became %d bytes", payload, len(raw))
		}
	}
}
