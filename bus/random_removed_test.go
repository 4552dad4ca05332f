package bus

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/bustest"
	"eventhub/bus/internal/deadletter"
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/pebble"
)

// removals is a world of one topic from which events are removed at any moment, also in the
// middle of a call, and of groups of every kind. The model knows what each group has done, and
// what the store does not have any more; it knows nothing of horizons that a group has seen, of
// lists and of parts. What a group did not do and cannot do any more it has to be told, and
// nothing that is there: after every crash too, and the same event says the same again. What
// compaction takes before a group has read it is in a notice: of replaced values up to one mark,
// of ends of keys up to the other.
type removals struct {
	t     *rapid.T
	store *interposed
	mem   *vfs.MemFS // nil: in memory
	bus   *Bus
	run   int       // starts of the engine
	ended time.Time // nothing was committed after that

	events  []removable
	groups  []*removalGroup
	waits   []*removalWait
	letter  uint64                  // the last dead letter that was looked at
	letters []store.Item            // dead letters that came since, and may be gone again
	keyed   bool                    // events need keys
	absorb  func()                  // where not nil, finds what others have published, before anything is looked at
	asked   func(store.TopicChange) // where not nil, is called before something is removed
	batch   store.Batch
	marks   store.Marks
	erased  map[uint64]bool // singly, as far as it was asked for
}

// removable is an event at offset i+1.
type removable struct {
	passes, gone, erased bool
	key                  string
	compacted, asEnd     bool // compaction took it; as the newest of its key
	back                 bool // and a power loss may have brought it back, so that it is kept, and counts
}

type removalGroup struct {
	w    *removals
	o    eventhub.GroupOptions
	in   []*inbox
	held []got
	base uint64 // what is above is owed

	epoch   uint64
	letters map[uint64]bool      // events that have a dead letter, of whatever epoch
	again   map[uint64]bool      // which may be owed once more, by a redrive
	given   map[uint64]int       // the run in which it was delivered last, in this epoch
	first   map[uint64]time.Time // when it was delivered first, in this epoch, as far as that outlived every crash
	done    map[uint64]bool
	told    map[uint64]bool
	noticed store.Marks             // what is known to be compacted since base
	values  map[uint64]bool         // that may be missing, as it was told, or as it knew at the start
	ends    map[uint64]bool         // likewise
	ended   map[uint64]bool         // given up: where that is gone, another one says what went with it
	carried map[uint64]carried      // by the event that was delivered with it and is not done
	crashed bool                    // since the last seek, so acks may have been lost
	unsure  map[uint64]eventhub.Gap // by the carrier, where a crash may have forgotten it
}

type carried struct {
	eventhub.Gap
	at time.Time
}

// removalWait is a publication that waits for group g.
type removalWait struct {
	pub  []eventhub.Publication
	mu   sync.Mutex
	over bool
}

// removalsMet counts what the histories met, to show that they met it.
var removalsMet struct{ told, own, repeats, crashes, gone, passed, ends, missed int }

func TestRandomRemovals(t *testing.T) {
	tryRemovals(t, testsize.Of(500, 25), func(w *removals) {
		w.store = &interposed{Store: memory.Open(memory.Options{})}
	})
	m := removalsMet
	t.Logf("%d gaps were told, %d of single events that had been delivered, %d of compactions, %d of ends of keys too, %d again; %d crashes; %d waits ended as gone; %d events were taken by compaction before they were read",
		m.told, m.own, m.passed, m.ends, m.repeats, m.crashes, m.gone, m.missed)
	if !testsize.Small() && min(m.told, m.own, m.repeats, m.crashes, m.gone, m.passed, m.ends, m.missed) == 0 {
		t.Error("the histories did not meet all of it")
	}
}

