package mongojournal

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub/store/journal"
)

// removeAtOnce is how many places one command removes.
const removeAtOnce = 1000

// trim says how far the journal is trimmed; the zero value where it never was.
type trim struct {
	upTo  uint64
	bytes int64 // of all entries up to there
}

// trimmed returns the mark of trims.
func (j *Journal) trimmed(ctx context.Context) (trim, error) { return j.trimMark(ctx, -1) }

// trimMark returns the highest mark with the order -1, and the lowest with 1. There is more than
// one only where a trim is under way, or did not end: then the entries between them may be there.
func (j *Journal) trimMark(ctx context.Context, order int) (trim, error) {
	raw, err := j.trims.FindOne(ctx, bson.D{}, options.FindOne().SetSort(bson.D{{Key: "_id", Value: order}})).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return trim{}, nil
	}
	if err != nil {
		return trim{}, fmt.Errorf("read how far it is trimmed: %w", err)
	}
	id, _ := raw.Lookup("_id").StringValueOK()
	at, err := strconv.ParseUint(id, 10, 64)
	if err != nil || len(id) != digits {
		return trim{}, fmt.Errorf("%w: a document of %s is %s", journal.ErrForeign, Trims, raw)
	}
	return trim{upTo: at, bytes: bytesOf(raw)}, nil
}

// Trim implements journal.Journal.
func (j *Journal) Trim(ctx context.Context, upTo uint64) error {
	ctx, done := j.call(ctx)
	defer done()
	return j.failed("trim", j.trim(ctx, upTo))
}

func (j *Journal) trim(ctx context.Context, upTo uint64) error {
	last, err := j.last(ctx)
	if err != nil || last <= 1 {
		return err
	}
	upTo = min(upTo, last-1)
	t, err := j.trimmed(ctx)
	if err != nil {
		return err
	}
	if t.upTo == 0 { // the lowest mark of the first trim
		if err := j.insertTrim(ctx, trim{}); err != nil {
			return err
		}
	}
	lowest, err := j.trimMark(ctx, 1)
	if err != nil {
		return err
	}
	if upTo > t.upTo {
		if err := j.writeTrim(ctx, upTo); err != nil {
			return err
		}
	} else if upTo = t.upTo; lowest.upTo == upTo {
		return nil // and else a removal did not end
	}
	if err := j.remove(ctx, lowest.upTo, upTo); err != nil {
		return err
	}
	_, err = j.trims.DeleteMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: key(upTo)}}}})
	return err
}

// writeTrim writes that the journal is trimmed up to a place.
func (j *Journal) writeTrim(ctx context.Context, upTo uint64) error {
	raw, err := j.get(ctx, upTo, "bytes")
	if err != nil {
		return err
	}
	if raw == nil {
		t, err := j.trimmed(ctx)
		if err == nil && t.upTo < upTo {
			err = fmt.Errorf("%w: there are entries after %d, and none at it", journal.ErrDiverged, upTo)
		}
		return err // nil: another hub has trimmed further meanwhile
	}
	return j.insertTrim(ctx, trim{upTo: upTo, bytes: bytesOf(raw)})
}

func (j *Journal) insertTrim(ctx context.Context, t trim) error {
	_, err := j.trims.InsertOne(ctx, bson.D{{Key: "_id", Value: key(t.upTo)}, {Key: "bytes", Value: t.bytes}})
	if mongo.IsDuplicateKeyError(err) {
		return nil // another hub did the same
	}
	return err
}

// remove removes the entries after low and up to high.
func (j *Journal) remove(ctx context.Context, low, high uint64) error {
	if j.single {
		for at := low + 1; at <= high; at++ {
			if _, err := j.entries.DeleteOne(ctx, byID(key(at))); err != nil {
				return err
			}
		}
		return nil
	}
	from := key(0) // with what late appends have left
	for low < high {
		low += min(removeAtOnce, high-low)
		_, err := j.entries.DeleteMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: from}, {Key: "$lte", Value: key(low)}}}})
		if err != nil {
			return err
		}
		from = key(low)
	}
	return nil
}
