package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"eventhub"
	"eventhub/internal/record/layout"
	"eventhub/internal/testsize"
	"eventhub/store"

	"pgregory.net/rapid"
)

// The alphabet of testModel: few names, so that they meet.
var (
	modelTopics = []string{"a", "a.b", "b", "c"}
	modelKeys   = []string{"", "", "k", "k\x00", "k\x00\x00", "\x00", "l"}
	modelGroups = []string{"g", "g.h", "h"}

	// Of group changes: most are of one topic, so that they meet too.
	modelGroupTopics = []string{"a", "a", "a", "a", "a.b", "b", "c"}
)

const (
	modelMaxTopics = 3
	modelIDs       = 20
)

// model is what a store is, as plainly as it can be said. It takes the offsets
// that the store gives, and checks that they rise.
type model struct {
	env    *env
	topics map[string]*modelTopic
	delays []store.Delayed   // in the order of their commits
	seq    uint64            // the highest of all delayed events that were ever made
	life   uint64            // that of the topic made last
	epoch  uint64            // the highest of a group that was deleted
	last   map[string]uint64 // the highest offset given under a name
	// patterns by group and pattern, with 0x00 between them.
	patterns map[string]string
	settings map[string]string
	notes    map[string]string
	fresh    int      // counts fresh ids
	made     []string // ids that the store made
}

type modelTopic struct {
	life     uint64
	head     uint64
	lastTime int64
	horizon  uint64
	gone     map[string]modelGone // ids of events that were removed

	compacted, tombstones uint64
	index                 store.IndexStatus
	events                []modelEvent
	groups                map[string]modelGroup
}

type modelGroup struct {
	state store.GroupState
	parts map[modelPart]string
}

type modelPart struct {
	kind   byte
	offset uint64
}

type modelEvent struct {
	row
	id, key     string
	time        int64
	causedBy    []string
	correlation string
}

// testModel runs random units, reads and reopenings against the model.
func testModel(t *testing.T, factory Factory) {
	testsize.Checks(t, 100, 20)
	rapid.Check(t, func(rt *rapid.T) {
		s := &env{backend: factory(t), options: Options{MaxTopics: modelMaxTopics}, clock: &clock{ms: startTime}}
		s.options.Now = s.clock.now
		s.open(rt)
		m := &model{env: s, topics: make(map[string]*modelTopic), patterns: make(map[string]string), settings: make(map[string]string), notes: make(map[string]string), last: make(map[string]uint64)}
		defer func() { s.close(rt) }()
		rt.Repeat(map[string]func(*rapid.T){
			"commit":  m.commit,
			"delete":  m.deleteTopic,
			"clock":   m.setClock,
			"read":    m.read,
			"delayed": m.readDelays,
			"sweep":   m.sweep,
			"measure": m.measure,
			"compact": m.compact,
			"index":   m.buildIndex,
			"check":   m.check,
			"reopen": func(rt *rapid.T) {
				// A store that forgets would hardly ever hold anything.
				if !s.Capabilities().Persistent && rapid.IntRange(0, 9).Draw(rt, "forget") > 0 {
					return
				}
				s.reopen(rt)
				if !s.Capabilities().Persistent {
					clear(m.topics)
					clear(m.last)
					clear(m.patterns)
					clear(m.settings)
					clear(m.notes)
					m.delays, m.seq, m.life, m.epoch = nil, 0, 0, 0
				}
				m.check(rt)
			},
		})
		m.check(rt)
	})
}

// setClock sets the clock, also back, which a store with one clock may not notice.
func (m *model) setClock(rt *rapid.T) {
	least := int64(-100)
	if m.env.backend.OneClock {
		least = m.env.clock.now().UnixMilli() - startTime
	}
	m.env.clock.set(rapid.Int64Range(least, max(least, 100)).Draw(rt, "ms"))
}

func (m *model) commit(rt *rapid.T) {
	units := rapid.SliceOfN(rapid.Custom(m.drawUnit), 1, 4).Draw(rt, "units")
	sync := rapid.Bool().Draw(rt, "sync")
	if err := m.env.Store.Commit(context.Background(), units, sync); err != nil {
		rt.Fatalf("Commit: %v", err)
	}
	for _, u := range units {
		want := m.refusal(u)
		if want == nil && m.mayBeCompacting(u) && errors.Is(u.Err, store.ErrCompacting) {
			continue
		}
		if conflict, ok := want.(*store.ConflictError); ok {
			same(rt, "the refusal of a unit", error(conflict), u.Err)
		} else if !errors.Is(u.Err, want) {
			rt.Fatalf("Unit.Err = %v; want %v, for %+v", u.Err, want, *u)
		}
		if want == nil {
			m.apply(rt, u)
		}
	}
}

