package mongooutbox

import (
	"cmp"
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.uber.org/goleak"

	"eventhub"
	"eventhub/internal/mongotest"
	"eventhub/outbox/outboxtest"
)

func TestMain(m *testing.M) {
	code := mongotest.Run(m)
	if err := goleak.Find(); err != nil && code == 0 {
		println(err.Error())
		code = 1
	}
	os.Exit(code)
}

func open(t *testing.T) (*mongo.Database, *Store) {
	t.Helper()
	db := mongotest.Database(t)
	s := New(db, "")
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	return db, s
}

func TestConformance(t *testing.T) { outboxtest.Run(t, place) }

func place(t *testing.T) *outboxtest.Place {
	db, s := open(t)
	coll := db.Collection(DefaultCollection)
	p := &outboxtest.Place{
		Store:      s,
		ByTime:     true,
		Slow:       true,
		Concurrent: mongotest.Real(),
		Add:        func(events ...eventhub.Event) ([]string, error) { return Add(t.Context(), coll, events...) },
		Insert:     inserter(t, coll),
		SetNow:     func(now time.Time) { s.Now = func() time.Time { return now } },
		SetVersion: func(v int) error {
			_, err := db.Collection(VersionCollection).UpdateMany(t.Context(), bson.D{}, set("version", v))
			return err
		},
		Unfinish: func() error {
			_, err := db.Collection(VersionCollection).DeleteMany(t.Context(), bson.D{})
			return err
		},
		Drop: func() error {
			return errors.Join(coll.Drop(t.Context()), db.Collection(VersionCollection).Drop(t.Context()), db.Collection(LockCollection).Drop(t.Context()))
		},
	}
	if mongotest.Real() {
		p.Begin = func(events ...eventhub.Event) ([]string, func(bool) error, error) { return begin(t, coll, events...) }
	}
	return p
}

// begin adds events in a transaction.
func begin(t *testing.T, coll *mongo.Collection, events ...eventhub.Event) ([]string, func(bool) error, error) {
	session, err := coll.Database().Client().StartSession()
	if err != nil {
		return nil, nil, err
	}
	if err := session.StartTransaction(); err != nil {
		return nil, nil, err
	}
	ctx := mongo.NewSessionContext(context.WithoutCancel(t.Context()), session)
	ids, err := Add(ctx, coll, events...)
	if err != nil {
		err = errors.Join(err, session.AbortTransaction(ctx))
		session.EndSession(ctx)
		return nil, nil, err
	}
	return ids, func(commit bool) error {
		defer session.EndSession(ctx)
		if commit {
			return session.CommitTransaction(ctx)
		}
		return session.AbortTransaction(ctx)
	}, nil
}

// inserter inserts rows as a service in another language does, which has rising times.
func inserter(t *testing.T, coll *mongo.Collection) func(outboxtest.Raw) error {
	last := int64(0)
	return func(r outboxtest.Raw) error {
		last = max(last+1, time.Now().UnixMilli())
		doc := bson.D{{Key: "topic", Value: r.Topic}, {Key: "status", Value: cmp.Or(r.Status, "pending")}, {Key: "ts", Value: float64(last)}}
		if r.ID != "" {
			doc = append(doc, bson.E{Key: "_id", Value: r.ID})
		}
		if r.Key != "" {
			doc = append(doc, bson.E{Key: "key", Value: r.Key})
		}
		for name, text := range map[string]string{"payload": r.Payload, "headers": r.Headers} {
			if text == "" {
				continue
			}
			var v struct {
				V any `bson:"v"`
			}
			if err := bson.UnmarshalExtJSON([]byte(`{"v":`+text+`}`), false, &v); err != nil {
				doc = append(doc, bson.E{Key: name + "_json", Value: text})
			} else {
				doc = append(doc, bson.E{Key: name, Value: v.V})
			}
		}
		_, err := coll.InsertOne(t.Context(), doc)
		return err
	}
}
