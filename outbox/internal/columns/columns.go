// Package columns is how an event stands in the columns of an outbox, which are the same
// in every database: texts, and JSON texts for what has several values.
package columns

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"eventhub"
	"eventhub/internal/eventid"
)

// Columns are what a publisher decides of a row. Empty texts are NULL in the table, and
// the two are the same to a reader.
type Columns struct {
	ID, Topic, Key, SID string
	Headers             string // a JSON object of texts
	Tags, CausedBy      string // JSON arrays of texts
	Payload             string // any JSON value
	TS                  int64  // when the row was added, epoch milliseconds
}

// Of returns the columns of an event that is added now. An id is made where the event has
// none. The error is that of the hub for such an event, so that what can be seen to be
// refused later is refused before it is in the table.
func Of(e eventhub.Event, now time.Time) (Columns, error) {
	if e.Delay != 0 || !e.DeliverAt.IsZero() {
		return Columns{}, eventhub.Errorf(eventhub.CodeBadEvent, "an event of an outbox cannot be delayed")
	}
	if !e.Expect.IsZero() {
		return Columns{}, eventhub.Errorf(eventhub.CodeBadEvent, "an event of an outbox cannot expect an offset")
	}
	if err := e.Validate(now); err != nil {
		return Columns{}, err
	}
	if !json.Valid(e.Payload) {
		return Columns{}, eventhub.Errorf(eventhub.CodeBadJSON, "payload is no JSON value")
	}
	if e.ID == "" {
		e.ID = eventid.New()
	}
	c := Columns{ID: e.ID, Topic: e.Topic, Key: e.Key, SID: e.SID, Payload: string(e.Payload), TS: e.TS}
	if c.TS == 0 {
		c.TS = now.UnixMilli()
	}
	if len(e.Headers) > 0 {
		c.Headers = text(e.Headers)
	}
	if len(e.Tags) > 0 {
		c.Tags = text(e.Tags)
	}
	if len(e.CausedBy) > 0 {
		c.CausedBy = text(e.CausedBy)
	}
	return c, nil
}

// text writes texts and maps of texts, which always can be written.
func text(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

// Event returns the event of a row that anybody may have written. The error says which
// column is no part of an event; what a hub can say about the event is left to the hub.
func (c Columns) Event() (eventhub.Event, error) {
	e := eventhub.Event{ID: c.ID, Topic: c.Topic, Key: c.Key, SID: c.SID, TS: max(c.TS, 0), Payload: json.RawMessage(c.Payload)}
	if c.ID == "" { // the hub would make another one each time
		return e, bad("id", "the id of an event", nil)
	}
	if !json.Valid(e.Payload) {
		return e, bad("payload", "a JSON value", nil)
	}
	if err := read("headers", c.Headers, "a JSON object of texts", &e.Headers); err != nil {
		return e, err
	}
	if err := read("tags", c.Tags, "a JSON array of texts", &e.Tags); err != nil {
		return e, err
	}
	if err := read("caused_by", c.CausedBy, "a JSON array of texts", &e.CausedBy); err != nil {
		return e, err
	}
	return e, nil
}

func read(name, value, want string, into any) error {
	if value == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(value), into); err != nil {
		return bad(name, want, err)
	}
	return nil
}

func bad(name, want string, cause error) error {
	return eventhub.Wrap(eventhub.CodeBadEvent, cause, "%s", fmt.Sprintf("column %s is not %s", name, want))
}
