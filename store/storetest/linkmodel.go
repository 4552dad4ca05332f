package storetest

import (
	"fmt"
	"slices"

	"eventhub/store"

	"pgregory.net/rapid"
)

// The part of testModel that is about links and about what is kept. Causes are the
// given ids, so that they meet, and the correlations are few.

var modelCorrelations = []string{"", "", "c", "c\x01", "d"}

func drawLinks(rt *rapid.T, a *store.Append) {
	for range rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(rt, "causes") {
		a.CausedBy = append(a.CausedBy, GivenID("given-", rapid.IntRange(0, 3).Draw(rt, "cause")))
	}
	a.Correlation = rapid.SampledFrom(modelCorrelations).Draw(rt, "correlation")
	if rapid.IntRange(0, 3).Draw(rt, "keep") == 0 {
		a.KeepOffset = rapid.Uint64Range(0, 60).Draw(rt, "keep_offset")
		a.KeepTime = startTime + rapid.Int64Range(-100, 100).Draw(rt, "keep_time")
	}
}

// linkedTo returns the places of the events that fit and come after a place, up to limit.
func (m *model) linkedTo(after store.Place, limit int, fits func(modelEvent) bool) (places []store.Place) {
	for _, name := range modelTopics {
		for _, e := range m.events(name) {
			follows := name > after.Topic || name == after.Topic && e.Offset > after.Offset
			if follows && fits(e) && len(places) < limit {
				places = append(places, store.Place{Topic: name, Offset: e.Offset})
			}
		}
	}
	return places
}

func (m *model) checkLinks(rt *rapid.T) {
	after := store.Place{}
	if rapid.Bool().Draw(rt, "after") {
		after = store.Place{Topic: rapid.SampledFrom(modelTopics).Draw(rt, "topic"), Offset: rapid.Uint64Range(0, 40).Draw(rt, "offset")}
	}
	limit := rapid.IntRange(0, 20).Draw(rt, "limit")
	id := GivenID("given-", rapid.IntRange(0, 3).Draw(rt, "cause"))
	correlation := rapid.SampledFrom(modelCorrelations[2:]).Draw(rt, "correlation")
	same(rt, fmt.Sprintf("%d effects of %s after %v", limit, id, after),
		m.linkedTo(after, limit, func(e modelEvent) bool { return slices.Contains(e.causedBy, id) }),
		m.env.effects(rt, id, after, limit))
	same(rt, fmt.Sprintf("%d correlated by %q after %v", limit, correlation, after),
		m.linkedTo(after, limit, func(e modelEvent) bool { return e.correlation == correlation }),
		m.env.correlated(rt, correlation, after, limit))
	same(rt, "places of "+id, m.linkedTo(store.Place{}, limit, func(e modelEvent) bool { return e.id == id }),
		m.env.places(rt, id, limit))
}
