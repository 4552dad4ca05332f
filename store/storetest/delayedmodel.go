package storetest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"eventhub/store"

	"pgregory.net/rapid"
)

// The part of testModel that is about delayed events, patterns, settings and notes. Delays share their
// topics and their given ids with the appends, so that they meet.

var modelPatterns = []string{"*", "a", "a.**"}

var modelNotes = []string{"\x00", "a", "a\x00b"}

func (m *model) drawDelays(rt *rapid.T, u *store.Unit) {
	for range rapid.SampledFrom([]int{0, 0, 1, 2, 3}).Draw(rt, "delayed events") {
		topic := rapid.SampledFrom(modelTopics).Draw(rt, "topic")
		id := GivenID("given-", rapid.IntRange(0, modelIDs).Draw(rt, "id"))
		isFresh := rapid.IntRange(0, 3).Draw(rt, "fresh") == 0
		if isFresh {
			m.fresh++
			id = fmt.Sprint("fresh-", m.fresh)
		}
		p := delayKeyed(topic, id, rapid.SampledFrom(modelKeys).Draw(rt, "key"), rapid.Int64Range(0, 4).Draw(rt, "due"))
		p.FreshID = isFresh
		u.Delays = append(u.Delays, p)
	}
	for range rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(rt, "cancels") {
		up := store.Cancel{Topic: rapid.SampledFrom(modelTopics).Draw(rt, "topic"),
			ID: GivenID("given-", rapid.IntRange(0, modelIDs).Draw(rt, "id"))}
		if len(m.delays) > 0 && rapid.IntRange(0, 9).Draw(rt, "unfit") > 0 {
			p := rapid.SampledFrom(m.delays).Draw(rt, "delayed event")
			up = store.Cancel{Topic: p.Topic, ID: p.ID, Seq: rapid.SampledFrom([]uint64{0, p.Seq, p.Seq, p.Seq - 1}).Draw(rt, "number")}
		}
		u.Cancels = append(u.Cancels, up)
		if rapid.Bool().Draw(rt, "move") {
			u.Appends = append(u.Appends, given(up.Topic, up.ID))
		}
	}
	for range rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(rt, "patterns") {
		u.Patterns = append(u.Patterns, store.PatternChange{
			Group:   rapid.SampledFrom(modelGroups).Draw(rt, "group"),
			Pattern: rapid.SampledFrom(modelPatterns).Draw(rt, "pattern"),
			Delete:  rapid.Bool().Draw(rt, "delete"),
			Value:   []byte(rapid.SampledFrom([]string{"", "1", "[2]"}).Draw(rt, "value")),
		})
	}
	for range rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(rt, "settings") {
		u.Settings = append(u.Settings, store.SettingChange{
			Name:   rapid.SampledFrom(modelPatterns).Draw(rt, "name"),
			Delete: rapid.Bool().Draw(rt, "delete"),
			Value:  []byte(rapid.SampledFrom([]string{"", "1", "[2]"}).Draw(rt, "value")),
		})
	}
	for range rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(rt, "notes") {
		u.Notes = append(u.Notes, store.NoteChange{
			Name:   rapid.SampledFrom(modelNotes).Draw(rt, "name"),
			Delete: rapid.Bool().Draw(rt, "delete"),
			Value:  []byte(rapid.SampledFrom([]string{"", "1", "\x00\xff"}).Draw(rt, "value")),
		})
	}
}

// delay returns where in m.delays that of an id is, or -1.
func (m *model) delay(topic, id string) int {
	return slices.IndexFunc(m.delays, func(p store.Delayed) bool { return p.Topic == topic && p.ID == id })
}

func (m *model) delayRefusal(u *store.Unit) error {
	for i, up := range u.Cancels {
		at := m.delay(up.Topic, up.ID)
		if at < 0 || up.Seq != 0 && up.Seq != m.delays[at].Seq || slices.ContainsFunc(u.Cancels[:i], up.SameID) {
			return store.ErrNotDelayed
		}
	}
	return nil
}

// topicsOf returns the topics that the parts of a unit need.
func topicsOf(u *store.Unit) (topics []string) {
	for _, ch := range u.Groups {
		topics = append(topics, ch.Topic)
	}
	for _, a := range u.Appends {
		topics = append(topics, a.Topic)
	}
	for _, p := range u.Delays {
		topics = append(topics, p.Topic)
	}
	return topics
}