// TestRandomRemovalsOnDisk is TestRandomRemovals on the embedded store: a crash goes on with what
// a power loss leaves of its file system.
func TestRandomRemovalsOnDisk(t *testing.T) {
	tryRemovals(t, testsize.Of(80, 4), func(w *removals) {
		w.mem = vfs.NewCrashableMem()
		w.store = &interposed{}
		w.openDisk()
	})
}

func (w *removals) openDisk() {
	s, err := pebble.Open(pebble.Options{Dir: "data", FS: w.mem, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.store.Store = s
}

func tryRemovals(t *testing.T, n int, open func(*removals)) {
	testsize.Histories(t, n, func(t *rapid.T) {
		bubble.Check(t, func(t *rapid.T) {
			w := &removals{t: t, erased: make(map[uint64]bool)}
			open(w)
			w.begin()
			t.Cleanup(func() {
				w.store.off()
				w.store.fail(nil)
				_ = w.bus.Close()
				_ = w.store.Close()
			})
			for range rapid.IntRange(5, 50).Draw(t, "steps") {
				w.step()
				w.check()
			}
			w.drain()
		})
	})
}

func (w *removals) begin() {
	w.open()
	for _, o := range []eventhub.GroupOptions{
		{Group: "g", MaxInFlight: 3}, {Group: "keys", Ordering: eventhub.OrderingKey, MaxInFlight: 2},
		{Group: "some", Filter: &eventhub.Filter{Tags: []string{"x"}}, MaxInFlight: 2}, {Group: "auto", AutoAck: true},
	} {
		o.Topic, o.Start, o.AckTimeout, o.MaxAttempts, o.BatchSize = "t", eventhub.Earliest, time.Minute, 5, rapid.SampledFrom([]int{1, 2, 100}).Draw(w.t, "batch")
		g := &removalGroup{w: w, o: o, letters: make(map[uint64]bool), again: make(map[uint64]bool)}
		g.forget(0)
		w.groups = append(w.groups, g)
		g.join()
		g.epoch = w.bus.running("t", g.o.Group).state.Epoch()
	}
}

func (w *removals) open() {
	var err error
	if w.bus, err = New(Options{Store: w.store, TailCacheBytes: 1 + rapid.SampledFrom([]int{0, 500, 1 << 20}).Draw(w.t, "cache")}); err != nil {
		w.t.Fatal(err)
	}
	w.run++
}

// forget has the group begin again above base.
func (g *removalGroup) forget(base uint64) {
	g.base, g.held, g.crashed = base, nil, false
	g.unsure = make(map[uint64]eventhub.Gap)
	g.noticed, g.values, g.ends, g.ended = store.Marks{}, make(map[uint64]bool), make(map[uint64]bool), make(map[uint64]bool)
	g.first = make(map[uint64]time.Time)
	g.given, g.done, g.told, g.carried = make(map[uint64]int), make(map[uint64]bool), make(map[uint64]bool), make(map[uint64]carried)
}

func (g *removalGroup) join() {
	in := &inbox{Inbox: bustest.Inbox{Room: -1}}
	sub, err := g.w.bus.Subscribe(bg, g.o, in)
	if err != nil {
		g.w.t.Fatal(err)
	}
	in.Sub = sub
	g.in = append(g.in, in)
}

func (w *removals) step() {
	step := rapid.SampledFrom(strings.Fields("publish publish publish wait trim trim erase compact compact meanwhile meanwhile ack ack ack nack give step redrive leave join seek room pass pass restart crash crash")).Draw(w.t, "step")
	g := w.groups[rapid.IntRange(0, len(w.groups)-1).Draw(w.t, "group")]
	switch step {
	case "publish":
		w.publish(rapid.IntRange(1, 5).Draw(w.t, "events"))
	case "wait":
		w.wait()
	case "trim", "erase", "compact":
		w.remove(step)
	case "meanwhile":
		w.meanwhile(g)
	case "ack":
		g.settle(eventhub.Settlement{})
	case "nack":
		g.settle(eventhub.Settlement{Verdict: eventhub.Nack})
	case "give":
		g.settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true})
	case "step":
		g.ackAndPublish()
	case "redrive":
		for _, g := range w.groups {
			maps.Copy(g.again, g.letters)
		}
		q := admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t"}, Apply: true, Rate: admin.MaxRedriveRate}
		if _, err := w.bus.Redrive(bg, q); err != nil && eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
			w.t.Fatal(err)
		}
	case "leave":
		g.leave()
	case "join":
		if len(g.in) < 3 {
			g.join()
		}
	case "seek":
		g.seek()
	case "room":
		g.room()
	case "pass":
		time.Sleep(time.Duration(rapid.SampledFrom([]int{1, 60, 5000, 90_000}).Draw(w.t, "ms")) * time.Millisecond)
	case "restart":
		w.restart()
	case "crash":
		w.crash()
	}
}

