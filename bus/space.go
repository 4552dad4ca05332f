package bus

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"eventhub"
	"eventhub/store"
)

const (
	// spaceEvery is how long an answer of the file system counts. What is written
	// meanwhile has to fit into what store.Space.Least leaves.
	spaceEvery = 100 * time.Millisecond
	// spaceRetry is what refused publishers are told to wait.
	spaceRetry = 5 * time.Second
)

// spaceGuard refuses publishes while the disk is nearly full (store.Space.IsLow), and has
// the store give back what it can when that begins. Reads, acks and what else groups
// write go on: they free space in the end.
type spaceGuard struct {
	store  store.Store
	log    *slog.Logger
	shrink func() // has the store give back room, some time later

	mu   sync.Mutex
	next time.Time // when to look again
	err  error     // the refusal, nil while there is room
}

// check returns the refusal, or nil. It costs a system call every spaceEvery.
func (s *spaceGuard) check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Before(s.next) {
		return s.err
	}
	s.next = now.Add(spaceEvery)
	space, err := s.store.Space()
	if err != nil {
		// Not a reason to refuse: a disk that is really full fails the commit.
		s.log.Warn("cannot tell how much room the store has", "error", err)
		return s.err
	}
	least, low := space.Least(), space.IsLow()
	switch was := s.err != nil; {
	case low && !was:
		s.log.Error("the disk is nearly full; publishes are refused", "free_bytes", space.Free, "needed_bytes", least)
		s.shrink()
	case was && !low:
		s.log.Info("the disk has room again; publishes go on", "free_bytes", space.Free, "needed_bytes", least)
	}
	s.err = nil
	if low {
		s.err = &eventhub.Error{
			Code: eventhub.CodeOverloaded,
			Message: fmt.Sprintf("the hub's disk is nearly full: %d MiB are free, publishing needs %d; nothing was published",
				space.Free>>20, least>>20),
			RetryAfter: spaceRetry,
		}
	}
	return s.err
}
