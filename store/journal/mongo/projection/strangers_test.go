package projection

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"eventhub"
	"eventhub/store"
	mongojournal "eventhub/store/journal/mongo"
)

func (r *rig) put(collection string, d bson.D) {
	r.t.Helper()
	if _, err := r.db.Collection(collection).InsertOne(limited(r.t), d); err != nil {
		r.t.Fatal(err)
	}
}

// fails waits until the projection has an error with a text, and goes on trying.
func (r *rig) fails(want string) {
	r.t.Helper()
	var errs uint64
	for end := time.Now().Add(within); ; time.Sleep(5 * time.Millisecond) {
		s := r.p.Status()
		if s.Err != nil && strings.Contains(s.Err.Error(), want) {
			if errs == 0 {
				errs = s.Errors
			}
			if s.Errors > errs {
				return
			}
		}
		if time.Now().After(end) {
			r.t.Fatalf("the projection says %+v; want %q, again and again", s, want)
		}
	}
}

// TestStrangersUnderTheHub: a document of somebody else in the place of one that the hub is to write, in any collection, is told
// and not written over; when it is gone the documents are what the log shows.
func TestStrangersUnderTheHub(t *testing.T) {
	for collection, id := range map[string]string{Events: "orders::2", Cursors: "orders::billing", Positions: "others", StatePrefix + "orders": "k2"} {
		t.Run(collection, func(t *testing.T) {
			r := newRig(t, "orders")
			r.lead()
			r.publish(eventhub.Event{Topic: "orders", ID: "a", Key: "k1"})
			r.settle()
			mine := bson.D{{Key: "_id", Value: id}, {Key: "of", Value: "somebody else"}}
			r.put(collection, mine)
			r.publish(eventhub.Event{Topic: "orders", ID: "b", Key: "k2"}, eventhub.Event{Topic: "others", ID: "c"})
			r.cursor("orders", "billing", 1, true)
			r.fails("the collection " + collection + " has documents of somebody else")
			if there, err := r.db.Collection(collection).FindOne(limited(t), byID(id)).Raw(); err != nil || textOf(there, "of") != "somebody else" {
				t.Errorf("it is %s, %v", there, err)
			}
			if _, err := r.db.Collection(collection).DeleteOne(limited(t), byID(id)); err != nil {
				t.Fatal(err)
			}
			r.settle()
			r.same()
		})
	}
}

// TestStateOfSomebodyElse: a collection that is to be of a state and has documents of somebody else is told before anything is
// written there.
func TestStateOfSomebodyElse(t *testing.T) {
	r := newRig(t, "orders")
	r.put(StatePrefix+"orders", bson.D{{Key: "_id", Value: "x"}, {Key: "of", Value: "somebody else"}})
	r.lead()
	r.publish(eventhub.Event{Topic: "orders", ID: "a", Key: "k1"})
	r.fails("the collection state.orders has documents of somebody else")
	if all := r.all(StatePrefix + "orders"); len(all) != 1 {
		t.Errorf("there are %s", all)
	}
	if err := r.db.Collection(StatePrefix + "orders").Drop(limited(t)); err != nil {
		t.Fatal(err)
	}
	r.settle()
	r.same()
}

// TestDropped: collections that somebody drops under a hub, or before it starts, are made anew: those of the positions by
// themselves, the others, with their indexes, by a rebuild.
func TestDropped(t *testing.T) {
	indexes := func(r *rig) int {
		all, err := r.db.Collection(Events).Indexes().ListSpecifications(limited(t))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	for name, drop := range map[string][]string{"positions": {Positions}, "all": {Positions, Events, Cursors, StatePrefix + "orders"}, "documents": {Events, Cursors, StatePrefix + "orders"}} {
		for _, live := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, live: %t", name, live), func(t *testing.T) {
				r := newRig(t, "orders")
				r.lead()
				r.publish(eventhub.Event{Topic: "orders", ID: "a", Key: "k1"}, eventhub.Event{Topic: "orders", ID: "b", Key: "k2"}, eventhub.Event{Topic: "others", ID: "c"})
				r.cursor("orders", "billing", 1, true)
				r.settle()
				before := indexes(r)
				if !live {
					r.end()
					r.p = nil
				}
				for _, collection := range drop {
					if err := r.db.Collection(collection).Drop(limited(t)); err != nil {
						t.Fatal(err)
					}
				}
				r.change(store.TopicChange{Topic: "orders", Erase: []uint64{2}})
				if !live {
					if err := Check(limited(t), r.db); err != nil {
						t.Fatalf("Check: %v", err)
					}
					r.lead()
				}
				r.publish(eventhub.Event{Topic: "orders", ID: "d", Key: "k1"})
				r.settle()
				if drop[0] != Positions {
					if err := Rebuild(limited(t), r.db); err != nil {
						t.Fatal(err)
					}
					r.publish(eventhub.Event{Topic: "others", ID: "e"})
					r.settle()
				}
				r.same()
				if now := indexes(r); now != before {
					t.Errorf("%d indexes; there were %d", now, before)
				}
			})
		}
	}
}

