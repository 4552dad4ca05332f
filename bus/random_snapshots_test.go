package bus

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/bustest"
	"eventhub/bus/internal/snapshots"
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/pebble"
)

// snapshotWorld is a topic of which snapshots are made while events are added and removed and the
// engine starts anew, and one who reads the snapshot topic and knows of it what docs/semantics.md says. The
// model is the list of what was published.
type snapshotWorld struct {
	t      *rapid.T
	store  *interposed
	mem    *vfs.MemFS // nil: in memory
	bus    *Bus
	rng    *rand.Rand
	policy *admin.Snapshot

	events  []snapshotted // by offset, from 1
	seen    map[string]bool
	made    int
	since   int // how many were made since some were removed
	newest  snapshots.Marker
	rows    []snapshots.Row // of it
	bounded bool            // the snapshot topic has had settings of its own
}

type snapshotted struct {
	id, key, header string
	payload         string // "null": the end of a key
	erased          bool
}

var snapshotsMet struct{ snapshots, cut, emptied, erased, beside, letters, restarts int }

func TestRandomSnapshots(t *testing.T) {
	trySnapshots(t, testsize.Of(150, 15), func(w *snapshotWorld) { w.store = &interposed{Store: memory.Open(memory.Options{})} })
	t.Logf("%+v", snapshotsMet)
}

func TestRandomSnapshotsOnDisk(t *testing.T) {
	trySnapshots(t, testsize.Of(40, 5), func(w *snapshotWorld) {
		w.mem = vfs.NewCrashableMem()
		w.openDisk()
	})
	t.Logf("%+v", snapshotsMet)
}

func trySnapshots(t *testing.T, n int, open func(*snapshotWorld)) {
	testsize.Histories(t, n, func(t *rapid.T) {
		bubble.Check(t, func(t *rapid.T) {
			w := &snapshotWorld{t: t, rng: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "disk"), 1)), seen: make(map[string]bool)}
			open(w)
			w.start()
			t.Cleanup(func() {
				_ = w.bus.Close()
				_ = w.store.Close()
			})
			w.set()
			for range rapid.IntRange(3, 40).Draw(t, "steps") {
				w.step()
				w.look()
			}
			w.end()
		})
	})
}

