package cloudevents

import (
	"bytes"
	"encoding/base64"
	stdjson "encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"eventhub"
	"eventhub/internal/strictjson"
)

// attributes are those of one CloudEvent, as text.
type attributes map[string]string

// ReadBinary reads the event of a request in Binary mode. What base has already
// stays: its topic, its key (which is then another than the subject), its headers
// where the CloudEvent has not the same, and what caused it. The event is as valid
// as the CloudEvent; that the hub takes it is not checked.
func ReadBinary(h http.Header, body []byte, base eventhub.Event) (eventhub.Event, error) {
	given := make(attributes)
	for name, values := range h {
		name, ok := strings.CutPrefix(strings.ToLower(name), headerPrefix)
		if !ok {
			continue
		}
		if name == dataContentType {
			return base, bad("ce-datacontenttype is given; in binary mode Content-Type says it")
		}
		if len(values) != 1 {
			return base, bad("ce-%.48s is given %d times among the headers", name, len(values))
		}
		value := unescape(values[0])
		if !utf8.ValidString(value) {
			return base, bad("ce-%.48s is not UTF-8", name)
		}
		if err := given.set(name, value); err != nil {
			return base, err
		}
	}
	body = bytes.TrimSpace(body)
	if mediaType := h.Get("Content-Type"); mediaType != "" && len(body) > 0 {
		given[dataContentType] = mediaType
	}
	return given.event(base, body)
}

// unescape decodes the value of a header: a quoted string, as older senders write
// it, then one round of percent-encoding. A % that begins no encoded byte comes
// from a sender that does not encode, and stays.
func unescape(value string) string {
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		var plain strings.Builder
		for i := 1; i < len(value)-1; i++ {
			if value[i] == '\\' && i+1 < len(value)-1 {
				i++
			}
			plain.WriteByte(value[i])
		}
		value = plain.String()
	}
	if !strings.Contains(value, "%") {
		return value
	}
	decoded := make([]byte, 0, len(value))
	for i := 0; i < len(value); i++ {
		if value[i] == '%' && i+2 < len(value) {
			if b, err := strconv.ParseUint(value[i+1:i+3], 16, 8); err == nil {
				decoded = append(decoded, byte(b))
				i += 2
				continue
			}
		}
		decoded = append(decoded, value[i])
	}
	return string(decoded)
}

// ReadStructured reads the event of a body in Structured mode; see ReadBinary.
func ReadStructured(body []byte, base eventhub.Event) (eventhub.Event, error) {
	var members map[string]stdjson.RawMessage
	if err := strictjson.Unmarshal(body, &members); err != nil {
		return base, badJSON(err)
	}
	return read(members, base)
}

// ReadBatch reads the events of a body in Batched mode; see ReadBinary. There may
// be none, and there are at most as many as that. An error names the event as
// events[0].
func ReadBatch(body []byte, base eventhub.Event, most int) ([]eventhub.Event, error) {
	b := batch{base: base, most: most}
	if err := strictjson.Unmarshal(body, &b); err != nil {
		return nil, badJSON(err)
	}
	return b.events, nil
}

// batch takes its events one by one as they are read: a list costs no more memory
// than its first events that are sound, however many entries it has.
type batch struct {
	base   eventhub.Event
	most   int
	events []eventhub.Event
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (b *batch) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if dec.PeekKind() != jsontext.KindBeginArray {
		if err := json.UnmarshalDecode(dec, &[0]struct{}{}); err != nil {
			return err // which says what is wrong
		}
		return eventhub.Errorf(eventhub.CodeBadRequest, "the batch is null; a list is expected")
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for i := 0; dec.PeekKind() != jsontext.KindEndArray; i++ {
		one, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if i == b.most {
			return eventhub.Errorf(eventhub.CodeBadRequest, "the batch has more than %d events", b.most)
		}
		e, err := b.read(one)
		if err != nil {
			return eventhub.AtIndex(err, "events", i)
		}
		b.events = append(b.events, e)
	}
	_, err := dec.ReadToken()
	return err
}

func (b *batch) read(one []byte) (eventhub.Event, error) {
	if len(one) > MaxEventBytes {
		return b.base, eventhub.Errorf(eventhub.CodeTooLarge, "the CloudEvent has %d bytes; at most %d are allowed", len(one), MaxEventBytes)
	}
	e := b.base
	e.CausedBy = slices.Clip(e.CausedBy) // what is appended is its own
	return ReadStructured(one, e)
}

func read(members map[string]stdjson.RawMessage, base eventhub.Event) (eventhub.Event, error) {
	given := make(attributes, len(members))
	for name, value := range members {
		if name == data || name == dataBase64 || string(value) == "null" { // null: not set
			continue
		}
		text, err := textOf(name, value)
		if err == nil {
			err = given.set(name, text)
		}
		if err != nil {
			return base, err
		}
	}
	payload := []byte(members[data])
	if encoded, ok := members[dataBase64]; ok && string(encoded) != "null" {
		if payload != nil {
			return base, bad("both data and data_base64 are given; one of them is expected")
		}
		var err error
		if payload, err = decode(encoded); err != nil {
			return base, err
		}
	}
	return given.event(base, payload)
}

// textOf returns the text that an attribute is in a header.
func textOf(name string, value stdjson.RawMessage) (string, error) {
	if value[0] != '"' {
		_, isInteger := strconv.ParseInt(string(value), 10, 32)
		if isInteger == nil || string(value) == "true" || string(value) == "false" {
			return string(value), nil
		}
		return "", bad("%.48q is %.48s; an attribute is a string, an integer of 32 bits or a boolean", name, value)
	}
	var text string
	return text, stdjson.Unmarshal(value, &text) // checked before
}

func decode(encoded stdjson.RawMessage) ([]byte, error) {
	var text string
	if stdjson.Unmarshal(encoded, &text) != nil {
		return nil, bad("data_base64 is not a string")
	}
	payload, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, bad("data_base64 is not base64: %v", err)
	}
	return payload, nil
}

