package hub_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"eventhub"
	"eventhub/hub"
	"eventhub/internal/mongotest"
	mongojournal "eventhub/store/journal/mongo"
)

// TestMongoAway: while the server of the journal is away nobody is served, nothing that was asked for is half done, and
// when it is back everything goes on, the documents too.
func TestMongoAway(t *testing.T) {
	if mongotest.Real() {
		t.Skip("the server is not the test's to kill")
	}
	server := mongotest.Own(t)
	cfg := hub.Config{
		Store: t.TempDir(), WSAddr: "127.0.0.1:0", HTTPAddr: "localhost:0", OpsAddr: "[::1]:0", Grace: 5 * time.Second,
		Journal: strings.TrimSuffix(server.URI, "/") + "/away", MemberID: "hub1", Lease: time.Second,
	}
	h := start(t, cfg)
	awaitReady(t, h)
	ctx := context.Background()
	publish := func(n int) error {
		_, err := h.Bus().Publish(ctx, eventhub.Event{Topic: "orders", ID: fmt.Sprint("e", n), Payload: []byte(`1`)})
		return err
	}
	if err := publish(1); err != nil {
		t.Fatal(err)
	}
	// FerretDB over SQLite that is killed while it makes a collection has a table without its entry then, and never makes it.
	db := mongotest.Connect(t, server.URI).Database("away")
	ofOrders := bson.D{{Key: "topic", Value: "orders"}}
	awaitDocuments(t, db, "events", ofOrders, 1)
	server.Kill()
	under := make(chan error, 1)
	go func() { under <- publish(2) }()
	awaitReadiness(t, h, func(status int, text string) bool {
		return status == http.StatusServiceUnavailable && strings.Contains(text, "the journal of this hub has not answered")
	})
	resp, err := http.Post("http://"+h.HTTPAddr()+"/publish/orders", "application/json", strings.NewReader("3"))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("a publish meanwhile is answered %d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	select {
	case err := <-under:
		t.Errorf("a publish was answered without the journal: %v", err)
	default:
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := <-under; err != nil {
		t.Errorf("a publish that waited for the journal: %v", err)
	}
	awaitReady(t, h)
	if err := publish(4); err != nil {
		t.Error(err)
	}
	awaitDocuments(t, db, "events", ofOrders, 3)
}

// TestMongoRefused: what cannot have the journal, or not this hub's, is one clear error at the start and of config check,
// and nothing is made.
func TestMongoRefused(t *testing.T) {
	insert := func(collection string, d bson.D) func(*testing.T, *hub.Config) {
		return func(t *testing.T, cfg *hub.Config) {
			if _, err := databaseOf(t, cfg).Collection(collection).InsertOne(context.Background(), d); err != nil {
				t.Fatal(err)
			}
		}
	}
	first := fmt.Sprintf("%020d", 0)
	for want, fill := range map[string]func(*testing.T, *hub.Config){
		"has documents of somebody else":                insert(mongojournal.Entries, bson.D{{Key: "order", Value: 1}}),
		"has version 9, and this program has version 1": insert(mongojournal.Entries, bson.D{{Key: "_id", Value: first}, {Key: "kind", Value: "journal of an eventhub"}, {Key: "version", Value: 9}}),
		"events has documents of somebody else":         insert("events", bson.D{{Key: "id", Value: "x"}}),
	} {
		t.Run(want, func(t *testing.T) {
			cfg, db := onMongo(t)
			fill(t, &cfg)
			refuses(t, cfg, want)
			c, err := hub.CheckJournal(context.Background(), cfg)
			if err != nil || len(c.Errors) != 1 || !strings.Contains(c.Errors[0].Error(), want) {
				t.Errorf("CheckJournal: %+v, %v", c, err)
			}
			if names, err := db.ListCollectionNames(context.Background(), bson.D{}); err != nil || len(names) != 1 {
				t.Errorf("the collections are %v, %v", names, err)
			}
		})
	}
	t.Run("another cluster", func(t *testing.T) {
		cfg, _ := onMongo(t)
		h, err := hub.Start(cfg)
		if err != nil {
			t.Fatal(err)
		}
		awaitReady(t, h)
		if err := h.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		other, db := onMongo(t)
		other.Store = cfg.Store
		refuses(t, other, "nothing was created")
		if names, err := db.ListCollectionNames(context.Background(), bson.D{}); err != nil || len(names) != 0 {
			t.Errorf("the collections are %v, %v", names, err)
		}
	})
	for _, url := range []string{"mongodb:///x", "mongodb://h/a.b", "mongodb://h/x?tls=perhaps"} {
		if err := (hub.Config{Journal: url}).WithDefaults().Validate(); err == nil || !strings.Contains(err.Error(), "journal: ") {
			t.Errorf("%s: %v", url, err)
		}
	}
	_, err := hub.CheckJournal(context.Background(), hub.Config{Journal: "mongodb://127.0.0.1:1/x?serverSelectionTimeoutMS=100"})
	if err == nil || !hub.IsJournalAway(err) {
		t.Errorf("a server that is not there: %v", err)
	}
}

// refuses starts a hub, which must not go.
func refuses(t *testing.T, cfg hub.Config, want string) {
	t.Helper()
	h, err := hub.Start(cfg)
	if err == nil {
		err = errors.Join(errors.New("it starts"), h.Stop(context.Background()))
	}
	if !strings.Contains(err.Error(), want) {
		t.Errorf("Start: %v; want %q", err, want)
	}
}
