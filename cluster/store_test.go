package cluster

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"eventhub/internal/mongotest"
	"eventhub/store"
	"eventhub/store/journal"
	mongojournal "eventhub/store/journal/mongo"
	"eventhub/store/pebble"
	"eventhub/store/storetest"
)

// storeOnMongo is for scripts/soak: the suite has thousands of commits, each of them some commands of the server.
var storeOnMongo = flag.Bool("cluster.store", false, "run the suite of stores over a journal in MongoDB")

// TestStoreOnMongo: a store that leads a journal in MongoDB has all duties of a store.
func TestStoreOnMongo(t *testing.T) {
	if !*storeOnMongo {
		t.Skip("it takes minutes: -cluster.store")
	}
	storetest.Run(t, func(t testing.TB) storetest.Backend {
		o := pebble.Options{Dir: "data", FS: vfs.NewMem(), Logger: slog.New(slog.DiscardHandler)}
		db := mongotest.Database(t)
		next := new(holding)
		return storetest.Backend{
			OneClock: true,
			HoldSync: next.arm,
			Open: func(given storetest.Options) (store.Store, error) {
				o.Now, o.MaxTopics = given.Now, given.MaxTopics
				return leadOnMongo(o, db.Name(), mongotest.URI(t), next)
			},
			Copy: func() (string, func(storetest.Options) (store.Store, error)) {
				return "copies/one", func(given storetest.Options) (store.Store, error) {
					copied := o
					copied.Dir, copied.Now, copied.MaxTopics = "copies/one", given.Now, given.MaxTopics
					r, err := pebble.OpenReplica(copied)
					if err != nil {
						return nil, err
					}
					w := &answering{epoch: r.Position().Epoch}
					w.place.Store(r.Position().Seq)
					return r.Lead(w)
				}
			},
		}
	})
}

// holding holds the next append.
type holding struct {
	mu             sync.Mutex
	reached, until chan struct{} // or nil
}

func (h *holding) arm() (reached <-chan struct{}, release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reached, h.until = make(chan struct{}), make(chan struct{})
	return h.reached, sync.OnceFunc(func() { close(h.until) })
}

// heldJournal is a journal whose appends may be held.
type heldJournal struct {
	*mongojournal.Journal
	next *holding
}

func (j heldJournal) Append(ctx context.Context, after uint64, entry []byte) error {
	j.next.mu.Lock()
	reached, until := j.next.reached, j.next.until
	j.next.reached = nil
	j.next.mu.Unlock()
	if reached != nil {
		close(reached)
		<-until
	}
	return j.Journal.Append(context.WithoutCancel(ctx), after, entry) // however long that took
}

// answering is the journal of a copy: it has everything at once, and keeps nothing.
type answering struct {
	place atomic.Uint64
	epoch uint64
}

func (w *answering) Append([]byte, int64) (wait func() (journal.Position, error)) {
	at := journal.Position{Seq: w.place.Add(1), Epoch: w.epoch}
	return func() (journal.Position, error) { return at, nil }
}

func (w *answering) Position() journal.Position {
	return journal.Position{Seq: w.place.Load(), Epoch: w.epoch}
}

// ledOnMongo is a store with its lead and its journal.
type ledOnMongo struct {
	*pebble.Store
	leader  *journal.Leader
	journal *mongojournal.Journal
}

func (s ledOnMongo) Close() error {
	return errors.Join(s.Store.Close(), s.leader.Close(), s.journal.Close())
}

// leadOnMongo follows a journal to its end, and leads it.
func leadOnMongo(o pebble.Options, database, url string, next *holding) (store.Store, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	j, err := mongojournal.Open(ctx, mongojournal.Options{URL: url, Database: database})
	if err != nil {
		return nil, err
	}
	r, err := pebble.OpenReplica(o)
	if err != nil {
		return nil, errors.Join(err, j.Close())
	}
	last, err := j.Last(ctx)
	whole := errors.New("everything is there")
	if err == nil && r.Position().Seq < last {
		if err = journal.New(j).Follow(ctx, r.Position(), func(e journal.Entry) error {
			if err := r.Apply(e.Data, e.Position); err != nil || e.Position.Seq < last {
				return err
			}
			return whole
		}); errors.Is(err, whole) {
			err = nil
		}
	}
	if err != nil {
		return nil, errors.Join(err, r.Close(), j.Close())
	}
	leader, err := journal.New(heldJournal{j, next}).Lead(ctx, r.Position(), "hub", pebble.Layout)
	if err != nil {
		return nil, errors.Join(err, r.Close(), j.Close())
	}
	s, err := r.Lead(leader)
	if err != nil {
		return nil, errors.Join(err, leader.Close(), j.Close())
	}
	return ledOnMongo{s, leader, j}, nil
}