// deleteTopic deletes a topic now and then: mostly there are some.
func (m *model) deleteTopic(rt *rapid.T) {
	name := rapid.SampledFrom(modelTopics).Draw(rt, "topic")
	if m.topics[name] == nil || rapid.IntRange(0, 3).Draw(rt, "delete") > 0 {
		return
	}
	m.env.deleteTopic(rt, name, rapid.Bool().Draw(rt, "sweep"))
	delete(m.topics, name)
	m.delays = slices.DeleteFunc(m.delays, func(p store.Delayed) bool { return p.Topic == name })
}

func (m *model) drawUnit(rt *rapid.T) *store.Unit {
	u := &store.Unit{}
	for range rapid.IntRange(0, 4).Draw(rt, "appends") {
		topic := rapid.SampledFrom(modelTopics).Draw(rt, "topic")
		key := rapid.SampledFrom(modelKeys).Draw(rt, "key")
		id := GivenID("given-", rapid.IntRange(0, modelIDs).Draw(rt, "id"))
		isNew := rapid.Bool().Draw(rt, "new id")
		switch {
		case isNew:
			id = layout.IDRoom
		case len(m.made) > 0 && rapid.IntRange(0, 3).Draw(rt, "made") == 0:
			id = rapid.SampledFrom(m.made).Draw(rt, "id")
		}
		a := newAppend(topic, id, key, rapid.Int64Range(0, 1).Draw(rt, "ts"))
		if isNew {
			a.ID, a.NewID = "", true
		}
		if !isNew && rapid.IntRange(0, 3).Draw(rt, "tombstone") == 0 {
			a = tombstone(topic, id, key)
		}
		drawLinks(rt, &a)
		m.drawExpect(rt, &a)
		u.Appends = append(u.Appends, a)
	}
	for range rapid.SampledFrom([]int{0, 1, 1, 2, 3}).Draw(rt, "changes") {
		u.Groups = append(u.Groups, m.drawChange(rt))
	}
	m.drawDelays(rt, u)
	m.drawRemovals(rt, u)
	return u
}

// drawChange draws a change that mostly fits what the group is, or few would be
// applied.
func (m *model) drawChange(rt *rapid.T) store.GroupChange {
	ch := store.GroupChange{
		Topic: rapid.SampledFrom(modelGroupTopics).Draw(rt, "topic"),
		Group: rapid.SampledFrom(modelGroups).Draw(rt, "group"),
		State: store.GroupState{
			Epoch:  rapid.Uint64Range(0, 3).Draw(rt, "epoch"),
			Cursor: rapid.Uint64Range(0, 1<<53).Draw(rt, "cursor"),
			Paused: rapid.Bool().Draw(rt, "paused"),
		},
	}
	kind := rapid.SampledFrom([]string{"create", "update", "update", "reset", "delete"}).Draw(rt, "change")
	if rapid.IntRange(0, 3).Draw(rt, "unfit") < 3 {
		g, exists := modelGroup{}, false
		if t := m.topics[ch.Topic]; t != nil {
			g, exists = t.groups[ch.Group]
		}
		if !exists {
			kind = "create"
		} else if kind == "create" {
			kind = "update"
		}
		ch.State.Epoch += g.state.Epoch
	}
	if t := m.topics[ch.Topic]; t != nil {
		ch.Life = rapid.SampledFrom([]uint64{0, t.life, t.life, t.life, t.life - 1}).Draw(rt, "life")
	}
	switch kind {
	case "create":
		ch.Create = true
	case "reset":
		ch.Reset = true
	case "delete":
		ch.Delete = true
		return ch
	}
	ch.Parts = rapid.SliceOfNDistinct(rapid.Custom(func(rt *rapid.T) store.GroupPart {
		return store.GroupPart{
			Kind:   rapid.SampledFrom([]byte{0, 0xff}).Draw(rt, "kind"),
			Offset: rapid.SampledFrom([]uint64{0, 1 << 32}).Draw(rt, "part"),
			Value:  []byte(rapid.SampledFrom([]string{"", "", "v", "\x00"}).Draw(rt, "value")),
		}
	}), 0, 3, func(p store.GroupPart) modelPart { return modelPart{p.Kind, p.Offset} }).Draw(rt, "parts")
	return ch
}

