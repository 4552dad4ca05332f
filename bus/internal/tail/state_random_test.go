package tail

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/memory"
)

// TestRandomStates drives tails with the state through random histories: values and ends of keys,
// events without a key, compaction, trims, erasures, a topic that is deleted and created again, also right
// before and after any read of theirs; receivers that refuse at any place, pauses, connections that are cut
// anywhere and go on from what they had, runs of the hub that end. Each state is the fold of the
// log at its offset but for what was removed while it was sent; it comes in rising offsets; after
// it each event comes once, in order, and whoever does not get one that is still there is told; a state that comes again
// begins where the reader was, unless what it would need is gone. At rest a map that obeys the
// protocol is the state of the topic.
func TestRandomStates(t *testing.T) {
	total := stateMet{}
	testsize.Histories(t, testsize.Of(1700, 100), func(rt *rapid.T) {
		bubble.Check(rt, func(rt *rapid.T) {
			r := &rig{t: t, store: &meter{Store: memory.Open(memory.Options{})}}
			r.start(rapid.SampledFrom([]int{1, 500, 1 << 20}).Draw(rt, "cache"))
			w := &stateWorld{T: rt, rig: r, met: &total, erased: make(map[uint64]bool)}
			r.store.beforeRead, r.store.afterRead = func(string) { w.atRead(&w.strike) }, func() { w.atRead(&w.strikeAfter) }
			rt.Cleanup(func() {
				r.stop()
				_ = r.store.Close()
			})
			for range w.next(80) {
				w.step()
			}
			w.end()
		})
	})
	for what, n := range map[string]*atomic.Int64{"states": &total.states, "whole ones": &total.whole, "that came again": &total.again,
		"that went on": &total.resumed, "tails that went on after one": &total.followed, "horizons": &total.horizons, "events that were gone": &total.missing} {
		if t.Logf("%s: %d", what, n.Load()); n.Load() == 0 {
			t.Errorf("the histories met no %s", what)
		}
	}
}

// stateMet counts what the histories met.
type stateMet struct {
	states, whole, again, resumed, followed, horizons, missing atomic.Int64
}

const stateTopic = "s"

// stateWorld is a topic and the tails that begin with its state.
type stateWorld struct {
	*rapid.T
	rig                 *rig
	met                 *stateMet
	events              []keyed // in the order of offsets, of all lives
	erased              map[uint64]bool
	horizon             uint64
	tails               []*stateReader
	strike, strikeAfter []store.TopicChange // what is removed before, and after, the reads to come

	last uint64 // offset

	mu        sync.Mutex // events, erased and horizon too
	wrong     string
	compacted uint64
	deleted   int // how often the topic was
	removing  int // removals that are under way
}

type keyed struct {
	offset uint64
	key    string
	isEnd  bool
}

// stateReader is the owner of a tail over several connections, and keeps the map that the
// protocol promises.
type stateReader struct {
	w        *stateWorld
	opts     eventhub.TailOptions
	sub      eventhub.Subscription
	room     int
	isPaused bool
	isNew    bool // nothing came over the present connection
	deleted  int  // as of the world, when the state began
	isStale  bool // another state follows
	cut      bool // nothing counts any more that comes
	ended    []error

	snapshot string
	place    eventhub.Place
	state    map[string]uint64 // the map: of each key the offset
	fresh    map[string]bool   // keys of the state that is coming; nil where none is
	got      []uint64          // its offsets
	complete bool
	at       uint64          // the offset of the state that came last
	seen     map[uint64]bool // events after it
	last     uint64
	gap      uint64 // of what is up to here some may be missing
}

func (w *stateWorld) next(n int) int { return rapid.IntRange(0, n-1).Draw(w.T, "n") }

func (w *stateWorld) step() {
	switch op := w.next(26); {
	case op < 8:
		w.publish()
	case op < 10 && len(w.tails) < 3:
		m := &stateReader{w: w, state: make(map[string]uint64)}
		m.opts = eventhub.TailOptions{Topic: stateTopic, Start: eventhub.Snapshot, BatchSize: 1 + w.next(4)}
		w.connect(m)
		w.tails = append(w.tails, m)
	case op < 14 && len(w.tails) > 0:
		m := w.tails[w.next(len(w.tails))]
		m.setRoom(w.next(8) - 1)
		m.sub.Ready()
	case op < 16:
		w.remove(w.removal())
	case op < 18: // right before a read
		ch := w.removal()
		w.mu.Lock()
		if w.next(2) == 0 {
			w.strike = append(w.strike, ch)
		} else {
			w.strikeAfter = append(w.strikeAfter, ch)
		}
		w.mu.Unlock()
	case op < 19 && len(w.tails) > 0:
		m := w.tails[w.next(len(w.tails))]
		m.isPaused = w.next(2) == 0
		if err := m.sub.(*Tail).setPaused(m.isPaused); err != nil {
			w.Fatal(err)
		}
	case op < 21 && len(w.tails) > 0:
		m := w.tails[w.next(len(w.tails))]
		m.sub.Drop(0)
		w.connect(m)
	case op < 22 && len(w.tails) > 0:
		w.overtake(w.tails[w.next(len(w.tails))])
	case op < 23:
		w.restart()
	case op < 24 && w.next(3) == 0:
		w.deleteTopic()
	default:
		time.Sleep(time.Second)
	}
	if w.next(3) > 0 {
		synctest.Wait()
		w.check()
	}
}

