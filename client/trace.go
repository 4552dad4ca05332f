package client

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"eventhub"
	"eventhub/admin"
)

// Find is admin.History's Find: the events with that id, one for each topic that
// has it; fewer if they are large. CodeUnknownID if no topic has it.
func (a *Admin) Find(ctx context.Context, id string, limit int) ([]admin.Found, error) {
	if err := eventhub.ValidateID(id); err != nil {
		return nil, err
	}
	events, _, err := a.found(ctx, "/v1/events/"+segment(id)+"?limit="+strconv.Itoa(limit), func(f *admin.Found) bool {
		return string(f.Record.ID()) == id
	})
	return events, err
}

// Effects is admin.History's Effects.
func (a *Admin) Effects(ctx context.Context, id string, after eventhub.Place, limit int) ([]admin.Found, error) {
	return a.linked(ctx, "caused_by", id, after, limit)
}

// Correlated is admin.History's Correlated.
func (a *Admin) Correlated(ctx context.Context, correlation string, after eventhub.Place, limit int) ([]admin.Found, error) {
	return a.linked(ctx, "correlation_id", correlation, after, limit)
}

// linked asks for pages until limit: if events are large, a page of the hub is shorter.
func (a *Admin) linked(ctx context.Context, by, value string, after eventhub.Place, limit int) ([]admin.Found, error) {
	var all []admin.Found
	for {
		query := url.Values{by: {value}, "limit": {strconv.Itoa(limit - len(all))}}
		if after != (eventhub.Place{}) {
			query.Set("after_topic", after.Topic)
			query.Set("after_offset", strconv.FormatUint(after.Offset, 10))
		}
		events, more, err := a.found(ctx, "/v1/events?"+query.Encode(), func(f *admin.Found) bool {
			return f.Topic > after.Topic || f.Topic == after.Topic && f.Offset > after.Offset
		})
		if err != nil {
			return nil, err
		}
		all = append(all, events...)
		if !more || len(events) == 0 || len(all) >= limit {
			return all, nil
		}
		after = eventhub.Place{Topic: events[len(events)-1].Topic, Offset: events[len(events)-1].Offset}
	}
}

// found asks for a list of events. Each event must fit. more says that the hub
// has more after them.
func (a *Admin) found(ctx context.Context, path string, fits func(*admin.Found) bool) (events []admin.Found, more bool, err error) {
	var list struct {
		Events []json.RawMessage `json:"events"`
		Next   *struct{}         `json:"next"`
	}
	err = a.get(ctx, path, &list, func() bool {
		for _, event := range list.Events {
			var said struct {
				Topic string `json:"topic"`
			}
			item, ok := itemOf(bytes.Clone(event))
			if !ok || json.Unmarshal(event, &said) != nil {
				return false
			}
			f := admin.Found{Topic: said.Topic, Item: item}
			if !fits(&f) {
				return false
			}
			events = append(events, f)
		}
		return list.Events != nil
	})
	if err != nil {
		return nil, false, err
	}
	return events, list.Next != nil, nil
}

// Trace says what led to the event with that id and what came of it, in all topics:
// at most depth steps up and down, from 0 to admin.MaxTraceDepth, and at most limit nodes,
// from 1 to admin.MaxTraceNodes. CodeUnknownID if no event has the id or names it.
func (a *Admin) Trace(ctx context.Context, id string, depth, limit int) (admin.Trace, error) {
	if err := eventhub.ValidateID(id); err != nil {
		return admin.Trace{}, err
	}
	query := url.Values{"depth": {strconv.Itoa(depth)}, "limit": {strconv.Itoa(limit)}}
	var trace admin.Trace
	err := a.fetch(ctx, http.MethodGet, "/v1/events/"+segment(id)+"/trace?"+query.Encode(), &trace, func() bool {
		for _, e := range trace.Edges {
			if min(e.Cause, e.Effect) < 0 || max(e.Cause, e.Effect) >= len(trace.Nodes) {
				return false
			}
		}
		return trace.ID == id && len(trace.Nodes) > 0
	})
	return trace, err
}
