package mongojournal

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub/store/journal"
)

const (
	// leastPause and mostPause are between two looks for entries where none came.
	leastPause = 2 * time.Millisecond
	mostPause  = 100 * time.Millisecond
	// share is how many times as long as a look the pause after it is at least, up to mostShare.
	share     = 3
	mostShare = time.Second
	// deep is in how many looks that find nothing one looks for lost entries too.
	deep = 10
	// aheadPlaces and aheadBytes are how much is read before it is visited, but for one entry more.
	aheadPlaces = 100
	aheadBytes  = 4 << 20
)

// Follow implements journal.Journal.
func (j *Journal) Follow(ctx context.Context, after uint64, visit func(at uint64, entry []byte) error) error {
	ctx, done := j.call(ctx)
	defer done()
	pause, idle, places, within := leastPause, 0, aheadPlaces, j.answerWithin
	for next := after + 1; ; {
		began := time.Now()
		entries, err := j.from(ctx, within, next, places, idle%deep == deep-1)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, journal.ErrTrimmed), errors.Is(err, journal.ErrDiverged), errors.Is(err, journal.ErrForeign):
			return j.failed("follow", err)
		case err != nil && places == 1: // the server may be slow for a while
			within = min(2*within, moreWithin*j.answerWithin)
		case err != nil: // it may be that so much does not come in time
			places = max(places/4, 1)
		default:
			places, within = min(2*places, aheadPlaces), j.answerWithin
		}
		for _, entry := range entries {
			if err := visit(next, entry); err != nil {
				return err
			}
			next++
		}
		if len(entries) > 0 {
			pause, idle = leastPause, 0
			continue
		}
		select {
		case <-time.After(max(pause, min(share*time.Since(began), mostShare))):
		case <-ctx.Done():
		}
		pause, idle = min(2*pause, mostPause), idle+1
	}
}

// from returns some of the entries from a place on, at most so many. Where there is none it
// looks for one after it if that is asked for, or costs nothing.
func (j *Journal) from(ctx context.Context, within time.Duration, next uint64, places int, beyond bool) (entries [][]byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	more := false // there is an entry after next, and none at it
	if j.single {
		entries, more, err = j.singlesFrom(ctx, next, places, beyond)
	} else {
		entries, more, err = j.rangeFrom(ctx, next, places)
	}
	if err != nil {
		return nil, err
	}
	if err := j.isKept(ctx, next); err != nil {
		return nil, err
	}
	if !more {
		return entries, nil
	}
	entry, err := j.hole(ctx, next)
	if err != nil {
		return nil, err
	}
	return [][]byte{entry}, nil
}

// singlesFrom reads places one by one.
func (j *Journal) singlesFrom(ctx context.Context, next uint64, places int, beyond bool) (entries [][]byte, more bool, err error) {
	for size := 0; len(entries) < places && size < aheadBytes; {
		raw, err := j.get(ctx, next+uint64(len(entries)))
		switch {
		case err != nil && len(entries) > 0:
			return entries, false, nil // the next call says it
		case err != nil:
			return nil, false, err
		case raw == nil && len(entries) == 0 && beyond:
			more, err = j.taken(ctx, next+1)
			return nil, more, err
		case raw == nil:
			return entries, false, nil
		}
		entries = append(entries, dataOf(raw))
		size += len(raw)
	}
	return entries, false, nil
}

// rangeFrom reads places by the index.
func (j *Journal) rangeFrom(ctx context.Context, next uint64, places int) (entries [][]byte, more bool, err error) {
	filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: key(next)}, {Key: "$lte", Value: lastKey}}}}
	// A batch of the server has 16 MiB at most.
	cursor, err := j.entries.Find(ctx, filter, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetLimit(int64(places)))
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = cursor.Close(context.WithoutCancel(ctx)) }()
	for size := 0; size < aheadBytes && cursor.Next(ctx); {
		if id, _ := cursor.Current.Lookup("_id").StringValueOK(); id != key(next+uint64(len(entries))) {
			return entries, len(entries) == 0, nil
		}
		entries = append(entries, dataOf(cursor.Current))
		size += len(cursor.Current)
	}
	if len(entries) > 0 {
		return entries, false, nil
	}
	return nil, false, cursor.Err()
}