// event draws an event that groups see differently.
func (w *removals) event(passes bool) eventhub.Event {
	e := eventhub.Event{Topic: "t", Payload: []byte(`1`), Key: rapid.SampledFrom([]string{"", "a", "b"}).Draw(w.t, "key")}
	if w.keyed {
		e.Key = cmp.Or(e.Key, "a")
	}
	if passes {
		e.Tags = []string{"x"}
	}
	if e.Key != "" && rapid.IntRange(0, 2).Draw(w.t, "ends") == 0 {
		e.Payload = []byte(`null`)
	}
	return e
}

func (w *removals) publish(n int) {
	var events []eventhub.Event
	for range n {
		passes := rapid.Bool().Draw(w.t, "passes")
		events = append(events, w.event(passes))
		w.events = append(w.events, removable{passes: passes, key: events[len(events)-1].Key})
	}
	receipts, err := w.bus.Publish(bg, events...)
	if err != nil || receipts[n-1].Offset != uint64(len(w.events)) {
		w.t.Fatalf("published %+v, %v; want the last at %d", receipts, err, len(w.events))
	}
}

func (w *removals) wait() {
	passes := rapid.Bool().Draw(w.t, "passes")
	a := &removalWait{pub: []eventhub.Publication{{Events: []eventhub.Event{w.event(passes)}, WaitFor: []string{"g"}, WaitUpTo: eventhub.MaxWait}}}
	w.events = append(w.events, removable{passes: passes, key: a.pub[0].Events[0].Key})
	w.bus.Enqueue(bg, a.pub, func([]eventhub.Publication) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.over = true
	})
	synctest.Wait()
	w.waits = append(w.waits, a)
}

// remove trims, erases or compacts.
func (w *removals) remove(how string) {
	if len(w.events) == 0 {
		return
	}
	if err := w.removal(how)(); err != nil && w.store.failure() == nil {
		w.t.Error(err)
	}
}

// removal draws what is removed, and returns what does it.
func (w *removals) removal(how string) func() error {
	at := uint64(rapid.IntRange(1, len(w.events)+1).Draw(w.t, "at"))
	ch := store.TopicChange{Topic: "t", Horizon: at}
	steps := 0
	switch how {
	case "erase":
		ch = store.TopicChange{Topic: "t", Erase: []uint64{at, at + 1}}
		w.erased[at], w.erased[at+1] = true, true
	case "compact":
		ch = store.TopicChange{Topic: "t", Compacted: at, Tombstones: uint64(rapid.IntRange(0, int(at)).Draw(w.t, "ends"))}
		steps = rapid.IntRange(0, 2).Draw(w.t, "steps") // nothing may be removed as yet
	}
	if w.asked != nil {
		w.asked(ch)
	}
	b := w.bus
	return func() error {
		err := removeFrom(b, ch)
		for range steps {
			if err == nil {
				switch err = w.bus.indexed(bg, "t"); {
				case err == nil:
					_, _, err = w.store.Compact(bg, "t")
				case eventhub.ErrorCode(err) == eventhub.CodeUnsupportedOp:
					err = nil // nothing is removed where settings allow no index
				}
			}
		}
		return err
	}
}

