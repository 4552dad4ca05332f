// Package causality follows events by what ties them together: their causes, their
// effects, and the correlation they belong to.
//
// It owns the walk over the causal graph (Walk) and the pages of events that a
// relation gives (Page), with their bounds: how far a walk goes, how many nodes and
// edges it collects, how many bytes a page holds. It reads what the history has and
// writes nothing.
//
// Invariants:
//   - A walk looks up each id at most once on its way up and once on its way down, so
//     cycles end it.
//   - An event is one node, and an id that no topic has is one node.
//   - Without the edges marked as a cycle, a trace has none.
//   - A page has an event at least, where there is one.
//
// It knows no transport: gateway/rest calls it and translates.
package causality

import (
	"context"

	"eventhub"
	"eventhub/admin"
)

const (
	// PageBytes is how many bytes of records end a page of events: the event that
	// goes beyond is its last.
	PageBytes = 8 << 20
	// atOnce is how many events are looked up in one step. They may be large.
	atOnce = 64
)

// Links is the part of admin.History that a walk asks.
type Links interface {
	Find(ctx context.Context, id string, limit int) ([]admin.Found, error)
	Effects(ctx context.Context, id string, after eventhub.Place, limit int) ([]admin.Found, error)
}

// Groups is the part of admin.Inspector that a walk asks.
type Groups interface {
	EventGroups(ctx context.Context, topic, id string) ([]admin.EventGroup, error)
}

// Relation finds the events that are related to a value, as admin.History's Effects
// and Correlated do: those after a place, in the order of places.
type Relation func(ctx context.Context, of string, after eventhub.Place, limit int) ([]admin.Found, error)

// Page returns the events after a place, at most limit and about PageBytes, and
// whether there are more.
func Page(ctx context.Context, find Relation, of string, after eventhub.Place, limit int) (page []admin.Found, more bool, err error) {
	size := 0
	for len(page) < limit && size < PageBytes {
		events, err := find(ctx, of, after, min(atOnce, limit-len(page)))
		if err != nil || len(events) == 0 {
			return page, false, err
		}
		for _, e := range Cut(events) {
			page = append(page, e)
			size += len(e.Record)
			after = eventhub.Place{Topic: e.Topic, Offset: e.Offset}
		}
	}
	beyond, err := find(ctx, of, after, 1)
	return page, len(beyond) > 0, err
}

// Cut returns the first of the events, as many as a page holds: one at least.
func Cut(events []admin.Found) []admin.Found {
	size := 0
	for i, e := range events {
		if size += len(e.Record); size >= PageBytes {
			return events[:i+1]
		}
	}
	return events
}
