// Package mongooutbox is the outbox in a MongoDB database: one document a row, with the
// fields that docs/databases.md describes. Services in other languages insert it
// themselves, and may have any BSON value as the payload, which is converted to JSON. Add
// keeps the JSON text of the event, token for token, in the field payload_json, which wins
// over payload where a document has both.
//
// # Order
//
// Rows come in the order of ts and then of _id. Ids that Add makes rise within a process.
// Among processes the order of one key is that of their clocks, so rows of one key should
// come from where the key is changed in turn, as within transactions on one document.
//
// # Claims
//
// Claims come one after another: a claim holds a lock, which is a document in the
// collection eventhub_outbox_lock, numbered one higher than the last. The number is part of
// its _id, so two drainers cannot have the same lock, on any server whose _id is unique. A
// lock that is not given back is passed over after [LockLease]. A claim that was stopped for
// so long finds a higher number at its end, and returns no rows; what it marked in between
// stays claimed until its lease ends, so that the rows after these wait for them.
//
// # Clocks
//
// Leases are measured with the clocks of the drainers. These must differ by less than what a
// lease is longer than a publish takes; a drainer whose clock is ahead takes rows early,
// which are then duplicates that the hub knows. The lock is safe with any clock.
//
// # Servers
//
// Atomicity with the service's own change needs transactions: a replica set or a sharded
// cluster. Where there are none, an event that Add adds is a single atomic insert and
// several are not. Rows are noticed by a change stream where there is one, else by looking.
package mongooutbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"eventhub"
	"eventhub/outbox"
	"eventhub/outbox/internal/columns"
)

// Version is the version of the collection.
const Version = 1

// The names of the collections. Several outboxes in one database share the latter two.
const (
	DefaultCollection = "outbox"
	LockCollection    = "eventhub_outbox_lock"
	VersionCollection = "eventhub_outbox_version"
)

// Store is an outbox in one collection. Its methods are safe for concurrent use.
type Store struct {
	rows, locks, versions *mongo.Collection
	// Now is the clock for leases and times of rows; New sets it to time.Now.
	Now func() time.Time

	watching sync.Mutex // one Wait at a time has the stream
	stream   *mongo.ChangeStream
	await    time.Duration // of the stream
	noStream bool

	updates atomic.Int64 // what mostUpdates returns; 0 before it has asked

	// between is called within a claim after each of its steps, for tests; nil for nobody.
	between func(step string)
}

var (
	_ outbox.Store  = (*Store)(nil)
	_ outbox.Waiter = (*Store)(nil)
)

// New returns the outbox in a collection of db; the empty name stands for
// DefaultCollection. It does not use the database yet.
func New(db *mongo.Database, collection string) *Store {
	if collection == "" {
		collection = DefaultCollection
	}
	// A claim that a majority has is not rolled back, nor are the rows that it has read:
	// these were written before it.
	o := options.Collection().SetWriteConcern(writeconcern.Majority()).SetReadPreference(readpref.Primary())
	return &Store{
		rows:     db.Collection(collection, o),
		locks:    db.Collection(LockCollection, o),
		versions: db.Collection(VersionCollection, o),
		Now:      time.Now,
	}
}

// Add adds events to the outbox in coll, and returns their ids. Where ctx is that of a
// session with a transaction (mongo.NewSessionContext, Session.WithTransaction), they are
// published after it is committed, and never if it is aborted. Without a transaction they
// are added at once, each atomically: after an error some of them may be there. An event
// that a hub would refuse is refused here, with the error of the hub and its index among
// the events; nothing of the call is added then.
func Add(ctx context.Context, coll *mongo.Collection, events ...eventhub.Event) ([]string, error) {
	if len(events) == 0 {
		return nil, nil
	}
	now := time.Now()
	docs := make([]any, len(events))
	ids := make([]string, len(events))
	for i, e := range events {
		c, err := columns.Of(e, now)
		if err != nil {
			return nil, eventhub.AtIndex(err, "", i)
		}
		e.ID, e.TS = c.ID, c.TS
		docs[i], ids[i] = document(e), c.ID
	}
	if _, err := coll.InsertMany(ctx, docs); err != nil {
		return nil, fmt.Errorf("outbox: adding %d events, the first of them %s: %w", len(ids), ids[0], err)
	}
	return ids, nil
}