// meanwhile removes in the middle of what the engine does to deliver.
func (w *removals) meanwhile(g *removalGroup) {
	how := rapid.SampledFrom([]string{"trim", "erase", "compact"}).Draw(w.t, "how")
	point := rapid.SampledFrom([]string{atRead, atRead, atCommit, afterCommit}).Draw(w.t, "point")
	if len(w.events) == 0 {
		return
	}
	do := w.removal(how)
	w.store.when(point, rapid.IntRange(0, 2).Draw(w.t, "free"), func() { _ = do() })
	if rapid.Bool().Draw(w.t, "ack") {
		g.settle(eventhub.Settlement{})
	} else {
		w.publish(1)
	}
	synctest.Wait()
	w.store.off()
	synctest.Wait()
}

func (g *removalGroup) leave() {
	if len(g.in) == 0 {
		return
	}
	in := g.in[0]
	g.collect()
	g.in = g.in[1:]
	if rapid.Bool().Draw(g.w.t, "dropped") {
		in.Sub.Drop(0)
	} else if err := in.Sub.Unsubscribe(bg); err != nil {
		g.w.t.Fatal(err)
	}
}

func (g *removalGroup) room() {
	for _, in := range g.in {
		in.Mu.Lock()
		in.Room = rapid.SampledFrom([]int{-1, 0, 1, 2}).Draw(g.w.t, "room")
		in.Mu.Unlock()
		in.Sub.Ready()
	}
}

// draw returns some of what the group was given, which may be held by nobody any more.
func (g *removalGroup) draw() []got {
	if len(g.held) == 0 || g.o.AutoAck || len(g.in) == 0 {
		return nil
	}
	from := rapid.IntRange(0, len(g.held)-1).Draw(g.w.t, "from")
	held := g.held[from:min(len(g.held), from+rapid.IntRange(1, 3).Draw(g.w.t, "n"))]
	g.held = slices.Delete(slices.Clone(g.held), from, from+len(held))
	return slices.Clone(held)
}

func (g *removalGroup) settle(s eventhub.Settlement) {
	do, note := g.settlement(s)
	do()
	note()
}

// settlement draws what is settled, and returns what does it, and what notes it then.
func (g *removalGroup) settlement(s eventhub.Settlement) (do, note func()) {
	held := g.draw()
	if len(held) == 0 {
		return func() {}, func() {}
	}
	s.Refs = leasesOf(held)
	var out []eventhub.Outcome
	var err error
	sub := g.in[0].Sub
	return func() { out, err = sub.Settle(bg, s) }, func() { g.settled(s, held, out, err) }
}

func (g *removalGroup) settled(s eventhub.Settlement, held []got, out []eventhub.Outcome, err error) {
	if err != nil {
		g.w.t.Fatal(err)
	}
	for i, o := range out {
		if o == eventhub.Applied && s.Verdict == eventhub.Ack {
			g.finish(held[i].Offset)
		} else if o == eventhub.Applied && s.Terminal {
			delete(g.carried, held[i].Offset) // as soon as it is dead-lettered, or found to be gone
			g.ended[held[i].Offset] = true
		}
	}
}

func (g *removalGroup) finish(offset uint64) {
	g.done[offset] = true
	delete(g.carried, offset)
}

func (g *removalGroup) ackAndPublish() {
	held := g.draw()
	if len(held) == 0 {
		return
	}
	if _, err := eventhub.AckAndPublish(bg, g.in[0].Sub, leasesOf(held), eventhub.Event{Topic: "out", Payload: []byte(`1`)}); err == nil {
		for _, d := range held {
			g.finish(d.Offset)
		}
	} else if eventhub.ErrorCode(err) != eventhub.CodeLeaseLost {
		g.w.t.Fatal(err)
	}
}

