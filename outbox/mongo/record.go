package mongooutbox

import (
	"encoding/hex"
	"encoding/json"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"eventhub"
	"eventhub/outbox"
)

// record is a document of the outbox, with its _id as the server has it.
type record struct {
	id bson.RawValue
	outbox.Row
}

// recordOf reads a document that anybody may have written. What of it is no part of an
// event makes the row broken; what a hub can say about the event is left to the hub.
func recordOf(doc bson.Raw) record {
	r := record{}
	elements, err := doc.Elements()
	if err != nil {
		r.broken("the document", "BSON", err)
	}
	var payload, payloadJSON bson.RawValue
	for _, e := range elements {
		switch e.Key() {
		case "payload":
			payload = e.Value()
		case "payload_json":
			payloadJSON = e.Value()
		default:
			if !r.ofEvent(e.Key(), e.Value()) {
				r.ofOutbox(e.Key(), e.Value())
			}
		}
	}
	r.payload(payload, payloadJSON)
	return r
}

// broken remembers the first thing that is wrong with a row.
func (r *record) broken(field, want string, cause error) {
	if r.Broken == nil {
		r.Broken = eventhub.Wrap(eventhub.CodeBadEvent, cause, "field %s is not %s", field, want)
	}
}

// ofEvent reads a field that is part of the event, and reports whether it is one.
func (r *record) ofEvent(name string, v bson.RawValue) bool {
	e := &r.Event
	switch name {
	case "_id":
		r.id = v
		var known bool
		if e.ID, known = idText(v); !known {
			r.broken(name, "a text, an ObjectID or a UUID", nil)
		}
	case "topic":
		r.text(name, v, &e.Topic)
	case "key":
		r.text(name, v, &e.Key)
	case "sid":
		r.text(name, v, &e.SID)
	case "headers":
		e.Headers = r.headers(v)
	case "tags":
		e.Tags = r.texts(name, v)
	case "caused_by":
		e.CausedBy = r.texts(name, v)
	case "ts":
		ms, ok := millis(v)
		if !ok {
			r.broken(name, "a number of milliseconds", nil)
		}
		e.TS = max(ms, 0)
	default:
		return false
	}
	return true
}

// ofOutbox reads a field that drainers write.
func (r *record) ofOutbox(name string, v bson.RawValue) {
	text, _ := v.StringValueOK()
	ms, _ := millis(v)
	switch name {
	case "status":
		r.Status = outbox.Status(text)
	case "claimed_by":
		r.ClaimedBy = text
	case "last_err":
		r.LastError = text
	case "lease_until":
		r.LeaseUntil = at(ms)
	case "retry_at":
		r.RetryAt = at(ms)
	case "sent_at":
		r.SentAt = at(ms)
	case "attempts":
		r.Attempts = int(ms)
	case "event_offset":
		r.Offset = uint64(max(ms, 0))
	}
}

func (r *record) payload(value, text bson.RawValue) {
	if s, ok := text.StringValueOK(); ok {
		r.Event.Payload = json.RawMessage(s)
		if !json.Valid(r.Event.Payload) {
			r.broken("payload_json", "a JSON value", nil)
		}
		return
	}
	switch {
	case !isNone(text):
		r.broken("payload_json", "a text", nil)
	case value.Type == 0:
		r.broken("payload", "there", nil)
	default:
		p, err := appendJSON(nil, value, 0)
		if err != nil {
			r.broken("payload", "a value of JSON", err)
		}
		r.Event.Payload = p
	}
}

// isNone reports whether a field is not there, or null.
func isNone(v bson.RawValue) bool { return v.Type == 0 || v.Type == bson.TypeNull }

func (r *record) text(name string, v bson.RawValue, into *string) {
	text, ok := v.StringValueOK()
	if !ok && !isNone(v) {
		r.broken(name, "a text", nil)
	}
	*into = text
}

func (r *record) headers(v bson.RawValue) map[string]string {
	if isNone(v) {
		return nil
	}
	doc, ok := v.DocumentOK()
	elements, err := doc.Elements()
	if !ok || err != nil {
		r.broken("headers", "a document of texts", err)
		return nil
	}
	headers := make(map[string]string, len(elements))
	for _, e := range elements {
		text, ok := e.Value().StringValueOK()
		if !ok {
			r.broken("headers", "a document of texts", nil)
			return nil
		}
		headers[e.Key()] = text
	}
	return headers
}

func (r *record) texts(name string, v bson.RawValue) []string {
	if isNone(v) {
		return nil
	}
	array, ok := v.ArrayOK()
	values, err := array.Values()
	if !ok || err != nil {
		r.broken(name, "an array of texts", err)
		return nil
	}
	texts := make([]string, len(values))
	for i, v := range values {
		if texts[i], ok = v.StringValueOK(); !ok {
			r.broken(name, "an array of texts", nil)
			return nil
		}
	}
	return texts
}

// otherID begins the text of an _id that is no id of an event, so that its row can be
// parked and shown: the value follows as extended JSON.
const otherID = "bson:"

// idText returns the text of an _id, and whether it is of a type that ids of events have.
func idText(v bson.RawValue) (string, bool) {
	switch v.Type {
	case bson.TypeString:
		return v.StringValue(), true
	case bson.TypeObjectID:
		return v.ObjectID().Hex(), true
	}
	if text, ok := uuid(v); ok {
		return text, true
	}
	return otherID + v.String(), false
}

// idFilter is what matches an _id with a text.
func idFilter(text string) any {
	values := bson.A{text}
	if id, err := bson.ObjectIDFromHex(text); err == nil {
		values = append(values, id)
	}
	if data, err := hex.DecodeString(strings.ReplaceAll(text, "-", "")); err == nil && len(text) == 36 && len(data) == 16 {
		values = append(values, bson.Binary{Subtype: uuidSubtype, Data: data})
	}
	if value, ok := strings.CutPrefix(text, otherID); ok {
		var doc bson.Raw
		if err := bson.UnmarshalExtJSON([]byte(`{"v":`+value+`}`), true, &doc); err == nil {
			values = append(values, doc.Lookup("v"))
		}
	}
	if len(values) == 1 {
		return text
	}
	return bson.D{{Key: "$in", Value: values}}
}