func (w *snapshotWorld) openDisk() {
	s, err := pebble.Open(pebble.Options{Dir: "data", FS: w.mem, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.store = &interposed{Store: s}
}

func (w *snapshotWorld) start() {
	var err error
	if w.bus, err = New(Options{Store: w.store, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *snapshotWorld) draw(n int, label string) int { return rapid.IntRange(0, n-1).Draw(w.t, label) }

func (w *snapshotWorld) must(err error) {
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *snapshotWorld) step() {
	switch rapid.SampledFrom([]string{"publish", "publish", "publish", "publish", "wait", "wait", "erase", "erase", "beside", "beside", "trim", "cut", "delete", "letter", "letter", "bound", "set", "restart", "crash"}).Draw(w.t, "step") {
	case "publish":
		w.publish()
	case "wait":
		time.Sleep(time.Duration(rapid.SampledFrom([]int{1, 900, 1100, 5_000, 31_000, 305_000}).Draw(w.t, "ms")) * time.Millisecond)
	case "erase":
		w.erase()
	case "beside":
		w.beside()
	case "trim":
		w.trim("t")
	case "cut":
		if _, err := w.store.Topic(bg, "t.snapshot"); err == nil {
			w.trim("t.snapshot")
		}
	case "delete":
		w.delete()
	case "letter":
		w.letter()
	case "bound":
		w.bound()
	case "set":
		w.set()
	case "restart":
		w.must(w.bus.Close())
		w.start()
		snapshotsMet.restarts++
	case "crash":
		w.crash()
	}
}

// crash loses what is not durable. What is under way is cut short, and may be in part.
func (w *snapshotWorld) crash() {
	if w.mem == nil {
		return
	}
	if w.draw(2, "under way") == 0 {
		w.publish()
	}
	image := w.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: w.draw(101, "kept"), RNG: w.rng})
	w.must(w.bus.Close())
	w.must(w.store.Close())
	w.mem = image
	w.openDisk()
	w.start()
	snapshotsMet.restarts++
}

func (w *snapshotWorld) publish() {
	var events []eventhub.Event
	for range rapid.SampledFrom([]int{1, 1, 3, 300}).Draw(w.t, "events") {
		e := eventhub.Event{Topic: "t", ID: fmt.Sprint("e", len(w.events)+1)}
		n := snapshotted{id: e.ID, key: rapid.SampledFrom([]string{"", "a", "b", "c", "k"}).Draw(w.t, "key"), payload: fmt.Sprintf(`{"n":%d}`, len(w.events)+1)}
		if n.key == "k" {
			n.key = fmt.Sprint("k", w.draw(300, "which"))
		}
		if n.header = rapid.SampledFrom([]string{"", "x", "y", "a"}).Draw(w.t, "header"); n.header != "" {
			e.Headers = map[string]string{"k": n.header}
		}
		if w.draw(5, "ends") == 0 {
			n.payload = "null"
		}
		e.Key, e.Payload = n.key, json.RawMessage(n.payload)
		events, w.events = append(events, e), append(w.events, n)
	}
	_, err := w.bus.Publish(bg, events...)
	w.must(err)
}

func (w *snapshotWorld) erase() {
	if len(w.events) == 0 {
		return
	}
	q := admin.EraseQuery{Apply: true, By: "me"}
	at := w.draw(len(w.events), "offset")
	switch w.draw(3, "by") {
	case 0:
		q.Offset = uint64(at + 1)
	case 1:
		q.ID = w.events[at].id
	default:
		if q.Key = w.events[at].key; q.Key == "" {
			return
		}
	}
	result, err := w.bus.Erase(bg, "t", q)
	if code := eventhub.ErrorCode(err); err != nil && code != eventhub.CodeUnknownID {
		w.t.Fatal(err)
	}
	snapshotsMet.emptied += result.Snapshots
	if result.Snapshots > 0 {
		w.since = 0
	}
	for i := range w.events {
		if e := &w.events[i]; i == at && q.Key == "" || q.Key != "" && e.key == q.Key {
			if !e.erased {
				snapshotsMet.erased++
			}
			e.erased = true
		}
	}
}

// letter has a group give up what it is given of the snapshots.
func (w *snapshotWorld) letter() {
	in := &inbox{Inbox: bustest.Inbox{Room: 100}}
	sub, err := w.bus.Subscribe(bg, eventhub.GroupOptions{Topic: "t.snapshot", Group: "g", Start: eventhub.Earliest}, in)
	w.must(err)
	in.Sub = sub
	synctest.Wait()
	in.Mu.Lock()
	refs := leasesOf(in.All)
	in.Mu.Unlock()
	if len(refs) > 0 {
		_, err = sub.Settle(bg, eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true, Refs: refs})
		w.must(err)
	}
	synctest.Wait()
	w.must(sub.Unsubscribe(bg))
	snapshotsMet.letters += len(refs)
}

// bound gives the snapshot topic settings of its own, or takes them away.
func (w *snapshotWorld) bound() {
	var s admin.TopicSettings
	switch w.draw(4, "of its own") {
	case 0:
		s.Retention.Age = admin.Period(3 * time.Second)
	case 1:
		s.Retention.Count = 2
	}
	w.bounded = w.bounded || s.Retention != (admin.Retention{})
	_, err := w.bus.SetTopic(bg, "t.snapshot", s, nil)
	w.must(err)
}

func (w *snapshotWorld) delete() {
	if err := w.bus.DeleteTopic(bg, "t.snapshot"); eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		w.must(err)
		w.since = 0
	}
}

// beside does something in the middle of a snapshot, if there is one.
func (w *snapshotWorld) beside() {
	w.publish()
	do := w.erase
	switch w.draw(5, "beside") {
	case 0:
		do = w.publish
	case 1:
		do = func() { w.trim("t.snapshot") }
	case 2:
		do = w.delete
	}
	free := w.draw(3, "free")
	w.store.when(rapid.SampledFrom([]string{atState, atState, atTopic, atRead, atCommit, afterCommit}).Draw(w.t, "point"), free, do)
	time.Sleep(31 * time.Second)
	if w.store.isOver() {
		snapshotsMet.beside++
	}
	w.store.off()
}