// TestNotJSON: what the server has no form for is a text, also in the state of a topic that is asked for later; and ends of keys
// are found among these too.
func TestNotJSON(t *testing.T) {
	r := newRig(t, "orders")
	r.lead()
	odd := map[string]string{"x-a.b": "1", "$c": "2"} // FerretDB has no such names
	nul, long := "k\x00l", strings.Repeat("é", eventhub.MaxKeyBytes/2)
	r.publish(
		eventhub.Event{Topic: "orders", ID: "a", Key: "k1", Payload: []byte(`{"$a":{"b.c":1},"a":1}`)},
		eventhub.Event{Topic: "orders", ID: "b", Key: "k2", Payload: []byte(`1e400`)},
		eventhub.Event{Topic: "orders", ID: "c", Key: "k.$3", Payload: []byte(`[-0,-0.0,1e-400,9007199254740993,18446744073709551616]`)},
		eventhub.Event{Topic: "orders", ID: "d", Key: "😀", Headers: odd},
		eventhub.Event{Topic: "orders", ID: "e", Key: long, Payload: []byte(`"\u0000"`), Tags: []string{"a\x00b"}, SID: "\x00"},
		eventhub.Event{Topic: "orders", ID: "f", Key: nul, Payload: []byte(`{"\u0000":1}`)},
		eventhub.Event{Topic: "orders", ID: "g", Key: "$set", Payload: []byte(strings.Repeat(`{"a":[`, 100) + strings.Repeat(`]}`, 100))},
		eventhub.Event{Topic: "orders", ID: "h", Key: "k4", Headers: odd},
		eventhub.Event{Topic: "orders", ID: "i", Key: "k4", Headers: odd, Payload: []byte(`null`)},
		eventhub.Event{Topic: "orders", ID: "j", Key: "k5", Payload: []byte(`{"":{},"_id":"x","$ref":1,"$id":2,"$db":3}`)},
		eventhub.Event{Topic: "orders", ID: "k", Payload: []byte(`null`)},
	)
	r.cursor("orders", "g::h._:-", 1, true)
	r.settle()
	r.same()
	r.state = nil
	r.lead()
	r.settle()
	pattern, err := eventhub.ParsePattern("orders")
	if err != nil {
		t.Fatal(err)
	}
	r.state = []eventhub.Pattern{pattern}
	r.lead()
	r.settle()
	r.same()
	r.change(store.TopicChange{Topic: "orders", Index: store.StartIndex})
	r.compact("orders", 11, 11)
	r.settle()
	r.same()
}

// TestLongNames: a topic whose name is too long for a collection of its state has none, and holds nothing up.
func TestLongNames(t *testing.T) {
	r := newRig(t, "**")
	r.lead()
	long := strings.Repeat("a", 200) + "." + strings.Repeat("b", eventhub.MaxTopicBytes-201)
	r.publish(eventhub.Event{Topic: long, ID: "a", Key: "k"}, eventhub.Event{Topic: "orders", ID: "b", Key: "k"})
	r.settle()
	r.same()
	names, err := r.db.ListCollectionNames(limited(t), bson.D{{Key: "name", Value: StatePrefix + "orders"}})
	if err != nil || len(names) != 1 {
		t.Errorf("the collections are %v, %v", names, err)
	}
}

// growing is a store in which a topic gets more with each read of it.
type growing struct {
	Source
	mu   sync.Mutex
	more func() // or nil
}

func (g *growing) Read(ctx context.Context, topic string, from uint64, limit, maxBytes int, batch *store.Batch) error {
	g.mu.Lock()
	if g.more != nil && topic == "orders" {
		g.more()
	}
	g.mu.Unlock()
	return g.Source.Read(ctx, topic, from, limit, maxBytes, batch)
}

// TestNeverIdle: a topic that gets events faster than they are written does not keep the others, the cursors, and a wish for a
// rebuild waiting.
func TestNeverIdle(t *testing.T) {
	r := newRig(t)
	r.p = r.projection(r.db)
	n := 0
	g := &growing{Source: r.store}
	g.more = func() {
		n++
		r.publish(eventhub.Event{Topic: "orders", ID: fmt.Sprint("more", n)})
	}
	r.publish(eventhub.Event{Topic: "orders", ID: "a"}, eventhub.Event{Topic: "others", ID: "b"})
	ctx, stop := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { r.p.Run(ctx, g, 1, r.place.Load) })
	defer ended.Wait()
	defer stop()
	for end := time.Now().Add(within); ; time.Sleep(5 * time.Millisecond) {
		there, err := r.db.Collection(Events).CountDocuments(limited(t), byID("others::1"))
		s, _ := Look(limited(t), r.db)
		if err == nil && there == 1 && s.Place > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("of the other topic there are %d, %v; the place is %d", there, err, s.Place)
		}
	}
	g.mu.Lock()
	g.more = nil
	g.mu.Unlock()
	r.settle()
	r.same()
}

// TestDamagedHead: a head whose fields have other types is of somebody else, and not a server that is away.
func TestDamagedHead(t *testing.T) {
	r := newRig(t)
	r.put(Positions, bson.D{{Key: "_id", Value: headID}, {Key: "kind", Value: 7}})
	var refused *mongojournal.ConfigError
	if err := Check(limited(t), r.db); !errors.As(err, &refused) || !strings.Contains(err.Error(), "document of somebody else at _id") {
		t.Errorf("Check: %v", err)
	}
}

// TestRefusesForm: a refusal that may pass does not make a document a text.
func TestRefusesForm(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{mongo.CommandError{Code: 1, Message: "[collection.go:94 sqlite.(*collection).Query] interrupted (9)"}, false},
		{mongo.CommandError{Code: 1, Message: "ERROR: unsupported Unicode escape sequence (SQLSTATE 22P05)"}, true},
		{mongo.CommandError{Code: 10107, Message: "not primary"}, false},
		{mongo.WriteException{WriteErrors: mongo.WriteErrors{{Code: 2, Message: "bad value"}}}, true},
		{mongo.WriteError{Code: 52, Message: "a name with $"}, true},
		{mongo.WriteError{Code: 50, Message: "exceeded time limit"}, false},
		{context.DeadlineExceeded, false},
	} {
		if got := refusesForm(fmt.Errorf("insert: %w", tt.err)); got != tt.want {
			t.Errorf("%v: %t", tt.err, got)
		}
	}
}
