package rest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"eventhub"
	"eventhub/internal/strictjson"
)

// receipt is the answer to one published event.
type receipt struct {
	ID        string `json:"id"`
	Offset    uint64 `json:"offset,omitempty"`
	DeliverAt int64  `json:"deliver_at,omitempty"`
	Duplicate bool   `json:"duplicate,omitempty"`
}

// publishOne publishes the body as the payload of one event. What else the event
// has comes as query parameters or as x-eventhub-* headers.
func publishOne(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	if err := refuseCloudEvents(r); err != nil {
		return reply{}, err
	}
	e, err := eventOf(r)
	if err != nil {
		return reply{}, err
	}
	body, err := readBody(w, r, maxPayloadBody)
	if err != nil {
		return reply{}, err
	}
	e.Payload = bytes.TrimSpace(body)
	receipts, err := access.Publisher.Publish(r.Context(), e)
	if err != nil {
		return reply{}, err
	}
	return jsonReply(http.StatusOK, receipt(receipts[0]))
}

// attributes are what the query or an x-eventhub-* header may say of an event,
// by name.
var attributes = map[string]func(e *eventhub.Event, value string) error{
	"id":  func(e *eventhub.Event, v string) error { e.ID = v; return eventhub.ValidateID(v) },
	"key": func(e *eventhub.Event, v string) error { e.Key = v; return nil },
	"sid": func(e *eventhub.Event, v string) error { e.SID = v; return nil },
	"ts": func(e *eventhub.Event, v string) (err error) {
		if e.TS, err = strconv.ParseInt(v, 10, 64); err != nil || e.TS < 1 {
			return eventhub.Errorf(eventhub.CodeBadEvent, "ts %q is not in epoch milliseconds", v)
		}
		return nil
	},
	"tags":      func(e *eventhub.Event, v string) error { e.Tags = append(e.Tags, list(v)...); return nil },
	"caused_by": func(e *eventhub.Event, v string) error { e.CausedBy = append(e.CausedBy, list(v)...); return nil },
}

// list splits at commas. Neither a tag's nor an id's neighbours matter, so
// spaces around them go.
func list(v string) []string {
	parts := strings.Split(v, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

const attributePrefix = "X-Eventhub-"

// eventOf reads all of an event but its payload.
func eventOf(r *http.Request) (eventhub.Event, error) {
	e := eventhub.Event{Topic: r.PathValue("topic")}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return e, eventhub.Errorf(eventhub.CodeBadRequest, "the query can not be read: %v", err)
	}
	said := make(map[string]string) // attribute → where
	for name, values := range query {
		if err := setAttribute(&e, said, name, "the query", values); err != nil {
			return e, err
		}
	}
	for name, values := range r.Header {
		attribute, ok := strings.CutPrefix(name, attributePrefix)
		if !ok {
			continue
		}
		attribute = strings.ReplaceAll(strings.ToLower(attribute), "-", "_")
		if err := setAttribute(&e, said, attribute, "a header", values); err != nil {
			return e, err
		}
	}
	e.Headers = eventHeaders(r.Header)
	return e, nil
}

func setAttribute(e *eventhub.Event, said map[string]string, name, where string, values []string) error {
	set := attributes[name]
	if set == nil {
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s has %q, which no event has", where, name)
	}
	if other := said[name]; other != "" {
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s stands in %s and in %s", name, other, where)
	}
	said[name] = where
	if repeats := name == "tags" || name == "caused_by"; len(values) > 1 && !repeats {
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s stands %d times in %s", name, len(values), where)
	}
	for _, v := range values {
		if err := set(e, v); err != nil {
			return err
		}
	}
	return nil
}

// eventHeaders picks the headers that belong to the event. All others are
// between the client and this hop, or secrets.
func eventHeaders(h http.Header) map[string]string {
	var headers map[string]string
	for name, values := range h {
		lower := strings.ToLower(name)
		switch {
		case strings.HasPrefix(name, attributePrefix), strings.HasPrefix(lower, "x-forwarded-"), lower == "x-real-ip":
			continue
		case strings.HasPrefix(lower, "x-"), strings.HasPrefix(lower, "ce-"), lower == "traceparent", lower == "tracestate":
			if headers == nil {
				headers = make(map[string]string)
			}
			headers[lower] = strings.Join(values, ", ")
		}
	}
	return headers
}

// refuseCloudEvents keeps a structured CloudEvent from being taken for a
// payload.
func refuseCloudEvents(r *http.Request) error {
	if kind := r.Header.Get("Content-Type"); strings.HasPrefix(strings.ToLower(kind), "application/cloudevents") {
		return eventhub.Errorf(eventhub.CodeUnsupportedOp, "Content-Type %q is not understood by this version", kind)
	}
	return nil
}

func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		return nil, fmt.Errorf("read the body: %w", err)
	}
	return body, nil
}