func (w *snapshotWorld) trim(topic string) {
	info, err := w.store.Topic(bg, topic)
	if err != nil {
		return
	}
	_, err = w.bus.Trim(bg, topic, admin.TrimQuery{Before: info.Horizon + uint64(w.draw(int(info.Head-info.Horizon)+2, "by"))}, true)
	w.must(err)
	if topic != "t" {
		snapshotsMet.cut++
		w.since = 0
	}
}

// set changes the settings.
func (w *snapshotWorld) set() {
	s := admin.TopicSettings{Snapshot: &admin.Snapshot{}}
	s.Snapshot.Every = rapid.SampledFrom([]admin.Period{0, admin.Period(time.Second), admin.Period(10 * time.Second)}).Draw(w.t, "every")
	s.Snapshot.Changes = rapid.SampledFrom([]uint64{0, 1, 2, 50}).Draw(w.t, "changes")
	if w.draw(4, "some") == 0 {
		s.Snapshot.BatchKeys = []string{"b", "a", "k7", "nobody"}
	}
	if w.draw(3, "source") == 0 {
		s.Snapshot.KeySource = `event.headers["k"]`
	}
	switch w.draw(4, "kept") {
	case 0:
		s.Retention.Age = admin.Period(20 * time.Second)
	case 1:
		s.Retention.Count = 10
	}
	_, err := w.bus.SetTopic(bg, "t", s, nil)
	w.must(err)
	policy := s.Snapshot.WithDefaults()
	w.policy = &policy
}

// keyOf is the key of an event by the settings.
func (w *snapshotWorld) keyOf(e *snapshotted) string {
	key := e.key
	if w.policy.KeySource != "" {
		key = e.header
	}
	if w.policy.BatchKeys != nil && !slices.Contains(w.policy.BatchKeys, key) {
		return ""
	}
	return key
}

// look reads the snapshot topic, from its beginning.
func (w *snapshotWorld) look() {
	synctest.Wait()
	var batch, source store.Batch
	w.must(w.store.Read(bg, "t.snapshot", 1, 1<<20, 1<<30, &batch))
	w.must(w.store.Read(bg, "t", 1, 1<<20, 1<<30, &source))
	rows := make(map[string][]snapshots.Row)
	var whole []string
	w.newest = snapshots.Marker{}
	for _, item := range batch.Items {
		e, err := item.Record.Event(item.Offset)
		w.must(err)
		if e.Key != "" {
			var row snapshots.Row
			w.must(json.Unmarshal(e.Payload, &row))
			if row.Key != e.Key || w.events[row.Offset-1].erased {
				w.t.Fatalf("row %d of key %q is %+v, of %+v", item.Offset, e.Key, row, w.events[row.Offset-1])
			}
			rows[row.Snapshot] = append(rows[row.Snapshot], row)
			continue
		}
		var m snapshots.Marker
		w.must(json.Unmarshal(e.Payload, &m))
		if !slices.Equal(e.Tags, []string{snapshots.MarkerTag}) || m.First > item.Offset {
			w.t.Fatalf("the marker at %d is %+v with tags %v", item.Offset, m, e.Tags)
		}
		if m.First < batch.Horizon {
			continue // it was cut
		}
		if uint64(len(rows[m.Snapshot])) != m.Count {
			w.t.Fatalf("snapshot %+v has %d rows", m, len(rows[m.Snapshot]))
		}
		whole = append(whole, m.Snapshot)
		w.newest = m
		if !w.seen[m.Snapshot] {
			w.seen[m.Snapshot] = true
			w.made++
			w.since++
			snapshotsMet.snapshots++
			w.compare(m, rows[m.Snapshot], source.Horizon)
		}
	}
	if len(whole) < min(w.since, snapshots.Kept) && !w.bounded {
		w.t.Fatalf("there are %v of the last %d snapshots", whole, w.since)
	}
	w.lettersOf()
	w.listed(whole)
	w.rows = rows[w.newest.Snapshot]
}