func (g *removalGroup) seek() {
	if rapid.IntRange(0, 2).Draw(g.w.t, "really") != 0 || len(g.w.events) == 0 {
		return
	}
	to := uint64(rapid.IntRange(1, len(g.w.events)+1).Draw(g.w.t, "to"))
	start := eventhub.Start{Kind: eventhub.StartOffset, Offset: to}
	info, err := g.w.store.Topic(bg, "t")
	if err != nil {
		g.w.t.Fatal(err)
	}
	base := to - 1
	if rapid.Bool().Draw(g.w.t, "earliest") {
		start, base = eventhub.Earliest, info.Horizon-1
	}
	g.collect()
	plan, err := g.w.bus.SeekGroup(bg, "t", g.o.Group, start, true)
	wantGap := base+1 < info.Horizon || start != eventhub.Earliest && info.Compacted > base
	if err != nil || (plan.Gap != nil) != wantGap {
		g.w.t.Fatalf("seek to %+v in %+v: %+v, %v", start, info, plan, err)
	}
	runtime := g.w.bus.running("t", g.o.Group).state.Runtime()
	g.forget(base)
	g.epoch = plan.Epoch
	if start == eventhub.Earliest {
		g.noticed = store.Marks{Compacted: info.Compacted, Tombstones: info.Tombstones}
		g.mayMiss(1, g.noticed)
	}
	synctest.Wait()
	for _, in := range g.in {
		in.Mu.Lock()
		in.All = slices.DeleteFunc(in.All, func(d got) bool { return d.Lease.Runtime != runtime && !g.o.AutoAck })
		in.Mu.Unlock()
	}
}

func (w *removals) restart() {
	w.check()
	if err := w.bus.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.again()
}

// crash ends the process at some point of what it does.
func (w *removals) crash() {
	w.check()
	removalsMet.crashes++
	point := rapid.SampledFrom([]string{atCommit, afterCommit}).Draw(w.t, "point")
	w.store.when(point, rapid.IntRange(0, 3).Draw(w.t, "free"), func() { w.fail() })
	for range rapid.IntRange(0, 3).Draw(w.t, "before") {
		if w.store.failure() != nil {
			break
		}
		g := w.groups[rapid.IntRange(0, len(w.groups)-1).Draw(w.t, "group")]
		switch rapid.IntRange(0, 2).Draw(w.t, "what") {
		case 0:
			g.settle(eventhub.Settlement{})
		case 1:
			w.remove("trim")
		default:
			time.Sleep(time.Duration(rapid.SampledFrom([]int{1, 30, 5000}).Draw(w.t, "ms")) * time.Millisecond)
		}
		synctest.Wait()
		w.collect() // also of what nobody knows durably
	}
	w.lose()
	if w.mem != nil {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(w.t, "image"), 1))
		image := w.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rapid.IntRange(0, 100).Draw(w.t, "percent"), RNG: rng})
		_ = w.store.Close()
		w.mem = image
		w.openDisk()
	}
	w.forgetCarriers()
	w.again()
}

// lose ends the engine as the end of the process does.
func (w *removals) lose() {
	w.fail()
	w.store.off()
	_ = w.bus.Close()
	w.collect()
	w.store.fail(nil)
}

// forgetCarriers notes what a crash may have forgotten.
func (w *removals) forgetCarriers() {
	for _, g := range w.groups {
		g.crashed = true
		maps.DeleteFunc(g.first, func(_ uint64, at time.Time) bool { return w.ended.Sub(at) < 100*time.Millisecond })
		for offset, c := range g.carried { // that it was told may not be durable yet
			if w.ended.Sub(c.at) < 100*time.Millisecond {
				delete(g.carried, offset)
				g.unsure[offset] = c.Gap
			}
		}
	}
}

// fail ends the process: nothing is committed any more.
func (w *removals) fail() {
	if w.store.failure() == nil {
		w.ended = time.Now()
		w.store.fail(errGone)
	}
}

func (w *removals) again() {
	w.waits = nil
	for _, g := range w.groups {
		g.held, g.in = nil, nil
	}
	w.open()
	for _, g := range w.groups {
		g.join()
	}
}

