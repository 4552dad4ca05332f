package retention

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"eventhub/admin"
	"eventhub/internal/testsize"
	"eventhub/store"
)

// TestRandomHistories: topics that are published to, with policies that change, while the wall
// clock is set and the runtime starts again. Whenever nothing more happens each topic keeps
// what its policy says, and at no time has an event gone that all policies kept.
func TestRandomHistories(t *testing.T) { tryHistories(t, testsize.Of(400, 25), inBubble) }

// TestRandomHistoriesOnDisk: the same, where a start comes after a power loss.
func TestRandomHistoriesOnDisk(t *testing.T) { tryHistories(t, testsize.Of(60, 4), onDisk) }

// fixedSeed runs one history again.
var fixedSeed = flag.Uint64("seed", 0, "seed of the history that is to be run again; 0 draws many")

func tryHistories(t *testing.T, n int, in func(*testing.T, func(*rig))) {
	first := rand.Uint64()
	if *fixedSeed != 0 {
		first, n = *fixedSeed, 1
	}
	var met meets
	for i := range uint64(n) {
		seed := first + i
		in(t, func(r *rig) {
			m := &model{rig: r, rng: rand.New(rand.NewPCG(seed, 0)), topics: make(map[string]*modelTopic), met: &met}
			defer func() {
				if r.t.Failed() {
					r.t.Logf("again with -seed=%d", seed)
				}
			}()
			for range 40 {
				m.step()
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%+v", met)
	if n > 50 && min(met.aged, met.capped, met.held, met.starts, met.deleted, met.erased) == 0 {
		t.Errorf("the histories did not meet everything: %+v", met)
	}
}

// meets counts what the histories met, to show that they met it.
type meets struct{ aged, capped, held, starts, deleted, erased int }

// model is what the package promises.
type model struct {
	*rig
	rng    *rand.Rand
	topics map[string]*modelTopic
	since  time.Time // the clock was not set since, and the runtime not started
	met    *meets
}

// modelTopic has the events of a topic that were not erased.
type modelTopic struct {
	name   string
	policy admin.Retention
	events []modelEvent
	may    uint64 // the highest horizon that a policy has allowed
}

type modelEvent struct {
	offset, bytes uint64
	at            int64
}

func (m *model) topic() *modelTopic {
	name := fmt.Sprint("t", m.rng.IntN(4))
	if m.topics[name] == nil {
		m.topics[name] = &modelTopic{name: name, may: 1}
	}
	return m.topics[name]
}

// step does one thing, lets some time pass, and checks.
func (m *model) step() {
	p := m.topic()
	switch k := m.rng.IntN(100); {
	case k < 50:
		for _, a := range m.publish(p.name, 1+m.rng.IntN(40), 1+m.rng.IntN(300)) {
			p.events = append(p.events, modelEvent{a.Offset, uint64(len(a.Record)), a.CommitTime})
		}
	case k < 72:
		p.policy = m.policy()
		m.put(p.name, p.policy)
	case k < 78:
		by := time.Duration(m.rng.IntN(int(100*time.Hour))) - 30*time.Hour
		m.set.Add(int64(by))
		m.since = time.Now()
	case k < 86:
		m.met.starts++
		m.restart(m.rng)
		m.since = time.Now()
	case k < 90:
		if len(p.events) > 0 {
			m.met.deleted++
			m.deleteTopic(p.name)
			p.events, p.may = nil, 1
		}
	case k < 95:
		m.erase(p)
	}
	quiet := m.rng.IntN(3) == 0
	if quiet {
		time.Sleep(2*mostInterval + 2*settle)
		if m.mem == nil && m.rng.IntN(4) == 0 { // in the store on disk tickers run
			time.Sleep(30 * time.Hour)
		}
	} else {
		time.Sleep(time.Duration(m.rng.IntN(int(20 * time.Second))))
	}
	for _, p := range m.topics {
		p.allow(m.wall().UnixMilli())
	}
	synctest.Wait()
	for _, p := range m.topics {
		m.check(p, quiet)
	}
}

func (m *model) policy() (p admin.Retention) {
	if m.rng.IntN(2) == 0 {
		p.Age = admin.Period(time.Duration(1+m.rng.IntN(20)) * []time.Duration{time.Second, time.Minute, time.Hour}[m.rng.IntN(3)])
	}
	if m.rng.IntN(3) == 0 {
		p.Count = 1 + m.rng.Uint64N(200)
	}
	if m.rng.IntN(3) == 0 {
		p.Bytes = admin.Size(1 + m.rng.IntN(30_000))
	}
	return p
}

// erase removes events as others do: single ones, or all below a horizon.
func (m *model) erase(p *modelTopic) {
	if len(p.events) == 0 {
		return
	}
	m.met.erased++
	at := m.rng.IntN(len(p.events))
	offset := p.events[at].offset
	ch := store.TopicChange{Topic: p.name, Erase: []uint64{offset}}
	if m.rng.IntN(2) == 0 {
		ch = store.TopicChange{Topic: p.name, Horizon: offset + 1}
		p.may = max(p.may, offset+1)
	} else {
		p.events = append(p.events[:at:at], p.events[at+1:]...)
	}
	m.remove(ch)
}

// first returns the first offset that the policy keeps, where events are as old as at this
// time, and its wanting: whether an age said so.
func (p *modelTopic) first(now int64) (horizon uint64, byAge bool) {
	horizon = 1
	if n := len(p.events); n > 0 && p.policy.Age != 0 {
		for _, e := range p.events {
			if e.at < now-time.Duration(p.policy.Age).Milliseconds() {
				horizon, byAge = e.offset+1, true
			}
		}
	}
	var count, bytes uint64
	for i := len(p.events) - 1; i >= 0; i-- {
		count++
		bytes += p.events[i].bytes
		if p.policy.Count != 0 && count > p.policy.Count || p.policy.Bytes != 0 && bytes > uint64(p.policy.Bytes) {
			return max(horizon, p.events[i].offset+1), byAge && p.events[i].offset+1 < horizon
		}
	}
	return horizon, byAge
}

func (p *modelTopic) allow(now int64) {
	first, _ := p.first(now)
	p.may = max(p.may, first)
}

// check compares what a topic keeps with the model. After a quiet time nothing is there any
// more that the policy does not keep.
func (m *model) check(p *modelTopic, quiet bool) {
	m.t.Helper()
	offsets, sizes := m.kept(p.name)
	gone := len(p.events) - len(offsets)
	if gone < 0 {
		m.t.Fatalf("topic %q keeps %d events; it was given %d", p.name, len(offsets), len(p.events))
	}
	for i, e := range p.events[gone:] {
		if offsets[i] != e.offset || sizes[i] != e.bytes {
			m.t.Fatalf("topic %q keeps offset %d with %d bytes; want %d with %d", p.name, offsets[i], sizes[i], e.offset, e.bytes)
		}
	}
	if gone > 0 && p.events[gone-1].offset >= p.may {
		m.t.Fatalf("topic %q has lost the event at %d; its policies have kept all from %d (now %+v)", p.name, p.events[gone-1].offset, p.may, p.policy)
	}
	if quiet {
		m.checkQuiet(p, gone)
	}
	p.events = p.events[gone:]
}

func (m *model) checkQuiet(p *modelTopic, gone int) {
	m.t.Helper()
	slack := interval(p.policy.Age) + 2*Every
	want, byAge := p.first(m.wall().Add(-slack).UnixMilli())
	if byAge && (time.Since(m.since) < time.Duration(p.policy.Age)+slack+longestSleep || m.runtime.Stats().Held > 0) {
		// The clock may be ahead, and then goes slowly; or it was behind, and nobody has
		// looked since.
		m.met.held++
		want, _ = (&modelTopic{policy: admin.Retention{Count: p.policy.Count, Bytes: p.policy.Bytes}, events: p.events}).first(0)
	}
	if want == 1 {
		return
	}
	if byAge {
		m.met.aged++
	} else {
		m.met.capped++
	}
	if gone < len(p.events) && p.events[gone].offset < want {
		m.t.Fatalf("topic %q keeps the event at %d; its policy %+v keeps those from %d on", p.name, p.events[gone].offset, p.policy, want)
	}
}
