package mongooutbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub"
	"eventhub/outbox"
)

// order is that of the rows.
var order = bson.D{{Key: "ts", Value: 1}, {Key: "_id", Value: 1}}

// Turn implements [outbox.Table]. Only claims need the lock: a row leaves the claimed ones
// in any order without harm, since a claim leaves out the keys that were held at its start.
func (s *Store) Turn(ctx context.Context, settled []outbox.Outcome, c outbox.Claim) ([]outbox.Row, error) {
	now := s.Now().UnixMilli()
	if err := s.settle(ctx, settled, c.Worker, now); err != nil {
		return nil, err
	}
	if any, err := s.hasWork(ctx, now); err != nil || !any {
		return nil, err
	}
	if _, err := s.rows.UpdateMany(ctx, ranOut(now), unclaim(outbox.Pending)); err != nil {
		return nil, fmt.Errorf("outbox: giving back what ran out: %w", err)
	}
	if c.Max <= 0 {
		return nil, nil
	}
	n, err := s.lock(ctx, c.Worker)
	if err != nil || n == 0 {
		return nil, err
	}
	defer s.unlock(ctx, n)
	s.step("locked")
	return s.claim(ctx, c, n)
}

func (s *Store) step(name string) {
	if s.between != nil {
		s.between(name)
	}
}

// isNotAfter matches a time up to now, and none at all.
func isNotAfter(now int64) bson.D {
	return bson.D{{Key: "$not", Value: bson.D{{Key: "$gt", Value: now}}}}
}

// due matches rows that do not wait. Rows that anybody inserted have no retry_at.
func due(now int64) bson.D {
	return bson.D{{Key: "status", Value: outbox.Pending}, {Key: "retry_at", Value: isNotAfter(now)}}
}

// ranOut matches claims whose lease has run out, or that somebody inserted without one.
func ranOut(now int64) bson.D {
	return bson.D{{Key: "status", Value: outbox.Claimed}, {Key: "lease_until", Value: isNotAfter(now)}}
}

// unclaim is the update that takes a row from its drainer.
func unclaim(to outbox.Status) bson.D {
	return append(set("status", to), bson.E{Key: "$unset", Value: bson.D{{Key: "claimed_by", Value: ""}, {Key: "lease_until", Value: ""}}})
}

// hasWork reports whether a row is due or a lease has run out.
func (s *Store) hasWork(ctx context.Context, now int64) (bool, error) {
	err := s.rows.FindOne(ctx, bson.D{{Key: "$or", Value: bson.A{due(now), ranOut(now)}}},
		options.FindOne().SetProjection(bson.D{{Key: "_id", Value: 1}})).Err()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("outbox: looking for rows: %w", err)
	}
	return true, nil
}

// settle writes outcomes in their order: in one command, or in as few as the server can.
func (s *Store) settle(ctx context.Context, settled []outbox.Outcome, worker string, now int64) error {
	if len(settled) == 0 {
		return nil
	}
	most, err := s.mostUpdates(ctx)
	if err != nil {
		return err
	}
	writes := make([]mongo.WriteModel, len(settled))
	for i, o := range settled {
		writes[i] = settlement(o, worker, now)
	}
	for part := range slices.Chunk(writes, most) {
		if _, err := s.rows.BulkWrite(ctx, part); err != nil {
			return fmt.Errorf("outbox: settling %d rows: %w", len(settled), err)
		}
	}
	return nil
}

func settlement(o outbox.Outcome, worker string, now int64) mongo.WriteModel {
	filter := bson.D{
		{Key: "_id", Value: idFilter(o.ID)}, {Key: "status", Value: outbox.Claimed}, {Key: "claimed_by", Value: worker},
	}
	put := bson.D{{Key: "status", Value: o.Status}}
	drop := bson.D{{Key: "claimed_by", Value: ""}, {Key: "lease_until", Value: ""}}
	update := bson.D{}
	switch o.Status {
	case outbox.Sent:
		filter[1].Value = bson.D{{Key: "$in", Value: bson.A{outbox.Pending, outbox.Claimed}}}
		filter = filter[:2]
		put = append(put, bson.E{Key: "sent_at", Value: now}, bson.E{Key: "event_offset", Value: int64(o.Offset)})
		drop = append(drop, bson.E{Key: "retry_at", Value: ""}, bson.E{Key: "last_err", Value: ""})
	case outbox.Parked:
		put = append(put, bson.E{Key: "last_err", Value: o.Error})
	default:
		put[0].Value = outbox.Pending
		if o.Error != "" {
			put = append(put, bson.E{Key: "last_err", Value: o.Error})
		} else {
			drop = append(drop, bson.E{Key: "last_err", Value: ""})
		}
		if retry := eventhub.Millis(o.RetryAt); retry != 0 {
			put = append(put, bson.E{Key: "retry_at", Value: retry})
		}
		if o.Unused {
			update = bson.D{{Key: "$inc", Value: bson.D{{Key: "attempts", Value: -1}}}}
		}
	}
	update = append(update, bson.E{Key: "$set", Value: put}, bson.E{Key: "$unset", Value: drop})
	return mongo.NewUpdateOneModel().SetFilter(filter).SetUpdate(update)
}

