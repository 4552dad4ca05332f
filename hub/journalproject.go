package hub

import (
	"context"
	"errors"
	"fmt"
	"time"

	mongojournal "eventhub/store/journal/mongo"
	"eventhub/store/journal/mongo/projection"
)

// JournalProjection says how far the documents beside a journal in MongoDB are.
type JournalProjection struct {
	Place uint64    // of the journal: all up to there is in them
	Last  uint64    // of the journal; beats count
	At    time.Time // when the hub that leads found Place; zero: never
	// Asked: a rebuild was asked for that is not done. Begun: everything was removed for it, and Wrote events of Whole
	// are there again.
	Asked, Begun bool
	Wrote, Whole uint64
}

// errNotMongo says that a journal has no documents.
var errNotMongo = errors.New("the journal is not in MongoDB, and only there hubs write documents beside it")

// Projection returns how far the documents are.
func (j *Journal) Projection(ctx context.Context) (p JournalProjection, err error) {
	in, is := j.journal.(*mongojournal.Journal)
	if !is {
		return p, errNotMongo
	}
	db, _ := in.Database()
	s, err := projection.Look(ctx, db)
	if err != nil {
		return p, err
	}
	if p.Last, err = in.Last(ctx); err != nil {
		return p, err
	}
	p.Place, p.At, p.Asked, p.Begun, p.Wrote, p.Whole = s.Place, s.At, s.Asked, s.Begun, s.Wrote, s.Whole
	return p, nil
}

// beginWithin is how long a rebuild may take to begin: a hub that leads looks for one each ten seconds.
const beginWithin = 30 * time.Second

// Rebuild asks the hub that leads to make the documents anew, and returns when that is done. It calls seen each half
// second with how far that is. Where ctx ends before, the hub goes on.
func (j *Journal) Rebuild(ctx context.Context, seen func(JournalProjection)) (p JournalProjection, err error) {
	in, is := j.journal.(*mongojournal.Journal)
	if !is {
		return p, errNotMongo
	}
	db, _ := in.Database()
	if err := projection.Rebuild(ctx, db); err != nil {
		return p, err
	}
	asked := time.Now()
	for {
		if p, err = j.Projection(ctx); err != nil {
			return p, err
		}
		if seen(p); !p.Asked {
			return p, nil
		}
		if !p.Begun && time.Since(asked) > beginWithin {
			return p, fmt.Errorf("no hub has begun within %s: is there one that leads, and does it write documents (project: on)? It begins when there is", beginWithin)
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return p, context.Cause(ctx)
		}
	}
}