// refusal says why the unit has to be refused, or nil.
func (m *model) refusal(u *store.Unit) error {
	created := make(map[string]bool)
	seen := make(map[string]*store.GroupState) // nil where it was deleted
	for _, ch := range u.Groups {
		name := ch.Topic + "/" + ch.Group
		state, known := seen[name]
		if t := m.topics[ch.Topic]; ch.Life != 0 && (t == nil || t.life != ch.Life) {
			return store.ErrGone
		} else if t == nil {
			created[ch.Topic] = true
		} else if g, ok := t.groups[ch.Group]; ok && !known {
			state = &g.state
		}
		switch {
		case ch.Create && state != nil:
			return store.ErrExists
		case !ch.Create && state == nil, state != nil && ch.State.Epoch < state.Epoch:
			return store.ErrStaleEpoch
		}
		seen[name] = &ch.State
		if ch.Delete {
			seen[name] = nil
		}
	}
	if err := m.delayRefusal(u); err != nil {
		return err
	}
	if err := m.removalRefusal(u); err != nil {
		return err
	}
	if err := m.expectRefusal(u); err != nil {
		return err
	}
	for _, topic := range topicsOf(u) {
		if m.topics[topic] == nil {
			created[topic] = true
		}
	}
	if len(created) > 0 && len(m.topics)+len(created) > modelMaxTopics {
		return store.ErrTopicLimit
	}
	return nil
}

func (m *model) topic(name string) *modelTopic {
	if m.topics[name] == nil {
		m.topics[name] = &modelTopic{groups: make(map[string]modelGroup), gone: make(map[string]modelGone), horizon: 1}
	}
	return m.topics[name]
}

func (m *model) apply(rt *rapid.T, u *store.Unit) {
	m.checkCreated(rt, u)
	for _, ch := range u.Groups {
		m.topic(ch.Topic).change(ch)
		if ch.Delete {
			m.epoch = max(m.epoch, ch.State.Epoch)
		}
	}
	m.applyCancels(u)
	now := m.env.clock.now().UnixMilli()
	for _, a := range u.Appends {
		if a.NewID {
			m.checkMade(rt, a)
		}
		t := m.topic(a.Topic)
		if i := slices.IndexFunc(t.events, func(e modelEvent) bool { return e.id == a.ID }); i >= 0 {
			duplicate(rt, a, store.Append{Offset: t.events[i].Offset, CommitTime: t.events[i].time})
			continue
		}
		if t.isLate(rt, a.ID, a.Offset, a.Duplicate) {
			duplicate(rt, a, store.Append{Offset: t.gone[a.ID].offset})
			continue
		}
		rising(rt, m.last[a.Topic], []store.Append{a})
		if a.KeepOffset > m.last[a.Topic] {
			same(rt, "offset of "+a.ID, a.KeepOffset, a.Offset)
		}
		m.last[a.Topic] = a.Offset
		time, last := now, t.lastTime
		if time = max(time, last); a.KeepTime >= last && a.KeepTime <= now && a.KeepTime > 0 {
			time = a.KeepTime
		}
		same(rt, "commit time of "+a.ID, time, a.CommitTime)
		same(rt, "commit time in the record of "+a.ID, time, a.Record.CommitTime())
		t.head, t.lastTime = a.Offset, time
		t.events = append(t.events, modelEvent{row: rowOf(a), id: a.ID, key: a.Key, time: time,
			causedBy: a.CausedBy, correlation: a.Correlation})
	}
	m.applyDelays(rt, u)
	m.applyRemovals(u)
}

// checkMade: the id is a new one, in the record too.
func (m *model) checkMade(rt *rapid.T, a store.Append) {
	if slices.Contains(m.made, a.ID) || eventhub.ValidateID(a.ID) != nil || string(a.Record.ID()) != a.ID {
		rt.Fatalf("the store made the id %q, for the record %.80q", a.ID, a.Record)
	}
	m.made = append(m.made, a.ID)
}

func (t *modelTopic) change(ch store.GroupChange) {
	if ch.Delete {
		delete(t.groups, ch.Group)
		return
	}
	g := t.groups[ch.Group]
	if g.state = ch.State; g.parts == nil || ch.Reset {
		g.parts = make(map[modelPart]string)
	}
	for _, p := range ch.Parts {
		if g.parts[modelPart{p.Kind, p.Offset}] = string(p.Value); len(p.Value) == 0 {
			delete(g.parts, modelPart{p.Kind, p.Offset})
		}
	}
	t.groups[ch.Group] = g
}

