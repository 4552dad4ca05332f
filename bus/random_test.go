package bus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/memory"
)

// TestRandomHistories runs the engine against a model that knows nothing of
// windows, heaps and turns: a map of events per group, and the contract. Every
// step is followed by synctest.Wait, so the model always meets an engine that
// has done all it can, and can distinguish a lost wake-up from a slow one. Reads and
// commits of the store can be held up in the middle of a turn, and then steps
// happen in between.
func TestRandomHistories(t *testing.T) {
	tryHistories(t, testsize.Of(800, 80), func(t *rapid.T) *world {
		clock := &skewed{}
		return newWorld(t, memory.Open(memory.Options{Now: clock.now}), clock)
	})
	redrives.report(t)
	reportExpectations(t)
}

// tryHistories tries n of them, each in a world of its own and to its end.
func tryHistories(t *testing.T, n int, begin func(*rapid.T) *world) {
	testsize.Histories(t, n, func(t *rapid.T) {
		bubble.Check(t, func(t *rapid.T) {
			w := begin(t)
			t.Cleanup(w.close)
			for range rapid.IntRange(5, 60).Draw(t, "steps") {
				w.step()
				w.check()
			}
			w.drain()
		})
	})
}

// step is what can happen, n times as often as one of n 1.
type step struct {
	name string
	n    int
	take func(*world)
}

var steps = []step{
	{"publish", 3, (*world).publish},
	{"subscribe", 2, (*world).subscribe},
	{"subscribe several", 1, (*world).subscribeSeveral},
	{"settle", 5, (*world).settle},
	{"hand over", 1, (*world).ackAndPublish},
	{"delay", 1, (*world).delayEvent},
	{"cancel", 1, (*world).cancel},
	{"redrive", 3, (*world).redrive},
	{"make room", 2, (*world).makeRoom},
	{"pass", 3, (*world).pass},
	{"leave", 1, (*world).leave},
	{"seek", 1, (*world).seek},
	{"delete", 1, (*world).deleteGroup},
	{"delete pattern", 1, (*world).deletePattern},
	{"pause group", 1, (*world).pauseGroup},
	{"pause member", 1, (*world).pauseMember},
	{"restart", 1, (*world).restart},
	{"set clock", 1, (*world).setClock},
	{"hold reads", 1, (*world).holdReads},
	{"hold commits", 1, (*world).holdCommits},
}

// moreOf returns the steps with other numbers for some of them.
func moreOf(steps []step, numbers map[string]int) []step {
	steps = slices.Clone(steps)
	for i := range steps {
		if n, ok := numbers[steps[i].name]; ok {
			steps[i].n = n
		}
	}
	return steps
}

// step does one thing of w.steps.
func (w *world) step() {
	var names []string
	for _, s := range w.steps {
		names = append(names, slices.Repeat([]string{s.name}, s.n)...)
	}
	name := rapid.SampledFrom(names).Draw(w.t, "step")
	for _, s := range w.steps {
		if s.name == name {
			s.take(w)
		}
	}
}

func now() int64 { return time.Now().UnixMilli() }

// valve is a store whose reads can be held up; its meter holds up commits, or
// fails them, some of them later.
type valve struct {
	*meter
	inspect func(*store.Unit) // where not nil, sees what is committed

	mu    sync.Mutex
	reads chan struct{}
	free  int    // commits before after is called
	after func() // where not nil
}

func (v *valve) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	v.see(units)
	return v.meter.Commit(ctx, units, sync)
}

func (v *valve) see(units []*store.Unit) {
	if v.inspect != nil {
		for _, u := range units {
			v.inspect(u)
		}
	}
	v.mu.Lock()
	if v.free--; v.free < 0 && v.after != nil {
		v.after()
		v.after = nil
	}
	v.mu.Unlock()
}

func (v *valve) Start(ctx context.Context, units []*store.Unit) (func() error, error) {
	v.see(units)
	return v.meter.Start(ctx, units)
}

