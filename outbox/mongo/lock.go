package mongooutbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// LockLease is how long a claim may hold the lock: the claim of a drainer that died delays
// others for so long.
const LockLease = 5 * time.Second

const (
	minLockPoll  = time.Millisecond
	maxLockPoll  = 20 * time.Millisecond
	removeLocks  = 16 // locks, before those that are past are removed
	releaseAfter = 5 * time.Second
)

// lockDocument is one lock. The newest one counts: it is held until a time, which is 0 once
// it is given back. Only its holder changes it, and whoever finds it free inserts the next
// number; a holder proves that nobody did so by finding its own number to be the newest.
// No step of this needs an update with a condition to be atomic.
type lockDocument struct {
	ID     string `bson:"_id"` // collection/number
	Outbox string `bson:"outbox"`
	N      int64  `bson:"n"`
	Holder string `bson:"holder"`
	Until  int64  `bson:"until"` // epoch milliseconds
}

// newestLock returns the lock with the highest number; one with the number 0 where there is none.
func (s *Store) newestLock(ctx context.Context) (l lockDocument, err error) {
	newest := options.FindOne().SetSort(bson.D{{Key: "n", Value: -1}})
	err = s.locks.FindOne(ctx, bson.D{{Key: "outbox", Value: s.rows.Name()}}, newest).Decode(&l)
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		return l, fmt.Errorf("outbox: reading the lock: %w", err)
	}
	return l, nil
}

// tryLock takes the lock where nobody has it. It returns no number where somebody has.
func (s *Store) tryLock(ctx context.Context, worker string) (n int64, err error) {
	last, err := s.newestLock(ctx)
	if err != nil {
		return 0, err
	}
	// A time that no holder can have written is of a clock that has jumped since.
	left := time.Duration(last.Until-s.Now().UnixMilli()) * time.Millisecond
	if left > 0 && left <= LockLease {
		return 0, nil
	}
	n = last.N + 1
	_, err = s.locks.InsertOne(ctx, lockDocument{
		ID: s.lockID(n), Outbox: s.rows.Name(), N: n, Holder: worker, Until: s.Now().Add(LockLease).UnixMilli(),
	})
	if mongo.IsDuplicateKeyError(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("outbox: taking the lock: %w", err)
	}
	if n%removeLocks == 0 {
		past := bson.D{{Key: "outbox", Value: s.rows.Name()}, {Key: "n", Value: bson.D{{Key: "$lt", Value: n}}}}
		if _, err := s.locks.DeleteMany(ctx, past); err != nil {
			return 0, fmt.Errorf("outbox: removing past locks: %w", err)
		}
	}
	return n, nil
}

func (s *Store) lockID(n int64) string { return s.rows.Name() + "/" + strconv.FormatInt(n, 10) }

// lock waits for the lock, and returns its number. It returns no number where others had it
// for longer than any of them may.
func (s *Store) lock(ctx context.Context, worker string) (n int64, err error) {
	for wait, began := minLockPoll, time.Now(); ; wait = min(2*wait, maxLockPoll) {
		if n, err = s.tryLock(ctx, worker); n != 0 || err != nil || time.Since(began) > LockLease {
			return n, err
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(wait/2 + rand.N(wait)):
		}
	}
}

// unlock gives the lock back. Where that fails, others wait until it runs out.
func (s *Store) unlock(ctx context.Context, n int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseAfter)
	defer cancel()
	_, _ = s.locks.UpdateOne(ctx, bson.D{{Key: "_id", Value: s.lockID(n)}}, set("until", 0))
}

// hasLock reports whether nobody has taken the lock since.
func (s *Store) hasLock(ctx context.Context, n int64) (bool, error) {
	last, err := s.newestLock(ctx)
	return err == nil && last.N == n, err
}

func set(name string, value any) bson.D {
	return bson.D{{Key: "$set", Value: bson.D{{Key: name, Value: value}}}}
}
