package cluster

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"eventhub/store"
	"eventhub/store/journal"
	"eventhub/store/journal/jetstream"
	"eventhub/store/pebble"
	"eventhub/store/storetest"
)

var conformance = flag.Bool("cluster.conformance", false, "all duties of a store in TestConformance, not those about ids, producers and copies alone")

// TestConformance: a store that leads a journal on a NATS server has all duties of one that shares none, and
// who follows it has the same keys and values.
func TestConformance(t *testing.T) {
	t.Parallel()
	groups := []string{"Dedupe", "Producers", "Checkpoint"}
	if *conformance {
		groups = nil
	}
	s := alone(t, 0)
	js := client(t, s.url())
	storetest.Run(t, func(t testing.TB) storetest.Backend {
		p := &place{t: t, o: newStream(s.url(), 1), dir: t.TempDir()}
		t.Cleanup(func() { _ = js.DeleteStream(context.Background(), p.o.Stream) }) // the server has many
		copied := filepath.Join(p.dir, "copy")
		return storetest.Backend{
			OneClock: true,
			HoldSync: p.hold,
			Open:     func(o storetest.Options) (store.Store, error) { return p.open(filepath.Join(p.dir, "store"), o) },
			Copy: func() (string, func(storetest.Options) (store.Store, error)) {
				return copied, func(o storetest.Options) (store.Store, error) { return openAlone(copied, o) }
			},
		}
	}, groups...)
}

var quiet = slog.New(slog.DiscardHandler)

// place is where a store of the suite is.
type place struct {
	t   testing.TB
	o   jetstream.Options
	dir string

	mu               sync.Mutex
	reached, release chan struct{} // of the next answer of the journal
}

// hold has the next answer of the journal wait.
func (p *place) hold() (reached <-chan struct{}, release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	until := make(chan struct{}) // p.release is nil from when the answer has come
	p.reached, p.release = make(chan struct{}), until
	return p.reached, sync.OnceFunc(func() { close(until) })
}

// heldWriter is a leader whose answers may have to wait.
type heldWriter struct {
	*journal.Leader
	at *place
}

func (w heldWriter) Append(data []byte, ms int64) func() (journal.Position, error) {
	wait := w.Leader.Append(data, ms)
	return func() (journal.Position, error) {
		at, err := wait()
		w.at.mu.Lock()
		reached, release := w.at.reached, w.at.release
		w.at.reached, w.at.release = nil, nil
		w.at.mu.Unlock()
		if reached != nil {
			close(reached)
			<-release
		}
		return at, err
	}
}

// ledStore is a store that leads the journal.
type ledStore struct {
	*pebble.Store
	at      *place
	dir     string
	leader  *journal.Leader
	journal *jetstream.Journal
	once    sync.Once
}

// open has the copy in a directory follow the journal, and lead it.
func (p *place) open(dir string, of storetest.Options) (store.Store, error) {
	j := open(p.t, p.o)
	r, err := pebble.OpenReplica(pebble.Options{Dir: dir, Now: of.Now, MaxTopics: of.MaxTopics, Logger: quiet})
	if err != nil {
		return nil, errors.Join(err, j.Close())
	}
	if err := followAll(j, r); err != nil {
		return nil, errors.Join(err, r.Close(), j.Close())
	}
	leader, err := journal.New(j).Lead(context.Background(), r.Position(), "hub", pebble.Layout)
	if err != nil {
		return nil, errors.Join(err, r.Close(), j.Close())
	}
	s, err := r.Lead(heldWriter{leader, p})
	if err != nil {
		return nil, errors.Join(err, leader.Close(), j.Close())
	}
	return &ledStore{Store: s, at: p, dir: dir, leader: leader, journal: j}, nil
}

// openAlone opens a copy as the store of a hub that shares no journal.
func openAlone(dir string, of storetest.Options) (store.Store, error) {
	o := pebble.Options{Dir: dir, Now: of.Now, MaxTopics: of.MaxTopics, Logger: quiet}
	holds, err := pebble.Look(o)
	if err == nil && holds == pebble.HoldsReplica {
		err = pebble.Detach(o)
	}
	if err != nil {
		return nil, err
	}
	return pebble.Open(o)
}

// followAll applies all that the journal has.
func followAll(j journal.Journal, r *pebble.Replica) error {
	last, err := j.Last(context.Background())
	if err != nil || r.Position().Seq >= last {
		return err
	}
	whole := errors.New("everything is there")
	err = journal.New(j).Follow(context.Background(), r.Position(), func(e journal.Entry) error {
		if err := r.Apply(e.Data, e.Position); err != nil {
			return err
		}
		if e.Position.Seq >= last {
			return whole
		}
		return nil
	})
	if errors.Is(err, whole) {
		err = nil
	}
	return err
}

// Close closes the store, and holds what it has against what a follower has.
func (s *ledStore) Close() error {
	err := s.Store.Close()
	s.once.Do(func() {
		err = errors.Join(err, s.leader.Close())
		if err == nil {
			s.compare()
		}
		err = errors.Join(err, s.journal.Close())
	})
	return err
}

func (s *ledStore) compare() {
	follower := filepath.Join(s.at.dir, "follower")
	var all [][][2]string
	for _, dir := range []string{s.dir, follower} {
		r, err := pebble.OpenReplica(pebble.Options{Dir: dir, Logger: quiet})
		if err == nil {
			err = errors.Join(followAll(s.journal, r), r.Close())
		}
		if err != nil {
			s.at.t.Errorf("%s: %v", dir, err)
			return
		}
		all = append(all, keysOf(s.at.t, dir))
	}
	if !slices.Equal(all[0], all[1]) {
		s.at.t.Errorf("who leads has %d keys, and who follows %d, or other ones", len(all[0]), len(all[1]))
	}
}