// set takes one attribute, under a name that it may have.
func (a attributes) set(name, value string) error {
	if !isName(name) {
		return bad("%.48q can not be an attribute; their names are of a–z and 0–9, and not data", name)
	}
	a[name] = value
	return nil
}

// event makes an event of the attributes and a payload, empty for none.
func (a attributes) event(e eventhub.Event, payload []byte) (eventhub.Event, error) {
	if err := a.check(); err != nil {
		return e, err
	}
	if text, ok := a[moment]; ok {
		t, err := time.Parse(time.RFC3339, text)
		if err != nil || t.UnixMilli() < 1 {
			return e, bad("time is %.48q; a time after 1970 as in RFC 3339 is expected", text)
		}
		e.TS = t.UnixMilli()
	}
	if payload = bytes.TrimSpace(payload); len(payload) == 0 {
		payload = []byte("null")
	}
	e.ID, e.Payload = a[id], payload
	e.Headers = maps.Clone(e.Headers)
	if e.Headers == nil {
		e.Headers = make(map[string]string, len(a))
	}
	if ids := a[causedBy]; ids != "" {
		for one := range strings.SplitSeq(ids, ",") {
			e.CausedBy = append(e.CausedBy, strings.TrimSpace(one))
		}
	}
	a.setKey(&e)
	for name, value := range a {
		switch name {
		case specversion, id, moment, causedBy, hubTopic, hubOffset:
			continue // said otherwise
		case dataContentType:
			if strings.EqualFold(value, jsonType) {
				continue
			}
		case subject:
			if value == e.Key && a[partitionKey] == "" {
				continue // the key says it
			}
		}
		header := headersOf[name]
		if header == "" {
			header = headerPrefix + name
		}
		e.Headers[header] = value
	}
	return e, nil
}

// setKey finds the key of an event that has none yet.
func (a attributes) setKey(e *eventhub.Event) {
	if e.Key == "" {
		e.Key = a[partitionKey]
	}
	if e.Key == "" {
		e.Key = a[subject]
	}
}

// check judges what the hub itself does not.
func (a attributes) check() error {
	if version, ok := a[specversion]; ok && version != SpecVersion {
		return bad("specversion is %.20q; %s is understood", version, SpecVersion)
	}
	for _, name := range []string{specversion, id, source, typ} {
		if a[name] == "" {
			return bad("%s is missing or empty; every CloudEvent has one", name)
		}
	}
	for _, name := range []string{subject, dataSchema} {
		if value, ok := a[name]; ok && value == "" {
			return bad("%s is empty; it is left out where there is none", name)
		}
	}
	for _, name := range []string{source, dataSchema} {
		if _, err := url.Parse(a[name]); err != nil {
			return bad("%s is %.120q, which is no URI", name, a[name])
		}
	}
	if mediaType := a[dataContentType]; mediaType != "" && !isJSON(mediaType) {
		return eventhub.Wrap(eventhub.CodeBadRequest, ErrMediaType,
			"the data is %.120q; a payload is JSON in UTF-8: application/json, or another type that ends in +json", mediaType)
	}
	return nil
}

func bad(format string, args ...any) error {
	return eventhub.Errorf(eventhub.CodeBadEvent, "CloudEvent: "+format, args...)
}

// badJSON distinguishes JSON that is broken from JSON that is no CloudEvent, and from one
// that was judged already.
func badJSON(err error) error {
	var judged *eventhub.Error
	if errors.As(err, &judged) {
		return judged
	}
	var meaning *strictjson.MeaningError
	if errors.As(err, &meaning) {
		return eventhub.Errorf(eventhub.CodeBadRequest, "CloudEvent: %v", err)
	}
	return eventhub.Errorf(eventhub.CodeBadJSON, "CloudEvent: %v", err)
}
