package mongooutbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub/outbox"
)

func (s *Store) find(ctx context.Context, filter any, o *options.FindOptionsBuilder) ([]record, error) {
	cursor, err := s.rows.Find(ctx, filter, o)
	if err != nil {
		return nil, fmt.Errorf("outbox: reading rows: %w", err)
	}
	var docs []bson.Raw
	if err := cursor.All(ctx, &docs); err != nil {
		return nil, fmt.Errorf("outbox: reading rows: %w", err)
	}
	rows := make([]record, len(docs))
	for i, doc := range docs {
		rows[i] = recordOf(doc)
	}
	return rows, nil
}

// Forget implements [outbox.Table].
func (s *Store) Forget(ctx context.Context, before time.Time, most int) (int, error) {
	sent := bson.D{{Key: "status", Value: outbox.Sent}, {Key: "sent_at", Value: bson.D{{Key: "$lt", Value: before.UnixMilli()}}}}
	old, err := s.find(ctx, sent, options.Find().SetSort(bson.D{{Key: "sent_at", Value: 1}}).SetLimit(int64(most)).
		SetProjection(bson.D{{Key: "_id", Value: 1}}))
	if err != nil || len(old) == 0 {
		return 0, err
	}
	return s.remove(ctx, append(bson.D{{Key: "_id", Value: among(old)}}, sent...))
}

func (s *Store) remove(ctx context.Context, filter bson.D) (int, error) {
	result, err := s.rows.DeleteMany(ctx, filter)
	if err != nil {
		return 0, fmt.Errorf("outbox: removing rows: %w", err)
	}
	return int(result.DeletedCount), nil
}

// Counts implements [outbox.Table].
func (s *Store) Counts(ctx context.Context) (n outbox.Counts, err error) {
	for status, into := range map[outbox.Status]*int{outbox.Pending: &n.Pending, outbox.Claimed: &n.Claimed, outbox.Parked: &n.Parked} {
		count, err := s.rows.CountDocuments(ctx, bson.D{{Key: "status", Value: status}})
		if err != nil {
			return n, fmt.Errorf("outbox: counting rows: %w", err)
		}
		*into = int(count)
	}
	for _, status := range []outbox.Status{outbox.Pending, outbox.Claimed} {
		first, err := s.find(ctx, bson.D{{Key: "status", Value: status}}, options.Find().SetSort(order).SetLimit(1))
		if err != nil {
			return n, err
		}
		for _, r := range first {
			if ts := r.Event.Time(); n.Oldest.IsZero() || ts.Before(n.Oldest) {
				n.Oldest = ts
			}
		}
	}
	return n, nil
}

// List implements [outbox.Keeper]. Rows are passed over where their _id or ts is of another
// BSON type than that of the row after which it lists, but for a ts that is no number.
func (s *Store) List(ctx context.Context, statuses []outbox.Status, after string, limit int) ([]outbox.Row, error) {
	filter := bson.D{}
	if len(statuses) > 0 {
		filter = append(filter, bson.E{Key: "status", Value: bson.D{{Key: "$in", Value: statuses}}})
	}
	if after != "" {
		var doc bson.Raw
		if err := s.one(ctx, after, &doc); err != nil {
			return nil, err
		}
		filter = append(filter, bson.E{Key: "$or", Value: afterDocument(doc)})
	}
	if limit <= 0 { // which MongoDB takes for all
		return nil, nil
	}
	all, err := s.find(ctx, filter, options.Find().SetSort(order).SetLimit(int64(limit)))
	rows := make([]outbox.Row, len(all))
	for i, r := range all {
		rows[i] = r.Row
	}
	return rows, err
}

// afterDocument matches what is after a document. A comparison matches values of one type
// alone, so what has no ts, and is before all numbers, is a case of its own, as is what is
// after them.
func afterDocument(doc bson.Raw) bson.A {
	id := bson.E{Key: "_id", Value: bson.D{{Key: "$gt", Value: doc.Lookup("_id")}}}
	ts := doc.Lookup("ts")
	if isNone(ts) {
		return bson.A{
			bson.D{{Key: "ts", Value: nil}, id},
			bson.D{{Key: "ts", Value: bson.D{{Key: "$ne", Value: nil}}}},
		}
	}
	after := bson.A{
		bson.D{{Key: "ts", Value: ts}, id},
		bson.D{{Key: "ts", Value: bson.D{{Key: "$gt", Value: ts}}}},
	}
	if _, ok := millis(ts); ok {
		above := bson.A{"string", "object", "array", "binData", "objectId", "bool", "date"}
		after = append(after, bson.D{{Key: "ts", Value: bson.D{{Key: "$type", Value: above}}}})
	}
	return after
}

func (s *Store) one(ctx context.Context, id string, into *bson.Raw) error {
	err := s.rows.FindOne(ctx, bson.D{{Key: "_id", Value: idFilter(id)}}).Decode(into)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return outbox.UnknownRow(id)
	}
	if err != nil {
		return fmt.Errorf("outbox: reading row %s: %w", id, err)
	}
	return nil
}

// Show implements [outbox.Keeper].
func (s *Store) Show(ctx context.Context, id string) (outbox.Row, error) {
	var doc bson.Raw
	if err := s.one(ctx, id, &doc); err != nil {
		return outbox.Row{}, err
	}
	return recordOf(doc).Row, nil
}

// Retry implements [outbox.Keeper].
func (s *Store) Retry(ctx context.Context, ids ...string) (n int, err error) {
	update := bson.D{
		{Key: "$set", Value: bson.D{{Key: "status", Value: outbox.Pending}, {Key: "attempts", Value: 0}}},
		{Key: "$unset", Value: bson.D{{Key: "retry_at", Value: ""}}},
	}
	parked := bson.D{{Key: "status", Value: outbox.Parked}}
	filters := []bson.D{parked}
	if len(ids) > 0 {
		filters = nil
		for _, id := range ids {
			filters = append(filters, append(bson.D{{Key: "_id", Value: idFilter(id)}}, parked...))
		}
	}
	for _, filter := range filters {
		result, err := s.rows.UpdateMany(ctx, filter, update)
		if err != nil {
			return n, fmt.Errorf("outbox: retrying parked rows: %w", err)
		}
		n += int(result.MatchedCount)
	}
	return n, nil
}

// Purge implements [outbox.Keeper].
func (s *Store) Purge(ctx context.Context, status outbox.Status, before time.Time) (int, error) {
	if err := outbox.CheckPurge(status); err != nil {
		return 0, err
	}
	return s.remove(ctx, bson.D{{Key: "status", Value: status}, {Key: "ts", Value: bson.D{{Key: "$lt", Value: before.UnixMilli()}}}})
}
