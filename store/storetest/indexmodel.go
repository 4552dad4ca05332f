package storetest

import (
	"context"
	"errors"
	"slices"

	"eventhub/store"

	"pgregory.net/rapid"
)

// The part of testModel that is about the key index.

// modelIndexChanges are drawn from: an index that comes and goes too often is hardly ever ready.
var modelIndexChanges = []store.IndexChange{store.KeepIndex, store.KeepIndex, store.StartIndex, store.StartIndex, store.StartIndex, store.DropIndex}

func (t *modelTopic) changeIndex(ch store.IndexChange) {
	switch {
	case ch == store.StartIndex && t.index == store.NotIndexed:
		t.index = store.Indexing
	case ch == store.DropIndex:
		t.index = store.NotIndexed
	}
}

// mayBeCompacting reports whether a store may refuse a unit for a pass that is under way.
func (m *model) mayBeCompacting(u *store.Unit) bool {
	return slices.ContainsFunc(u.Topics, func(ch store.TopicChange) bool {
		t := m.topics[ch.Topic]
		return ch.Index == store.DropIndex && t.compacted > 0 && t.index == store.Indexed
	})
}

// buildIndex goes on with the index of a topic, by some steps or to its end.
func (m *model) buildIndex(rt *rapid.T) {
	topic := rapid.SampledFrom(modelTopics).Draw(rt, "topic")
	t := m.topics[topic]
	for steps := rapid.SampledFrom([]int{1, 1 << 20, 1 << 20}).Draw(rt, "steps"); steps > 0; steps-- {
		p, done := m.env.index(rt, topic)
		if isBuilding := t != nil && t.index == store.Indexing; !isBuilding && (!done || p != (store.IndexProgress{})) {
			rt.Fatalf("IndexKeys(%q) = %+v, %v; nothing is built", topic, p, done)
		}
		if done {
			break
		}
	}
	if t == nil || t.index != store.Indexing {
		return
	}
	info, err := m.env.Topic(context.Background(), topic)
	if err != nil || info.Index == store.NotIndexed {
		rt.Fatalf("the index of %q is %s, %v; it was being built", topic, info.Index, err)
	}
	t.index = info.Index
}

// checkIndex compares how far the index of a topic is, and reports whether it can be read.
func (m *model) checkIndex(rt *rapid.T, name string) bool {
	t := m.topics[name]
	if t == nil {
		return true
	}
	same(rt, "index of "+name, t.index, m.env.indexOf(rt, name))
	if t.index == store.Indexed {
		return true
	}
	if _, err := m.env.Store.Latest(context.Background(), name, "k", 0); !errors.Is(err, store.ErrNotIndexed) {
		rt.Fatalf("Latest of %q: %v; its index is %s", name, err, t.index)
	}
	return false
}
