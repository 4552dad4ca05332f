package rest

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/causality"
	"eventhub/internal/cloudevents"
)

// foundReply makes a list of events the answer, as they are stored. last is what the
// object has after the list, from the comma on.
func foundReply(events []admin.Found, last string) reply {
	body := []byte(`{"events":[`)
	for i, e := range events {
		if i > 0 {
			body = append(body, ',')
		}
		body = e.Record.AppendJSON(body, e.Offset)
	}
	return reply{status: http.StatusOK, body: append(append(append(body, ']'), last...), "}\n"...)}
}

// findEvent answers with the events of that id, one for each topic that has it.
func findEvent(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	id, err := idOf(r)
	if err != nil {
		return reply{}, err
	}
	q, err := parameters(r, "limit")
	if err != nil {
		return reply{}, err
	}
	limit, err := pageLimit(q["limit"])
	if err != nil {
		return reply{}, err
	}
	history, err := access.history()
	if err != nil {
		return reply{}, err
	}
	events, err := history.Find(r.Context(), id, min(limit+1, admin.MaxPage))
	if err != nil {
		return reply{}, err
	}
	if len(events) == 0 {
		return reply{}, eventhub.Errorf(eventhub.CodeUnknownID, "no topic has the event %q", id)
	}
	shown := causality.Cut(events[:min(limit, len(events))])
	if accepted(r, eventsFormats...) == cloudevents.BatchType {
		return asCloudEvents(w, shown)
	}
	if len(shown) < len(events) {
		return foundReply(shown, `,"more":true`), nil
	}
	return foundReply(shown, ""), nil
}

// idOf returns the id in a path without a topic.
func idOf(r *http.Request) (string, error) {
	id := r.PathValue("id")
	return id, eventhub.ValidateID(id)
}

// listEvents answers with the events of a correlation, or with those that an event
// has caused, whatever their topics.
func listEvents(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	q, err := parameters(r, "correlation_id", "caused_by", "after_topic", "after_offset", "limit")
	if err != nil {
		return reply{}, err
	}
	limit, err := pageLimit(q["limit"])
	if err != nil {
		return reply{}, err
	}
	history, err := access.history()
	if err != nil {
		return reply{}, err
	}
	find, of := causality.Relation(history.Correlated), q["correlation_id"]
	if (of == "") == (q["caused_by"] == "") {
		return reply{}, eventhub.Errorf(eventhub.CodeBadRequest, "one of correlation_id and caused_by is expected")
	}
	if of == "" {
		find, of = history.Effects, q["caused_by"]
		err = optional("caused_by", of, eventhub.ValidateID)
	} else if len(of) > eventhub.MaxCorrelationBytes {
		err = eventhub.Errorf(eventhub.CodeBadRequest, "correlation_id has %d bytes; at most %d are allowed", len(of), eventhub.MaxCorrelationBytes)
	}
	if err != nil {
		return reply{}, err
	}
	after, err := placeOf(q)
	if err != nil {
		return reply{}, err
	}
	events, more, err := causality.Page(r.Context(), find, of, after, limit)
	if err != nil {
		return reply{}, err
	}
	var next *eventhub.Place
	if more {
		last := events[len(events)-1]
		next = &eventhub.Place{Topic: last.Topic, Offset: last.Offset}
	}
	if accepted(r, eventsFormats...) == cloudevents.BatchType {
		linkNext(w, r, next)
		return asCloudEvents(w, events)
	}
	if next == nil {
		return foundReply(events, ""), nil
	}
	return foundReply(events, fmt.Sprintf(`,"next":{"after_topic":%q,"after_offset":%d}`, next.Topic, next.Offset)), nil
}

// placeOf reads the place after which a page begins; both or none of its parts
// are given.
func placeOf(q map[string]string) (eventhub.Place, error) {
	topic, text := q["after_topic"], q["after_offset"]
	if topic == "" && text == "" {
		return eventhub.Place{}, nil
	}
	offset, err := strconv.ParseUint(text, 10, 64)
	if err != nil || offset > eventhub.MaxOffset {
		err = eventhub.Errorf(eventhub.CodeBadRequest, "after_offset %.20q is not a number from 0 to %d", text, uint64(eventhub.MaxOffset))
	}
	if topic == "" {
		err = eventhub.Errorf(eventhub.CodeBadRequest, "after_offset is given and after_topic is not")
	}
	return eventhub.Place{Topic: topic, Offset: offset}, errors.Join(optional("after_topic", topic, eventhub.ValidateStoredTopic), err)
}

// linkNext says by a Link header (RFC 8288) what to ask for next: a list of
// CloudEvents has no room for it.
func linkNext(w http.ResponseWriter, r *http.Request, next *eventhub.Place) {
	if next == nil {
		return
	}
	query, _ := queryOf(r) // which was read before
	query.Set("after_topic", next.Topic)
	query.Set("after_offset", strconv.FormatUint(next.Offset, 10))
	to := url.URL{RawQuery: query.Encode()}
	w.Header().Set("Link", "<"+to.String()+`>; rel="next"`)
}

// traceEvent answers with what led to an event and what came of it.
func traceEvent(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	id, err := idOf(r)
	if err != nil {
		return reply{}, err
	}
	q, err := parameters(r, "depth", "limit")
	if err != nil {
		return reply{}, err
	}
	limit := admin.DefaultTraceNodes
	if r.URL.Query().Get("limit") != "" {
		if limit, err = limitOf(q["limit"], admin.MaxTraceNodes); err != nil {
			return reply{}, err
		}
	}
	depth := admin.MaxTraceDepth
	if text, given := q["depth"]; given {
		if depth, err = strconv.Atoi(text); err != nil || depth < 0 || depth > admin.MaxTraceDepth {
			return reply{}, eventhub.Errorf(eventhub.CodeBadRequest, "depth %.20q is not a number from 0 to %d", text, admin.MaxTraceDepth)
		}
	}
	history, err := access.history()
	if err != nil {
		return reply{}, err
	}
	trace, err := causality.Walk(r.Context(), history, access.Inspector, id, depth, limit)
	if err != nil {
		return reply{}, err
	}
	return jsonReply(http.StatusOK, trace)
}