func (v *valve) Read(ctx context.Context, topic string, from uint64, limit, maxBytes int, batch *store.Batch) error {
	v.mu.Lock()
	hold := v.reads
	v.mu.Unlock()
	if hold != nil {
		<-hold
	}
	return v.meter.Read(ctx, topic, from, limit, maxBytes, batch)
}

func (v *valve) set(hold chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.reads = hold
}

// then calls do in front of a commit, when n others have passed; with nil it does
// nothing any more.
func (v *valve) then(n int, do func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.free, v.after = n, do
}

// What there can be: a topic comes after the one whose dead letters it holds, and not
// there before somebody publishes or subscribes to it.
var (
	worldTopics = []string{"a", "b", "a.x", "a.dlq", "b.dlq", "a.x.dlq"}
	groupNames  = []string{"g", "h"}
)

// world is an engine and what the model knows of it.
type world struct {
	t       *rapid.T
	opts    Options
	store   *valve
	bus     *Bus
	reads   chan struct{} // where not nil, the store's reads wait for it
	commits chan struct{} // … and its commits
	wrecked bool          // the engine panicked with a lock taken
	steps   []step
	disk    *disk // where the store has one
	clock   *skewed
	set     clockSet
	rounds  int // of the drain

	topics   []*modelTopic
	groups   []*modelGroup
	members  []*modelMember
	patterns map[string]map[string]*modelPattern // durable ones, by group and text
	house    map[string]modelSettings            // what most SUBSCRIBEs of a group ask for
	letters  map[string]*modelLetter             // by id
	pending  []*publishing
	seeks    []chan error
	joins    []*joining
	delayed  []modelDelayed // not in the log yet
	delays   int            // delayed events that there ever were
	breaking bool           // the store breaks, and publications may fail

	rows      map[string][]*admin.DeadLetter // by dead-letter topic, in order
	marks     []string                       // ids, as in the log
	redriving []*modelRedriving              // not answered yet
	redriven  int                            // redrives that there ever were
	times     map[string]int                 // … of each dead letter, by its id, as its marks say
	justDone  map[modelPlace]bool            // by an offer since the last check

	lastRedrive map[string]string // the last mark by which a dead letter was redriven, by its id

	mu      sync.Mutex
	journal []offer                       // what receivers were given since the last check
	written map[groupKey]store.GroupState // what this engine committed last
	wrong   string                        // a commit that was wrong

	redrives       map[string]*modelRedriving // by name
	redriveCommits map[string]*redriveCommit  // by mark
}

func newWorld(t *rapid.T, s store.Store, clock *skewed) *world {
	w := &world{
		t:        t,
		steps:    steps,
		store:    &valve{meter: &meter{Store: s}},
		clock:    clock,
		letters:  make(map[string]*modelLetter),
		patterns: make(map[string]map[string]*modelPattern),
		house:    make(map[string]modelSettings),
		written:  make(map[groupKey]store.GroupState),
		rows:     make(map[string][]*admin.DeadLetter),
		times:    make(map[string]int), lastRedrive: make(map[string]string),
		redrives: make(map[string]*modelRedriving), redriveCommits: make(map[string]*redriveCommit),
		opts: Options{
			clock:          clock.now,
			EarlyBytes:     1 + 99*rapid.IntRange(0, 20).Draw(t, "early bytes"),
			TailCacheBytes: rapid.SampledFrom([]int{64 << 20, 1000, 1}).Draw(t, "cache"),
			AckWindow:      rapid.SampledFrom([]uint64{1_000_000, 8}).Draw(t, "window"),
		},
	}
	for _, name := range worldTopics {
		topic := &modelTopic{name: name, first: make(map[string]uint64)}
		w.topics = append(w.topics, topic)
		if source, ok := strings.CutSuffix(name, ".dlq"); ok {
			topic.source = w.topics[slices.Index(worldTopics, source)]
		}
		for _, name := range groupNames {
			w.groups = append(w.groups, &modelGroup{topic: topic, name: name, events: make(map[uint64]*modelEvent),
				again: make(map[uint64]*modelEvent), past: make(map[string]bool)})
		}
	}
	if rapid.Bool().Draw(t, "much to redrive") {
		w.steps = moreOf(steps, map[string]int{"redrive": 20, "settle": 10, "seek": 3, "make room": 3})
	}
	w.store.inspect = w.inspect
	w.open()
	return w
}

