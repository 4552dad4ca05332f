package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/snapshots"
	"eventhub/store"
)

// snapshotTopic returns the rows and markers of the snapshots of t that there are.
func (r *rig) snapshotTopic() (rows []snapshots.Row, markers []snapshots.Marker) {
	r.t.Helper()
	synctest.Wait()
	var batch store.Batch
	if err := r.store.Read(bg, "t.snapshot", 1, 1<<20, 1<<30, &batch); err != nil {
		r.t.Fatal(err)
	}
	for _, item := range batch.Items {
		e, err := item.Record.Event(item.Offset)
		var row snapshots.Row
		var marker snapshots.Marker
		if err == nil && e.Key == "" {
			err = json.Unmarshal(e.Payload, &marker)
			markers = append(markers, marker)
		} else if err == nil {
			err = json.Unmarshal(e.Payload, &row)
			rows = append(rows, row)
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
	return rows, markers
}

func (r *rig) setSnapshot(s admin.Snapshot) {
	r.t.Helper()
	if _, err := r.bus.SetTopic(bg, "t", admin.TopicSettings{Snapshot: &s}, nil); err != nil {
		r.t.Fatal(err)
	}
}

// TestSnapshotsWaitForChanges: too few events for the number of keys wait ten times as long; enough of
// them, or those that the settings name, do not.
func TestSnapshotsWaitForChanges(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.setSnapshot(admin.Snapshot{Changes: 7})
		for i := range 300 {
			r.keyedEvent(i)
		}
		time.Sleep(31 * time.Second)
		made := func() int {
			_, markers := r.snapshotTopic()
			return int(markers[len(markers)-1].Offset)
		}
		equal(t, "the first snapshot", made(), 300)
		r.keyedEvent(1)
		time.Sleep(260 * time.Second)
		equal(t, "after one event", made(), 300)
		time.Sleep(20 * time.Second)
		equal(t, "after ten times as long", made(), 301)
		for range 3 {
			r.keyedEvent(1)
		}
		time.Sleep(32 * time.Second)
		equal(t, "after a hundredth of the keys", made(), 304)
		for range 6 {
			r.keyedEvent(2)
		}
		time.Sleep(2 * time.Second)
		equal(t, "after fewer than changes", made(), 304)
		r.keyedEvent(3)
		time.Sleep(2 * time.Second)
		equal(t, "after changes", made(), 311)
	})
}

// keyedEvent publishes the next event of key k<i>.
func (r *rig) keyedEvent(i int) {
	r.t.Helper()
	if _, err := r.bus.Publish(bg, eventhub.Event{Topic: "t", Key: fmt.Sprint("k", i), Payload: json.RawMessage(`1`)}); err != nil {
		r.t.Fatal(err)
	}
}

// TestSnapshotsOfAnotherLife: the snapshots of a topic stay after its deletion, and those of the topic that
// is created again have nothing of the one before.
func TestSnapshotsOfAnotherLife(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.setSnapshot(admin.Snapshot{})
		r.keyedEvent(1)
		synctest.Wait()
		r.keyedEvent(2)
		time.Sleep(31 * time.Second)
		if err := r.bus.DeleteTopic(bg, "t"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		rows, markers := r.snapshotTopic()
		equal(t, "rows of the deleted topic", len(rows), 3) // the snapshots of one and of two keys
		equal(t, "its snapshots", len(markers), 2)
		r.keyedEvent(3)
		time.Sleep(31 * time.Second)
		rows, markers = r.snapshotTopic()
		last := markers[len(markers)-1]
		if last.Count != 1 || rows[len(rows)-1].Key != "k3" || last.Offset != rows[len(rows)-1].Offset {
			t.Errorf("the snapshot of the new topic is %+v, its row %+v", last, rows[len(rows)-1])
		}
		info, err := r.bus.Topic(bg, "t")
		if err != nil || len(info.Snapshots.Snapshots) != 1 || info.Snapshots.Snapshots[0].Offset != last.Offset {
			t.Errorf("listed are %+v, %v", info.Snapshots, err)
		}
	})
}

// TestNobodyPublishesSnapshots: the snapshot topic is the hub's.
func TestNobodyPublishesSnapshots(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, err := r.bus.Publish(bg, eventhub.Event{Topic: "t.snapshot", Payload: json.RawMessage(`1`)})
		wantCode(t, err, eventhub.CodeForbidden)
		for name, s := range map[string]admin.Snapshot{
			"t":          {Topic: "other.snapshot"},
			"t.snapshot": {},
			"t.dlq":      {},
			"u":          {Every: 1},
			"v":          {BatchKeys: []string{""}},
			"w":          {BatchKeys: []string{}},
		} {
			_, err := r.bus.SetTopic(bg, name, admin.TopicSettings{Snapshot: &s}, nil)
			wantCode(t, err, eventhub.CodeBadRequest)
		}
		_, err = r.bus.SetTopic(bg, "t", admin.TopicSettings{State: admin.StateOff, Snapshot: &admin.Snapshot{}}, nil)
		wantCode(t, err, eventhub.CodeBadRequest)
		r.setSnapshot(admin.Snapshot{Topic: "t.snapshot"})
	})
}

// TestSnapshotsAfterATrim: what was removed is in no snapshot after twice the time, and then there are no
// others.
func TestSnapshotsAfterATrim(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.setSnapshot(admin.Snapshot{})
		for i := range 4 {
			r.keyedEvent(i)
		}
		time.Sleep(31 * time.Second)
		if _, err := r.bus.Trim(bg, "t", admin.TrimQuery{Before: 3}, true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * 31 * time.Second)
		rows, markers := r.snapshotTopic()
		if len(rows) != 4 || len(markers) != 2 || rows[0].Key != "k2" || rows[1].Key != "k3" {
			t.Errorf("after a trim there are %+v and %+v", rows, markers)
		}
		time.Sleep(time.Hour)
		_, later := r.snapshotTopic()
		equal(t, "the newest an hour later", later[1], markers[1])
	})
}

