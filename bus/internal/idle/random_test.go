package idle

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub/internal/testsize"
	"eventhub/store"
)

// fixedSeed runs one history again.
var fixedSeed = flag.Uint64("seed", 0, "seed of the history that is to be run again; 0 draws many")

// TestRandomHistories: groups that are made, used, left, moved and deleted, with and without a
// pattern, while expiries change, the wall clock is set, and the hub is stopped, away and killed.
// No group ends before it was idle for its expiry while the hub was up; one that was ends soon;
// and what the store has of an end is whole.
func TestRandomHistories(t *testing.T) { tryHistories(t, testsize.Of(60, 6), false) }

// TestRandomHistoriesOnDisk: the same, where a crash is a power loss.
func TestRandomHistoriesOnDisk(t *testing.T) { tryHistories(t, testsize.Of(5, 1), true) }

// meets counts what the histories met, to show that they met it.
type meets struct{ ended, byPattern, kept, crashes, stops, jumps, returned int }

func tryHistories(t *testing.T, n int, onDisk bool) {
	first := rand.Uint64()
	if *fixedSeed != 0 {
		first, n = *fixedSeed, 1
	}
	var met meets
	for i := range uint64(n) {
		seed := first + i
		inBubble(t, onDisk, func(r *rig) {
			m := &model{rig: r, rng: rand.New(rand.NewPCG(seed, 0)), groups: make(map[Group]*modelGroup), hour: time.Hour, met: &met}
			if onDisk {
				m.hour = 5 * time.Minute
			}
			defer func() {
				if r.t.Failed() {
					r.t.Logf("again with -seed=%d", seed)
				}
			}()
			for range 60 {
				m.step()
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%+v", met)
	if n >= 60 && min(met.ended, met.byPattern, met.kept, met.crashes, met.stops, met.jumps, met.returned) == 0 {
		t.Errorf("the histories did not meet everything: %+v", met)
	}
}

// model is what the package promises.
type model struct {
	*rig
	rng    *rand.Rand
	groups map[Group]*modelGroup
	hour   time.Duration // a long time: on disk, where tickers run, less than an hour
	up     time.Duration // since the last start
	epoch  uint64
	met    *meets
}

// modelGroup is a group that is there.
type modelGroup struct {
	state store.GroupState
	uses  int           // members
	idle  time.Duration // at most: while the hub was up
	sure  time.Duration // at least: without what a crash may take back
	watch time.Duration // for how long the hub has been up with these expiries
}

func (m *model) topic() string { return fmt.Sprint("t.", m.rng.IntN(3)) }

// step does one thing, lets some time pass, and checks.
func (m *model) step() {
	g := Group{m.topic(), fmt.Sprint("g", m.rng.IntN(3))}
	have := m.groups[g]
	switch k := m.rng.IntN(100); {
	case have == nil && k < 40:
		m.make(g)
	case k < 40 && have.uses == 0:
		m.join(g, have)
	case k < 55 && have != nil && have.uses > 0:
		m.leave(g, have)
	case k < 62 && have != nil:
		have.state.Cursor++ // an ack, whose group uses it until its commit
		m.use(g, 1)
		m.change(store.GroupChange{Topic: g.Topic, Group: g.Name, State: have.state})
		m.use(g, -1)
		have.idle, have.sure = 0, 0
	case k < 65 && have != nil && len(m.patternsOf(g.Name)) == 0:
		m.change(store.GroupChange{Topic: g.Topic, Group: g.Name, Delete: true, State: have.state})
		delete(m.groups, g)
		m.mu.Lock()
		delete(m.busy, g) // its members are gone with it
		delete(m.last, g)
		m.mu.Unlock()
	case k < 73:
		m.expire(g.Topic, time.Duration(m.rng.IntN(4))*[]time.Duration{3 * time.Second, 10 * m.hour / 60, 2 * m.hour}[m.rng.IntN(3)])
		for other, its := range m.groups {
			its.watch = 0
			if m.expiries[other.Topic] == 0 { // its note is void: what was before the start is forgotten
				its.sure = min(its.sure, m.up)
			}
		}
	case k < 77:
		m.togglePattern(g.Name)
	case k < 82:
		m.met.jumps++
		m.set.Add(int64(m.rng.IntN(int(2000*time.Hour))) - int64(900*time.Hour))
	case k < 86:
		m.met.stops++
		m.stop()
		time.Sleep(time.Duration(m.rng.IntN(int(100 * m.hour))))
		m.start()
		m.started(false)
	case k < 91:
		m.met.crashes++
		m.crash(m.rng)
		m.started(true)
	}
	for range 1 + m.rng.IntN(3) {
		m.pass([]time.Duration{time.Second, 40 * time.Second, 9 * m.hour / 60, m.hour}[m.rng.IntN(4)])
	}
	m.checkRows()
}

func (m *model) make(g Group) {
	m.epoch++
	have := &modelGroup{state: store.GroupState{Epoch: m.epoch}}
	ch := store.GroupChange{Topic: g.Topic, Group: g.Name, Create: true, State: have.state}
	back, ended := m.runtime.Returning(g, 1)
	if !ended {
		m.change(ch)
	} else {
		m.met.returned++
		m.change(ch, back.Change())
		m.runtime.Returned(back)
		if _, again := m.runtime.Returning(g, 1); again {
			m.t.Fatalf("%v is told twice that it had ended", g)
		}
	}
	m.groups[g] = have
}

// use counts a use of a group as the bus does.
func (m *model) use(g Group, by int) {
	m.mu.Lock()
	m.busy[g] += by
	m.last[g] = max(m.runtime.Passed(), 1)
	m.mu.Unlock()
	m.runtime.Used(g.Topic, g.Name)
}

func (m *model) join(g Group, have *modelGroup) {
	m.use(g, 1)
	if err := m.runtime.Sync(context.Background()); err != nil {
		m.t.Fatal(err)
	}
	have.uses, have.idle, have.sure = 1, 0, 0
}

func (m *model) leave(g Group, have *modelGroup) {
	m.use(g, -1)
	have.uses, have.idle, have.sure = 0, 0, 0
}

func (m *model) patternsOf(name string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.patterns[name]
}

// togglePattern gives a group the pattern of all topics, and the group to all there are, or
// takes it.
func (m *model) togglePattern(name string) {
	if len(m.patternsOf(name)) > 0 {
		m.mu.Lock()
		delete(m.patterns, name)
		m.mu.Unlock()
		m.runtime.PatternRemoved()
		return
	}
	for i := range 3 {
		if g := (Group{fmt.Sprint("t.", i), name}); m.groups[g] == nil {
			m.make(g)
		}
	}
	m.mu.Lock()
	m.patterns[name] = []string{"t.*"}
	m.mu.Unlock()
}

// started is after a start: what members were there have gone, a crash has taken time back, and where
// groups do not end nobody has counted.
func (m *model) started(crashed bool) {
	m.up = 0
	for g, have := range m.groups {
		if have.uses > 0 {
			have.uses, have.idle, have.sure = 0, 0, 0
		}
		have.watch = 0
		if crashed || m.expiries[g.Topic] == 0 {
			have.sure = 0
		}
	}
}

// pass lets time pass, and looks which groups have ended.
func (m *model) pass(d time.Duration) {
	before := maps.Clone(m.groups)
	time.Sleep(d)
	synctest.Wait()
	m.up += d
	counts := slices.ContainsFunc(slices.Collect(maps.Values(m.expiries)), func(e time.Duration) bool { return e > 0 })
	for _, have := range m.groups {
		have.watch += d
		if have.uses == 0 {
			have.idle += d
			have.sure += d
		}
		if !counts { // where no topic has an expiry nothing is counted or kept
			have.sure = 0
		}
	}
	for g, have := range before {
		if !m.has(g) {
			m.checkEnded(g, have, before)
			delete(m.groups, g)
		}
	}
	for name := range m.patterns {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(m.groups)), func(g Group) bool { return g.Name == name }) {
			m.mu.Lock()
			delete(m.patterns, name) // it has ended with them
			m.mu.Unlock()
		}
	}
	for g, have := range m.groups {
		m.checkKept(g, have)
	}
}

// with returns the groups that end together with one.
func (m *model) with(g Group) []Group {
	if len(m.patternsOf(g.Name)) == 0 {
		return []Group{g}
	}
	return []Group{{"t.0", g.Name}, {"t.1", g.Name}, {"t.2", g.Name}}
}

// checkEnded: it was idle for its expiry, and so were all that end with it.
func (m *model) checkEnded(g Group, have *modelGroup, before map[Group]*modelGroup) {
	m.t.Helper()
	all := m.with(g)
	m.met.ended++
	if len(all) > 1 {
		m.met.byPattern++
	}
	for _, other := range all {
		was, expiry := before[other], m.expiries[other.Topic]
		if was == nil || m.has(other) {
			m.t.Fatalf("%v ended, %v did not end with it", g, other)
		}
		if expiry == 0 || was.uses > 0 || was.idle < expiry {
			m.t.Fatalf("%v ended with %v, which was idle for %v, used by %d; its expiry is %v", g, other, was.idle, was.uses, expiry)
		}
	}
}

// checkKept: a group that must have ended has.
func (m *model) checkKept(g Group, have *modelGroup) {
	m.t.Helper()
	for _, other := range m.with(g) {
		was, expiry := m.groups[other], m.expiries[other.Topic]
		if was == nil || expiry == 0 || was.uses > 0 {
			m.met.kept++
			return
		}
		slow := 2*settle + 3*every
		if was.sure < expiry+slow || was.watch < min(expiry, grace)+slow {
			return
		}
	}
	s, ok := m.runtime.Status(g)
	m.t.Fatalf("%v is there, idle for %v; its expiry is %v; %+v, %v", g, have.sure, m.expiries[g.Topic], s, ok)
}

// checkRows: each group is there or is noted to have ended, not both.
func (m *model) checkRows() {
	m.t.Helper()
	list, err := m.store.ListNotes(context.Background())
	if err != nil {
		m.t.Fatal(err)
	}
	for _, n := range list {
		if g, ok := groupOf(n.Name, endedPrefix); ok && m.has(g) {
			m.t.Fatalf("%v is there, and noted to have ended", g)
		}
		if !strings.HasPrefix(n.Name, clockRow) && !strings.HasPrefix(n.Name, endedPrefix) {
			m.t.Fatalf("a note %q", n.Name)
		}
	}
}
