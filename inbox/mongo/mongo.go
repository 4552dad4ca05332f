// Package mongoinbox remembers in a MongoDB database which events have had their effect, so
// that an event which is delivered again has it once. The record of an event is written in
// the transaction that makes the effect: both are there after it, or neither is.
//
// A record is a document {_id: {group, topic, id}, at: date}. It is kept for longer than an
// event may be delivered again, and then removed by age: see [Inbox.Migrate] and
// [Inbox.Trim]. Records cannot be removed by the group's cursor, since events that are
// redriven lie below it.
package mongoinbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub"
)

// DefaultCollection is the name of the collection where none is given.
const DefaultCollection = "eventhub_inbox"

// Error codes of servers that have no transactions, or no TTL indexes.
const (
	codeIllegalOperation = 20
	codeNoSuchCommand    = 59
	codeNotImplemented   = 238
)

// Inbox is the records in one collection. Its methods are safe for concurrent use.
type Inbox struct {
	records *mongo.Collection
	// Idempotent says that effects may be applied again: Do then works on a server without
	// transactions too, and writes the record after the effect. Where the process dies
	// between the two, the effect is applied once more.
	Idempotent bool
	// Now is the clock for the age of records; New sets it to time.Now.
	Now func() time.Time
}

// New returns the inbox in a collection of db; the empty name stands for
// DefaultCollection. It does not use the database yet.
func New(db *mongo.Database, collection string) *Inbox {
	if collection == "" {
		collection = DefaultCollection
	}
	return &Inbox{records: db.Collection(collection), Now: time.Now}
}

// Migrate makes the collection and its index where they are not there. With a positive
// keep, the server removes records of that age by a TTL index; expires is false where it
// cannot, as Trim has to be called then, and where keep is 0. An index with another age is
// an error of the server's.
func (i *Inbox) Migrate(ctx context.Context, keep time.Duration) (expires bool, err error) {
	if keep < 0 || keep > 0 && keep < time.Second {
		return false, eventhub.Errorf(eventhub.CodeBadRequest, "keep is %s; 0 or at least %s is allowed", keep, time.Second)
	}
	index := mongo.IndexModel{Keys: bson.D{{Key: "at", Value: 1}}}
	if keep > 0 {
		index.Options = options.Index().SetExpireAfterSeconds(int32(min(keep/time.Second, 1<<31-1)))
		_, err = i.records.Indexes().CreateOne(ctx, index)
		if err == nil {
			return true, nil
		}
		if !hasCode(err, codeNotImplemented) {
			return false, fmt.Errorf("inbox: making the index of %s: %w", i.records.Name(), err)
		}
		index.Options = nil
	}
	if _, err := i.records.Indexes().CreateOne(ctx, index); err != nil {
		return false, fmt.Errorf("inbox: making the index of %s: %w", i.records.Name(), err)
	}
	return false, nil
}

// Once records in the transaction of ctx (mongo.NewSessionContext, Session.WithTransaction)
// that a group has e, and reports whether it is the first to do so. The caller makes the
// effect in the same transaction where first is true, and acks in both cases after the
// commit. Of two transactions with one event that are open at a time, the second fails
// with an error of the server's that has the label TransientTransactionError, on which
// Session.WithTransaction begins again. The error has eventhub.CodeBadRequest where ctx has
// no transaction, or the server knows none.
func (i *Inbox) Once(ctx context.Context, group string, e *eventhub.Event) (first bool, err error) {
	session := mongo.SessionFromContext(ctx)
	if session == nil || !session.TransactionRunning() {
		return false, eventhub.Errorf(eventhub.CodeBadRequest, "the inbox needs a transaction, and the context of event %q has none: use a session's", e.ID)
	}
	first, err = i.record(ctx, group, e)
	return first, noTransactions(err)
}

// Do makes an effect for an event unless its group has had it, and reports whether it did.
// On a server with transactions it does so in one, whose context effect gets and uses for
// all that it writes; effect may be called again when the server asks for it. On others
// it is an error with eventhub.CodeBadRequest, unless the inbox is Idempotent. Do is not for a
// ctx that has a session.
func (i *Inbox) Do(ctx context.Context, group string, e *eventhub.Event, effect func(context.Context) error) (first bool, err error) {
	has, err := i.hasTransactions(ctx)
	if err != nil {
		return false, err
	}
	if !has {
		return i.doWithout(ctx, group, e, effect)
	}
	err = i.records.Database().Client().UseSession(ctx, func(ctx context.Context) error {
		_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) {
			var err error
			if first, err = i.Once(ctx, group, e); err != nil || !first {
				return nil, err
			}
			return nil, effect(ctx)
		})
		return err
	})
	return first && err == nil, err
}

