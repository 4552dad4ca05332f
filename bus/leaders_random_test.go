package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/journal"
	"eventhub/store/journal/memory"
	"eventhub/store/pebble"
)

// TestRandomHistoriesOfLeaders runs the histories of TestRandomHistories on stores that share a
// journal. Where the power fails, the next engine is over what the disk has then, or over an empty one,
// and the journal in both cases: every event that got its receipt is there, and of the groups nothing that the
// model does not know.
func TestRandomHistoriesOfLeaders(t *testing.T) {
	tryHistories(t, testsize.Of(120, 15), func(t *rapid.T) *world {
		j := memory.New(memory.Options{EntryBytes: historyEntry})
		return newWorldOver(t, func() journal.Journal { return j.Open() })
	})
	t.Logf("%d times another hub has led", takeovers)
	if takeovers < 10 {
		t.Error("the histories have no takeovers")
	}
}

// takeovers counts the leads after the first of each history.
var takeovers int

// historyEntry is how large an entry of a history may be: larger commits are divided.
const historyEntry = 4 << 10

// sharedJournal is the journal of a history.
type sharedJournal struct {
	open  func() journal.Journal // as a hub does that starts
	leads int
}

func newWorldOver(t *rapid.T, open func() journal.Journal) *world {
	d := &disk{mem: vfs.NewCrashableMem(), clock: &skewed{}, shared: &sharedJournal{open: open}}
	w := newWorld(t, d.open(t), d.clock)
	w.disk = d
	w.steps = append(slices.Clone(w.steps), step{"power loss", 3, (*world).powerLoss}, step{"hold appends", 3, (*world).holdFsyncs})
	return w
}

// heldJournal is a journal that answers when the disk of the world says so.
type heldJournal struct {
	journal.Journal
	disk *disk
}

func (j heldJournal) Append(ctx context.Context, after uint64, entry []byte) error {
	j.disk.pass()
	return j.Journal.Append(context.WithoutCancel(ctx), after, entry) // however long that took: no pause before it is tried again
}

// ledStore is a store that leads the journal.
type ledStore struct {
	*pebble.Store // and so a store.Pipeline
	leader        *journal.Leader
	handle        journal.Journal
}

func (s ledStore) Close() error {
	return errors.Join(s.Store.Close(), s.leader.Close(), s.handle.Close())
}

// lead opens the copy that is there, follows the journal to its end, and leads it.
func (d *disk) lead(t *rapid.T) store.Store {
	r, err := pebble.OpenReplica(pebble.Options{
		Dir: "data", FS: d.mem, Logger: slog.New(slog.DiscardHandler), Now: d.clock.now,
		Fatal: func(cause error) { t.Errorf("Fatal(%v)", cause) },
	})
	if err != nil {
		t.Fatal(err)
	}
	handle := d.shared.open()
	log := journal.New(heldJournal{handle, d})
	at := d.follow(t, r, handle, log)
	if d.shared.leads++; d.shared.leads > 1 {
		takeovers++
	}
	leader, err := log.Lead(context.Background(), at, fmt.Sprintf("hub-%d", d.shared.leads), pebble.Layout)
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.Lead(leader)
	if err != nil {
		t.Fatal(err)
	}
	return ledStore{s, leader, handle}
}

// follow applies all that the journal has, and returns the position of its end.
func (d *disk) follow(t *rapid.T, r *pebble.Replica, handle journal.Journal, log *journal.Log) journal.Position {
	last, err := handle.Last(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if r.Position().Seq >= last {
		return r.Position()
	}
	whole := errors.New("that is all")
	if err := log.Follow(context.Background(), r.Position(), func(e journal.Entry) error {
		if err := r.Apply(e.Data, e.Position); err != nil {
			return err
		}
		if e.Position.Seq >= last {
			return whole
		}
		return nil
	}); !errors.Is(err, whole) {
		t.Fatal(err)
	}
	return r.Position()
}
