// Package cloudevents turns CloudEvents 1.0 into events of the hub and back. It
// knows the JSON format and the attributes as the HTTP binding carries them, and
// nothing of requests but their headers.
//
// What an attribute of a CloudEvent is here:
//
//	id               id
//	source, type     headers ce-source, ce-type
//	time             ts, in milliseconds
//	subject          key, unless another key is given: then header ce-subject
//	partitionkey     key, and header ce-partitionkey
//	datacontenttype  always JSON; header ce-datacontenttype where it is another than
//	                 application/json
//	dataschema       header ce-dataschema
//	traceparent, tracestate  headers of these names
//	correlationid    header x-correlation-id
//	causedby         caused_by, ids with commas between them
//	eventhubtopic, eventhuboffset  where the event is; not read
//	any other        header ce- and its name
//	data             payload; null where there is none
package cloudevents

import (
	"errors"
	"mime"
	"net/http"
	"strings"

	"eventhub"
)

// SpecVersion is the version that is understood and written.
const SpecVersion = "1.0"

// The media types of the JSON format.
const (
	StructuredType = "application/cloudevents+json"
	BatchType      = "application/cloudevents-batch+json"
)

// MaxEventBytes is how large an event in the JSON format may be: it leaves room for
// the attributes, and for what base64 makes of the largest payload.
const MaxEventBytes = eventhub.MaxPayloadBytes*4/3 + 128<<10

// ErrMediaType is in the chain of the error that refuses a format of events, or
// of their data, that is not JSON.
var ErrMediaType = errors.New("cloudevents: not JSON")

// Mode is how a request carries CloudEvents.
type Mode uint8

// The modes. The zero value is a request without any.
const (
	None       Mode = iota
	Binary          // attributes are headers, the body is the data
	Structured      // the body is one event
	Batched         // the body is a list of events
)

// ModeOf returns how a request with that header carries CloudEvents. An error, which
// has ErrMediaType in its chain, says that it does so in another format than JSON.
func ModeOf(h http.Header) (Mode, error) {
	given := h.Get("Content-Type")
	kind, parameters, err := mime.ParseMediaType(given)
	if !strings.HasPrefix(strings.ToLower(strings.TrimSpace(given)), "application/cloudevents") {
		if h.Get("Ce-Specversion") != "" {
			return Binary, nil
		}
		return None, nil
	}
	if err == nil && isUTF8(parameters) {
		switch kind {
		case StructuredType:
			return Structured, nil
		case BatchType:
			return Batched, nil
		}
	}
	return None, eventhub.Wrap(eventhub.CodeBadRequest, ErrMediaType,
		"Content-Type is %.120q; of CloudEvents %s and %s are understood, in UTF-8", given, StructuredType, BatchType)
}

// isJSON reports whether a media type is JSON in UTF-8.
func isJSON(mediaType string) bool {
	kind, parameters, err := mime.ParseMediaType(mediaType)
	if err != nil || !isUTF8(parameters) {
		return false
	}
	return kind == jsonType || kind == "text/json" || strings.HasSuffix(kind, "+json")
}

func isUTF8(parameters map[string]string) bool {
	charset := strings.ToLower(parameters["charset"])
	return charset == "" || charset == "utf-8" || charset == "us-ascii"
}

const (
	jsonType     = "application/json"
	headerPrefix = "ce-"

	// The attributes that mean something here.
	specversion     = "specversion"
	id              = "id"
	source          = "source"
	typ             = "type"
	moment          = "time"
	subject         = "subject"
	partitionKey    = "partitionkey"
	dataContentType = "datacontenttype"
	dataSchema      = "dataschema"
	traceparent     = "traceparent"
	tracestate      = "tracestate"
	correlationID   = "correlationid"
	causedBy        = "causedby"
	hubTopic        = "eventhubtopic"
	hubOffset       = "eventhuboffset"
	data            = "data"
	dataBase64      = "data_base64"
)

// headersOf are the headers that attributes go to under another name than ce- and
// their own.
var headersOf = map[string]string{
	traceparent:   traceparent,
	tracestate:    tracestate,
	correlationID: eventhub.CorrelationHeader,
}

// isName reports whether an attribute may be called so.
func isName(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && s != data
}