// inspect looks at what goes to the store. States of a group go in the order in
// which it changed. No cursor passes what the engine's own window has as leased,
// waiting or still to be dead-lettered: a crash after the commit would lose it.
func (w *world) inspect(u *store.Unit) {
	w.inspectMarks(u)
	for _, ch := range u.Groups {
		if ch.Create {
			continue // it may be refused: somebody else has made the group
		}
		key := groupKey{topic: ch.Topic, group: ch.Group}
		w.mu.Lock()
		if last := w.written[key]; ch.State.Epoch < last.Epoch || ch.State.Epoch == last.Epoch && ch.State.Cursor < last.Cursor {
			w.wrong = fmt.Sprintf("%v is committed at %d, %d after %d, %d", key, ch.State.Epoch, ch.State.Cursor, last.Epoch, last.Cursor)
		}
		if !slices.ContainsFunc(u.Appends, func(a store.Append) bool { return !a.Expect.IsZero() }) { // else it may be refused
			w.written[key] = ch.State
		}
		w.mu.Unlock()
		if rt := w.runtime(ch.Topic, ch.Group); rt != nil {
			w.inspectWindow(rt, ch.State)
		}
	}
}

func (w *world) inspectWindow(rt *group, s store.GroupState) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for e := range rt.state.Open() {
		if e.Redriven() == 0 && e.Offset() <= s.Cursor && rt.state.Epoch() == s.Epoch && !e.State().InCommit() {
			w.mu.Lock()
			w.wrong = fmt.Sprintf("%s::%s is committed at %d with %d in state %d", rt.log.Topic(), rt.name, s.Cursor, e.Offset(), e.State())
			w.mu.Unlock()
		}
	}
}

func (w *world) open() {
	w.opts.Store = w.store
	var err error
	if w.bus, err = New(w.opts); err != nil {
		w.t.Fatal(err)
	}
	w.recreated()
}

// close lets the bubble end, also after a failure.
func (w *world) close() {
	if w.wrecked {
		return
	}
	w.release()
	if err := w.bus.Close(); err != nil && !w.t.Failed() {
		w.t.Errorf("Close: %v", err)
	}
	if err := w.store.Close(); err != nil && !w.t.Failed() {
		w.t.Errorf("Close of the store: %v", err)
	}
}

// guarded runs a call of the engine that could panic under a lock: the bus can
// not be closed then.
func (w *world) guarded(call func()) {
	w.wrecked = true
	call()
	w.wrecked = false
}

// The steps.

func (w *world) publish() {
	p := &publishing{}
	for range rapid.IntRange(1, 3).Draw(w.t, "publications") {
		var pub eventhub.Publication
		for range rapid.IntRange(1, 4).Draw(w.t, "events") {
			e := eventhub.Event{Topic: rapid.SampledFrom([]string{"a", "a", "b", "a.x"}).Draw(w.t, "topic"), Payload: []byte(`"some payload"`)}
			e.Key = rapid.SampledFrom([]string{"", "k", "kk", "l"}).Draw(w.t, "key")
			e.Tags = rapid.SampledFrom([][]string{nil, {"x"}, {"y", "x"}}).Draw(w.t, "tags")
			if rapid.IntRange(0, 2).Draw(w.t, "own id") == 0 {
				e.ID = rapid.SampledFrom([]string{"p", "q", "r", "s"}).Draw(w.t, "id")
			}
			w.drawExpect(&e)
			if rapid.IntRange(0, 30).Draw(w.t, "bad") == 30 {
				e.Payload = []byte(`{`)
			}
			pub.Events = append(pub.Events, e)
		}
		p.pubs = append(p.pubs, pub)
	}
	w.pending = append(w.pending, p)
	w.bus.Enqueue(context.Background(), p.pubs, func([]eventhub.Publication) {
		w.mu.Lock()
		defer w.mu.Unlock()
		p.calls++
	})
}

// publishing is a call of Enqueue.
type publishing struct {
	pubs  []eventhub.Publication
	calls int // of done
}

