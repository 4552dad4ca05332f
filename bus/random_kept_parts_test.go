package bus

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/bustest"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/deadletter"
	"eventhub/internal/record/layout"
	"eventhub/store"
)

// spied is a store that notes what is appended, once that is durable.
type spied struct {
	store.Store

	mu   sync.Mutex
	log  map[string][]spiedEvent // by topic: of "t" and its dead letters
	lost []spiedEvent            // under way when the process ended: each may be in the log
	dead bool                    // nothing is answered any more
}

// spiedEvent is an event as it was appended.
type spiedEvent struct {
	topic         string
	offset        uint64
	id, key       string
	passes, isEnd bool
	at            time.Time
	size          uint64
	item          store.Item // of a dead letter
}

func (s *spied) entries(topic string) []spiedEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clip(s.log[topic])
}

func (s *spied) die() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = true
}

// revive finds out what is in the log of what was under way.
func (s *spied) revive(t *rapid.T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.lost {
		head, err := s.Store.Head(bg, e.topic)
		if err != nil {
			t.Fatal(err)
		}
		if e.offset <= head {
			s.log[e.topic] = append(s.log[e.topic], e)
		}
	}
	s.lost, s.dead = nil, false
}

func (s *spied) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	err := s.Store.Commit(ctx, units, sync)
	return s.note(units, err)
}

func (s *spied) Start(ctx context.Context, units []*store.Unit) (func() error, error) {
	p, ok := s.Store.(store.Pipeline)
	if !ok {
		p = commit.Unpipelined{Log: s.Store}
	}
	wait, err := p.Start(ctx, units)
	if err != nil {
		return nil, err
	}
	return func() error { return s.note(units, wait()) }, nil
}

// note notes what units have appended.
func (s *spied) note(units []*store.Unit, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.dead {
		err = errGone
	}
	for _, u := range units {
		if u.Err != nil {
			continue
		}
		for i := range u.Appends {
			a := &u.Appends[i]
			if a.Duplicate || a.Topic != "t" && a.Topic != deadletter.Topic("t") || a.Offset == 0 {
				continue
			}
			e := spiedEvent{topic: a.Topic, offset: a.Offset, id: a.ID, key: a.Key, at: time.UnixMilli(a.CommitTime), size: uint64(len(a.Record)),
				passes: bytes.Contains(a.Record, []byte(`"tags":["x"]`)), isEnd: a.Key != "" && bytes.HasSuffix(a.Record, []byte(`"payload":null}`)),
				item: store.Item{Offset: a.Offset, Record: bytes.Clone(a.Record)}}
			if err != nil {
				s.lost = append(s.lost, e)
			} else {
				s.log[a.Topic] = append(s.log[a.Topic], e)
			}
		}
	}
	return err
}

// keptTail is a tail over several connections, and lives of the engine.
type keptTail struct {
	k      *kept
	opts   eventhub.TailOptions
	from   uint64 // the first offset that it is to have
	place  *eventhub.Place
	done   map[uint64]bool // what it was given, or told
	values map[uint64]bool // that it knows that it may miss
	ends   map[uint64]bool // likewise
	in     *keptInbox
}

// keptInbox is one connection of it.
type keptInbox struct {
	bustest.Inbox
	known string
	gaps  []eventhub.Gap
	last  uint64 // what it was given or told reaches to there
	marks store.Marks
}

func (in *keptInbox) Know(known string)  { in.known = known }
func (in *keptInbox) Gap(g eventhub.Gap) { in.gaps = append(in.gaps, g) }

func (k *kept) openTail() {
	m := &keptTail{k: k, done: make(map[uint64]bool), values: make(map[uint64]bool), ends: make(map[uint64]bool), from: uint64(len(k.events) + 1)}
	m.opts = eventhub.TailOptions{Topic: "t", BatchSize: 1 + k.draw(5, "batch")}
	if k.draw(2, "filters") == 0 {
		m.opts.Filter = &eventhub.Filter{Key: "a"}
	}
	info, err := k.spy.Topic(bg, "t")
	if err != nil {
		k.t.Fatal(err)
	}
	switch k.draw(3, "start") {
	case 0:
		m.opts.Start, m.from = eventhub.Earliest, info.Horizon
	case 1:
		m.from = uint64(1 + k.draw(len(k.events)+1, "offset"))
		m.opts.Start = eventhub.FromOffset(m.from)
	}
	m.connect()
	k.tails = append(k.tails, m)
}