// checkCreated looks at a unit before it is applied to the model.
func (m *model) checkCreated(rt *rapid.T, u *store.Unit) {
	var reported, want []string
	for _, b := range u.Created {
		reported = append(reported, b.Topic)
		if b.Life <= m.life {
			rt.Fatalf("the life of %q is %d; there was %d before", b.Topic, b.Life, m.life)
		}
		m.life = b.Life
		defer func() { m.topic(b.Topic).life = b.Life }()
	}
	for _, topic := range topicsOf(u) {
		if m.topics[topic] == nil && !slices.Contains(want, topic) {
			want = append(want, topic)
		}
	}
	slices.Sort(reported)
	slices.Sort(want)
	same(rt, "created topics", want, reported)
}

func (m *model) applyCancels(u *store.Unit) {
	for _, up := range u.Cancels {
		at := m.delay(up.Topic, up.ID)
		m.delays = slices.Delete(m.delays, at, at+1)
	}
}

func (m *model) applyDelays(rt *rapid.T, u *store.Unit) {
	for _, p := range u.Delays {
		t := m.topic(p.Topic)
		if i := slices.IndexFunc(t.events, func(e modelEvent) bool { return e.id == p.ID }); i >= 0 {
			delayOfEvent(rt, p, store.Append{Offset: t.events[i].Offset})
			continue
		}
		if t.isLate(rt, p.ID, p.Offset, p.Duplicate) {
			delayOfEvent(rt, p, store.Append{Offset: t.gone[p.ID].offset})
			continue
		}
		if i := m.delay(p.Topic, p.ID); i >= 0 {
			duplicateDelay(rt, p, store.Delay{At: m.delays[i].At, Seq: m.delays[i].Seq})
			continue
		}
		m.seq = risingSeq(rt, m.seq, p)
		m.delays = append(m.delays, asRead(p))
	}
	for _, ch := range u.Patterns {
		if m.patterns[ch.Group+"\x00"+ch.Pattern] = string(ch.Value); ch.Delete {
			delete(m.patterns, ch.Group+"\x00"+ch.Pattern)
		}
	}
	for _, ch := range u.Settings {
		if m.settings[ch.Name] = string(ch.Value); ch.Delete {
			delete(m.settings, ch.Name)
		}
	}
	for _, ch := range u.Notes {
		if m.notes[ch.Name] = string(ch.Value); ch.Delete {
			delete(m.notes, ch.Name)
		}
	}
}

func (m *model) delayed() []store.Delayed {
	list := slices.Clone(m.delays)
	slices.SortFunc(list, func(a, b store.Delayed) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Seq, b.Seq)) })
	return list
}

// readDelays compares one read with random bounds.
func (m *model) readDelays(rt *rapid.T) {
	at := startTime + rapid.Int64Range(-1, 5).Draw(rt, "at")
	seq := rapid.Uint64Range(0, m.seq+1).Draw(rt, "seq")
	until := startTime + rapid.Int64Range(-1, 5).Draw(rt, "until")
	limit := rapid.IntRange(0, 10).Draw(rt, "limit")
	maxBytes := rapid.IntRange(0, 1000).Draw(rt, "max_bytes")
	var want []store.Delayed
	size := 0
	for _, p := range m.delayed() {
		if p.At < at || p.At == at && p.Seq <= seq || p.At > until {
			continue
		}
		size += len(p.Record)
		if len(want) == limit || len(want) > 0 && size > maxBytes {
			break
		}
		want = append(want, p)
	}
	same(rt, "delayed", want, m.env.delayedFrom(rt, at, seq, until, limit, maxBytes))
}

func (m *model) checkDelays(rt *rapid.T) {
	same(rt, "delayed events", m.delayed(), m.env.allDelayed(rt))
	topic := rapid.SampledFrom(modelTopics).Draw(rt, "topic")
	id := GivenID("given-", rapid.IntRange(0, modelIDs).Draw(rt, "id"))
	same(rt, "delayed event of "+id, m.delay(topic, id) >= 0, m.env.findDelay(rt, topic, id) != nil)
	var want []store.PatternInfo
	for name, value := range m.patterns {
		group, pattern, _ := strings.Cut(name, "\x00")
		want = append(want, store.PatternInfo{Group: group, Pattern: pattern, Value: []byte(value)})
	}
	slices.SortFunc(want, func(a, b store.PatternInfo) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Pattern, b.Pattern))
	})
	same(rt, "patterns", want, m.env.patterns(rt))
	var settings []store.SettingInfo
	for _, name := range slices.Sorted(maps.Keys(m.settings)) {
		settings = append(settings, store.SettingInfo{Name: name, Value: []byte(m.settings[name])})
	}
	same(rt, "settings of topics", settings, m.env.settings(rt))
	var notes []store.NoteInfo
	for _, name := range slices.Sorted(maps.Keys(m.notes)) {
		notes = append(notes, store.NoteInfo{Name: name, Value: []byte(m.notes[name])})
	}
	same(rt, "notes", notes, m.env.notes(rt))
}