// document is an event as it stands in the outbox.
func document(e eventhub.Event) bson.D {
	doc := bson.D{
		{Key: "_id", Value: e.ID}, {Key: "topic", Value: e.Topic}, {Key: "payload_json", Value: string(e.Payload)},
		{Key: "status", Value: outbox.Pending}, {Key: "ts", Value: e.TS}, {Key: "attempts", Value: 0},
	}
	if e.Key != "" {
		doc = append(doc, bson.E{Key: "key", Value: e.Key})
	}
	if e.SID != "" {
		doc = append(doc, bson.E{Key: "sid", Value: e.SID})
	}
	if len(e.Headers) > 0 {
		doc = append(doc, bson.E{Key: "headers", Value: e.Headers})
	}
	if len(e.Tags) > 0 {
		doc = append(doc, bson.E{Key: "tags", Value: e.Tags})
	}
	if len(e.CausedBy) > 0 {
		doc = append(doc, bson.E{Key: "caused_by", Value: e.CausedBy})
	}
	return doc
}

// Indexes are those of the collection, for migration tools.
func Indexes() []mongo.IndexModel {
	return []mongo.IndexModel{
		{Keys: bson.D{{Key: "status", Value: 1}, {Key: "lease_until", Value: 1}}},
		{Keys: bson.D{{Key: "ts", Value: 1}, {Key: "_id", Value: 1}}},                            // List; the seed of the design has it without _id
		{Keys: bson.D{{Key: "status", Value: 1}, {Key: "ts", Value: 1}, {Key: "_id", Value: 1}}}, // claims
		{Keys: bson.D{{Key: "status", Value: 1}, {Key: "sent_at", Value: 1}}},                    // Forget
		{Keys: bson.D{{Key: "retry_at", Value: 1}}, Options: options.Index().SetSparse(true)},    // the few that wait
	}
}

// Migrate makes the indexes where they are not there, and with them the collection, which
// transactions of old servers cannot make.
func (s *Store) Migrate(ctx context.Context) error {
	if err := s.Check(ctx); err == nil || !errors.Is(err, outbox.ErrNoTable) {
		return err
	}
	for _, index := range Indexes() { // FerretDB closes the connection where it is to make several, and some are there
		if _, err := s.rows.Indexes().CreateOne(ctx, index); err != nil {
			return fmt.Errorf("outbox: making the indexes of %s: %w", s.rows.Name(), err)
		}
	}
	if _, err := s.locks.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "outbox", Value: 1}, {Key: "n", Value: -1}}}); err != nil {
		return fmt.Errorf("outbox: making the index of %s: %w", LockCollection, err)
	}
	// Last, so that a Migrate that was cut short is done again.
	_, err := s.versions.InsertOne(ctx, bson.D{{Key: "_id", Value: s.rows.Name()}, {Key: "version", Value: Version}})
	if err != nil && !mongo.IsDuplicateKeyError(err) { // another one did the same
		return fmt.Errorf("outbox: writing the version: %w", err)
	}
	return s.Check(ctx)
}

// Check implements [outbox.Table].
func (s *Store) Check(ctx context.Context) error {
	var doc struct {
		Version int `bson:"version"`
	}
	err := s.versions.FindOne(ctx, bson.D{{Key: "_id", Value: s.rows.Name()}}).Decode(&doc)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return outbox.ErrNoTable
	}
	if err != nil {
		return fmt.Errorf("outbox: reading the version of %s: %w", s.rows.Name(), err)
	}
	return outbox.CheckVersion(doc.Version, Version)
}
