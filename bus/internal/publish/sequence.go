package publish

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"eventhub"
	"eventhub/store"
)

// mostRefusal bounds the text of a refusal that is kept with its number, in bytes. The rest of
// what is kept, and JSON's escapes, has room in store.MaxRefusal.
const mostRefusal = 300

// refusal is what is kept of an error with the number that it has used up.
type refusal struct {
	Code       eventhub.Code `json:"code"`
	Message    string        `json:"message"`
	Index      *int          `json:"index,omitempty"`
	RetryAfter time.Duration `json:"retry_after,omitempty"`
}

func encodeRefusal(err error) []byte {
	e := eventhub.AsError(err)
	r := refusal{Code: e.Code, Message: e.Message, Index: e.Index, RetryAfter: e.RetryAfter}
	if len(r.Message) > mostRefusal {
		r.Message = strings.ToValidUTF8(r.Message[:mostRefusal], "") + "…"
	}
	text, err := json.Marshal(r)
	if err != nil || len(text) > store.MaxRefusal {
		text, _ = json.Marshal(refusal{Code: e.Code, Message: "the first answer says why", Index: e.Index}) // many escapes
	}
	return text
}

func decodeRefusal(text []byte) error {
	var r refusal
	if err := json.Unmarshal(text, &r); err != nil {
		return eventhub.Wrap(eventhub.CodeInternal, err, "the answer of a number cannot be read")
	}
	return &eventhub.Error{Code: r.Code, Message: r.Message, Index: r.Index, RetryAfter: r.RetryAfter}
}

// usesNumber reports whether a refused unit has used its number.
func usesNumber(u *store.Unit) bool { return u.Sequence != nil && ofSequence(u) == nil }

// ofSequence returns what is wrong with the number of a unit or its producer, if that is why it is
// refused.
func ofSequence(u *store.Unit) error {
	var bad *store.SequenceError
	switch {
	case errors.As(u.Err, &bad):
		return bad
	case errors.Is(u.Err, store.ErrFenced), errors.Is(u.Err, store.ErrUnknownProducer):
		return u.Err
	}
	return nil
}

// sequenceError translates a refusal that has to do with a number; nil for others.
func sequenceError(u *store.Unit) error {
	var bad *store.SequenceError
	switch n := u.Sequence.Number; {
	case errors.As(u.Err, &bad):
		return eventhub.Wrap(eventhub.CodeBadSequence, u.Err, "%s", badNumber(bad))
	case errors.Is(u.Err, store.ErrFenced):
		return eventhub.Wrap(eventhub.CodeFenced, u.Err, "seq %d was not published: another connection has opened the producer", n)
	case errors.Is(u.Err, store.ErrUnknownProducer):
		return eventhub.Wrap(eventhub.CodeUnknownProducer, u.Err, "seq %d was not published: the hub has forgotten the producer", n)
	case u.Err == store.ErrRefused:
		return decodeRefusal(u.Sequence.Refusal)
	}
	return nil
}

func badNumber(e *store.SequenceError) string {
	switch {
	case e.Other:
		return fmt.Sprintf("seq %d was used for another publish; nothing was published", e.Number)
	case e.Number < e.Next:
		return fmt.Sprintf("seq %d was used, and its answer is forgotten; %d is next; nothing was published", e.Number, e.Next)
	}
	return fmt.Sprintf("seq is %d; %d is next; nothing was published", e.Number, e.Next)
}