func (w *world) subscribe() {
	g := w.drawGroup()
	w.join(w.drawOptions(g.name, g.topic, g.topic.name), rapid.IntRange(-1, 5).Draw(w.t, "room"))
}

func (w *world) drawStart(topic *modelTopic) eventhub.Start {
	s := eventhub.Start{Kind: rapid.SampledFrom([]eventhub.StartKind{
		eventhub.StartEarliest, eventhub.StartEarliest, eventhub.StartLatest, eventhub.StartTime, eventhub.StartAfterID, eventhub.StartOffset,
	}).Draw(w.t, "start")}
	n := rapid.IntRange(0, int(topic.head())+1).Draw(w.t, "start at")
	s.Offset = uint64(n)
	s.AfterID = "nobody"
	s.TS = w.wall()
	if n > 0 && n <= len(topic.ids) {
		s.AfterID, s.TS = topic.ids[n-1], topic.at[n-1]
	}
	return s
}

func (w *world) settle() {
	g := w.drawGroup()
	groups := []*modelGroup{g}
	via := w.drawMember(func(m *modelMember) bool { return m.isIn(g) && m.run == w.bus && !m.orphan })
	topic := g.topic.name
	switch rapid.IntRange(0, 5).Draw(w.t, "from elsewhere") {
	case 0:
		via = nil
	case 1:
		via = nil
		topic, groups = w.drawPattern(g)
	}
	if via != nil {
		groups = via.groups
	}
	s := w.drawVerdict()
	for range rapid.IntRange(1, 4).Draw(w.t, "refs") {
		of := groups[rapid.IntRange(0, len(groups)-1).Draw(w.t, "of")]
		s.Refs = append(s.Refs, w.drawRef(of, via))
	}
	var want []eventhub.Outcome
	for _, ref := range s.Refs {
		want = append(want, w.apply(groups, via, ref, &s))
	}
	var got []eventhub.Outcome
	var err error
	w.guarded(func() {
		if via != nil {
			got, err = via.sub.Settle(context.Background(), s)
		} else {
			got, err = w.bus.Settle(context.Background(), topic, g.name, s)
		}
	})
	switch {
	case !g.exists && via == nil && !eventhub.IsPattern(topic):
		if eventhub.ErrorCode(err) != eventhub.CodeNotSubscribed {
			w.t.Fatalf("Settle without a group: %v; want not_subscribed", err)
		}
	case err != nil:
		w.t.Fatalf("Settle: %v", err)
	case !slices.Equal(got, want):
		w.t.Fatalf("outcomes of %+v in %s = %v; want %v", s, g, got, want)
	}
}

// drawPattern returns a pattern of the group that matches its topic, and the groups
// that this one means; where there is none, the topic and the group.
func (w *world) drawPattern(g *modelGroup) (string, []*modelGroup) {
	for _, text := range slices.Sorted(maps.Keys(w.patterns[g.name])) {
		p := w.patterns[g.name][text].pattern
		if !p.Match(g.topic.name) {
			continue
		}
		var groups []*modelGroup
		for _, other := range w.groups {
			if other.name == g.name && p.Match(other.topic.name) {
				groups = append(groups, other)
			}
		}
		return text, groups
	}
	return g.topic.name, []*modelGroup{g}
}

// drawGroup prefers the groups that there are. Those that are being made by their
// topic's name keep others waiting.
func (w *world) drawGroup() *modelGroup {
	var names []string
	for _, g := range w.groups {
		n := 1
		if slices.ContainsFunc(w.joins, func(j *joining) bool { return j.m.name == g.name && j.m.patterns[0].String() == g.topic.name }) {
			continue
		}
		if g.exists {
			n = 4
		}
		names = append(names, slices.Repeat([]string{g.String()}, n)...)
	}
	name := rapid.SampledFrom(names).Draw(w.t, "group")
	return w.groups[slices.IndexFunc(w.groups, func(g *modelGroup) bool { return g.String() == name })]
}

