package rest

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"time"

	"eventhub"
	"eventhub/internal/strictjson"
)

// batchAnswer is the answer to a batch: receipts in the order of its events, and
// the places, from 0, of those whose id was there already.
type batchAnswer struct {
	Count      int       `json:"count"`
	Receipts   []receipt `json:"receipts"`
	Duplicates []int     `json:"duplicates,omitempty"`
}

// publishBatch publishes events that are committed together or not at all: as
// application/x-ndjson one event a line, otherwise as {"events": […]}.
func (a *API) publishBatch(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	if err := refuseCloudEvents(r); err != nil {
		return reply{}, err
	}
	given, err := attributesOf(r, waitAttributes)
	if err != nil {
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
	receipts, err := a.publish(r, access.Publisher, given.publication(events...))
	if len(receipts) == 0 {
		return reply{}, err
	}
	status, answer := answerBatch(receipts)
	if err != nil {
		return reply{}, &toldError{err, answer}
	}
	return jsonReply(status, answer)
}

// answerBatch makes the answer. It is 202 where no event is in the log yet.
func answerBatch(receipts []eventhub.Receipt) (status int, answer batchAnswer) {
	status = http.StatusAccepted
	answer = batchAnswer{Count: len(receipts), Receipts: make([]receipt, len(receipts))}
	for i := range receipts {
		rc := &answer.Receipts[i]
		*rc = receipt(receipts[i])
		if rc.Duplicate {
			answer.Duplicates = append(answer.Duplicates, i)
		}
		if !rc.later() {
			status = http.StatusOK
		}
	}
	return status, answer
}

// batchEvent is an event of a batch, with what only its publish says.
type batchEvent struct {
	eventhub.Event
	DelayMS   *int64 `json:"delay_ms"`
	DeliverAt *int64 `json:"deliver_at"`
}

// take returns the event, or what is wrong with it. where is its place in the
// batch, which nobody knows later.
func (b *batchEvent) take(where string) (eventhub.Event, error) {
	e := b.Event
	var err error
	if b.DelayMS != nil {
		err = setDelay(&e, *b.DelayMS)
	}
	if b.DeliverAt != nil {
		e.DeliverAt = *b.DeliverAt
	}
	switch {
	case err != nil:
	case b.DelayMS != nil && b.DeliverAt != nil:
		err = errBothTimes()
	case eventhub.HubOnlyTopic(e.Topic):
		err = eventhub.Errorf(eventhub.CodeForbidden, "topic %.120q is published by the hub alone", e.Topic)
	default:
		err = e.Validate(time.Now())
	}
	if err != nil {
		problem := eventhub.AsError(err)
		return e, eventhub.Errorf(problem.Code, "%s%s", where, problem.Message)
	}
	return e, nil
}

func decodeBatch(body []byte) ([]eventhub.Event, error) {
	var batch struct {
		Events []batchEvent `json:"events"`
	}
	if err := strictjson.Unmarshal(body, &batch); err != nil {
		return nil, badBody(err, "")
	}
	events := make([]eventhub.Event, len(batch.Events))
	for i := range batch.Events {
		var err error
		if events[i], err = batch.Events[i].take(fmt.Sprintf("events[%d]: ", i)); err != nil {
			return nil, err
		}
	}
	return events, nil
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
		var b batchEvent
		if err := strictjson.Unmarshal(line, &b); err != nil {
			return nil, badBody(err, where)
		}
		e, err := b.take(where)
		if err != nil {
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