// lettersOf looks for what was erased in the dead letters of the snapshots.
func (w *snapshotWorld) lettersOf() {
	var batch store.Batch
	w.must(w.store.Read(bg, "t.snapshot.dlq", 1, 1<<20, 1<<30, &batch))
	for _, item := range batch.Items {
		if len(item.Record.Key()) == 0 {
			continue // a marker
		}
		row, err := rowOf("t.snapshot.dlq", item)
		w.must(err)
		if w.events[row.Offset-1].erased {
			w.t.Fatalf("a dead letter has row %+v, of %+v", row, w.events[row.Offset-1])
		}
	}
}

// listed compares what the hub says with the snapshots that are whole.
func (w *snapshotWorld) listed(whole []string) {
	info, err := w.bus.Topic(bg, "t")
	if eventhub.ErrorCode(err) == eventhub.CodeUnknownID {
		return
	}
	w.must(err)
	var listed []string
	for _, s := range info.Snapshots.Snapshots {
		listed = append(listed, s.ID)
	}
	slices.Reverse(listed)
	if w.bounded { // some of what is listed may be gone by now, and is said to be, or is being removed
		return
	}
	if !slices.Equal(listed, whole) || len(listed) > snapshots.Kept {
		w.t.Fatalf("listed are %+v, there are %v", info.Snapshots, whole)
	}
}

// compare compares a snapshot with the fold of what was published. Below the horizon of the topic may be
// what was removed after the snapshot was read.
func (w *snapshotWorld) compare(m snapshots.Marker, rows []snapshots.Row, horizon uint64) {
	want := make(map[string]uint64)
	for i := range w.events[:m.Offset] {
		e := &w.events[i]
		if key := w.keyOf(e); key != "" && !e.erased {
			want[key] = uint64(i + 1)
		}
	}
	got := make(map[string]uint64)
	for i, row := range rows {
		e := &w.events[row.Offset-1]
		if i > 0 && rows[i-1].Key >= row.Key || string(row.Payload) != e.payload || row.ID != e.id || row.TS == 0 {
			w.t.Fatalf("row %d of %+v is %+v, of %+v", i, m, row, e)
		}
		got[row.Key] = row.Offset
	}
	for key, offset := range want {
		isEnd := w.events[offset-1].payload == "null"
		switch there := got[key]; {
		case there == offset && !isEnd, there == 0 && (isEnd || offset < horizon):
		default:
			w.t.Fatalf("snapshot %+v has offset %d of key %q; want %d, which ends it: %v; the horizon is %d", m, there, key, offset, isEnd, horizon)
		}
	}
	for key, offset := range got {
		if want[key] != offset {
			w.t.Fatalf("snapshot %+v has offset %d of key %q; want %d", m, offset, key, want[key])
		}
	}
}

// end waits until nothing is due any more: the newest snapshot is the state then, and there is none
// without a change.
func (w *snapshotWorld) end() {
	if len(w.events) == 0 {
		return
	}
	time.Sleep(2*admin.SnapshotSkips*time.Duration(w.policy.Every) + 2*time.Minute) // also for what comes of age
	w.look()
	if w.bounded {
		return
	}
	if w.newest.Snapshot == "" { // there are no keys
		w.newest.Offset = uint64(len(w.events))
	} else if w.newest.Offset != uint64(len(w.events)) {
		w.t.Fatalf("the newest snapshot is %+v; there are %d events", w.newest, len(w.events))
	}
	info, err := w.store.Topic(bg, "t")
	w.must(err)
	w.compare(w.newest, w.rows, info.Horizon) // by the settings that there are now
	if w.policy.Every > admin.Period(time.Second) {
		w.must(w.bus.Close())
		w.start()
	}
	made, head := w.made, w.newest
	time.Sleep(time.Duration(w.policy.Every) * 3 * admin.SnapshotSkips)
	w.look()
	now, err := w.store.Topic(bg, "t")
	w.must(err)
	if w.made != made && now.Horizon == info.Horizon {
		w.t.Fatalf("%d more snapshots after %+v, without a change", w.made-made, head)
	}
}
