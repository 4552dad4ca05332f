package bus

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/space"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/pebble"
	"eventhub/store/storefault"
)

var backups = testsize.Int("backup.copies", 6, 3, "backups that TestBackupUnderLoad makes")

func openDir(t *testing.T, dir string) *pebble.Store {
	t.Helper()
	s, err := pebble.Open(pebble.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler),
		Fatal: func(cause error) { t.Errorf("Fatal(%v)", cause) }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// loaded is a bus under load: what it has acknowledged.
type loaded struct {
	bus     *Bus
	mu      sync.Mutex
	moved   sync.Cond
	acked   map[string]uint64 // offsets of the newest event by topic
	ids     map[string]string // ids by "topic/offset"
	stopped bool
	paused  bool
	writers sync.WaitGroup
}

// run publishes from several goroutines, in atomic batches over two topics, until
// the load is stopped.
func (l *loaded) run(t *testing.T, writers int) {
	l.moved.L = &l.mu
	l.acked, l.ids = make(map[string]uint64), make(map[string]string)
	payload := fmt.Appendf(nil, "%q", strings.Repeat("x", 500))
	for w := range writers {
		l.writers.Go(func() {
			for n := 0; l.running(); n++ {
				topics := []string{"shared", fmt.Sprint("own.", w)}
				batch := make([]eventhub.Event, 20)
				for i := range batch {
					batch[i] = eventhub.Event{Topic: topics[i%2], Key: fmt.Sprint(n % 7), Payload: payload, CausedBy: []string{"root"}}
				}
				receipts, err := l.bus.Publish(context.Background(), batch...)
				if err != nil {
					t.Error(err)
					l.end()
					return
				}
				l.note(batch, receipts)
			}
		})
	}
}

// running waits while the load is paused.
func (l *loaded) running() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.paused && !l.stopped {
		l.moved.Wait()
	}
	return !l.stopped
}

// pause keeps the store small while a copy is looked at.
func (l *loaded) pause(paused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused = paused
	l.moved.Broadcast()
}

func (l *loaded) note(batch []eventhub.Event, receipts []eventhub.Receipt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, r := range receipts {
		topic := batch[i].Topic
		l.acked[topic] = max(l.acked[topic], r.Offset)
		l.ids[fmt.Sprint(topic, "/", r.Offset)] = r.ID
	}
	l.moved.Broadcast()
}

// acknowledged waits until that many more events are, and returns what was.
func (l *loaded) acknowledged(more int) map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for want := len(l.ids) + more; len(l.ids) < want && !l.stopped; {
		l.moved.Wait()
	}
	ids := make(map[string]string, len(l.ids))
	for at, id := range l.ids {
		ids[at] = id
	}
	return ids
}

func (l *loaded) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	l.moved.Broadcast()
}

func (l *loaded) stop() {
	l.end()
	l.writers.Wait()
}