// connect opens the tail, or has it go on at its place.
func (m *keptTail) connect() {
	k, o, before := m.k, m.opts, m.in
	if before != nil {
		m.check()
		before.Sub.Drop(0)
		m.check()
		o.Known = before.known
		if m.place != nil {
			o.Places = []eventhub.Place{*m.place}
		}
	}
	k.look()
	if m.opts.Start == eventhub.Earliest && m.place == nil {
		m.mayMiss(1, k.marks)
	}
	m.in = &keptInbox{Inbox: bustest.Inbox{Room: k.draw(6, "room") - 1}}
	sub, err := k.bus.Tail(bg, o, m.in)
	if err != nil {
		k.t.Fatal(err)
	}
	m.in.Sub = sub
	k.look()
	for _, g := range m.in.gaps {
		m.told(g)
	}
	m.in.gaps = nil
}

func (m *keptTail) mayMiss(first uint64, marks store.Marks) {
	for offset := first; offset <= marks.Compacted; offset++ {
		m.values[offset] = true
		m.ends[offset] = m.ends[offset] || offset <= marks.Tombstones
	}
}

// told notes a gap, and that it is one.
func (m *keptTail) told(g eventhub.Gap) {
	k := m.k
	keptMet.tailGaps++
	if g.First <= g.After+1 && g.Compacted == 0 || g.After < m.in.last {
		k.t.Fatalf("a tail is told of the gap %+v; it was at %d", g, m.in.last)
	}
	if g.Compacted > 0 {
		marks := store.Marks{Compacted: g.Compacted, Tombstones: g.Tombstones}
		if marks.Above(g.First-1, m.in.marks) != marks || marks.Max(k.marks) != k.marks {
			k.t.Fatalf("a tail is told of the gap %+v; the marks are %+v, and it was told %+v", g, k.marks, m.in.marks)
		}
		m.in.marks = m.in.marks.Max(marks)
		m.mayMiss(g.First, marks)
	}
	m.in.last = g.First - 1
	for offset := g.After + 1; offset < g.First; offset++ {
		if offset > uint64(len(k.events)) || !k.events[offset-1].gone {
			k.t.Fatalf("a tail is told of the gap %+v; offset %d is there", g, offset)
		}
		m.done[offset] = true
	}
}

// check takes what the tail was given. The world was looked at since.
func (m *keptTail) check() {
	synctest.Wait()
	for _, d := range m.in.Take() {
		if d.Offset > uint64(len(m.k.events)) {
			m.k.absorb()
		}
		if d.Gap != nil {
			m.told(*d.Gap)
		}
		if d.Offset <= m.in.last {
			m.k.t.Fatalf("a tail got offset %d after %d", d.Offset, m.in.last)
		}
		m.in.last, m.done[d.Offset] = d.Offset, true
		m.place = &eventhub.Place{Topic: "t", Offset: d.Offset, TS: d.Record.CommitTime()}
	}
}

// end: the tail was given, or told of, all that it was to get.
func (m *keptTail) end() {
	for i := range m.k.events {
		e, offset := &m.k.events[i], uint64(i+1)
		if offset < m.from || m.done[offset] || e.erased || m.opts.Filter != nil && e.key != "a" {
			continue
		}
		if mayMiss := e.compacted && (m.values[offset] && !e.asEnd || m.ends[offset]); !mayMiss {
			m.k.t.Fatalf("a tail from %+v with the filter %+v was neither given nor told of offset %d, %+v", m.opts.Start, m.opts.Filter, offset, *e)
		}
	}
}

// ask reads the state by key, which is that of a fold of what the log has, however much of that came
// before the keys were indexed; or is told that there is none.
func (k *kept) ask() {
	q := admin.StateQuery{Topic: "t", Limit: 1 + k.draw(3, "page")}
	isOff := k.effective().State == admin.StateOff
	got, at := make(map[string]uint64), uint64(0)
	for more := true; more; {
		page, err := k.bus.State(bg, q)
		switch {
		case err != nil && (k.store.failure() != nil || k.doubt != nil):
			return
		case isOff && eventhub.ErrorCode(err) == eventhub.CodeUnsupportedOp && k.doubt == nil:
			keptMet.stateless++
			return
		case err != nil || isOff && k.doubt == nil:
			k.t.Fatalf("the state of a topic whose settings are %+v: %v", k.effective(), err)
		}
		for _, item := range page.Events {
			got[string(item.Record.Key())] = item.Offset
		}
		at, q.Page, more = page.At, page.Next, page.Next != ""
	}
	want := make(map[string]uint64)
	var batch store.Batch
	if err := k.store.Read(bg, "t", 1, 1<<20, 1<<30, &batch); err != nil {
		k.must(err)
		return
	}
	for _, item := range batch.Items {
		key := string(item.Record.Key())
		if key == "" || item.Offset > at {
			continue
		}
		if want[key] = item.Offset; layout.IsTombstone(item.Record) {
			delete(want, key)
		}
	}
	if !maps.Equal(got, want) {
		k.t.Fatalf("the state at %d is %v; a fold of the log is %v", at, got, want)
	}
	keptMet.states++
}