func (w *stateWorld) publish() {
	var events []eventhub.Event
	var noted []keyed
	for range 1 + w.next(6) {
		e := eventhub.Event{Topic: stateTopic, Payload: []byte(`1`), Key: rapid.SampledFrom([]string{"", "a", "b", "c", "d", "e"}).Draw(w.T, "key")}
		if w.next(3) == 0 {
			e.Payload = []byte(`null`)
		}
		events = append(events, e)
		noted = append(noted, keyed{key: e.Key, isEnd: string(e.Payload) == `null`})
	}
	for i := range noted { // they may be delivered before it is known what they got
		noted[i].offset = w.last + uint64(1+i)
	}
	w.mu.Lock()
	w.events = append(w.events, noted...)
	w.mu.Unlock()
	if _, err := w.rig.commit(bg, events...); err != nil {
		w.Fatal(err)
	}
	w.last += uint64(len(events))
	if head, err := w.rig.store.Store.Head(bg, stateTopic); err != nil || head != w.last {
		w.Fatalf("the head is %d, %v; want %d", head, err, w.last)
	}
}

// removal draws what is removed.
func (w *stateWorld) removal() store.TopicChange {
	ch := store.TopicChange{Topic: stateTopic}
	if len(w.events) == 0 {
		return ch
	}
	one := func() uint64 { return w.events[w.next(len(w.events))].offset }
	switch w.next(5) {
	case 0:
		ch.Erase = []uint64{one()}
	case 1:
		ch.Horizon = one() + uint64(w.next(2))
	default:
		ch.Compacted = one()
		ch.Tombstones = ch.Compacted - min(ch.Compacted, uint64(w.next(8)))
	}
	return ch
}

func (w *stateWorld) remove(ch store.TopicChange) {
	if ch.Horizon == 0 && ch.Compacted == 0 && len(ch.Erase) == 0 {
		return
	}
	if _, err := w.rig.store.Store.Topic(bg, stateTopic); err != nil {
		return
	}
	w.mu.Lock()
	w.horizon = max(w.horizon, ch.Horizon)
	w.compacted = max(w.compacted, ch.Compacted)
	for _, offset := range ch.Erase {
		w.erased[offset] = true
	}
	w.removing++
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.removing--
	}()
	unit := &write{}
	unit.Units = []store.Unit{{Topics: []store.TopicChange{ch}}}
	_ = w.rig.committer.Do(bg, unit) // the topic may just have been deleted
	if err := w.rig.index(bg, stateTopic); err != nil {
		w.Fatal(err)
	}
	if _, _, err := w.rig.store.Compact(bg, stateTopic); err != nil {
		w.fail("%v", err)
	}
}

// atRead removes what is to be removed before or after a read.
func (w *stateWorld) atRead(strike *[]store.TopicChange) {
	var ch store.TopicChange
	w.mu.Lock()
	if s := *strike; len(s) > 0 {
		ch, *strike = s[0], s[1:]
	}
	w.mu.Unlock()
	w.remove(ch)
}

// overtake publishes to a reader that takes nothing, and compacts what it has not had.
func (w *stateWorld) overtake(m *stateReader) {
	synctest.Wait()
	m.setRoom(0)
	w.publish()
	w.remove(store.TopicChange{Topic: stateTopic, Compacted: w.last, Tombstones: w.last})
	w.publish()
	if w.next(3) == 0 {
		m.sub.Drop(0)
		w.connect(m)
	}
	m.setRoom(-1)
	m.sub.Ready()
}

func (w *stateWorld) deleteTopic() {
	w.mu.Lock()
	w.strike, w.strikeAfter, w.deleted, w.removing = nil, nil, w.deleted+1, w.removing+1
	for _, e := range w.events {
		w.erased[e.offset] = true
	}
	w.mu.Unlock()
	_ = w.rig.deleteTopic(stateTopic)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removing--
}

func (w *stateWorld) restart() {
	for _, m := range w.tails {
		m.cut = true
	}
	w.mu.Lock()
	w.strike, w.strikeAfter = nil, nil
	w.mu.Unlock()
	w.rig.restart()
	for _, m := range w.tails {
		w.connect(m)
	}
}

