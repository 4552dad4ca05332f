package storetest

import (
	"context"
	"errors"
	"slices"
	"strings"

	"eventhub/store"

	"pgregory.net/rapid"
)

// The part of testModel that is about events that are removed.

// modelGone is what is known of the id of an event that was removed.
type modelGone struct {
	offset uint64
	// may: the id may be forgotten already, or not be remembered at all.
	may bool
}

// drawRemovals draws changes of topics that mostly are there.
func (m *model) drawRemovals(rt *rapid.T, u *store.Unit) {
	for range rapid.SampledFrom([]int{0, 0, 0, 1, 1, 2}).Draw(rt, "removals") {
		ch := store.TopicChange{Topic: rapid.SampledFrom(modelTopics).Draw(rt, "topic"), ForgetIDs: rapid.Bool().Draw(rt, "forget_ids")}
		t := m.topics[ch.Topic]
		if t == nil && rapid.IntRange(0, 9).Draw(rt, "unfit") > 0 {
			continue
		}
		if t != nil {
			ch.Life = rapid.SampledFrom([]uint64{0, t.life, t.life, t.life, t.life, t.life - 1}).Draw(rt, "life")
			if rapid.Bool().Draw(rt, "trim") {
				ch.Horizon = rapid.Uint64Range(0, m.last[ch.Topic]+2).Draw(rt, "horizon")
			}
			if rapid.Bool().Draw(rt, "compact") {
				ch.Compacted = rapid.Uint64Range(0, m.last[ch.Topic]+2).Draw(rt, "compacted")
				ch.Tombstones = rapid.Uint64Range(0, ch.Compacted+2).Draw(rt, "tombstones")
			}
			ch.Erase = rapid.SliceOfN(rapid.Uint64Range(0, m.last[ch.Topic]+1), 0, 3).Draw(rt, "erase")
		}
		ch.Index = rapid.SampledFrom(modelIndexChanges).Draw(rt, "index")
		u.Topics = append(u.Topics, ch)
	}
}

func (m *model) removalRefusal(u *store.Unit) error {
	for _, ch := range u.Topics {
		if t := m.topics[ch.Topic]; t == nil || ch.Life != 0 && ch.Life != t.life {
			return store.ErrGone
		}
	}
	return nil
}

func (m *model) applyRemovals(u *store.Unit) {
	for _, ch := range u.Topics {
		t := m.topics[ch.Topic]
		t.changeIndex(ch.Index)
		t.horizon = max(t.horizon, min(ch.Horizon, m.last[ch.Topic]+1))
		t.compacted = max(t.compacted, min(ch.Compacted, m.last[ch.Topic]))
		t.tombstones = max(t.tombstones, min(ch.Tombstones, t.compacted))
		t.events = slices.DeleteFunc(t.events, func(e modelEvent) bool {
			if e.Offset >= t.horizon && !slices.Contains(ch.Erase, e.Offset) {
				return false
			}
			t.gone[e.id] = modelGone{offset: e.Offset, may: ch.ForgetIDs || slices.Contains(m.made, e.id)}
			return true
		})
	}
}

// isLate reports whether an append or a delayed event has the id of an event that was removed.
// Where the model can not know it takes the store's word.
func (t *modelTopic) isLate(rt *rapid.T, id string, offset uint64, duplicate bool) bool {
	g, ok := t.gone[id]
	switch {
	case !ok:
		return false
	case g.may && !(duplicate && offset == g.offset):
		delete(t.gone, id)
		return false
	case !duplicate || offset != g.offset:
		rt.Fatalf("the id %q of the event that was removed from offset %d: duplicate %v, offset %d", id, g.offset, duplicate, offset)
	}
	return true
}

// sweep sweeps some of what there is, or all.
func (m *model) sweep(rt *rapid.T) {
	for steps := rapid.SampledFrom([]int{1, 3, 1 << 20}).Draw(rt, "steps"); steps > 0; steps-- {
		if !m.env.sweep(rt).More() {
			return
		}
	}
}

// measure compares how much there is from some offset on, and how much has to go.
func (m *model) measure(rt *rapid.T) {
	topic := rapid.SampledFrom(modelTopics).Draw(rt, "topic")
	from := rapid.Uint64Range(0, 60).Draw(rt, "from")
	until := store.Usage{Events: rapid.Uint64Range(0, 10).Draw(rt, "events"), Bytes: rapid.SampledFrom([]uint64{0, 0, 1, 500}).Draw(rt, "bytes")}
	var want store.Usage
	end := from
	if t := m.topics[topic]; t != nil {
		end = max(from, t.horizon)
	}
	for _, e := range m.events(topic) {
		if until.Events > 0 && want.Events >= until.Events || until.Bytes > 0 && want.Bytes >= until.Bytes {
			break
		}
		if e.Offset >= from {
			want.Events++
			want.Bytes += uint64(len(e.Record))
			end = e.Offset + 1
		}
	}
	got, next := m.env.measure(rt, topic, from, until)
	same(rt, "usage", want, got)
	if next < end {
		rt.Fatalf("Measure(%q, %d, %+v) ended at %d; want %d", topic, from, until, next, end)
	}
}

// compact compacts a topic, or a little of it: then the model takes the store's word for what
// is still there of what may go.
func (m *model) compact(rt *rapid.T) {
	topic := rapid.SampledFrom(modelTopics).Draw(rt, "topic")
	done := false
	for steps := rapid.SampledFrom([]int{1, 2, 1 << 20}).Draw(rt, "steps"); steps > 0 && !done; steps-- {
		var err error
		_, done, err = m.env.Store.Compact(context.Background(), topic)
		if t := m.topics[topic]; t != nil && t.index != store.Indexed {
			if !errors.Is(err, store.ErrNotIndexed) {
				rt.Fatalf("Compact(%q): %v; its index is %s", topic, err, t.index)
			}
			return
		}
		if err != nil {
			rt.Fatalf("Compact(%q): %v", topic, err)
		}
	}
	t := m.topics[topic]
	if t == nil {
		return
	}
	kept := make(map[uint64]bool)
	for _, r := range m.env.readAll(rt, topic) {
		kept[r.Offset] = !done
	}
	superseded := t.superseded()
	t.events = slices.DeleteFunc(t.events, func(e modelEvent) bool {
		if !superseded[e.Offset] || kept[e.Offset] {
			return false
		}
		t.gone[e.id] = modelGone{offset: e.Offset, may: slices.Contains(m.made, e.id)}
		return true
	})
}

// superseded returns the offsets of the events that compaction removes.
func (t *modelTopic) superseded() map[uint64]bool {
	gone := make(map[uint64]bool)
	newest := make(map[string]modelEvent)
	for _, e := range t.events {
		if e.key == "" || e.Offset > t.compacted {
			continue
		}
		if before, ok := newest[e.key]; ok {
			gone[before.Offset] = true
		}
		newest[e.key] = e
	}
	for _, e := range newest {
		if e.Offset <= t.tombstones && strings.HasSuffix(e.Record, `"payload":null}`) {
			gone[e.Offset] = true
		}
	}
	return gone
}