func (w *removals) collect() {
	w.look()
	for _, g := range w.groups {
		g.collect()
	}
	w.lookForLetters()
}

func (w *removals) check() {
	synctest.Wait()
	w.collect()
	w.checkWaits()
}

// look finds out what the store does not have any more.
func (w *removals) look() {
	if w.absorb != nil {
		w.absorb()
	}
	batch := &w.batch
	batch.Reset()
	if err := w.store.Store.Read(bg, "t", 1, len(w.events)+1, 1<<30, batch); err != nil {
		w.t.Fatal(err)
	}
	for i := range w.events {
		_, there := slices.BinarySearchFunc(batch.Items, uint64(i+1), func(item store.Item, offset uint64) int { return int(item.Offset) - int(offset) })
		e, offset := &w.events[i], uint64(i+1)
		if !there && offset >= batch.Horizon && !w.erased[offset] && !e.gone {
			e.compacted, e.asEnd = true, true
			for _, newer := range w.events[i+1 : max(batch.Compacted, offset)] {
				e.asEnd = e.asEnd && newer.key != e.key
			}
		}
		// Of one that is gone at the first look after its erasure the horizon may have passed
		// where it was: it counts as erased all the same.
		e.erased = e.erased || !there && (offset >= batch.Horizon || w.erased[offset] && !e.gone)
		e.gone = !there || e.compacted // a power loss may bring back what compaction has removed
		e.back = e.back && there
		if there && w.store.failure() == nil {
			delete(w.erased, offset) // it was asked for before there was such an event, or was lost in a crash
		}
	}
	w.marks = batch.Marks()
}

// lookForLetters ends what was carried by events that have got a dead letter.
func (w *removals) lookForLetters() {
	batch := &w.batch
	batch.Reset()
	if err := w.store.Store.Read(bg, deadletter.Topic("t"), w.letter+1, 1000, 1<<30, batch); err != nil {
		w.t.Fatal(err)
	}
	for _, item := range append(w.letters, batch.Items...) {
		w.noteLetter(item)
		w.letter = max(w.letter, item.Offset)
	}
	w.letters = nil
}