// claim claims rows under lock n. The lock may be lost at any point, when this process was
// stopped: what another claim does then is seen by the second look at what is held, by the
// update, which only takes what is pending, or by the last look at the lock.
func (s *Store) claim(ctx context.Context, c outbox.Claim, n int64) ([]outbox.Row, error) {
	now := s.Now()
	held, err := s.held(ctx, c.Order, now.UnixMilli())
	if err != nil {
		return nil, err
	}
	s.step("looked")
	found, err := s.candidates(ctx, c, held, now.UnixMilli())
	if err != nil || len(found) == 0 {
		return nil, err
	}
	s.step("found")
	// A claim that had lost the lock may have marked rows after the first look. It never
	// gives them back, so they are seen here.
	if held, err = s.held(ctx, c.Order, now.UnixMilli()); err != nil {
		return nil, err
	}
	if found = without(found, c.Order, held); len(found) == 0 {
		return nil, nil
	}
	s.step("free")
	lease := time.UnixMilli(now.Add(c.Lease).UnixMilli())
	result, err := s.rows.UpdateMany(ctx, append(bson.D{{Key: "_id", Value: among(found)}}, due(now.UnixMilli())...), bson.D{
		{Key: "$set", Value: bson.D{
			{Key: "status", Value: outbox.Claimed}, {Key: "claimed_by", Value: c.Worker}, {Key: "lease_until", Value: lease.UnixMilli()},
		}},
		{Key: "$unset", Value: bson.D{{Key: "retry_at", Value: ""}}},
		{Key: "$inc", Value: bson.D{{Key: "attempts", Value: 1}}},
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: claiming %d rows: %w", len(found), err)
	}
	s.step("claimed")
	if int(result.MatchedCount) != len(found) {
		if found, err = s.mine(ctx, found, c, lease); err != nil {
			return nil, err
		}
	}
	if has, err := s.hasLock(ctx, n); err != nil || !has {
		return nil, err
	}
	rows := make([]outbox.Row, len(found))
	for i, r := range found {
		r.Status, r.ClaimedBy, r.LeaseUntil, r.RetryAt = outbox.Claimed, c.Worker, lease, time.Time{}
		r.Attempts++
		rows[i] = r.Row
	}
	return rows, nil
}

// lane is what is published in order. The empty one is in no order.
type lane struct{ topic, key string }

func laneOf(r record, order outbox.Order) lane {
	switch {
	case order == outbox.ByTopic:
		return lane{topic: r.Event.Topic}
	case r.Event.Key == "":
		return lane{}
	}
	return lane{r.Event.Topic, r.Event.Key}
}

// held returns the lanes of rows that are claimed, or wait for their time.
func (s *Store) held(ctx context.Context, order outbox.Order, now int64) (map[lane]bool, error) {
	all, err := s.find(ctx, bson.D{{Key: "$or", Value: bson.A{
		bson.D{{Key: "status", Value: outbox.Claimed}},
		bson.D{{Key: "retry_at", Value: bson.D{{Key: "$gt", Value: now}}}, {Key: "status", Value: outbox.Pending}},
	}}}, options.Find().SetProjection(bson.D{{Key: "topic", Value: 1}, {Key: "key", Value: 1}}))
	held := make(map[lane]bool)
	for _, r := range all {
		held[laneOf(r, order)] = true
	}
	delete(held, lane{})
	return held, err
}

// candidates finds rows that are due and whose lanes are free.
func (s *Store) candidates(ctx context.Context, c outbox.Claim, held map[lane]bool, now int64) ([]record, error) {
	return s.find(ctx, append(due(now), free(held, c.Order)...), options.Find().SetSort(order).SetLimit(int64(c.Max)))
}

// maxFilterBytes keeps a filter below the 16 MiB of a document. What does not fit is left
// out after it was found.
const maxFilterBytes = 4 << 20

// free matches the rows whose lanes are not held.
func free(held map[lane]bool, order outbox.Order) bson.D {
	var topics bson.A
	keys := make(map[string]bson.A)
	bytes := 0
	for l := range held {
		if bytes += len(l.topic) + len(l.key) + 16; bytes > maxFilterBytes {
			break
		}
		topics = append(topics, l.topic)
		keys[l.topic] = append(keys[l.topic], l.key)
	}
	if len(topics) == 0 {
		return nil
	}
	if order == outbox.ByTopic {
		return bson.D{{Key: "topic", Value: bson.D{{Key: "$nin", Value: topics}}}}
	}
	var nor bson.A
	for topic, keys := range keys {
		nor = append(nor, bson.D{{Key: "topic", Value: topic}, {Key: "key", Value: bson.D{{Key: "$in", Value: keys}}}})
	}
	return bson.D{{Key: "$nor", Value: nor}}
}

// without returns the rows whose lanes are not held.
func without(rows []record, order outbox.Order, held map[lane]bool) []record {
	kept := make([]record, 0, len(rows))
	for _, r := range rows {
		if !held[laneOf(r, order)] {
			kept = append(kept, r)
		}
	}
	return kept
}

// among matches the ids of rows.
func among(rows []record) bson.D {
	ids := make(bson.A, len(rows))
	for i, r := range rows {
		ids[i] = r.id
	}
	return bson.D{{Key: "$in", Value: ids}}
}

// mine returns which of the rows that were found are claimed by this claim, without lanes
// in which another one has or gave back a row: those stay claimed until the lease ends. A
// row that was sent meanwhile, by a drainer whose lease has run out, is in nobody's way.
func (s *Store) mine(ctx context.Context, found []record, c outbox.Claim, lease time.Time) ([]record, error) {
	now, err := s.find(ctx, bson.D{{Key: "_id", Value: among(found)}}, options.Find().SetSort(order))
	if err != nil {
		return nil, err
	}
	has := make(map[string]bool)
	lost := make(map[lane]bool)
	for _, r := range now {
		if r.Status == outbox.Claimed && r.ClaimedBy == c.Worker && r.LeaseUntil.Equal(lease) {
			has[r.Event.ID] = true
		} else if r.Status != outbox.Sent {
			lost[laneOf(r, c.Order)] = true
		}
	}
	delete(lost, lane{})
	var mine []record
	for _, r := range without(found, c.Order, lost) {
		if has[r.Event.ID] {
			mine = append(mine, r)
		}
	}
	return mine, nil
}
