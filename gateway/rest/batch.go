package rest

import (
	"bytes"
	"errors"
	"mime"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

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
	body, err := access.readBody(w, r, maxBatchBody)
	if err != nil {
		return reply{}, err
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) // a bad one is not NDJSON
	decode := decodeBatch
	if kind == "application/x-ndjson" {
		decode = decodeLines
	}
	events, where, err := decode(body)
	if err != nil {
		return reply{}, err
	}
	if n := len(events); n == 0 || n > maxBatchEvents {
		return reply{}, eventhub.Errorf(eventhub.CodeBadRequest, "the batch has %d events; 1 to %d are allowed", n, maxBatchEvents)
	}
	return a.answerAll(r, access, &given, events, where)
}

// answerAll publishes the events of a batch. The engine judges them; where writes the place
// of the one that it refuses.
func (a *API) answerAll(r *http.Request, access Access, given *given, events []eventhub.Event, where func(i int) string) (reply, error) {
	receipts, err := a.publishOnce(r, access, given.publication(events...))
	err = atPlace(err, where)
	if len(receipts) == 0 {
		return reply{}, err
	}
	status, answer := answerBatch(receipts)
	if err != nil {
		return reply{}, &partialError{err, answer}
	}
	return jsonReply(status, answer)
}

// answerBatch makes the answer. It is 202 where no event is in the log yet.
func answerBatch(receipts []eventhub.Receipt) (status int, answer batchAnswer) {
	status = http.StatusAccepted
	answer = batchAnswer{Count: len(receipts), Receipts: make([]receipt, len(receipts))}
	for i := range receipts {
		rc := &answer.Receipts[i]
		*rc = receiptOf(receipts[i])
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
	Expect    *struct {
		KeyOffset   *uint64 `json:"key_offset"`
		TopicOffset *uint64 `json:"topic_offset"`
	} `json:"expect"`
}

// take returns the event, or what is wrong with how it is written. Its values are the
// engine's to judge.
func (b *batchEvent) take() (eventhub.Event, error) {
	e := b.Event
	if b.DelayMS != nil {
		if err := setDelay(&e, *b.DelayMS); err != nil {
			return e, err
		}
	}
	if b.DeliverAt != nil {
		e.DeliverAt = time.UnixMilli(*b.DeliverAt)
	}
	if b.Expect != nil {
		var err error
		if e.Expect, err = eventhub.ExpectOf(b.Expect.KeyOffset, b.Expect.TopicOffset); err != nil {
			return e, err
		}
	}
	switch {
	case b.DelayMS != nil && b.DeliverAt != nil:
		return e, errBothTimes()
	case e.Topic == "":
		return e, eventhub.Errorf(eventhub.CodeBadTopic, "topic is missing")
	case len(e.Payload) == 0:
		return e, eventhub.Errorf(eventhub.CodeBadRequest, "payload is missing; null is a payload")
	}
	return e, nil
}

func decodeBatch(body []byte) ([]eventhub.Event, func(i int) string, error) {
	var batch struct {
		Events batchEvents `json:"events"`
	}
	where := ofList("events")
	if err := strictjson.Unmarshal(body, &batch); err != nil {
		return nil, nil, atPlace(badBody(err), where)
	}
	return batch.Events, where, nil
}

// batchEvents are the events of a batch. An entry without topic or payload ends the
// reading: a list costs no more memory than its first events, however many entries it has.
type batchEvents []eventhub.Event

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (b *batchEvents) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if kind := dec.PeekKind(); kind != jsontext.KindBeginArray {
		type list []eventhub.Event
		return json.UnmarshalDecode(dec, (*list)(b)) // which says what is wrong, or takes null
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for i := 0; dec.PeekKind() != jsontext.KindEndArray; i++ {
		one, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if i == maxBatchEvents {
			return eventhub.Errorf(eventhub.CodeBadRequest, "the batch has more than %d events", maxBatchEvents)
		}
		e, err := decodeEvent(one)
		if err != nil {
			return eventhub.AtIndex(err, "", i)
		}
		*b = append(*b, e)
	}
	_, err := dec.ReadToken()
	return err
}

// decodeEvent reads one event of a batch.
func decodeEvent(text []byte) (eventhub.Event, error) {
	if len(text) > maxEventText {
		return eventhub.Event{}, eventhub.Errorf(eventhub.CodeTooLarge, "the event has %d bytes; at most %d are allowed", len(text), maxEventText)
	}
	var b batchEvent
	if err := strictjson.Unmarshal(text, &b); err != nil {
		return eventhub.Event{}, badBody(err)
	}
	return b.take()
}

func decodeLines(body []byte) ([]eventhub.Event, func(i int) string, error) {
	var events []eventhub.Event
	var numbers []int // of the lines of events
	number := 0
	for line := range bytes.Lines(body) {
		number++
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if len(events) == maxBatchEvents {
			return nil, nil, eventhub.Errorf(eventhub.CodeBadRequest, "line %d: a batch has at most %d events", number, maxBatchEvents)
		}
		numbers = append(numbers, number)
		e, err := decodeEvent(line)
		if err != nil {
			return nil, nil, atPlace(eventhub.AtIndex(err, "", len(events)), ofLines(numbers))
		}
		events = append(events, e)
	}
	return events, ofLines(numbers), nil
}

// badBody distinguishes JSON that is broken from JSON that is not an event, and from an
// event that was judged already.
func badBody(err error) error {
	var judged *eventhub.Error
	if errors.As(err, &judged) {
		return judged
	}
	var meaning *strictjson.MeaningError
	if errors.As(err, &meaning) {
		return eventhub.Errorf(eventhub.CodeBadRequest, "%v", err)
	}
	return eventhub.Errorf(eventhub.CodeBadJSON, "%v", err)
}
