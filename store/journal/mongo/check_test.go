package mongojournal

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub/internal/mongotest"
	"eventhub/store/journal"
)

// TestDatabasesThatAreNoJournal: what would lose or hide entries is refused, and nothing is written.
func TestDatabasesThatAreNoJournal(t *testing.T) {
	unique := func(name string) func(*testing.T, *mongo.Database) {
		return func(t *testing.T, db *mongo.Database) {
			m := mongo.IndexModel{Keys: bson.D{{Key: "epoch", Value: 1}}, Options: options.Index().SetUnique(true)}
			if _, err := db.Collection(name).Indexes().CreateOne(limited(t), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	for want, fill := range map[string]func(*testing.T, *mongo.Database){
		"has documents of somebody else, as": func(t *testing.T, db *mongo.Database) {
			insert(t, db.Collection(Entries), bson.D{{Key: "order", Value: 7}})
		},
		"has a document of somebody else at _id": func(t *testing.T, db *mongo.Database) {
			insert(t, db.Collection(Entries), bson.D{{Key: "_id", Value: key(0)}, {Key: "order", Value: 7}})
		},
		"has version 2, and this program has version 1": func(t *testing.T, db *mongo.Database) {
			insert(t, db.Collection(Entries), mark{ID: key(0), Kind: markKind, Version: 2})
		},
		"eventhub_journal has the option capped": func(t *testing.T, db *mongo.Database) {
			if err := db.CreateCollection(limited(t), Entries, options.CreateCollection().SetCapped(true).SetSizeInBytes(4096)); err != nil {
				t.Fatal(err)
			}
		},
		"a document of eventhub_journal_trims is": func(t *testing.T, db *mongo.Database) {
			insert(t, db.Collection(Trims), bson.D{{Key: "order", Value: 7}})
		},
		"a document of eventhub_journal_members is": func(t *testing.T, db *mongo.Database) {
			insert(t, db.Collection(Members), bson.D{{Key: "_id", Value: "hub"}, {Key: "order", Value: 7}})
		},
		"eventhub_journal has the index epoch_1":       unique(Entries),
		"eventhub_journal_trims has the index epoch_1": unique(Trims),
	} {
		t.Run(want, func(t *testing.T) {
			o, db := newDatabase(t)
			fill(t, db)
			before := count(t, db)
			j, err := Open(limited(t), o)
			if err == nil {
				_ = j.Close()
			}
			var refused *ConfigError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), o.Database) {
				t.Errorf("Open: %v; want %q", err, want)
			}
			if after := count(t, db); after != before {
				t.Errorf("%d documents before, %d after", before, after)
			}
		})
	}
}

// TestLook: whoever only looks writes nothing.
func TestLook(t *testing.T) {
	o, db := newDatabase(t)
	for _, exists := range []bool{false, true} {
		j, err := Look(limited(t), o)
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		if want := map[bool]int64{true: 1}[exists]; j.Exists() != exists || count(t, db) != want {
			t.Errorf("Exists() = %t, and %d documents; want %t, %d", j.Exists(), count(t, db), exists, want)
		}
		if err := j.Create(limited(t)); err != nil || !j.Exists() || count(t, db) != 1 {
			t.Errorf("Create: %v, Exists() = %t, %d documents", err, j.Exists(), count(t, db))
		}
	}
}

func count(t *testing.T, db *mongo.Database) (n int64) {
	t.Helper()
	for _, name := range []string{Entries, Trims, Members} {
		here, err := db.Collection(name).CountDocuments(limited(t), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		n += here
	}
	return n
}

func TestServersThatHaveNoJournal(t *testing.T) {
	value := func(v any) bson.RawValue {
		kind, data, err := bson.MarshalValue(v)
		if err != nil {
			t.Fatal(err)
		}
		return bson.RawValue{Type: kind, Value: data}
	}
	for _, tt := range []struct {
		hello  hello
		build  buildInfo
		ferret bool
		want   string
	}{
		{hello{SetName: "rs0"}, buildInfo{}, false, ""},
		{hello{}, buildInfo{}, false, "no replica set"},
		{hello{Msg: "isdbgrid"}, buildInfo{}, false, "sharded"},
		{hello{}, buildInfo{Ferret1: "1.24"}, true, ""},
		{hello{}, buildInfo{FerretDB: value(bson.D{{Key: "version", Value: "2.5"}})}, true, ""},
	} {
		ferret, err := judge(tt.hello, tt.build)
		if ferret != tt.ferret || (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("judge(%+v, %+v) = %t, %v; want %t, %q", tt.hello, tt.build, ferret, err, tt.ferret, tt.want)
		}
	}
	err := refusedRights(mongo.CommandError{Code: codeUnauthorized, Message: "not authorized on prom"}, "prom")
	if !strings.Contains(err.Error(), "needs the role readWrite of the database prom") || !strings.Contains(err.Error(), "not authorized on prom") {
		t.Errorf("no rights: %v", err)
	}
	if err := refusedRights(context.Canceled, "prom"); err != context.Canceled { //nolint:errorlint // it is to be the same
		t.Errorf("another error: %v", err)
	}
	_, err = Open(limited(t), Options{URL: "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100", Database: "x"})
	if err == nil || !strings.Contains(err.Error(), "the servers are not reached") {
		t.Errorf("a server that is not there: %v", err)
	}
}

// TestOpenedAtOnce: hubs that open an empty database at once have the same journal.
func TestOpenedAtOnce(t *testing.T) {
	for range 5 {
		o, _ := newDatabase(t)
		journals := make([]*Journal, 4)
		errs := make([]error, len(journals))
		ctx := limited(t)
		var all sync.WaitGroup
		for i := range journals {
			all.Go(func() { journals[i], errs[i] = Open(ctx, o) })
		}
		all.Wait()
		for i, j := range journals {
			if errs[i] != nil {
				t.Errorf("hub %d: %v", i, errs[i])
				continue
			}
			defer j.Close()
			if err := j.Append(ctx, uint64(i), []byte("entry")); err != nil {
				t.Errorf("hub %d: %v", i, err)
			}
		}
	}
	o, _ := newDatabase(t)
	j := open(t, o)
	if j.single == mongotest.Real() {
		t.Errorf("places are read one by one: %t", j.single)
	}
}

// TestRightsAreChecked: at each start, and what is no refusal may be well later.
func TestRightsAreChecked(t *testing.T) {
	o, db := newDatabase(t)
	j := open(t, o)
	before := count(t, db)
	if err := j.CheckRights(limited(t)); err != nil || count(t, db) != before {
		t.Errorf("CheckRights: %v, and %d documents of %d", err, count(t, db), before)
	}
	for _, tt := range []struct {
		err  error
		away bool
	}{
		{nil, false},
		{&ConfigError{"a", "b"}, false},
		{refusedRights(mongo.CommandError{Code: codeUnauthorized}, "x"), false},
		{mongo.CommandError{Code: 91, Message: "shutting down"}, true},
		{context.DeadlineExceeded, true},
	} {
		err := j.Check(limited(t), func(context.Context, *mongo.Database) error { return tt.err })
		if errors.Is(err, journal.ErrAway) != tt.away || (err == nil) != (tt.err == nil) {
			t.Errorf("%v became %v", tt.err, err)
		}
	}
	if _, err := db.Collection(Entries).DeleteMany(limited(t), bson.D{}); err != nil {
		t.Fatal(err)
	}
	if err := j.CheckRights(limited(t)); err == nil {
		t.Error("the mark could be inserted, and nothing was said")
	}
}

// TestWrongPassword: a user whom the server does not let in is no server that is away.
func TestWrongPassword(t *testing.T) {
	o, _ := newDatabase(t)
	scheme, rest, _ := strings.Cut(o.URL, "://")
	o.URL = scheme + "://nobody:wrong@" + rest[strings.LastIndex(rest, "@")+1:]
	_, err := Look(limited(t), o)
	if err == nil || errors.Is(err, journal.ErrAway) || !strings.Contains(err.Error(), "does not let the user of the URL in") || strings.Contains(err.Error(), "wrong") {
		t.Errorf("Look: %v", err)
	}
}

func TestParseURL(t *testing.T) {
	for text, want := range map[string]string{
		"mongodb://h/hub":  "hub",
		"mongodb://h":      DefaultDatabase,
		"mongodb://h/?w=1": DefaultDatabase,
		"mongodb://u:p@a:1,b:2,c:3/hub?replicaSet=rs0": "hub",
		"mongodb+srv://u:p@cluster.example.org/hub":    "hub",
		"mongodb+srv://u:p%2F@cluster.example.org":     DefaultDatabase,
		"mongodb:///hub":                                "!it names no server",
		"nats://h/hub":                                  `!its scheme is "nats"`,
		"mongodb://h/a.b":                               `!the database is "a.b"`,
		"mongodb://h/local":                             "!the server's own",
		"mongodb://u:p@h/admin?replicaSet=rs0":          "!authSource",
		"mongodb://h/config":                            "!the server's own",
		"mongodb://user:secret@h/hub?tls=perhaps":       "!tls",
		"mongodb://user:sec/ret@h/hub":                  "!",
		"mongodb://user:secret@h:port/hub":              "!",
		"mongodb://user:secret@h/hub?authMechanism=odd": "!",
	} {
		o, err := ParseURL(text)
		switch wanted, bad := strings.CutPrefix(want, "!"); {
		case bad:
			if err == nil || !strings.Contains(err.Error(), wanted) || strings.Contains(err.Error(), "sec") {
				t.Errorf("%s: %v; want %q, and no password", text, err, wanted)
			}
		case err != nil || o.Database != want || o.URL != text:
			t.Errorf("%s: %+v, %v; want %q", text, o, err, want)
		}
	}
}
