package rest

import (
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/cloudevents"
)

// publishCloudEvents publishes what a request carries in that mode, or refuses it:
// one event, or a batch that is committed together or not at all.
func (a *API) publishCloudEvents(w http.ResponseWriter, r *http.Request, access Access, mode cloudevents.Mode, err error) (reply, error) {
	if err != nil {
		return reply{}, err
	}
	known, limit := eventAttributes, int64(maxPayloadBody)
	switch mode {
	case cloudevents.Structured:
		limit = cloudevents.MaxEventBytes
	case cloudevents.Batched:
		known, limit = waitAttributes, maxBatchBody
	}
	given, err := attributesOf(r, known)
	if err != nil {
		return reply{}, err
	}
	if e := &given.event; e.ID != "" || e.TS != 0 {
		return reply{}, eventhub.Errorf(eventhub.CodeBadRequest, "id or ts is given with a CloudEvent, whose id and time they are")
	}
	given.event.Topic, given.event.Headers = r.PathValue("topic"), eventHeaders(r.Header)
	maps.DeleteFunc(given.event.Headers, func(name, _ string) bool { return strings.HasPrefix(name, "ce-") })
	body, err := access.readBody(w, r, limit)
	if err != nil {
		return reply{}, err
	}
	switch mode {
	case cloudevents.Structured:
		given.event, err = cloudevents.ReadStructured(body, given.event)
	case cloudevents.Batched:
		return a.publishCloudBatch(r, access, &given, body)
	default:
		given.event, err = cloudevents.ReadBinary(r.Header, body, given.event)
	}
	if err != nil {
		return reply{}, err
	}
	return a.answerOne(r, access, &given)
}

// publishCloudBatch publishes a batch, which may be empty.
func (a *API) publishCloudBatch(r *http.Request, access Access, given *given, body []byte) (reply, error) {
	if eventhub.HubOnlyTopic(given.event.Topic) {
		return reply{}, eventhub.Errorf(eventhub.CodeForbidden, "topic %.120q is published by the hub alone", given.event.Topic)
	}
	if err := eventhub.ValidateTopic(given.event.Topic); err != nil {
		return reply{}, err
	}
	events, err := cloudevents.ReadBatch(body, given.event, maxBatchEvents)
	if err != nil {
		return reply{}, err
	}
	if len(events) == 0 {
		return jsonReply(http.StatusOK, batchAnswer{Receipts: []receipt{}})
	}
	return a.answerAll(r, access, given, events, ofList("events"))
}

// refuseCloudEvents keeps CloudEvents from being taken for events where no topic
// is known.
func refuseCloudEvents(r *http.Request) error {
	mode, err := cloudevents.ModeOf(r.Header)
	if mode == cloudevents.Structured || mode == cloudevents.Batched {
		return eventhub.Errorf(eventhub.CodeBadRequest, "CloudEvents do not say their topic; POST them to /publish/ and the topic")
	}
	return err
}

// statusFor is statusOf, except that what is not JSON is reported as such.
func statusFor(err error, code eventhub.Code) int {
	if errors.Is(err, cloudevents.ErrMediaType) {
		return http.StatusUnsupportedMediaType
	}
	if errors.Is(err, admin.ErrOtherVersion) {
		return http.StatusPreconditionFailed
	}
	if errors.Is(err, errOtherPublish) {
		return http.StatusUnprocessableEntity
	}
	return statusOf(code)
}

// accepted returns which of the media types a client likes best, the first where
// it does not say or likes several alike. One that it can not use at all it gets
// all the same, as HTTP allows. What is first in offers is the default.
func accepted(r *http.Request, offers ...string) string {
	best, most := offers[0], 0.0
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		kind, parameters, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		weight := 1.0
		if q, given := parameters["q"]; given {
			if weight, err = strconv.ParseFloat(q, 64); err != nil {
				continue
			}
		}
		for _, offer := range offers {
			if weight > most && (kind == offer || offer == offers[0] && (kind == "*/*" || kind == "application/*")) {
				best, most = offer, weight
			}
		}
	}
	return best
}

// eventsFormats are what lists of events can be asked for as.
var eventsFormats = []string{"application/json", cloudevents.BatchType}

// asCloudEvents makes a list of CloudEvents the answer.
func asCloudEvents(w http.ResponseWriter, events []admin.Found) (reply, error) {
	body := []byte{'['}
	for i, e := range events {
		if i > 0 {
			body = append(body, ',')
		}
		var err error
		if body, err = cloudevents.AppendStructured(body, e.Topic, e.Offset, e.Record); err != nil {
			return reply{}, fmt.Errorf("write a CloudEvent: %w", err)
		}
	}
	w.Header().Set("Content-Type", cloudevents.BatchType)
	return reply{status: http.StatusOK, body: append(body, "]\n"...)}, nil
}

// asCloudEvent makes one CloudEvent the answer.
func asCloudEvent(w http.ResponseWriter, e admin.Found) (reply, error) {
	body, err := cloudevents.AppendStructured(nil, e.Topic, e.Offset, e.Record)
	if err != nil {
		return reply{}, fmt.Errorf("write a CloudEvent: %w", err)
	}
	w.Header().Set("Content-Type", cloudevents.StructuredType)
	return reply{status: http.StatusOK, body: append(body, '\n')}, nil
}

// appendDelivered appends an event that is delivered.
type appendDelivered func(dst []byte, d *eventhub.Delivery) []byte

// deliveredAs returns how a client wants the events that it gets in something larger,
// a stream or a pull: as they are stored, or, where Accept names them, as CloudEvents.
func deliveredAs(r *http.Request) appendDelivered {
	stored := func(dst []byte, d *eventhub.Delivery) []byte { return d.Record.AppendJSON(dst, d.Offset) }
	if accepted(r, "", cloudevents.StructuredType) == "" {
		return stored
	}
	return func(dst []byte, d *eventhub.Delivery) []byte {
		out, err := cloudevents.AppendStructured(dst, d.Topic, d.Offset, d.Record)
		if err != nil { // no event: it comes as it is
			return stored(dst, d)
		}
		return out
	}
}