// publishBatch publishes events that are committed together or not at all: as
// application/x-ndjson one event a line, otherwise as {"events": […]}.
func publishBatch(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	if err := refuseCloudEvents(r); err != nil {
		return reply{}, err
	}
	body, err := readBody(w, r, maxBatchBody)
	if err != nil {
		return reply{}, err
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) // a bad one is not NDJSON
	decode := decodeBatch
	if kind == "application/x-ndjson" {
		decode = decodeLines
	}
	events, err := decode(body)
	if err != nil {
		return reply{}, err
	}
	if n := len(events); n == 0 || n > maxBatchEvents {
		return reply{}, eventhub.Errorf(eventhub.CodeBadRequest, "the batch has %d events; 1 to %d are allowed", n, maxBatchEvents)
	}
	receipts, err := access.Publisher.Publish(r.Context(), events...)
	if err != nil {
		return reply{}, err
	}
	answer := struct {
		Count    int       `json:"count"`
		Receipts []receipt `json:"receipts"`
	}{len(receipts), make([]receipt, 0, len(receipts))}
	for _, rc := range receipts {
		answer.Receipts = append(answer.Receipts, receipt(rc))
	}
	return jsonReply(http.StatusOK, answer)
}

func decodeBatch(body []byte) ([]eventhub.Event, error) {
	var batch struct {
		Events []eventhub.Event `json:"events"`
	}
	if err := strictjson.Unmarshal(body, &batch); err != nil {
		return nil, badBody(err, "")
	}
	for i := range batch.Events {
		if err := check(&batch.Events[i], fmt.Sprintf("events[%d]: ", i)); err != nil {
			return nil, err
		}
	}
	return batch.Events, nil
}

func decodeLines(body []byte) ([]eventhub.Event, error) {
	var events []eventhub.Event
	number := 0
	for line := range bytes.Lines(body) {
		number++
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if len(events) == maxBatchEvents {
			return nil, eventhub.Errorf(eventhub.CodeBadRequest, "line %d: a batch has at most %d events", number, maxBatchEvents)
		}
		where := fmt.Sprintf("line %d: ", number)
		var e eventhub.Event
		if err := strictjson.Unmarshal(line, &e); err != nil {
			return nil, badBody(err, where)
		}
		if err := check(&e, where); err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	return events, nil
}

// badBody tells JSON that is broken from JSON that is not an event.
func badBody(err error, where string) error {
	var meaning *strictjson.MeaningError
	if errors.As(err, &meaning) {
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s%v", where, err)
	}
	return eventhub.Errorf(eventhub.CodeBadJSON, "%s%v", where, err)
}

// check validates an event of a batch here, where its place in it is known.
func check(e *eventhub.Event, where string) error {
	err := e.Validate(time.Now())
	if err == nil {
		return nil
	}
	problem := eventhub.AsError(err)
	return eventhub.Errorf(problem.Code, "%s%s", where, problem.Message)
}