// TestBackupUnderLoad makes backups of a store that is being written to: each can be
// opened, has all that was acknowledged before it began, and batches as a whole; and
// the store itself goes on.
func TestBackupUnderLoad(t *testing.T) {
	dir := t.TempDir()
	s := openDir(t, filepath.Join(dir, "store"))
	b, err := New(Options{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	l := &loaded{bus: b}
	l.run(t, 3)
	for n := range *backups {
		copied := filepath.Join(dir, "not", "there", fmt.Sprint("backup-", n))
		l.pause(false)
		acked := l.acknowledged(1000)
		if err := b.Backup(context.Background(), copied); err != nil {
			t.Fatalf("backup %d: %v", n, err)
		}
		l.pause(true)
		events := checkBackup(t, copied, acked)
		if t.Failed() {
			t.Fatalf("backup %d of %d acknowledged events has %d", n, len(acked), events)
		}
		if err := os.RemoveAll(copied); err != nil {
			t.Fatal(err)
		}
	}
	l.stop()
	t.Logf("%d backups while %d events were published", *backups, len(l.ids))
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	checkBackup(t, filepath.Join(dir, "store"), l.ids)
}

// checkBackup opens a copy twice, the second time as it was closed.
func checkBackup(t *testing.T, dir string, acked map[string]string) (events int) {
	t.Helper()
	for range 2 {
		s := openDir(t, dir)
		events = checkCopy(t, s, acked)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	return events
}

func checkCopy(t *testing.T, s store.Store, acked map[string]string) (events int) {
	t.Helper()
	b, err := New(Options{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	missing := len(acked)
	byTopic := make(map[string]int)
	err = b.Replay(context.Background(), admin.ReplayQuery{Topic: "**"}, func(topic string, item eventhub.Item) error {
		events++
		byTopic[topic]++
		if id, ok := acked[fmt.Sprint(topic, "/", item.Offset)]; ok {
			missing--
			if id != string(item.Record.ID()) {
				t.Errorf("offset %d of %s is %s; acknowledged was %s", item.Offset, topic, item.Record.ID(), id)
			}
		}
		return nil
	})
	if err != nil || missing != 0 {
		t.Errorf("%d of %d acknowledged events are missing, %v", missing, len(acked), err)
	}
	if own := byTopic["own.0"] + byTopic["own.1"] + byTopic["own.2"]; own != byTopic["shared"] {
		t.Errorf("batches are torn: %v", byTopic)
	}
	list, err := b.Effects(context.Background(), "root", eventhub.Place{}, 10)
	if err != nil || len(list) != 10 {
		t.Errorf("the links of the copy: %d, %v", len(list), err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	return events
}

// TestBackupHasAcks: what a group has acked is in the backup, though nothing was
// written of it yet; and the copy goes its own way.
func TestBackupHasAcks(t *testing.T) {
	dir := t.TempDir()
	s := openDir(t, filepath.Join(dir, "store"))
	b, err := New(Options{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for range 3 {
		if _, err := b.Publish(ctx, eventhub.Event{Topic: "t", Payload: []byte(`1`)}); err != nil {
			t.Fatal(err)
		}
	}
	took := make(chan eventhub.Delivery, 3)
	sub, err := b.Subscribe(ctx, opts("t", "g"), sink(took))
	if err != nil {
		t.Fatal(err)
	}
	first := <-took
	if _, err := sub.Settle(ctx, eventhub.Settlement{Refs: []eventhub.Ref{{Lease: first.Lease}}}); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(dir, "copy")
	if err := b.Backup(ctx, copied); err != nil {
		t.Fatal(err)
	}
	err = b.Backup(ctx, copied)
	if wantCode(t, err, eventhub.CodeBadRequest); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second backup to the same place: %v", err)
	}
	wantCode(t, b.Backup(ctx, ""), eventhub.CodeBadRequest)
	other := openDir(t, copied)
	if state, err := other.Group(ctx, "t", "g"); err != nil || state.Cursor != first.Offset {
		t.Errorf("the group in the copy is %+v, %v; offset %d was acked", state, err, first.Offset)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	wantCode(t, b.Backup(ctx, filepath.Join(dir, "late")), eventhub.CodeShuttingDown)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// sink is a Receiver that takes all.
type sink chan eventhub.Delivery

func (s sink) Deliver(batch []eventhub.Delivery) int {
	for _, d := range batch {
		s <- d
	}
	return len(batch)
}

func (sink) Ended(error) {}

func TestBackupOfMemory(t *testing.T) {
	inBubble(t, func(r *rig) {
		err := r.bus.Backup(context.Background(), "anywhere")
		if wantCode(t, err, eventhub.CodeUnsupportedOp); !errors.Is(err, store.ErrUnsupported) {
			t.Errorf("%v lacks its cause", err)
		}
	})
}

// TestBackupOfAStoreThatFails: the error has its cause.
func TestBackupOfAStoreThatFails(t *testing.T) {
	inBubble(t, func(r *rig) {
		broken, cause := storefault.Wrap(r.store.Store), errors.New("no luck")
		broken.Inject(storefault.Fault{Op: storefault.Checkpoint, Err: cause})
		b, err := New(Options{Store: broken})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Backup(bg, "d"); eventhub.ErrorCode(err) != eventhub.CodeInternal || !errors.Is(err, cause) {
			t.Errorf("Backup: %v; want an internal error with its cause", err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestBackupOnAFullDisk: a copy that could leave no room for a write is not begun, for a write that fails ends the hub.
func TestBackupOnAFullDisk(t *testing.T) {
	inBubble(t, func(r *rig) {
		faulty := r.faulty()
		faulty.SetSpace(func() (store.Space, error) { return store.Space{Free: 256<<20 - 1, Total: 1 << 40}, nil })
		before := r.bus.counts.commits()
		err := r.bus.Backup(bg, "d")
		if wantCode(t, err, eventhub.CodeOverloaded); !strings.Contains(err.Error(), "a copy of the store needs 256") {
			t.Errorf("refused by %v", err)
		}
		equal(t, "commits of it", r.bus.counts.commits()-before, 0)
		faulty.SetSpace(func() (store.Space, error) { return store.Space{Free: 256 << 20, Total: 1 << 40}, nil })
		time.Sleep(space.LookEvery)
		wantCode(t, r.bus.Backup(bg, "d"), eventhub.CodeUnsupportedOp) // of memory
	})
}