// group returns the group of that name in a topic.
func (w *world) group(topic, name string) *modelGroup {
	return w.groups[slices.Index(worldTopics, topic)*len(groupNames)+slices.Index(groupNames, name)]
}

func (w *world) drawMember(fits func(*modelMember) bool) *modelMember {
	var some []*modelMember
	for _, m := range w.members {
		if fits(m) {
			some = append(some, m)
		}
	}
	if len(some) == 0 {
		return nil
	}
	return some[rapid.IntRange(0, len(some)-1).Draw(w.t, "member")]
}

func (w *world) drawVerdict() eventhub.Settlement {
	s := eventhub.Settlement{Verdict: rapid.SampledFrom([]eventhub.Verdict{
		eventhub.Ack, eventhub.Ack, eventhub.Nack, eventhub.Extend}).Draw(w.t, "verdict")}
	switch s.Verdict {
	case eventhub.Nack:
		s.Reason = rapid.SampledFrom([]string{"", "no luck"}).Draw(w.t, "reason")
		s.Terminal = rapid.IntRange(0, 4).Draw(w.t, "terminal") == 0
		s.Delay = time.Duration(rapid.SampledFrom([]int{0, 0, 1, 3000}).Draw(w.t, "delay")) * time.Millisecond
	case eventhub.Extend:
		s.By = time.Duration(rapid.SampledFrom([]int{0, 1, 3000, 3_600_000}).Draw(w.t, "by")) * time.Millisecond
	}
	return s
}

// drawRef names a delivery: mostly one under way, also old ones and some that
// never were.
func (w *world) drawRef(g *modelGroup, via *modelMember) eventhub.Ref {
	if len(g.leases) == 0 {
		return eventhub.Ref{Lease: eventhub.Lease{Runtime: 1, Offset: 1, Serial: 1}}
	}
	from := max(0, len(g.leases)-12)
	l := g.leases[rapid.IntRange(from, len(g.leases)-1).Draw(w.t, "lease")]
	how := rapid.IntRange(0, 5).Draw(w.t, "ref")
	switch {
	case how == 0:
		l.Offset = uint64(rapid.IntRange(0, int(g.topic.head())+1).Draw(w.t, "forged offset"))
		l.Serial = 0
	case how < 3 && via != nil && l.Offset <= g.topic.head():
		ref := eventhub.Ref{ID: g.topic.ids[l.Offset-1]}
		if rapid.Bool().Draw(w.t, "of its topic") {
			ref.Topic = g.topic.name
		}
		return ref
	}
	return eventhub.Ref{Lease: l}
}

func (w *world) makeRoom() {
	m := w.drawMember(func(m *modelMember) bool { return m.run == w.bus })
	if m == nil {
		return
	}
	room := rapid.IntRange(-1, 5).Draw(w.t, "room")
	w.mu.Lock()
	m.room = room
	w.mu.Unlock()
	m.full, m.passed = false, nil
	m.sub.Ready()
}

