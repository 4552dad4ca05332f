package cloudevents

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"eventhub"
	"eventhub/internal/strictjson"
)

// timeLayout is RFC 3339 with the milliseconds that a ts has.
const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// AppendStructured appends an event as a CloudEvent in the JSON format, as one line.
// A batch is a JSON array of such objects. On an error dst is returned as it was.
func AppendStructured(dst []byte, topic string, offset uint64, record eventhub.Record) ([]byte, error) {
	e, err := record.Event(offset)
	if err != nil {
		return dst, err
	}
	out := attributesOf(topic, &e)
	dst = append(dst, `{"specversion":"`+SpecVersion+`"`...)
	for _, name := range []string{id, source, typ, moment, subject, dataContentType, dataSchema} {
		if value, ok := out[name]; ok {
			dst = appendMember(dst, name, value)
			delete(out, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(out)) {
		dst = appendMember(dst, name, out[name])
	}
	dst = append(dst, `,"data":`...)
	dst = append(dst, e.Payload...)
	return append(dst, '}'), nil
}

func appendMember(dst []byte, name, value string) []byte {
	dst = append(append(append(dst, `,"`...), name...), `":`...)
	return strictjson.AppendString(dst, value)
}

// attributesOf returns the attributes of an event, without the version.
func attributesOf(topic string, e *eventhub.Event) attributes {
	out := make(attributes, 8+len(e.Headers))
	headers := lowered(e.Headers)
	for header, value := range headers {
		if name, ok := strings.CutPrefix(header, headerPrefix); ok && isName(name) {
			out[name] = value
		}
	}
	delete(out, specversion)
	out[id] = e.ID
	out[moment] = time.UnixMilli(e.TS).UTC().Format(timeLayout)
	if out[source] == "" {
		out[source] = "/eventhub/" + topic
	}
	if out[typ] == "" {
		out[typ] = topic
	}
	if !isJSON(out[dataContentType]) {
		out[dataContentType] = jsonType
	}
	// A key that was a partitionkey was no subject.
	if e.Key != "" && out[subject] == "" && out[partitionKey] != e.Key {
		out[subject] = e.Key
	}
	for name, header := range headersOf {
		if value := headers[header]; value != "" {
			out[name] = value
		}
	}
	if len(e.CausedBy) > 0 {
		out[causedBy] = strings.Join(e.CausedBy, ",")
	}
	out[hubTopic] = topic
	out[hubOffset] = strconv.FormatUint(e.Offset, 10)
	return out
}

// lowered returns the headers that say something, with their names in lower case, as
// attributes have them. Of names that differ in case alone the last in byte order
// counts, which is the one in lower case where there is such.
func lowered(headers map[string]string) map[string]string {
	lower := make(map[string]string, len(headers))
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if value := headers[name]; value != "" {
			lower[strings.ToLower(name)] = value
		}
	}
	return lower
}
