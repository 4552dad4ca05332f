// Package linkstest is a history of events that a test writes down, for tests of what
// follows the links between events and of those who call it.
package linkstest

import (
	"cmp"
	"context"
	"slices"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/record"
	"eventhub/internal/record/layout"
)

// CommitTime is when all events were committed, in epoch milliseconds.
const CommitTime = 1723140000000

// Links answers Find, Effects and Correlated as an admin.History does, and EventGroups
// as an admin.Inspector. It is not for concurrent use.
type Links struct {
	Events []eventhub.Event
	Looked int   // lookups so far
	Most   int   // events a lookup returns at most; 0: as many as asked for
	Fails  error // of lookups

	Became     map[string][]admin.EventGroup // by topic/id
	GroupsFail error                         // of EventGroups
}

// Write adds an event: topic, id, and what caused it. What is returned can be changed
// until the next Write.
func (l *Links) Write(topic, id string, causes ...string) *eventhub.Event {
	l.Events = append(l.Events, eventhub.Event{Topic: topic, ID: id, CausedBy: causes, Payload: []byte(`{"of":"` + id + `"}`)})
	return &l.Events[len(l.Events)-1]
}

func (l *Links) pick(after eventhub.Place, limit int, fits func(*eventhub.Event) bool) ([]admin.Found, error) {
	l.Looked++
	var found []admin.Found
	offsets := make(map[string]uint64)
	for _, e := range l.Events {
		offsets[e.Topic]++
		at := offsets[e.Topic]
		if !fits(&e) || e.Topic < after.Topic || e.Topic == after.Topic && at <= after.Offset {
			continue
		}
		rec, err := record.Append(nil, &e)
		if err != nil {
			return nil, err
		}
		layout.SetCommitTime(rec, CommitTime)
		found = append(found, admin.Found{Topic: e.Topic, Item: eventhub.Item{Offset: at, Record: rec}})
	}
	slices.SortFunc(found, func(a, b admin.Found) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Offset, b.Offset))
	})
	if l.Most > 0 {
		limit = min(limit, l.Most)
	}
	return found[:min(limit, len(found))], l.Fails
}

// Find implements admin.History.
func (l *Links) Find(_ context.Context, id string, limit int) ([]admin.Found, error) {
	return l.pick(eventhub.Place{}, limit, func(e *eventhub.Event) bool { return e.ID == id })
}

// Effects implements admin.History.
func (l *Links) Effects(_ context.Context, id string, after eventhub.Place, limit int) ([]admin.Found, error) {
	return l.pick(after, limit, func(e *eventhub.Event) bool { return slices.Contains(e.CausedBy, id) })
}

// Correlated implements admin.History.
func (l *Links) Correlated(_ context.Context, of string, after eventhub.Place, limit int) ([]admin.Found, error) {
	return l.pick(after, limit, func(e *eventhub.Event) bool { return e.Headers[eventhub.CorrelationHeader] == of })
}

// EventGroups implements admin.Inspector.
func (l *Links) EventGroups(_ context.Context, topic, id string) ([]admin.EventGroup, error) {
	groups, ok := l.Became[topic+"/"+id]
	if !ok {
		return nil, eventhub.Errorf(eventhub.CodeUnknownID, "gone")
	}
	return slices.Clone(groups), l.GroupsFail
}