// TestSnapshotsThatAreNotKept: a snapshot that the settings of its own topic remove is made again after
// as long as others take, and it is said that it is not kept.
func TestSnapshotsThatAreNotKept(t *testing.T) {
	inBubble(t, func(r *rig) {
		bound := admin.TopicSettings{Retention: admin.Retention{Count: 2}}
		if _, err := r.bus.SetTopic(bg, "t.snapshot", bound, nil); err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			r.keyedEvent(i)
		}
		r.setSnapshot(admin.Snapshot{Every: admin.Period(time.Hour)})
		time.Sleep(10*time.Hour + time.Minute)
		head, err := r.store.Head(bg, "t.snapshot")
		if err != nil || head != 11*6 {
			t.Errorf("the hub has written %d events in ten hours, %v; want 11 snapshots of 6", head, err)
		}
		info, err := r.bus.Topic(bg, "t")
		if err != nil || len(info.Snapshots.Snapshots) != 0 || !strings.Contains(info.Snapshots.Failed, "its own settings do not keep as much") {
			t.Errorf("it is said: %+v, %v", info.Snapshots, err)
		}
		_, err = r.bus.Erase(bg, "t.snapshot", admin.EraseQuery{Offset: head, Apply: true})
		wantCode(t, err, eventhub.CodeBadTopic)
	})
}

// TestHistoryWithoutIndex: a history is refused as other questions about the state are.
func TestHistoryWithoutIndex(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.keyedEvent(1)
		if _, err := r.bus.SetTopic(bg, "t", admin.TopicSettings{State: admin.StateOff}, nil); err != nil {
			t.Fatal(err)
		}
		_, err := r.bus.KeyHistory(bg, admin.KeyHistoryQuery{Topic: "t", Key: "k1", Limit: 1})
		wantCode(t, err, eventhub.CodeUnsupportedOp)
	})
}

// TestSnapshotsOfAClockAhead: a snapshot is later than what it has, and than the one before it, also after a takeover from a hub
// whose clock was ahead.
func TestSnapshotsOfAClockAhead(t *testing.T) {
	inBubble(t, func(r *rig) {
		var set atomic.Int64
		set.Store(int64(time.Hour))
		r.stop()
		r.start(Options{clock: func() time.Time { return time.Now().Add(time.Duration(set.Load())) }})
		r.setSnapshot(admin.Snapshot{})
		r.keyedEvent(1)
		time.Sleep(31 * time.Second)
		set.Store(0)
		r.keyedEvent(2)
		time.Sleep(31 * time.Second)
		rows, markers := r.snapshotTopic()
		if len(markers) < 2 {
			t.Fatalf("the markers are %+v", markers)
		}
		last := markers[len(markers)-1]
		for _, m := range markers {
			if m.TS > last.TS {
				t.Errorf("the last snapshot is of %d, and one before it of %d", last.TS, m.TS)
			}
		}
		for _, row := range rows {
			if row.TS > last.TS {
				t.Errorf("the last snapshot is of %d, and has an event of %d", last.TS, row.TS)
			}
		}
	})
}

// afterErasures is a store that notes what comes after an erasure in the same commit.
type afterErasures struct {
	store.Store
	erasures int
	late     []string // the topics of what was appended
}

func (b *afterErasures) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	erases := false
	for _, u := range units {
		for i := range u.Appends {
			if erases {
				b.late = append(b.late, u.Appends[i].Topic)
			}
		}
		for i := range u.Topics {
			if len(u.Topics[i].Erase) > 0 && u.Topics[i].Topic == "t" {
				erases = true
				b.erasures++
			}
		}
	}
	return b.Store.Commit(ctx, units, sync)
}

// TestErasedInTheCommitOfASnapshot: what a snapshot has read before an erasure is not written with it either, where both
// wait for the same commit.
func TestErasedInTheCommitOfASnapshot(t *testing.T) {
	inBubble(t, func(r *rig) {
		s := &afterErasures{Store: r.store.Store}
		r.store.Store = s
		r.setSnapshot(admin.Snapshot{})
		for i := range 3 {
			r.keyedEvent(i)
		}
		synctest.Wait()
		time.Sleep(31 * time.Second)
		r.keyedEvent(1)
		time.Sleep(2 * time.Second)
		r.keyedEvent(2)
		hold, erased := make(chan struct{}), make(chan admin.EraseResult, 1)
		r.store.set(hold, nil)
		go r.publish("other", 0, 1) // the others wait for that
		synctest.Wait()
		go func() { erased <- r.eraseBy("t", admin.EraseQuery{Key: "k1"}) }()
		synctest.Wait()
		time.Sleep(31 * time.Second) // the next snapshot is read
		r.store.set(nil, nil)
		close(hold)
		equal(t, "erased", <-erased, admin.EraseResult{Topic: "t", Events: 2, Snapshots: 2, Applied: true})
		equal(t, "what came after the erasure in its commit", []any{s.erasures, s.late}, []any{1, []string(nil)})
		time.Sleep(31 * time.Second)
		rows, markers := r.snapshotTopic()
		equal(t, "the snapshots and their rows", []any{len(markers), len(rows)}, []any{1, 2})
		for _, row := range rows {
			if row.Key == "k1" {
				t.Errorf("a snapshot has what was erased: %+v", row)
			}
		}
	})
}