// connect opens the tail, or has it go on.
func (w *stateWorld) connect(m *stateReader) {
	o := m.opts
	if o.Snapshot = m.snapshot; m.snapshot != "" {
		o.Places = []eventhub.Place{m.place}
	}
	// What came of a state is kept, and counts where the state does not begin again.
	c := &stateConnection{reader: m}
	m.cut, m.isPaused, m.isNew, m.room = false, false, m.snapshot != "", w.next(8)-1
	sub, err := w.rig.tails.Open(bg, o, c)
	if err != nil {
		w.Fatal(err)
	}
	m.sub = sub
	c.tail.Store(sub.(*Tail))
	sub.Ready() // what came before was refused
}

func (m *stateReader) setRoom(n int) {
	t := m.sub.(*Tail)
	t.mu.Lock()
	defer t.mu.Unlock()
	m.room = n
}

// stateConnection is the receiver of one connection.
type stateConnection struct {
	reader *stateReader
	tail   atomic.Pointer[Tail] // once it is open
}

func (c *stateConnection) Ended(err error) {
	if !c.reader.cut {
		c.reader.ended = append(c.reader.ended, err)
	}
}

func (c *stateConnection) Deliver(batch []eventhub.Delivery) int {
	m := c.reader
	t := c.tail.Load()
	for i := range batch {
		if m.room == 0 || t == nil {
			return i
		}
		m.isStale = t.snap.stale
		m.room--
		m.take(&batch[i])
	}
	return len(batch)
}

// take obeys the protocol.
func (m *stateReader) take(d *eventhub.Delivery) {
	w := m.w
	switch s := d.State; {
	case s == nil:
		m.follow(d)
	case s.Horizon != 0:
		w.met.horizons.Add(1)
		maps.DeleteFunc(m.state, func(_ string, offset uint64) bool { return offset < s.Horizon })
	case s.Complete:
		if s.Count == 0 {
			m.begin(s.Snapshot)
		}
		m.end(s)
	default:
		if s.Snapshot != "" {
			m.begin(s.Snapshot)
		} else if m.isNew {
			w.met.resumed.Add(1)
		}
		m.isNew = false
		e := w.event(d.Offset)
		if m.fresh == nil || len(m.got) > 0 && d.Offset <= m.got[len(m.got)-1] || e.key == "" || e.isEnd || string(d.Record.Key()) != e.key {
			w.fail("offset %d came of the state, %+v, after %v", d.Offset, e, m.got)
		}
		m.got = append(m.got, d.Offset)
		m.fresh[e.key] = true
		m.state[e.key] = d.Offset
		m.place = eventhub.Place{Topic: stateTopic, Offset: d.Offset, TS: d.Record.CommitTime()}
	}
}

// begin begins a state.
func (m *stateReader) begin(snapshot string) {
	w := m.w
	if m.complete {
		w.met.again.Add(1)
	}
	w.mu.Lock()
	known, deleted := max(w.compacted, w.horizon), w.deleted
	if info, err := w.rig.store.Store.Topic(bg, stateTopic); err == nil && info.Horizon > 1 {
		known = max(known, info.Horizon) // a life begins with it
	}
	w.mu.Unlock()
	token, err := parseSnapshot(snapshot)
	before, _ := parseSnapshot(m.snapshot)
	was := before.at
	if m.complete {
		was = m.last
	}
	skips := token.at < was
	for offset := was + 1; offset <= token.at; offset++ {
		skips = skips || !w.isRemoved(offset)
	}
	if err != nil || m.snapshot != "" && skips && known <= was && m.deleted == deleted && (token.at > 0 || deleted == 0) {
		w.fail("a state at %d (%v) begins, and the reader was at %d, with %+v, complete: %v", token.at, err, was, before, m.complete)
	}
	m.deleted = deleted
	m.snapshot, m.fresh, m.got, m.complete = snapshot, make(map[string]bool), nil, false
}

// end holds a state that is complete against the log.
func (m *stateReader) end(s *eventhub.StatePart) {
	w := m.w
	w.met.states.Add(1)
	maps.DeleteFunc(m.state, func(key string, _ uint64) bool { return !m.fresh[key] })
	fold := w.fold(s.Offset)
	want := slices.Sorted(maps.Values(fold))
	for _, offset := range m.got {
		e := w.event(offset)
		if newest := fold[e.key]; offset != newest && !w.isRemoved(offset) {
			w.fail("the state at %d had offset %d of key %q, whose newest is %d", s.Offset, offset, e.key, newest)
		}
	}
	for _, offset := range want {
		if !slices.Contains(m.got, offset) {
			w.met.missing.Add(1)
			if w.isThere(offset) && !m.isStale && !w.isRemoving() {
				w.fail("the state at %d lacks offset %d: %v", s.Offset, offset, m.got)
			}
		}
	}
	if slices.Equal(want, m.got) {
		w.met.whole.Add(1)
		if s.Count != len(want) {
			w.fail("the state at %d has %d events, and its mark says %d", s.Offset, len(want), s.Count)
		}
	}
	m.snapshot, m.fresh, m.complete = s.Snapshot, nil, true
	m.at, m.seen, m.last, m.gap = s.Offset, make(map[uint64]bool), s.Offset, 0
	m.place = eventhub.Place{Topic: stateTopic, Offset: s.Offset}
}

