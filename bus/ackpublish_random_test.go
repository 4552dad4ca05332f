package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"eventhub/bus/internal/deadletter"
	"eventhub/bus/internal/groupstate"
	"eventhub/internal/bubble"
	"eventhub/internal/faultfs"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/pebble"
)

// TestRandomAckAndPublish looks at the store after every commit, whatever was going
// on: of each ack-and-publish there are all events and the acks, or nothing; no event is
// done that nobody acked, handed over or dead-lettered; none is so twice. Some
// units are refused: by the limit of topics, and those with a poisoned event.
func TestRandomAckAndPublish(t *testing.T) {
	tryDeals(t, testsize.Of(1000, 100), func(t *rapid.T) *deals {
		return newDeals(t, memory.Open(memory.Options{MaxTopics: 6}))
	})
}

// TestRandomAckAndPublishOnDisk looks at what a power loss leaves as well, also in the
// middle of an fsync, and goes on with that.
func TestRandomAckAndPublishOnDisk(t *testing.T) {
	tryDeals(t, testsize.Of(100, 10), func(t *rapid.T) *deals {
		disk := &disk{mem: vfs.NewCrashableMem()}
		d := newDeals(t, openDeals(t, disk))
		d.disk = disk
		return d
	})
	t.Logf("%d power losses, %d of them with ack-and-publishes under way: %d were there and %d were not",
		dealLosses.all, dealLosses.held, dealLosses.whole, dealLosses.none)
	if dealLosses.all > 300 && min(dealLosses.held, dealLosses.whole, dealLosses.none) == 0 {
		t.Error("the histories did not meet every kind of loss")
	}
}

// dealLosses counts what the histories met, to show that they met it.
var dealLosses struct{ all, held, whole, none int }

func tryDeals(t *testing.T, n int, begin func(*rapid.T) *deals) {
	testsize.Histories(t, n, func(t *rapid.T) {
		bubble.Check(t, func(t *rapid.T) {
			d := begin(t)
			t.Cleanup(d.close)
			for range rapid.IntRange(5, 50).Draw(t, "steps") {
				d.step()
				synctest.Wait()
				d.check()
			}
			d.drain()
		})
	})
}

