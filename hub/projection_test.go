package hub_test

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
	"eventhub/admin"
	"eventhub/hub"
	"eventhub/internal/mongotest"
	"eventhub/store/journal"
)

// onMongo returns the configuration of a hub whose journal is in an empty database.
func onMongo(t *testing.T) (hub.Config, *mongo.Database) {
	t.Helper()
	db := mongotest.Database(t)
	url := strings.TrimSuffix(mongotest.URI(t), "/") + "/" + db.Name()
	if mongotest.Real() {
		t.Skip("the URL has its own options") // cluster has tests with MONGODB_URI
	}
	return hub.Config{
		Store: t.TempDir(), WSAddr: "127.0.0.1:0", HTTPAddr: "localhost:0", OpsAddr: "[::1]:0", Grace: 5 * time.Second,
		Journal: url, MemberID: "hub1", Lease: time.Second,
	}, db
}

// awaitDocuments waits until a collection has so many documents.
func awaitDocuments(t *testing.T, db *mongo.Database, collection string, filter bson.D, want int64) {
	t.Helper()
	for end := time.Now().Add(clusterWithin); ; time.Sleep(20 * time.Millisecond) {
		n, err := db.Collection(collection).CountDocuments(context.Background(), filter)
		if err == nil && n == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s has %d documents, %v; want %d", collection, n, err, want)
		}
	}
}

// TestProjections: a hub whose journal is in MongoDB has its events and cursors there, and what is erased or deleted goes
// there too; the metrics say how far that is, and journal project has it made anew.
func TestProjections(t *testing.T) {
	cfg, db := onMongo(t)
	cfg.ProjectState = []string{"orders"}
	h := start(t, cfg)
	awaitReady(t, h)
	ctx := context.Background()
	for i := range 5 {
		if _, err := h.Bus().Publish(ctx, eventhub.Event{Topic: "orders", ID: fmt.Sprint("e", i), Key: fmt.Sprint("k", i%2), Payload: []byte(`{"n":1}`)}); err != nil {
			t.Fatal(err)
		}
	}
	of := func(topic string) bson.D { return bson.D{{Key: "topic", Value: topic}} }
	awaitDocuments(t, db, "events", of("orders"), 5)
	awaitDocuments(t, db, "state.orders", bson.D{}, 2)
	if _, err := h.Bus().Erase(ctx, "orders", admin.EraseQuery{Key: "k0", By: "test", Apply: true}); err != nil {
		t.Fatal(err)
	}
	awaitDocuments(t, db, "events", of("orders"), 2)
	awaitDocuments(t, db, "state.orders", bson.D{}, 1)
	cfg.Journal += "?appName=x"
	j, err := hub.LookAfter(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if _, err := db.Collection("events").DeleteMany(ctx, of("orders")); err != nil {
		t.Fatal(err)
	}
	wakes := sync.OnceFunc(func() { // and else the hub looks after ten seconds
		if _, err := h.Bus().Publish(ctx, eventhub.Event{Topic: "others", Payload: []byte(`1`)}); err != nil {
			t.Error(err)
		}
	})
	if p, err := j.Rebuild(ctx, func(hub.JournalProjection) { wakes() }); err != nil || p.Asked || p.Wrote < 2 || p.Place == 0 {
		t.Errorf("Rebuild = %+v, %v", p, err)
	}
	if n, err := db.Collection("events").CountDocuments(ctx, of("orders")); n != 2 || err != nil {
		t.Errorf("%d events after a rebuild, %v", n, err)
	}
	if _, text := ask(t, "http://"+h.OpsAddr()+"/metrics"); !strings.Contains(text, "\neventhub_projection_errors_total 0\n") || strings.Contains(text, "\neventhub_projection_events_total 0\n") {
		t.Errorf("the metrics say %s", text[strings.Index(text, "eventhub_projection"):][:600])
	}
	if err := h.Bus().DeleteTopic(ctx, "orders"); err != nil {
		t.Fatal(err)
	}
	awaitDocuments(t, db, "state.orders", bson.D{}, 0)
}

// TestProjectionsOfManyAtOnce: commits that overlap are projected too.
func TestProjectionsOfManyAtOnce(t *testing.T) {
	cfg, db := onMongo(t)
	h := start(t, cfg)
	awaitReady(t, h)
	const publishers, each = 512, 4
	var all sync.WaitGroup
	for p := range publishers {
		all.Go(func() {
			for i := range each {
				if _, err := h.Bus().Publish(context.Background(), eventhub.Event{Topic: "orders", ID: fmt.Sprint(p, "-", i), Payload: []byte(`1`)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	awaitDocuments(t, db, "events", bson.D{{Key: "topic", Value: "orders"}}, publishers*each)
}

// TestProjectionsOff: nothing is written beside the journal.
func TestProjectionsOff(t *testing.T) {
	cfg, db := onMongo(t)
	cfg.Project = hub.ProjectOff
	if _, err := db.Collection("events").InsertOne(context.Background(), bson.D{{Key: "of", Value: "somebody else"}}); err != nil {
		t.Fatal(err)
	}
	h := start(t, cfg)
	awaitReady(t, h)
	if _, err := h.Bus().Publish(context.Background(), eventhub.Event{Topic: "orders", Payload: []byte(`1`)}); err != nil {
		t.Fatal(err)
	}
	names, err := db.ListCollectionNames(context.Background(), bson.D{})
	for _, name := range names {
		if name != "events" && !strings.HasPrefix(name, "eventhub_journal") {
			t.Errorf("there is a collection %s, %v", name, err)
		}
	}
	awaitDocuments(t, db, "events", bson.D{}, 1)
}

// TestProjectionsRefused: a database with documents of somebody else is refused at the start and by config check, and
// nothing is made.
func TestProjectionsRefused(t *testing.T) {
	cfg, db := onMongo(t)
	if _, err := db.Collection("events").InsertOne(context.Background(), bson.D{{Key: "of", Value: "somebody else"}}); err != nil {
		t.Fatal(err)
	}
	const want = "the collection events has documents of somebody else"
	if h, err := hub.Start(cfg); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "project: off") {
		if err == nil {
			_ = h.Stop(context.Background())
		}
		t.Errorf("Start: %v; want %q", err, want)
	}
	c, err := hub.CheckJournal(context.Background(), cfg)
	if err != nil || len(c.Errors) != 1 || !strings.Contains(c.Errors[0].Error(), want) {
		t.Errorf("CheckJournal: %+v, %v", c, err)
	}
	if names, err := db.ListCollectionNames(context.Background(), bson.D{}); err != nil || len(names) != 1 {
		t.Errorf("the collections are %v, %v", names, err)
	}
	j := memberConfig(nil, "a", t.TempDir())
	j.OpenJournal = func(context.Context) (journal.Journal, error) { return nil, errors.New("away") }
	if _, err := hub.LookAfter(context.Background(), j); err == nil {
		t.Error("a journal that is not opened is looked after")
	}
	for _, bad := range []hub.Config{{Project: "maybe"}, {ProjectState: []string{"a..b"}}} {
		bad.Journal = "mongodb://h/x"
		if err := bad.WithDefaults().Validate(); err == nil || !strings.Contains(err.Error(), "project") {
			t.Errorf("%+v: %v", bad.Project, err)
		}
	}
}

// databaseOf returns the database of a journal.
func databaseOf(t *testing.T, cfg *hub.Config) *mongo.Database {
	t.Helper()
	at := strings.LastIndex(cfg.Journal, "/")
	return mongotest.Connect(t, cfg.Journal[:at+1]).Database(cfg.Journal[at+1:])
}