func (w *world) leave() {
	m := w.drawMember(func(*modelMember) bool { return true })
	if m == nil {
		return
	}
	unsent := rapid.SampledFrom([]int{0, 0, 1, 2, math.MaxInt}).Draw(w.t, "unsent")
	if unsent < math.MaxInt {
		m.sub.Drop(unsent)
	} else if err := m.sub.Unsubscribe(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	if m.left || m.run != w.bus {
		return
	}
	m.left = true
	held := m.held()
	for i, p := range held {
		if e := p.group.find(p.offset); i < len(held)-unsent {
			e.lost++
			p.group.failed(w, p.offset, now(), now(), "member disconnected")
		} else {
			p.group.giveBack(e)
		}
	}
}

// held returns the member's leases, in the order in which it got them.
func (m *modelMember) held() (held []modelPlace) {
	for _, g := range m.groups {
		for offset, e := range g.all() {
			if e.state == modelLeased && e.holder == m {
				held = append(held, modelPlace{g, offset})
			}
		}
	}
	slices.SortFunc(held, func(a, b modelPlace) int {
		return a.group.find(a.offset).turn - b.group.find(b.offset).turn
	})
	return held
}

func (w *world) seek() {
	g := w.drawGroup()
	to := uint64(rapid.IntRange(0, int(g.topic.head())+2).Draw(w.t, "to"))
	answer := make(chan error, 1)
	go func(b *Bus) { answer <- b.SetCursor(context.Background(), g.topic.name, g.name, to) }(w.bus)
	synctest.Wait()
	if !g.exists {
		if err := <-answer; eventhub.ErrorCode(err) != eventhub.CodeNotSubscribed {
			w.t.Fatalf("SetCursor without a group: %v; want not_subscribed", err)
		}
		return
	}
	w.seeks = append(w.seeks, answer)
	g.forget(w, to)
	g.keepAgain(w, to)
	g.epoch++
}

// pass lets time pass. A turn that hangs in a read would be late then, so not
// with reads held up.
func (w *world) pass() {
	starting := len(w.joins) > 0 || slices.ContainsFunc(w.groups, func(g *modelGroup) bool { return g.due })
	if w.reads != nil || starting && len(w.redriving) > 0 {
		return // a redrive would wait for the creation of a group, as in redriveOne
	}
	before, done := make(map[*modelGroup]Cursor), make(map[*modelGroup]map[string]bool)
	for _, g := range w.groups {
		if g.exists {
			done[g] = maps.Clone(g.past)
			before[g] = Cursor{Epoch: g.epoch, Offset: g.cursor(w.commits == nil, false)}
		}
	}
	d := time.Duration(rapid.SampledFrom([]int{1, 50, 300, 1000, 2500, 10_000}).Draw(w.t, "ms")) * time.Millisecond
	time.Sleep(d)
	synctest.Wait()
	if d < 50*time.Millisecond || w.commits != nil {
		return
	}
	for g, then := range before {
		if s := w.load(g); s.Epoch != then.Epoch || s.Cursor < then.Offset {
			w.t.Fatalf("%s stood at %+v %s ago and is stored at %+v", g, then, d, s)
		}
	}
	w.check()
	for g := range before {
		w.checkList(g, done[g])
	}
}

// restart takes the engine down, in order or by a store that breaks, and starts
// another one over what is stored.
func (w *world) restart() {
	if rapid.IntRange(0, 2).Draw(w.t, "really") != 0 {
		return
	}
	w.release()
	w.check()
	crash := rapid.Bool().Draw(w.t, "crash")
	broken := errors.New("the store broke")
	if crash {
		// Some commits still pass, but for the first of them what follows from it
		// does not: a topic is created and does not get its groups.
		last := rapid.IntRange(0, 2).Draw(w.t, "last commits")
		w.store.then(last, func() { w.store.meter.set(nil, broken) })
		if last > 0 {
			w.publish()
			synctest.Wait()
			w.breaking = true
			w.receipts()
			w.breaking = false
		}
		if rapid.IntRange(0, 2).Draw(w.t, "redrive too") == 0 {
			w.redriveOne()
		}
	}
	if err := w.bus.Close(); err != nil && !(crash && errors.Is(err, broken)) {
		w.t.Fatalf("Close: %v", err)
	}
	w.store.then(0, nil)
	w.store.meter.set(nil, nil)
	w.breaking = true
	w.end() // before time passes, in which leases would run out that the engine gave back
	w.awaitRedrives(true)
	w.redriveAnswers()
	w.breaking = false
	for _, g := range w.groups {
		if !g.exists {
			continue
		}
		s, low, high := w.load(g), g.cursor(true, false), g.cursor(true, true)
		if s.Epoch != g.epoch || s.Cursor > high || !crash && s.Cursor < low {
			w.t.Fatalf("after Close %s is stored at %+v; it stood at %d, %d to %d", g, s, g.epoch, low, high)
		}
		w.restore(g, s.Cursor, crash)
	}
	clear(w.written) // a commit that failed may have been ahead
	if w.disk != nil {
		w.reopen()
	}
	w.open()
}

// restore makes the model what the store knows of a group. After a stop in order
// that is all there was to know; after a crash what it has as acked was acked.
func (w *world) restore(g *modelGroup, cursor uint64, crash bool) {
	p, err := progressOf(context.Background(), w.store.Store, g.topic.name, g.name, cursor)
	if err != nil {
		w.t.Fatal(err)
	}
	restored := make(map[uint64]modelEvent)
	for offset := cursor + 1; offset <= g.topic.head(); offset++ {
		isAcked, attempts := p.IsAcked(offset), p.Attempts(offset)
		if g.events[offset] == nil && !g.passes(offset) && !isAcked && attempts == 0 {
			continue // it was not read
		}
		e, known := g.restored[offset]
		if g.events[offset] == nil && !g.passes(offset) {
			e, known = modelEvent{state: modelDone}, true
		}
		// One that was read and not delivered, as a suspect that found nobody, is
		// written again without the attempt that a start does not take for granted, which
		// may have been its only one.
		e.attempts = e.stored
		if now := g.events[offset]; now != nil {
			e, known = *now, true
		} else if attempts == min(e.stored, g.maxAttempts-1) {
			e.attempts = attempts
		}
		if e.state == modelLeased {
			e.attempts-- // given back
		}
		done := e.state == modelDone || e.state == modelDying
		letter := w.letters[g.letterID(offset, nil)]
		switch {
		case letter != nil && letter.seen && !isAcked:
			w.t.Fatalf("%s: %d is stored with %d attempts; its dead letter is in the log", g, offset, attempts)
		case isAcked && !(known && done):
			w.t.Fatalf("%s: %d is stored as done; it is %+v", g, offset, e)
		case !crash && done != isAcked:
			w.t.Fatalf("%s: %d is stored as done: %t; it is %+v", g, offset, isAcked, e)
		case !crash && !done && attempts != e.attempts:
			w.t.Fatalf("%s: %d is stored with %d attempts; it had %d", g, offset, attempts, e.attempts)
		case isAcked:
			restored[offset] = modelEvent{state: modelDone}
		case attempts != 0:
			restored[offset] = modelEvent{attempts: min(attempts, g.maxAttempts-1), stored: attempts, lost: lostOf(p.History(offset))}
		}
	}
	again := w.restoreAgain(g, &p, crash)
	g.forget(w, cursor)
	g.restored, g.again = restored, again
}

// pauseGroup and pauseMember stop deliveries, or let them go on.
func (w *world) pauseGroup() {
	g := w.drawGroup()
	if w.commits != nil {
		return // would wait
	}
	set := w.bus.PauseGroup
	if g.paused {
		set = w.bus.ResumeGroup
	}
	w.check()
	err := set(context.Background(), g.topic.name, g.name)
	if !g.exists {
		if eventhub.ErrorCode(err) != eventhub.CodeNotSubscribed {
			w.t.Fatalf("PauseGroup without a group: %v; want not_subscribed", err)
		}
		return
	}
	if err != nil {
		w.t.Fatalf("PauseGroup: %v", err)
	}
	g.paused = !g.paused
}

func (w *world) pauseMember() {
	m := w.drawMember(func(m *modelMember) bool { return m.run == w.bus && !m.left })
	if m == nil {
		return
	}
	set := m.sub.Pause
	if m.paused {
		set = m.sub.Resume
	}
	w.check()
	if err := set(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	m.paused = !m.paused
}

// holdReads and holdCommits make the store's calls wait, or let them go on.
func (w *world) holdReads() {
	if w.reads != nil {
		w.release()
		return
	}
	w.reads = make(chan struct{})
	w.store.set(w.reads)
}

func (w *world) holdCommits() {
	if w.commits != nil {
		w.release()
		return
	}
	w.commits = make(chan struct{})
	hold := w.commits
	w.store.then(rapid.IntRange(0, 2).Draw(w.t, "still pass"), func() { w.store.meter.set(hold, nil) })
}

func (w *world) release() {
	w.store.set(nil)
	w.store.then(0, nil)
	w.store.meter.set(nil, nil)
	if w.disk != nil {
		w.disk.set(nil)
	}
	for _, hold := range []chan struct{}{w.reads, w.commits} {
		if hold != nil {
			close(hold)
		}
	}
	w.reads, w.commits = nil, nil
	synctest.Wait()
}
