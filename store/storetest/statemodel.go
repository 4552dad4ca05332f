package storetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"eventhub/internal/record/layout"
	"eventhub/store"

	"pgregory.net/rapid"
)

// The part of testModel that is about the state by key.

// checkState compares the state at each offset at which it is exact with what the events up to
// there say, read a page at a time.
func (m *model) checkState(rt *rapid.T, name string) {
	q := store.StateQuery{Topic: name, Limit: rapid.IntRange(1, 4).Draw(rt, "limit"),
		MaxBytes: rapid.SampledFrom([]int{0, 300, noLimit}).Draw(rt, "max_bytes")}
	if rapid.Bool().Draw(rt, "by list") {
		q.Keys = slices.Compact(slices.Sorted(slices.Values(rapid.SliceOf(rapid.SampledFrom(append(modelKeys[2:], "none"))).Draw(rt, "keys"))))
	} else {
		q.Prefix = rapid.SampledFrom([]string{"", "", "k", "\x00", "k\x00", "none"}).Draw(rt, "prefix")
	}
	t := m.topics[name]
	if t == nil {
		same(rt, "state of no topic", []row(nil), m.env.state(rt, q))
		return
	}
	places := []uint64{max(t.compacted, 1), t.head, t.head + 1}
	for _, e := range t.events {
		if e.Offset > max(t.compacted, 1) {
			places = append(places, e.Offset-1, e.Offset)
		}
	}
	slices.Sort(places)
	for _, q.At = range slices.Compact(places) {
		same(rt, fmt.Sprintf("state %+v", q), t.state(q), m.env.state(rt, q))
	}
	q.At = 0
	same(rt, fmt.Sprintf("state %+v", q), t.state(q), m.env.state(rt, q))
}

// state is what a fold of the events says.
func (t *modelTopic) state(q store.StateQuery) (rows []row) {
	newest := make(map[string]row)
	for _, e := range t.events {
		isAsked := q.Keys == nil && strings.HasPrefix(e.key, q.Prefix) || slices.Contains(q.Keys, e.key)
		if e.key == "" || !isAsked || q.At > 0 && e.Offset > q.At {
			continue
		}
		if newest[e.key] = e.row; layout.IsTombstone([]byte(e.Record)) {
			delete(newest, e.key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(newest)) {
		rows = append(rows, newest[key])
	}
	return rows
}

// state reads all pages of a query, at the offset of the first one.
func (s *env) state(t failer, q store.StateQuery) (rows []row) {
	t.Helper()
	var b store.Batch
	for {
		b.Reset()
		page, err := s.State(context.Background(), q, &b)
		if err != nil {
			t.Fatalf("State(%+v): %v", q, err)
		}
		if len(b.Items) > q.Limit {
			t.Fatalf("State(%+v) has %d events", q, len(b.Items))
		}
		rows = append(rows, batchRows(&b)...)
		if page.Done {
			return rows
		}
		if page.After <= q.After || page.At == 0 || q.At != 0 && page.At > q.At {
			t.Fatalf("State(%+v) goes on with %+v", q, page)
		}
		q.At, q.After = page.At, page.After
	}
}

// stateAll is the state of all keys at an offset.
func (s *env) stateAll(t failer, topic string, at uint64) []row {
	t.Helper()
	return s.state(t, store.StateQuery{Topic: topic, At: at, Limit: 1000, MaxBytes: noLimit})
}