func (w *removals) noteLetter(item store.Item) {
	e, err := item.Record.Event(item.Offset)
	var p deadletter.Payload
	if err == nil {
		err = json.Unmarshal(e.Payload, &p)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	for _, g := range w.groups {
		if g.o.Group == p.Group && g.epoch == p.Epoch {
			delete(g.carried, p.Offset)
			delete(g.ended, p.Offset)
		}
		if g.o.Group == p.Group {
			g.letters[p.Offset] = true
		}
	}
}

// mayMiss notes what a group knows that it may miss.
func (g *removalGroup) mayMiss(first uint64, marks store.Marks) {
	for offset := first; offset <= marks.Compacted; offset++ {
		g.values[offset] = true
		g.ends[offset] = g.ends[offset] || offset <= marks.Tombstones
	}
}

// tellPassed notes what a notice says, and that it is one.
func (g *removalGroup) tellPassed(d got) {
	marks := store.Marks{Compacted: d.Gap.Compacted, Tombstones: d.Gap.Tombstones}
	removalsMet.passed++
	if marks.Tombstones > 0 {
		removalsMet.ends++
	}
	isAgain := g.crashed // or who was told it first is gone
	for carrier := range g.carried {
		isAgain = isAgain || g.w.events[carrier-1].gone
	}
	for carrier := range g.ended {
		isAgain = isAgain || g.w.events[carrier-1].gone
	}
	switch {
	case marks.Compacted < d.Gap.First, marks.Tombstones > marks.Compacted, marks.Tombstones != 0 && marks.Tombstones < d.Gap.First:
		g.fail(d, "that says nothing")
	case marks.Compacted > g.w.marks.Compacted || marks.Tombstones > g.w.marks.Tombstones:
		g.fail(d, "the marks are %+v", g.w.marks)
	case !isAgain && marks.Above(d.Gap.First-1, g.noticed) != marks:
		g.fail(d, "it knows %+v", g.noticed)
	}
	g.noticed = g.noticed.Max(marks)
	g.mayMiss(d.Gap.First, marks)
}

func (g *removalGroup) collect() {
	var all []got
	for _, in := range g.in {
		all = append(all, in.Take()...)
	}
	slices.SortStableFunc(all, func(a, b got) int { return cmp.Compare(a.Lease.Serial, b.Lease.Serial) })
	for _, d := range all {
		g.take(d)
	}
}

func (g *removalGroup) fail(d got, format string, args ...any) {
	g.w.t.Fatalf("group %s was given %s: %s", g.o.Group, told([]got{d})[0], fmt.Sprintf(format, args...))
}

// take holds a delivery against what the group has done and was told.
func (g *removalGroup) take(d got) {
	offset := d.Offset
	if offset > uint64(len(g.w.events)) || offset <= g.base && d.Redriven == 0 || g.o.Filter != nil && !g.w.events[offset-1].passes {
		g.fail(d, "it is not to have it; it began after %d", g.base)
	}
	if d.Redriven > 0 && g.given[offset] != g.w.run {
		delete(g.done, offset)
	}
	before, has := g.carried[offset]
	switch {
	case d.Gap == nil && has:
		g.fail(d, "without the gap %+v that it had before", before.Gap)
	case d.Gap != nil && has && *d.Gap != before.Gap:
		g.fail(d, "it had the gap %+v before", before.Gap)
	case d.Gap != nil && has:
		removalsMet.repeats++
	case d.Gap != nil:
		g.tell(d)
	}
	g.given[offset] = g.w.run
	if g.first[offset].IsZero() {
		g.first[offset] = d.At
	}
	if g.o.AutoAck {
		g.finish(offset)
		return
	}
	g.held = slices.DeleteFunc(g.held, func(h got) bool { return h.Offset == offset })
	g.held = append(g.held, d)
}

// tell notes a gap that is told for the first time.
func (g *removalGroup) tell(d got) {
	removalsMet.told++
	if g.given[d.Offset] == g.w.run && !(d.Redriven > 0 && d.Attempt == 1) {
		g.fail(d, "it had none when it was given first")
	}
	g.checkUnsure(d)
	for offset := d.Gap.After + 1; offset < d.Gap.First; offset++ {
		if offset > uint64(len(g.w.events)) || !g.w.events[offset-1].gone {
			g.fail(d, "%d is there", offset)
		}
		if g.done[offset] && !g.again[offset] && !g.crashed {
			g.fail(d, "it has done %d", offset)
		}
		for carrier, c := range g.carried {
			if c.After < offset && offset < c.First && !g.w.events[carrier-1].gone {
				g.fail(d, "%d is in the gap %+v of %d", offset, c.Gap, carrier)
			}
		}
		if g.given[offset] != 0 && d.Gap.First == d.Gap.After+2 {
			removalsMet.own++
		}
		g.told[offset] = true
	}
	if d.Gap.Compacted > 0 {
		g.tellPassed(d)
	}
	g.carried[d.Offset] = carried{*d.Gap, time.Now()}
}

// checkUnsure compares a gap with what was told before a crash that may have forgotten whom it was
// told: the same is told again, whomever it goes with. Where that event was removed too, its own
// offset may be a part of it.
func (g *removalGroup) checkUnsure(d got) {
	for carrier, gap := range g.unsure {
		if d.Gap.First <= gap.After+1 || gap.First <= d.Gap.After+1 || gap.First == gap.After+1 || d.Gap.First == d.Gap.After+1 {
			continue // one of them is of a compaction alone
		}
		delete(g.unsure, carrier)
		if (d.Gap.After != gap.After || d.Gap.First != gap.First) && !g.w.events[carrier-1].gone {
			g.fail(d, "before the crash %d had the gap %+v", carrier, gap)
		}
	}
}

func (w *removals) checkWaits() {
	g := w.groups[0]
	w.waits = slices.DeleteFunc(w.waits, func(a *removalWait) bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		if !a.over {
			return false
		}
		p := &a.pub[0]
		switch code := eventhub.ErrorCode(p.Err); {
		case p.Err == nil && !g.done[p.Receipts[0].Offset]:
			w.t.Fatalf("the wait for %d ends, and it was not acked", p.Receipts[0].Offset)
		case code == eventhub.CodeGone:
			removalsMet.gone++
			if offset := p.Receipts[0].Offset; g.done[offset] || !w.events[offset-1].gone {
				w.t.Fatalf("the wait for %d ends with %v; it was acked: %t, and it is %+v", offset, p.Err, g.done[offset], w.events[offset-1])
			}
		}
		return true
	})
}