// doWithout is Do on a server without transactions.
func (i *Inbox) doWithout(ctx context.Context, group string, e *eventhub.Event, effect func(context.Context) error) (first bool, err error) {
	if !i.Idempotent {
		return false, errNoTransactions(nil)
	}
	err = i.records.FindOne(ctx, bson.D{{Key: "_id", Value: recordID(group, e)}}).Err()
	if err == nil {
		return false, nil
	}
	if !errors.Is(err, mongo.ErrNoDocuments) {
		return false, fmt.Errorf("inbox: looking for event %q of topic %s: %w", e.ID, e.Topic, err)
	}
	if err := effect(ctx); err != nil {
		return false, err
	}
	_, err = i.record(ctx, group, e)
	return true, err
}

// recordID is the _id of a record. A document is equal to another one only with its fields
// in the same order.
func recordID(group string, e *eventhub.Event) bson.D {
	return bson.D{{Key: "group", Value: group}, {Key: "topic", Value: e.Topic}, {Key: "id", Value: e.ID}}
}

// record writes the record of an event where there is none, and reports whether it did. An
// insert that fails would end the caller's transaction, and an upsert does not fail.
func (i *Inbox) record(ctx context.Context, group string, e *eventhub.Event) (first bool, err error) {
	filter := bson.D{{Key: "_id", Value: recordID(group, e)}}
	at := bson.D{{Key: "$setOnInsert", Value: bson.D{{Key: "at", Value: i.Now()}}}}
	result, err := i.records.UpdateOne(ctx, filter, at, options.UpdateOne().SetUpsert(true))
	if mongo.IsDuplicateKeyError(err) && mongo.SessionFromContext(ctx) == nil {
		return false, nil // another one was faster
	}
	if err != nil {
		return false, fmt.Errorf("inbox: recording event %q of topic %s: %w", e.ID, e.Topic, err)
	}
	return result.UpsertedCount > 0, nil
}

// Trim removes records that are older than that, and returns how many. A record has to be
// kept for as long as its event may be delivered again: at least the retention of the topic
// and of its dead letters.
func (i *Inbox) Trim(ctx context.Context, olderThan time.Duration) (int, error) {
	result, err := i.records.DeleteMany(ctx, bson.D{{Key: "at", Value: bson.D{{Key: "$lt", Value: i.Now().Add(-olderThan)}}}})
	if err != nil {
		return 0, fmt.Errorf("inbox: removing records: %w", err)
	}
	return int(result.DeletedCount), nil
}

// hasTransactions asks the server what it is: members of replica sets and routers of
// sharded clusters have transactions.
func (i *Inbox) hasTransactions(ctx context.Context) (bool, error) {
	var hello struct {
		SetName string `bson:"setName"`
		Msg     string `bson:"msg"`
	}
	err := i.records.Database().RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello)
	if err != nil {
		return false, fmt.Errorf("inbox: asking the server for what it can: %w", err)
	}
	return hello.SetName != "" || hello.Msg == "isdbgrid", nil
}

func errNoTransactions(cause error) error {
	return eventhub.Wrap(eventhub.CodeBadRequest, cause,
		"the server has no transactions, so the inbox cannot be written together with an effect; use a replica set, or say that the effect is idempotent")
}

// noTransactions is the error of a write in a transaction, where it is that there are none:
// a single MongoDB has an illegal operation, FerretDB an unknown field of the command.
func noTransactions(err error) error {
	var refused mongo.CommandError
	if !errors.As(err, &refused) {
		return err
	}
	unknownField := refused.HasErrorMessage("startTransaction")
	if unknownField || hasCode(err, codeIllegalOperation, codeNoSuchCommand, codeNotImplemented) {
		return errNoTransactions(err)
	}
	return err
}

func hasCode(err error, codes ...int) bool {
	var refused mongo.ServerError
	if !errors.As(err, &refused) {
		return false
	}
	for _, code := range codes {
		if refused.HasErrorCode(code) {
			return true
		}
	}
	return false
}
