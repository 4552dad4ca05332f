package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub"
	mongoinbox "eventhub/inbox/mongo"
	mongooutbox "eventhub/outbox/mongo"
)

// mongoBooks are the books on FerretDB. Without transactions a count cannot be changed
// together with a row, so the rows are the counts: the _id of a row is its key and its
// number, a service goes on after the highest, and one service writes at a time. Effects may
// be applied again, as the inbox writes its record after the effect.
type mongoBooks struct {
	client  *mongo.Client
	rows    *mongo.Collection
	effect  *mongo.Collection
	records *mongoinbox.Inbox
	// counts is nil where it has to be read.
	counts map[string]int
	ts     int64 // of the last row; the rows of a key rise by it
}

// mostPending is how many rows may wait before the service does.
const mostPending = 40

func newMongoBooks(url string) (*mongoBooks, error) {
	client, err := mongo.Connect(options.Client().ApplyURI(url).SetServerSelectionTimeout(5 * time.Second))
	if err != nil {
		return nil, err
	}
	db := client.Database("service")
	records := mongoinbox.New(db, "")
	records.Idempotent = true
	return &mongoBooks{client: client, rows: db.Collection(mongooutbox.DefaultCollection), effect: db.Collection("effects"), records: records}, nil
}

func (b *mongoBooks) close() { _ = b.client.Disconnect(context.Background()) }

func (b *mongoBooks) prepare(ctx context.Context) error {
	_, err := b.records.Migrate(ctx, 0)
	return err
}

func (b *mongoBooks) change(ctx context.Context, r *rand.Rand) (err error) {
	if b.counts == nil {
		if b.counts, err = b.committed(ctx); err != nil {
			return err
		}
	}
	// FerretDB reads all rows for each claim: a service that does not wait is ever further ahead.
	pending, err := b.rows.CountDocuments(ctx, bson.D{{Key: "status", Value: "pending"}})
	if err != nil {
		return err
	}
	if pending > mostPending {
		return errMuchPending
	}
	key := r.IntN(keys)
	e := eventOf(key, b.counts[fmt.Sprint("k", key)]+1)
	e.ID = fmt.Sprintf("%s-%06d", e.Key, b.counts[e.Key]+1)
	b.ts = max(time.Now().UnixMilli(), b.ts)
	e.TS = b.ts
	if _, err := mongooutbox.Add(ctx, b.rows, e); err != nil {
		b.counts = nil // nobody knows whether the row is there
		return err
	}
	b.counts[e.Key]++
	return nil
}

func (b *mongoBooks) consumer() eventhub.Handler {
	return func(ctx context.Context, d eventhub.Delivery) error {
		e, err := d.Record.Event(d.Offset)
		if err != nil {
			return err
		}
		_, err = b.records.Do(ctx, "effects", &e, func(ctx context.Context) error {
			// Applied again it is the same, as the event of each number has a field of its own.
			_, err := b.effect.UpdateOne(ctx, bson.D{{Key: "_id", Value: e.ID}}, bson.D{{Key: "$set", Value: bson.D{{Key: "key", Value: e.Key}}}}, options.UpdateOne().SetUpsert(true))
			return err
		})
		return err
	}
}

func (b *mongoBooks) projects() bool { return false }

var errMuchPending = errors.New("the drainers have much to do")

var errNoProjector = errors.New("there is no projector for MongoDB")

func (b *mongoBooks) project(context.Context, string, string) error { return errNoProjector }

func (b *mongoBooks) projected(context.Context) (map[string]int, error) { return nil, errNoProjector }

func (b *mongoBooks) committed(ctx context.Context) (map[string]int, error) {
	return count(ctx, b.rows)
}

func (b *mongoBooks) effects(ctx context.Context) (map[string]int, error) {
	return count(ctx, b.effect)
}

// count returns how many documents there are of each key.
func count(ctx context.Context, coll *mongo.Collection) (map[string]int, error) {
	found, err := coll.Find(ctx, bson.D{}, options.Find().SetProjection(bson.D{{Key: "key", Value: 1}}))
	if err != nil {
		return nil, err
	}
	var docs []struct{ Key string }
	if err := found.All(ctx, &docs); err != nil {
		return nil, err
	}
	all := make(map[string]int)
	for _, d := range docs {
		all[d.Key]++
	}
	return all, nil
}