// drain lets everything come to its end. Then each group has done what it was to do, or was told.
func (w *removals) drain() {
	for _, g := range w.groups {
		for _, in := range g.in {
			in.Mu.Lock()
			in.Room = -1
			in.Mu.Unlock()
			in.Sub.Ready()
		}
		g.join()
	}
	for quiet, n := 0, 0; quiet < 3; n++ {
		if n > 100 {
			w.t.Fatal("there is always more")
		}
		before := removalsMet.told
		last := w.event(true)
		w.events = append(w.events, removable{passes: true, key: last.Key})
		if _, err := w.bus.Publish(bg, last); err != nil {
			w.t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		open := uint64(0)
		for _, g := range w.groups {
			open += g.ackAll()
		}
		if quiet++; open > 0 || removalsMet.told > before {
			quiet = 0
		}
	}
	w.check()
	letters := w.lettered()
	for _, g := range w.groups {
		for i := range w.events {
			e, offset := &w.events[i], uint64(i+1)
			isOwed := offset > g.base && (g.o.Filter == nil || e.passes) && !(e.erased && (!e.compacted || w.erased[offset]) && g.given[offset] != w.run && g.first[offset].IsZero())
			mayMiss := e.compacted && (g.values[offset] && !e.asEnd || g.ends[offset])
			if e.compacted && isOwed && !g.done[offset] {
				removalsMet.missed++
			}
			if isOwed && !g.done[offset] && !g.told[offset] && !letters[g.o.Group][offset] && !g.letters[offset] && !mayMiss {
				w.t.Fatalf("group %s has not done %d, %+v, and was not told", g.o.Group, offset, *e)
			}
		}
	}
}

// ackAll acks what the group is given, and returns how much it has not done.
func (g *removalGroup) ackAll() (open uint64) {
	for g.w.check(); len(g.held) > 0 && !g.o.AutoAck; g.w.check() {
		held := g.held
		g.held = nil
		out, err := g.in[0].Sub.Settle(bg, eventhub.Settlement{Refs: leasesOf(held)})
		if err != nil {
			g.w.t.Fatal(err)
		}
		for i, o := range out {
			if o == eventhub.Applied {
				g.finish(held[i].Offset)
			}
		}
	}
	info, err := g.w.bus.Group(bg, "t", g.o.Group)
	if err != nil {
		g.w.t.Fatal(err)
	}
	return info.Lag + uint64(info.Redriven)
}

// lettered returns the events that have dead letters.
func (w *removals) lettered() map[string]map[uint64]bool {
	all := make(map[string]map[uint64]bool)
	err := w.bus.DeadLetters(bg, admin.DeadLetterQuery{Topic: "t", All: true}, func(d *admin.DeadLetter) error {
		if all[d.Group] == nil {
			all[d.Group] = make(map[uint64]bool)
		}
		all[d.Group][d.Event] = true
		return nil
	})
	if err != nil && eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		w.t.Fatal(err)
	}
	return all
}
