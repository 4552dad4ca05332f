package pebble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/internal/faultfs"
	"eventhub/internal/record/layout"
	"eventhub/store"
	"eventhub/store/storetest"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if isChild() {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}

// small makes Pebble flush, rotate its log and compact within a short test.
func small(o *pdb.Options) {
	o.MemTableSize = 256 << 10
	o.MemTableStopWritesThreshold = 4
	o.CacheSize = 2 << 20
	o.L0CompactionThreshold = 2
	o.TargetFileSizes[0] = 64 << 10
	o.LBaseMaxBytes = 256 << 10
}

// quiet is a logger for tests that break things on purpose.
var quiet = slog.New(slog.DiscardHandler)

// onMem are options for a store at the path "data" of fsys. A write error fails
// the test.
func onMem(t testing.TB, fsys vfs.FS) Options {
	return Options{Dir: "data", FS: fsys, Logger: quiet, tune: small,
		Fatal: func(cause error) { t.Errorf("Fatal(%v)", cause) }}
}

func mustOpen(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustClose(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func isWALSync(op errorfs.Op) bool {
	return strings.HasSuffix(op.Path, ".log") && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData)
}

// syncHold makes one fsync of the write-ahead log wait.
type syncHold struct {
	mu      sync.Mutex
	reached chan struct{}
	release chan struct{}
}

func (h *syncHold) arm() (<-chan struct{}, func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	reached, release := make(chan struct{}), make(chan struct{})
	h.reached, h.release = reached, release
	return reached, func() { close(release) }
}

func (h *syncHold) MaybeError(op errorfs.Op) error {
	if !isWALSync(op) {
		return nil
	}
	h.mu.Lock()
	reached, release := h.reached, h.release
	h.reached, h.release = nil, nil
	h.mu.Unlock()
	if reached != nil {
		close(reached)
		<-release
	}
	return nil
}

func (h *syncHold) String() string { return "hold one WAL sync" }

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t testing.TB) storetest.Backend {
		hold := new(syncHold)
		base := onMem(t, faultfs.Wrap(vfs.NewMem(), hold))
		return storetest.Backend{
			HoldSync: hold.arm,
			Copy: func() (string, func(storetest.Options) (store.Store, error)) {
				return "copies/one", func(o storetest.Options) (store.Store, error) {
					copied := base
					copied.Dir, copied.Now, copied.MaxTopics = "copies/one", o.Now, o.MaxTopics
					return Open(copied)
				}
			},
			Open: func(o storetest.Options) (store.Store, error) {
				base.Now, base.MaxTopics = o.Now, o.MaxTopics
				return Open(base)
			},
		}
	})
}

// newRecord is a record of about the given size, with no commit time yet.
func newRecord(topic, id string, size int) eventhub.Record {
	head := fmt.Sprintf(`{"ts":            0,"id":%q,"topic":%q,"payload":"`, id, topic)
	return eventhub.Record(head + strings.Repeat("x", max(0, size-len(head)-2)) + `"}`)
}

func given(topic, id string) store.Append {
	return store.Append{Topic: topic, ID: id, Record: newRecord(topic, id, 0)}
}

// made is an append whose id the store is to make.
func made(topic string) store.Append {
	return store.Append{Topic: topic, NewID: true, Record: newRecord(topic, layout.IDRoom, 0)}
}

// mustCommit commits one unit, which must not be refused.
func mustCommit(t testing.TB, s *Store, sync bool, appends ...store.Append) []store.Append {
	t.Helper()
	u := &store.Unit{Appends: appends}
	if err := s.Commit(context.Background(), []*store.Unit{u}, sync); err != nil {
		t.Fatalf("Commit: %v", err)
	}
	if u.Err != nil {
		t.Fatalf("refused: %v", u.Err)
	}
	return u.Appends
}

// mustIndex starts the key index of a topic, and builds it.
func mustIndex(t testing.TB, s *Store, topic string) {
	t.Helper()
	mustRemove(t, s, store.TopicChange{Topic: topic, Index: store.StartIndex})
	for done := false; !done; {
		var err error
		if _, done, err = s.IndexKeys(context.Background(), topic, nil); err != nil {
			t.Fatalf("IndexKeys: %v", err)
		}
	}
}

// mustDrop drops the key index of a topic, once no pass of the compaction is under way.
func mustDrop(t testing.TB, s *Store, topic string) {
	t.Helper()
	for {
		u := &store.Unit{Topics: []store.TopicChange{{Topic: topic, Index: store.DropIndex}}}
		err := s.Commit(context.Background(), []*store.Unit{u}, true)
		if err == nil && u.Err == nil {
			return
		}
		if err == nil && errors.Is(u.Err, store.ErrCompacting) {
			_, _, err = s.Compact(context.Background(), topic)
		}
		if err != nil || !errors.Is(u.Err, store.ErrCompacting) {
			t.Fatalf("drop the index: %v, %v", err, u.Err)
		}
	}
}

func readAll(t testing.TB, s *Store, topic string) []store.Item {
	t.Helper()
	var b store.Batch
	if err := s.Read(context.Background(), topic, 1, 1<<30, 1<<40, &b); err != nil {
		t.Fatalf("Read: %v", err)
	}
	return b.Items
}

func fixedTime() time.Time { return time.UnixMilli(1_723_140_000_000) }

func mustSweep(t testing.TB, s *Store) store.Left {
	t.Helper()
	left, err := s.Sweep(context.Background())
	if err != nil {
		t.Fatalf("Sweep: %v", err)
	}
	return left
}

// sweepAll removes all that can be removed now.
func sweepAll(t testing.TB, s *Store) {
	t.Helper()
	for mustSweep(t, s).More() {
	}
}