// follow takes an event after the state.
func (m *stateReader) follow(d *eventhub.Delivery) {
	w := m.w
	if m.isNew {
		w.met.followed.Add(1)
	}
	m.isNew = false
	if !m.complete || d.Offset <= m.last || m.seen[d.Offset] {
		w.fail("offset %d came after %d; the state at %d is complete: %v", d.Offset, m.last, m.at, m.complete)
	}
	if g := d.Gap; g != nil {
		m.gap = max(m.gap, g.First-1, g.Compacted)
	}
	m.seen[d.Offset], m.last = true, d.Offset
	m.place = eventhub.Place{Topic: stateTopic, Offset: d.Offset, TS: d.Record.CommitTime()}
	switch e := w.event(d.Offset); {
	case e.key == "":
	case e.isEnd:
		delete(m.state, e.key)
	default:
		if m.state[e.key] > d.Offset {
			w.fail("key %q goes back from offset %d to %d", e.key, m.state[e.key], d.Offset)
		}
		m.state[e.key] = d.Offset
	}
}

func (w *stateWorld) event(offset uint64) keyed {
	w.mu.Lock()
	events := w.events
	w.mu.Unlock()
	for _, e := range events {
		if e.offset == offset {
			return e
		}
	}
	w.fail("offset %d was not published", offset)
	return keyed{}
}

// isRemoving reports whether the tails may not know yet what is noted as removed.
func (w *stateWorld) isRemoving() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.removing > 0
}

func (w *stateWorld) isRemoved(offset uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.erased[offset] || offset < w.horizon
}

// fold returns the offsets of the state at an offset, of what is not removed.
func (w *stateWorld) fold(at uint64) map[string]uint64 {
	state := make(map[string]uint64)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		switch {
		case e.offset > at || e.key == "" || w.erased[e.offset] || e.offset < w.horizon:
		case e.isEnd:
			delete(state, e.key)
		default:
			state[e.key] = e.offset
		}
	}
	return state
}

func (w *stateWorld) isThere(offset uint64) bool {
	var batch store.Batch
	if err := w.rig.store.Store.Read(bg, stateTopic, offset, 1, 0, &batch); err != nil {
		w.fail("%v", err)
	}
	return len(batch.Items) > 0 && batch.Items[0].Offset == offset
}

// fail notes what is wrong, on whatever goroutine.
func (w *stateWorld) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wrong == "" {
		w.wrong = fmt.Sprintf(format, args...)
	}
}

// check is called at rest.
func (w *stateWorld) check() {
	if w.wrong != "" {
		w.Fatal(w.wrong)
	}
	for _, m := range w.tails {
		if len(m.ended) > 0 {
			w.Fatal(m.ended)
		}
		if m.room >= 0 || m.isPaused {
			continue
		}
		if !m.complete {
			w.Fatal("a tail with room has no state at rest")
		}
		now := make(map[string]uint64)
		_, err := w.rig.tails.opts.State(bg, stateTopic, 0, func(items []store.Item) error {
			for _, item := range items {
				now[string(item.Record.Key())] = item.Offset
			}
			return nil
		})
		if err != nil {
			w.Fatal(err)
		}
		if !maps.Equal(m.state, now) {
			w.Fatalf("the map is %v and the state %v; the last event was %d, the state before at %d", m.state, now, m.last, m.at)
		}
		for _, e := range w.events {
			if e.offset > m.at && !m.seen[e.offset] && e.offset > m.gap && w.isThere(e.offset) {
				w.Fatalf("offset %d did not come after the state at %d: %v", e.offset, m.at, slices.Sorted(maps.Keys(m.seen)))
			}
		}
	}
}

// end lets everybody read to the end.
func (w *stateWorld) end() {
	synctest.Wait()
	w.mu.Lock()
	w.strike, w.strikeAfter = nil, nil
	w.mu.Unlock()
	for _, m := range w.tails {
		m.setRoom(-1)
		m.sub.Ready()
		m.isPaused = false
		if err := m.sub.Resume(bg); err != nil {
			w.Fatal(err)
		}
	}
	synctest.Wait()
	w.check()
	w.publish()
	synctest.Wait()
	w.check()
	for _, m := range w.tails {
		m.sub.Drop(0)
	}
	if held := w.rig.tails.states.Used(); held != 0 {
		w.Fatalf("%d bytes of the budget are held", held)
	}
}
