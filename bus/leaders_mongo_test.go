package bus

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"eventhub/internal/mongotest"
	"eventhub/internal/testsize"
	"eventhub/store/journal"
	mongojournal "eventhub/store/journal/mongo"
)

// TestRandomHistoriesOnMongo is TestRandomHistoriesOfLeaders over a journal in MongoDB, or FerretDB, another database for each
// history.
func TestRandomHistoriesOnMongo(t *testing.T) {
	server := mongotest.Own(t)
	out := newOutside()
	defer out.close()
	history, before := 0, takeovers
	tryHistories(t, testsize.Of(15, 4), func(t *rapid.T) *world {
		history++
		m := &mongoJournal{t: t, out: out, options: mongojournal.Options{URL: server.URI, Database: fmt.Sprintf("eventhub_test_%s_%d", bson.NewObjectID().Hex(), history)}}
		t.Cleanup(m.drop)
		return newWorldOver(t, m.open)
	})
	t.Logf("%d times another hub has led", takeovers-before)
	takeovers = before // which TestRandomHistoriesOfLeaders counts for itself
}

// mongoJournal is the journal of a history in a database.
type mongoJournal struct {
	t       *rapid.T
	out     *outside
	options mongojournal.Options
}

func (m *mongoJournal) open() journal.Journal {
	var j *mongojournal.Journal
	var err error
	m.out.run(func(ctx context.Context) { j, err = mongojournal.Open(ctx, m.options) })
	if err != nil {
		m.t.Fatal(err)
	}
	return outsideJournal{m.out, j}
}

// drop removes the database.
func (m *mongoJournal) drop() {
	var err error
	m.out.run(func(ctx context.Context) {
		var j *mongojournal.Journal
		if j, err = mongojournal.Look(ctx, m.options); err == nil {
			db, _ := j.Database()
			err = errors.Join(db.Drop(ctx), j.Close())
		}
	})
	if err != nil {
		m.t.Error(err)
	}
}
