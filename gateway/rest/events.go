package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"eventhub"
	"eventhub/internal/cloudevents"
)

const (
	// foundBytes is how many bytes of records end a page of events: the event that
	// goes beyond is its last.
	foundBytes = 8 << 20
	// foundAtOnce is how many events are looked up in one step. They may be large.
	foundAtOnce = 64
)

// foundReply makes a list of events the answer, as they are stored. last is what the
// object has behind the list, from the comma on.
func foundReply(events []eventhub.Found, last string) reply {
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
	events, err := history.Find(r.Context(), id, min(limit+1, eventhub.MaxPage))
	if err != nil {
		return reply{}, err
	}
	if len(events) == 0 {
		return reply{}, eventhub.Errorf(eventhub.CodeUnknownID, "no topic has the event %q", id)
	}
	shown := events[:min(limit, len(events))]
	shown = shown[:withinBytes(shown)]
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

// withinBytes returns how many of the events a page holds: one at least.
func withinBytes(events []eventhub.Found) int {
	size := 0
	for i, e := range events {
		if size += len(e.Record); size >= foundBytes {
			return i + 1
		}
	}
	return len(events)
}

// lookup is one of the ways to find events behind a place.
type lookup func(ctx context.Context, of string, after eventhub.Place, limit int) ([]eventhub.Found, error)

// listEvents answers with the events of a correlation, or with those that an event
// has caused, whatever their topics.
func listEvents(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	q, err := parameters(r, "correlationId", "causedBy", "after_topic", "after_offset", "limit")
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
	find, of := lookup(history.Correlated), q["correlationId"]
	if (of == "") == (q["causedBy"] == "") {
		return reply{}, eventhub.Errorf(eventhub.CodeBadRequest, "one of correlationId and causedBy is expected")
	}
	if of == "" {
		find, of = history.Effects, q["causedBy"]
		err = optional("causedBy", of, eventhub.ValidateID)
	} else if len(of) > eventhub.MaxCorrelationBytes {
		err = eventhub.Errorf(eventhub.CodeBadRequest, "correlationId has %d bytes; at most %d are allowed", len(of), eventhub.MaxCorrelationBytes)
	}
	if err != nil {
		return reply{}, err
	}
	after, err := placeOf(q)
	if err != nil {
		return reply{}, err
	}
	events, more, err := findPage(r.Context(), find, of, after, limit)
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

// placeOf reads the place behind which a page begins; both or none of its parts
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

// findPage finds a page of events, and whether there are more behind it.
func findPage(ctx context.Context, find lookup, of string, after eventhub.Place, limit int) (page []eventhub.Found, more bool, err error) {
	size := 0
	for len(page) < limit && size < foundBytes {
		events, err := find(ctx, of, after, min(foundAtOnce, limit-len(page)))
		if err != nil || len(events) == 0 {
			return page, false, err
		}
		for _, e := range events[:withinBytes(events)] {
			page = append(page, e)
			size += len(e.Record)
			after = eventhub.Place{Topic: e.Topic, Offset: e.Offset}
		}
	}
	behind, err := find(ctx, of, after, 1)
	return page, len(behind) > 0, err
}

// linkNext says by a Link header (RFC 8288) what to ask for next: a list of
// CloudEvents has no room for it.
func linkNext(w http.ResponseWriter, r *http.Request, next *eventhub.Place) {
	if next == nil {
		return
	}
	query := r.URL.Query()
	query.Set("after_topic", next.Topic)
	query.Set("after_offset", strconv.FormatUint(next.Offset, 10))
	to := url.URL{RawQuery: query.Encode()}
	w.Header().Set("Link", "<"+to.String()+`>; rel="next"`)
}
