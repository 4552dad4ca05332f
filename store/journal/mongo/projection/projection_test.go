package projection

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"eventhub"
	"eventhub/store"
)

// TestFields: an event has the fields of the seed, and a cursor says where its group is.
func TestFields(t *testing.T) {
	r := newRig(t)
	r.lead()
	r.publish(eventhub.Event{
		Topic: "orders", ID: "a", Key: "k1", SID: "s", Headers: map[string]string{"correlationId": "c7"}, Tags: []string{"#duck"}, CausedBy: []string{"b"},
		Payload: []byte(`{"n":1,"f":1.5,"deep":[{"x":null}]}`),
	}, eventhub.Event{Topic: "orders", ID: "b"}, eventhub.Event{Topic: "other", ID: "a"})
	r.cursor("orders", "billing", 1, true)
	r.cursor("orders", "new", 0, true)
	r.settle()
	r.same()
	events := r.all(Events)
	if len(events) != 3 {
		t.Fatalf("%d events", len(events))
	}
	d := events[0]
	for path, want := range map[string]any{
		"_id": "orders::1", "topic": "orders", "offset": int64(1), "id": "a", "key": "k1", "sid": "s", "headers correlationId": "c7", "tags 0": "#duck", "caused_by 0": "b",
		"payload n": int64(1), "payload f": 1.5, "payload deep 0 x": nil,
	} {
		var got any
		if err := d.Lookup(strings.Fields(path)...).Unmarshal(&got); err != nil || got != want {
			t.Errorf("%v is %v, %v; want %v; of %s", path, got, err, want, d)
		}
	}
	if at := events[0].Lookup("ts").AsInt64(); at == 0 {
		t.Errorf("no ts: %s", d)
	}
	cursors := r.all(Cursors)
	if c := cursors[0]; textOf(c, "_id") != "orders::billing" || textOf(c, "lastId") != "a" || c.Lookup("lastTs").AsInt64() == 0 {
		t.Errorf("a cursor is %s", c)
	}
	if c := cursors[1]; !c.Lookup("lastId").IsZero() {
		t.Errorf("a cursor before everything is %s", c)
	}
	var names []string
	indexes, err := r.db.Collection(Events).Indexes().ListSpecifications(limited(t))
	for _, i := range indexes {
		names = append(names, i.Name)
	}
	slices.Sort(names)
	if want := "[_id_ headers.correlationId_1 id_1 topic_1_key_1_ts_-1 topic_1_offset_1 topic_1_ts_1_id_1]"; err != nil || fmt.Sprint(names) != want {
		t.Errorf("the indexes are %v, %v; want %s", names, err, want)
	}
	_, err = r.db.Collection(Events).InsertOne(limited(t), bson.D{{Key: "topic", Value: "orders"}, {Key: "offset", Value: int64(1)}})
	if err == nil {
		t.Error("a second document of one place was taken")
	}
}

// TestRemovals: what the log does not show any more is not there either: below the horizon, erased, compacted, of a
// topic that is deleted, and created again.
func TestRemovals(t *testing.T) {
	r := newRig(t, "orders")
	r.lead()
	var all []eventhub.Event
	for i := range 12 {
		all = append(all, eventhub.Event{Topic: "orders", ID: fmt.Sprint("e", i), Key: fmt.Sprint("k", i%3)})
	}
	r.publish(all...)
	r.change(store.TopicChange{Topic: "orders", Index: store.StartIndex})
	r.cursor("orders", "g", 5, true)
	check := func(what string) {
		t.Helper()
		r.settle()
		if r.same(); t.Failed() {
			t.Fatalf("after: %s", what)
		}
	}
	check("events")
	r.change(store.TopicChange{Topic: "orders", Horizon: 4})
	check("a horizon")
	r.change(store.TopicChange{Topic: "orders", Erase: []uint64{12, 6}}) // 12 is the newest of its key
	check("an erasure")
	r.publish(eventhub.Event{Topic: "orders", ID: "end", Key: "k1", Payload: []byte("null")})
	check("the end of a key")
	r.compact("orders", 13, 13)
	check("a compaction")
	r.publish(eventhub.Event{Topic: "orders", ID: "again", Key: "k1"})
	r.deleteTopic("orders")
	check("the end of the topic")
	r.publish(eventhub.Event{Topic: "orders", ID: "new", Key: "k1"})
	check("another life of the topic")
	r.deleteTopic("orders")
	r.publish(eventhub.Event{Topic: "orders", ID: "newer", Key: "k2"})
	check("the next life")
	r.commit(&store.Unit{Groups: []store.GroupChange{{Topic: "orders", Group: "h", Create: true, State: store.GroupState{Epoch: 2}}}})
	check("a group")
	r.commit(&store.Unit{Groups: []store.GroupChange{{Topic: "orders", Group: "h", Delete: true, State: store.GroupState{Epoch: 2}}}})
	check("the end of a group")
}

// compact has a topic compacted up to an offset.
func (r *rig) compact(topic string, upTo, ends uint64) {
	r.t.Helper()
	ctx := limited(r.t)
	for done := false; !done; {
		var err error
		if _, done, err = r.store.IndexKeys(ctx, topic, nil); err != nil {
			r.t.Fatal(err)
		}
	}
	r.change(store.TopicChange{Topic: topic, Compacted: upTo, Tombstones: ends})
	for done := false; !done; {
		var err error
		if _, done, err = r.store.Compact(ctx, topic); err != nil {
			r.t.Fatal(err)
		}
	}
}