// read compares one read with random bounds.
func (m *model) read(rt *rapid.T) {
	topic := rapid.SampledFrom(modelTopics).Draw(rt, "topic")
	from := rapid.Uint64Range(0, 40).Draw(rt, "from")
	limit := rapid.IntRange(0, 10).Draw(rt, "limit")
	maxBytes := rapid.IntRange(0, 1000).Draw(rt, "max_bytes")
	var want []row
	size := 0
	for _, e := range m.events(topic) {
		if e.Offset < from {
			continue
		}
		size += len(e.Record)
		if len(want) == limit || len(want) > 0 && size > maxBytes {
			break
		}
		want = append(want, e.row)
	}
	var b store.Batch
	if err := m.env.Read(context.Background(), topic, from, limit, maxBytes, &b); err != nil {
		rt.Fatalf("Read(%q, %d, %d, %d): %v", topic, from, limit, maxBytes, err)
	}
	same(rt, "read", want, batchRows(&b))
	var marks [3]uint64
	if t := m.topics[topic]; t != nil {
		marks = [3]uint64{t.horizon, t.compacted, t.tombstones}
	}
	same(rt, "horizon and marks of a read", marks, [3]uint64{b.Horizon, b.Compacted, b.Tombstones})
}

func (m *model) events(topic string) []modelEvent {
	if t := m.topics[topic]; t != nil {
		return t.events
	}
	return nil
}

// check compares all there is.
func (m *model) check(rt *rapid.T) {
	var infos []store.TopicInfo
	for _, name := range modelTopics {
		t := m.topics[name]
		if t != nil {
			infos = append(infos, store.TopicInfo{Name: name, Head: t.head, Horizon: t.horizon, Compacted: t.compacted, Tombstones: t.tombstones, LastTime: t.lastTime})
		}
		m.checkTopic(rt, name, m.events(name))
		m.checkGroups(rt, name, t)
	}
	same(rt, "topics", infos, m.env.topicInfos(rt, "", noLimit))
	epoch, err := m.env.DeletedEpoch(context.Background())
	if err != nil {
		rt.Fatalf("DeletedEpoch: %v", err)
	}
	same(rt, "the epoch of deleted groups", m.epoch, epoch)
	m.checkDelays(rt)
	m.checkLinks(rt)
}

func (m *model) checkTopic(rt *rapid.T, name string, events []modelEvent) {
	var rows []row
	for _, e := range events {
		rows = append(rows, e.row)
	}
	same(rt, "events of "+name, rows, m.env.readAll(rt, name))
	for range 3 {
		id := GivenID("given-", rapid.IntRange(0, modelIDs).Draw(rt, "id"))
		var want uint64
		if at := slices.IndexFunc(events, func(e modelEvent) bool { return e.id == id }); at >= 0 {
			want = events[at].Offset
		}
		same(rt, "offset of "+id, want, m.env.find(rt, name, id))
	}
	m.checkTimes(rt, name, events)
	at := rapid.Uint64Range(0, 40).Draw(rt, "at")
	key := rapid.SampledFrom(modelKeys).Draw(rt, "key")
	latest := row{}
	if !m.checkIndex(rt, name) {
		return
	}
	for _, e := range events {
		if key != "" && e.key == key && (at == 0 || e.Offset <= at) {
			latest = e.row
		}
	}
	same(rt, fmt.Sprintf("latest of %q at %d", key, at), latest, m.env.latest(rt, name, key, at))
	m.checkState(rt, name)
	m.checkKeyEvents(rt, name)
}

func (m *model) checkTimes(rt *rapid.T, name string, events []modelEvent) {
	ts := startTime + rapid.Int64Range(-101, 101).Draw(rt, "ts")
	want := m.env.head(rt, name) + 1
	if i := slices.IndexFunc(events, func(e modelEvent) bool { return e.time >= ts }); i >= 0 {
		want = events[i].Offset
	}
	same(rt, fmt.Sprintf("first event at %d", ts), want, m.env.seekTime(rt, name, ts))
}

func (m *model) checkGroups(rt *rapid.T, name string, t *modelTopic) {
	var want []store.GroupInfo
	for _, group := range modelGroups {
		var one *store.GroupState
		parts := make(map[modelPart]string)
		if t != nil {
			if g, ok := t.groups[group]; ok {
				one, parts = &g.state, g.parts
				want = append(want, store.GroupInfo{Group: group, State: g.state})
			}
		}
		same(rt, "group "+group, one, m.env.group(rt, name, group))
		got := make(map[modelPart]string)
		for _, p := range m.env.parts(rt, name, group) {
			got[modelPart{p.Kind, p.Offset}] = string(p.Value)
		}
		same(rt, "parts of "+group, parts, got)
	}
	same(rt, "groups of "+name, want, m.env.listGroups(rt, name))
}