func openDeals(t *rapid.T, d *disk) store.Store {
	s, err := pebble.Open(pebble.Options{
		Dir: "data", FS: faultfs.Wrap(d.mem, d), Logger: slog.New(slog.DiscardHandler), MaxTopics: 6,
		Fatal: func(cause error) { t.Errorf("Fatal(%v)", cause) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// deals is an engine, and what is known of its ack-and-publishes from outside.
type deals struct {
	t     *rapid.T
	store *picky
	disk  *disk
	bus   *Bus
	hold  chan struct{}
	seeks []chan error

	members []*dealer
	base    map[string]map[uint64]uint64 // by group and epoch: where it began
	groups  map[string]bool              // that exist
	number  int

	mu    sync.Mutex
	tries []*try
	acks  map[spot]bool // acks that counted
	wrong string
}

// spot is an event of topic a in one life of a group.
type spot struct {
	group         string
	epoch, offset uint64
}

// try is one ack-and-publish.
type try struct {
	eventhub.AckPublish
	places   []spot
	poisoned bool
	answers  int
}

// dealer is a member that takes everything.
type dealer struct {
	group string
	sub   eventhub.Subscription
	run   *Bus
	mu    *sync.Mutex
	got   *[]eventhub.Lease // of all of the group
}

func (m *dealer) Deliver(batch []eventhub.Delivery) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range batch {
		*m.got = append(*m.got, d.Lease)
	}
	return len(batch)
}

func (m *dealer) Ended(error) {}

// picky refuses units with a poisoned event, holds commits up, and has each one
// looked at.
type picky struct {
	store.Store
	mu    sync.Mutex
	hold  chan struct{}
	fail  error
	after func()
}

func (p *picky) set(hold chan struct{}, fail error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold, p.fail = hold, fail
}

func (p *picky) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	p.mu.Lock()
	hold := p.hold
	p.mu.Unlock()
	if hold != nil {
		<-hold
	}
	p.mu.Lock()
	fail := p.fail
	p.mu.Unlock()
	if fail != nil {
		return fail
	}
	var good []*store.Unit
	for _, u := range units {
		if u.Err = nil; slices.ContainsFunc(u.Appends, func(a store.Append) bool { return strings.HasPrefix(a.ID, "poison") }) {
			u.Err = fmt.Errorf("poison: %w", store.ErrTopicLimit)
			continue
		}
		good = append(good, u)
	}
	err := p.Store.Commit(ctx, good, sync)
	if err == nil && p.after != nil {
		p.after()
	}
	return err
}

func newDeals(t *rapid.T, s store.Store) *deals {
	d := &deals{t: t, store: &picky{Store: s}, base: make(map[string]map[uint64]uint64), groups: make(map[string]bool), acks: make(map[spot]bool)}
	for _, g := range []string{"g", "h"} {
		d.base[g] = make(map[uint64]uint64)
	}
	d.store.after = func() { d.audit(d.store.Store) }
	d.open()
	// So that it is there whatever the limit.
	if _, err := d.bus.Publish(context.Background(), eventhub.Event{Topic: "a", Payload: []byte(`0`)}, eventhub.Event{Topic: "b", Payload: []byte(`0`)}); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *deals) open() {
	var err error
	if d.bus, err = New(Options{Store: d.store, AckWindow: 50}); err != nil {
		d.t.Fatal(err)
	}
}

func (d *deals) close() {
	d.release()
	if err := d.bus.Close(); err != nil && !d.t.Failed() {
		d.t.Errorf("Close: %v", err)
	}
	if err := d.store.Store.Close(); err != nil && !d.t.Failed() {
		d.t.Errorf("Close of the store: %v", err)
	}
}

func (d *deals) step() {
	steps := map[string]func(){
		"publish": d.publish, "join": d.join, "hand over": d.ackAndPublish, "settle": d.settle, "leave": d.leave,
		"pass": d.pass, "seek": d.seek, "delete": d.deleteGroup, "hold": d.holdCommits, "restart": d.restart,
	}
	names := strings.Fields("publish join join hand hand hand hand hand settle settle leave pass seek delete hold hold restart")
	name := rapid.SampledFrom(names).Draw(d.t, "step")
	if name == "hand" {
		name = "hand over"
	}
	steps[name]()
}

func (d *deals) publish() {
	var events []eventhub.Event
	for range rapid.IntRange(1, 5).Draw(d.t, "events") {
		events = append(events, eventhub.Event{Topic: "a", Key: rapid.SampledFrom([]string{"", "k"}).Draw(d.t, "key"), Payload: []byte(`1`)})
	}
	d.bus.Enqueue(context.Background(), []eventhub.Publication{{Events: events}}, func([]eventhub.Publication) {})
}

func (d *deals) drawGroup() string { return rapid.SampledFrom([]string{"g", "h"}).Draw(d.t, "group") }

func (d *deals) join() {
	name := d.drawGroup()
	if d.hold != nil && !d.groups[name] {
		return // would wait for the commit that creates it
	}
	d.joinAs(name, time.Duration(rapid.IntRange(1, 3).Draw(d.t, "ackTimeout"))*time.Second)
}

func (d *deals) joinAs(name string, timeout time.Duration) *dealer {
	o := eventhub.GroupOptions{Topic: "a", Group: name, AckTimeout: timeout, MaxInFlight: rapid.IntRange(1, 6).Draw(d.t, "maxInFlight"),
		Start: eventhub.Earliest}
	if !d.groups[name] {
		o.MaxAttempts = rapid.IntRange(1, 3).Draw(d.t, "maxAttempts")
		o.Ordering = rapid.SampledFrom([]string{eventhub.OrderingNone, eventhub.OrderingKey}).Draw(d.t, "ordering")
		o.Backoff = eventhub.Backoff{Min: time.Millisecond, Max: time.Millisecond}
	}
	m := &dealer{group: name, run: d.bus, mu: &d.mu, got: new([]eventhub.Lease)}
	sub, err := d.bus.Subscribe(context.Background(), o, m)
	if err != nil {
		d.t.Fatalf("Subscribe: %v", err)
	}
	m.sub = sub
	d.members = append(d.members, m)
	if epoch := d.epoch(name); !d.groups[name] {
		d.base[name][epoch] = 0
		d.groups[name] = true
	}
	return m
}

// epoch returns the one that a group has in the engine.
func (d *deals) epoch(name string) uint64 {
	if rt := d.bus.running("a", name); rt != nil {
		epoch, _ := rt.position()
		return epoch
	}
	return 0
}

func (d *deals) drawMember() *dealer {
	if len(d.members) == 0 {
		return nil
	}
	return d.members[rapid.IntRange(0, len(d.members)-1).Draw(d.t, "member")]
}

// drawRefs names up to n deliveries of a member, mostly the newest, also old ones
// and the same twice.
func (d *deals) drawRefs(m *dealer, n int) (refs []eventhub.Ref) {
	d.mu.Lock()
	defer d.mu.Unlock()
	got := *m.got
	if len(got) == 0 {
		return nil
	}
	for range rapid.IntRange(1, n).Draw(d.t, "refs") {
		from := max(0, len(got)-4)
		refs = append(refs, eventhub.Ref{Lease: got[rapid.IntRange(from, len(got)-1).Draw(d.t, "lease")]})
	}
	return refs
}

func (d *deals) ackAndPublish() {
	m := d.drawMember()
	if m == nil {
		return
	}
	var call []*try
	var hs []eventhub.AckPublish
	for range rapid.IntRange(1, 3).Draw(d.t, "ack-and-publishes") {
		t := &try{}
		if t.Refs = d.drawRefs(m, 2); t.Refs == nil {
			return
		}
		for _, ref := range t.Refs {
			t.places = append(t.places, spot{m.group, d.epoch(m.group), ref.Lease.Offset})
		}
		kind := rapid.SampledFrom([]string{"out", "out", "out", "out", "poison"}).Draw(d.t, "kind")
		t.poisoned = kind == "poison"
		for range rapid.IntRange(1, 2).Draw(d.t, "events") {
			d.number++
			t.Events = append(t.Events, eventhub.Event{
				Topic: rapid.SampledFrom([]string{"b", "b", "b", "c", "d", "e", "f", "x"}).Draw(d.t, "to"),
				ID:    fmt.Sprintf("%s-%d", kind, d.number), Payload: []byte(`2`),
			})
		}
		call, hs = append(call, t), append(hs, t.AckPublish)
	}
	d.mu.Lock()
	d.tries = append(d.tries, call...)
	d.mu.Unlock()
	done := func(hs []eventhub.AckPublish) {
		d.mu.Lock()
		defer d.mu.Unlock()
		for i, t := range call {
			t.AckPublish = hs[i]
			t.answers++
		}
	}
	if rapid.Bool().Draw(d.t, "from elsewhere") {
		d.bus.AckAndPublish(context.Background(), "a", m.group, hs, done)
	} else {
		m.sub.AckAndPublish(context.Background(), hs, done)
	}
}

func (d *deals) settle() {
	m := d.drawMember()
	if m == nil {
		return
	}
	refs := d.drawRefs(m, 3)
	if refs == nil || m.run != d.bus {
		return
	}
	s := eventhub.Settlement{Refs: refs, Verdict: rapid.SampledFrom([]eventhub.Verdict{eventhub.Ack, eventhub.Nack, eventhub.Extend}).Draw(d.t, "verdict")}
	s.Terminal = s.Verdict == eventhub.Nack && rapid.Bool().Draw(d.t, "terminal")
	epoch := d.epoch(m.group)
	outcomes, err := d.bus.Settle(context.Background(), "a", m.group, s)
	if err != nil && eventhub.ErrorCode(err) != eventhub.CodeNotSubscribed {
		d.t.Fatalf("Settle: %v", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, o := range outcomes {
		if s.Verdict == eventhub.Ack && o == eventhub.Applied {
			d.acks[spot{m.group, epoch, refs[i].Lease.Offset}] = true
		}
	}
}

func (d *deals) leave() {
	if m := d.drawMember(); m == nil {
		return
	} else if rapid.Bool().Draw(d.t, "drop") {
		m.sub.Drop(rapid.IntRange(0, 2).Draw(d.t, "unsent"))
	} else if err := m.sub.Unsubscribe(context.Background()); err != nil {
		d.t.Fatal(err)
	}
}

func (d *deals) pass() {
	time.Sleep(time.Duration(rapid.SampledFrom([]int{1, 30, 1100, 3500}).Draw(d.t, "ms")) * time.Millisecond)
}

func (d *deals) seek() {
	name := d.drawGroup()
	if !d.groups[name] {
		return
	}
	to := uint64(rapid.IntRange(0, 6).Draw(d.t, "to"))
	if d.epoch(name) == 0 && d.hold != nil {
		return // would be loaded after the commit under way
	}
	answer := make(chan error, 1)
	run := d.bus
	go func() { answer <- run.SetCursor(context.Background(), "a", name, to) }()
	synctest.Wait()
	d.base[name][d.epoch(name)] = to
	d.seeks = append(d.seeks, answer)
}

func (d *deals) deleteGroup() {
	name := d.drawGroup()
	if !d.groups[name] || d.hold != nil || rapid.Bool().Draw(d.t, "not really") {
		return
	}
	if err := d.bus.DeleteGroup(context.Background(), "a", name); err != nil {
		d.t.Fatal(err)
	}
	d.groups[name] = false
	d.members = slices.DeleteFunc(d.members, func(m *dealer) bool { return m.group == name })
}

func (d *deals) holdCommits() {
	if d.hold != nil {
		d.release()
		return
	}
	d.hold = make(chan struct{})
	if d.disk == nil || rapid.Bool().Draw(d.t, "in front") {
		d.store.set(d.hold, nil)
		return
	}
	d.store.set(nil, nil)
	for name, there := range d.groups {
		if there && d.epoch(name) == 0 { // a group is loaded after the commit under way
			if _, err := d.bus.SeekGroup(context.Background(), "a", name, eventhub.Start{}, false); err != nil {
				d.t.Fatal(err)
			}
		}
	}
	d.disk.set(d.hold)
}

func (d *deals) release() {
	d.store.set(nil, nil)
	if d.disk != nil {
		d.disk.set(nil)
	}
	if d.hold != nil {
		close(d.hold)
		d.hold = nil
	}
	synctest.Wait()
	for _, answer := range d.seeks {
		if err := <-answer; err != nil && !d.t.Failed() {
			d.t.Errorf("SetCursor: %v", err)
		}
	}
	d.seeks = nil
}

// restart takes the engine down: in order, by a store that breaks, or by a power
// loss.
func (d *deals) restart() {
	switch how := rapid.SampledFrom([]string{"order", "broken", "power"}).Draw(d.t, "how"); {
	case how == "power" && d.disk != nil && len(d.seeks) == 0:
		d.powerLoss()
	case how == "broken":
		d.release()
		d.store.set(nil, errors.New("the store broke"))
		_ = d.bus.Close()
		d.store.set(nil, nil)
		d.recall()
	default:
		d.release()
		if err := d.bus.Close(); err != nil {
			d.t.Fatalf("Close: %v", err)
		}
		for _, t := range d.tries {
			if t.answers != 1 {
				d.t.Fatalf("Close left %+v with %d answers", t, t.answers)
			}
		}
	}
	d.members = nil
	time.Sleep(100 * time.Millisecond) // no start is as fast as none: epochs are drawn from the clock
	d.open()
}

// powerLoss goes on with what the disk has.
func (d *deals) powerLoss() {
	dealLosses.all++
	image := d.disk.mem.CrashClone(vfs.CrashCloneCfg{
		UnsyncedDataPercent: rapid.SampledFrom([]int{0, 20, 50, 80, 100}).Draw(d.t, "unsynced"),
		RNG:                 rand.New(rand.NewPCG(rapid.Uint64().Draw(d.t, "image"), 0)),
	})
	d.mu.Lock()
	var open []*try
	for _, t := range d.tries {
		if t.answers == 0 {
			open = append(open, t)
		}
	}
	d.mu.Unlock()
	// Nobody sees what the old engine does to the old disk any more.
	d.store.after = nil
	broken := errors.New("the power is gone")
	d.store.set(nil, broken)
	d.disk.set(nil)
	if d.hold != nil {
		close(d.hold)
		d.hold = nil
	}
	synctest.Wait()
	_ = d.bus.Close()
	_ = d.store.Store.Close()
	d.store.set(nil, nil)
	d.disk.mem = image
	d.store.Store = openDeals(d.t, d.disk)
	for _, t := range open {
		t.answers, t.Err = 0, nil // what the old engine said came too late
	}
	d.audit(d.store.Store)
	d.store.after = func() { d.audit(d.store.Store) }
	if len(open) > 0 {
		dealLosses.held++
	}
	for _, t := range open {
		if t.Err = errors.New("lost"); d.there(d.store.Store, t) > 0 {
			t.Err = nil
			dealLosses.whole++
		} else {
			dealLosses.none++
		}
		t.answers = 1
	}
	d.recall()
}

// recall forgets what the store does not know: acks and seeks that were not
// written.
func (d *deals) recall() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.base {
		s := readStanding(d.t, d.store.Store, name)
		for epoch := range d.base[name] {
			if epoch > s.epoch {
				delete(d.base[name], epoch)
			}
		}
		for p := range d.acks {
			if p.group == name && (p.epoch > s.epoch || p.epoch == s.epoch && !s.acked(p.offset)) {
				delete(d.acks, p)
			}
		}
	}
}

// stored is the state of a group in the store.
type standing struct {
	exists        bool
	epoch, cursor uint64
	progress      groupstate.Progress
}

func (s *standing) acked(offset uint64) bool {
	return offset <= s.cursor || s.progress.IsAcked(offset)
}

func readStanding(t *rapid.T, s store.Store, name string) *standing {
	state, err := s.Group(context.Background(), "a", name)
	if err != nil {
		return &standing{}
	}
	st := &standing{exists: true, epoch: state.Epoch, cursor: state.Cursor}
	if st.progress, err = progressOf(context.Background(), s, "a", name, state.Cursor); err != nil {
		t.Errorf("load the progress of %s: %v", name, err)
	}
	return st
}

// there returns how many of an ack-and-publish's events are in their logs.
func (d *deals) there(s store.Store, t *try) (n int) {
	for _, e := range t.Events {
		if _, err := s.Find(context.Background(), e.Topic, e.ID); err == nil {
			n++
		}
	}
	return n
}

// audit looks for half of an atomic step. It may run on the committer's goroutine.
func (d *deals) audit(s store.Store) {
	d.mu.Lock()
	defer d.mu.Unlock()
	groups := map[string]*standing{"g": readStanding(d.t, s, "g"), "h": readStanding(d.t, s, "h")}
	handed := make(map[spot]bool)
	for _, t := range d.tries {
		switch n := d.there(s, t); {
		case n == 0:
			if t.answers > 0 && t.Err == nil {
				d.wrong = fmt.Sprintf("%+v had its receipts and is not there", t)
			}
			continue
		case n < len(t.Events):
			d.wrong = fmt.Sprintf("of %+v there are %d events", t, n)
		case t.poisoned:
			d.wrong = fmt.Sprintf("%+v is there", t)
		case t.answers > 0 && t.Err != nil && eventhub.ErrorCode(t.Err) != eventhub.CodeInternal:
			d.wrong = fmt.Sprintf("%+v is there", t)
		}
		for _, p := range t.places {
			if handed[p] {
				d.wrong = fmt.Sprintf("%+v was handed over twice", p)
			}
			handed[p] = true
			if g := groups[p.group]; g.exists && g.epoch == p.epoch && !g.acked(p.offset) {
				d.wrong = fmt.Sprintf("the events of %+v are there, and %d is not acked", t, p.offset)
			}
		}
	}
	head, _ := s.Head(context.Background(), "a")
	for name, g := range groups {
		base, known := d.base[name][g.epoch]
		if !g.exists || !known {
			continue // it is being made or moved
		}
		for offset := base + 1; offset <= head; offset++ {
			p := spot{name, g.epoch, offset}
			_, err := s.Find(context.Background(), "a.dlq", deadletter.ID("a", offset, name, g.epoch, ""))
			letter := err == nil
			switch done := d.acks[p] || handed[p] || letter; {
			case letter && (handed[p] || d.acks[p]):
				d.wrong = fmt.Sprintf("%+v has a dead letter, and was acked or handed over", p)
			case g.acked(offset) && !done:
				d.wrong = fmt.Sprintf("%+v is stored as acked, and nothing came of it", p)
			case letter && !g.acked(offset):
				d.wrong = fmt.Sprintf("%+v has a dead letter and is not acked", p)
			}
		}
	}
}

// check looks at the outcomes so far and at the engine's own counts.
func (d *deals) check() {
	d.mu.Lock()
	wrong := d.wrong
	for _, t := range d.tries {
		switch code := eventhub.ErrorCode(t.Err); {
		case t.answers > 1 || d.hold == nil && t.answers == 0:
			wrong = fmt.Sprintf("%+v has %d answers", t, t.answers)
		case t.answers == 1 && t.Err == nil && len(t.Receipts) != len(t.Events):
			wrong = fmt.Sprintf("%+v has no receipts", t)
		case code != "" && !slices.Contains([]eventhub.Code{eventhub.CodeLeaseLost, eventhub.CodeOverloaded, eventhub.CodeBadRequest,
			eventhub.CodeNotSubscribed, eventhub.CodeShuttingDown, eventhub.CodeInternal}, code):
			wrong = fmt.Sprintf("%+v ends with %v", t, t.Err)
		}
	}
	d.mu.Unlock()
	for _, name := range []string{"g", "h"} {
		if rt := d.bus.running("a", name); rt != nil && wrong == "" {
			wrong = recount(rt)
		}
	}
	if wrong != "" {
		d.t.Fatal(wrong)
	}
}

// recount holds the counts of a group against its entries.
func recount(g *group) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	held, waits, byKey := 0, 0, 0
	by := make(map[*groupstate.Holder]int)
	for e := range g.state.Open() {
		switch {
		case e.State().TakesRoom():
			held++
			by[e.Holder()]++
		case e.State() == groupstate.Waiting:
			waits++
		case e.State() == groupstate.Held:
			byKey++
		}
	}
	if s := &g.state; held != s.Leased() || waits != s.Waiting() || byKey != s.Held() {
		return fmt.Sprintf("%s counts %d held, %d waiting, %d held by keys; there are %d, %d, %d", g.name, s.Leased(), s.Waiting(), s.Held(), held, waits, byKey)
	}
	for _, m := range g.members {
		if m.holder.Leases() != by[&m.holder] {
			return fmt.Sprintf("a member of %s counts %d in flight; there are %d", g.name, m.holder.Leases(), by[&m.holder])
		}
	}
	return ""
}

// drain lets all be acked: nothing is stuck.
func (d *deals) drain() {
	d.release()
	d.check()
	for _, m := range d.members {
		m.sub.Drop(0)
	}
	d.members = nil
	for _, name := range []string{"g", "h"} {
		if !d.groups[name] {
			continue
		}
		m := d.joinAs(name, time.Minute)
		for range 1000 {
			synctest.Wait()
			d.mu.Lock()
			got := *m.got
			*m.got = nil
			d.mu.Unlock()
			var refs []eventhub.Ref
			for _, lease := range got {
				refs = append(refs, eventhub.Ref{Lease: lease})
			}
			d.mu.Lock()
			for _, lease := range got {
				d.acks[spot{name, d.epoch(name), lease.Offset}] = true
			}
			d.mu.Unlock()
			if _, err := m.sub.Settle(context.Background(), eventhub.Settlement{Refs: refs}); err != nil {
				d.t.Fatal(err)
			}
			if len(got) == 0 {
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if len(*m.got) == 0 {
					break
				}
			}
		}
		d.check()
		head, _ := d.store.Head(context.Background(), "a")
		c, err := d.bus.Cursor(context.Background(), "a", name)
		if err != nil || c.Offset < head {
			d.t.Fatalf("%s is at %d, %v; the head is %d", name, c.Offset, err, head)
		}
	}
}
