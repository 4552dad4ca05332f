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
const mostRefusal = 150

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
		return fmt.Sprintf("seq %d was used, and what became of it is not known any more; %d is next", e.Number, e.Next)
	}
	return fmt.Sprintf("seq is %d; %d is next; nothing was published", e.Number, e.Next)
}

// firstReceipts returns the receipts of a number that was published, for a publication that would be
// refused now and has no parts.
func firstReceipts(p *eventhub.Publication, first *store.FirstParts) []eventhub.Receipt {
	into := p.Receipts[:0]
	appends, delays := first.Appends, first.Delays
	for i := 0; len(appends)+len(delays) > 0; i++ {
		isDelayed := len(appends) == 0
		var id string
		if i < len(p.Events) {
			e := &p.Events[i]
			id = e.ID
			isDelayed = isDelayed || len(delays) > 0 && e.Due(time.UnixMilli(0)) != 0
		}
		if isDelayed {
			d := &delays[0]
			delays = delays[1:]
			r := eventhub.Receipt{ID: d.ID, DeliverAt: time.UnixMilli(d.At), Duplicate: true}
			if d.Seq == 0 {
				r.DeliverAt, r.Offset = time.Time{}, d.Offset
			}
			into = append(into, r)
			continue
		}
		a := &appends[0]
		appends = appends[1:]
		if a.NewID {
			id = a.ID
		}
		into = append(into, eventhub.Receipt{ID: id, Offset: a.Offset, Duplicate: true})
	}
	return into
}

// notWaited is the error of a publication that comes again, was published, and would wait for groups
// if it were not refused now; nil for others.
func notWaited(p *eventhub.Publication) error {
	if p.Err == nil || len(p.WaitFor) == 0 {
		return nil
	}
	return eventhub.Wrap(eventhub.CodeWaitTimeout, p.Err, "the events are published, and nobody has waited for the groups: %s", eventhub.AsError(p.Err).Message)
}
