// Package record encodes an event into the bytes that are stored, in the layout that
// package layout describes. The encoding happens once per event, in the engine,
// before the commit that gives it its offset and time.
package record

import (
	"hash/fnv"
	"slices"
	"strconv"

	"eventhub"
	"eventhub/internal/record/layout"
	"eventhub/internal/strictjson"
)

// noTime holds the place of the commit time.
const noTime = "            0"

// Append appends the record of a validated event that has an id; its payload is
// checked to be strict JSON and stored without insignificant whitespace. On an
// error, which has CodeBadJSON, dst is returned as it was.
func Append(dst []byte, e *eventhub.Event) ([]byte, error) {
	return appendBy(strictjson.AppendCompact, dst, e)
}

// AppendChecked is Append for a payload that the hub made itself: strict and
// compact already, and perhaps nested deeper than a publisher's may be.
func AppendChecked(dst []byte, e *eventhub.Event) ([]byte, error) {
	return appendBy(func(dst, src []byte) ([]byte, error) { return append(dst, src...), nil }, dst, e)
}

// madeDepth is how deep a payload may be nested that a hub made: it may have an
// event in it, with its payload.
const madeDepth = strictjson.MaxDepth + 8

// AppendMade is Append for a payload that a hub made, as it comes back from
// elsewhere.
func AppendMade(dst []byte, e *eventhub.Event) ([]byte, error) {
	return appendBy(func(dst, src []byte) ([]byte, error) { return strictjson.AppendCompactTo(madeDepth, dst, src) }, dst, e)
}

func appendBy(payload func(dst, src []byte) ([]byte, error), dst []byte, e *eventhub.Event) ([]byte, error) {
	start := len(dst)
	dst = slices.Grow(dst, 128+len(e.ID)+len(e.Topic)+len(e.Key)+len(e.Payload))
	if e.TS == 0 {
		dst = append(dst, layout.TSPrefix...)
	} else {
		dst = append(dst, layout.CommittedPrefix...)
	}
	dst = append(dst, noTime...)
	dst = append(dst, `,"id":"`...)
	dst = append(dst, e.ID...)
	dst = append(dst, '"')
	if e.TS != 0 {
		dst = append(dst, `,"ts":`...)
		dst = strconv.AppendInt(dst, e.TS, 10)
	}
	dst = append(dst, `,"topic":"`...)
	dst = append(dst, e.Topic...)
	dst = append(dst, '"')
	dst = appendOptional(dst, e)
	dst = append(dst, `,"payload":`...)
	out, err := payload(dst, e.Payload)
	if err != nil {
		return dst[:start], eventhub.Errorf(eventhub.CodeBadJSON, "payload: %v", err)
	}
	return append(out, '}'), nil
}

func appendOptional(dst []byte, e *eventhub.Event) []byte {
	if e.Key != "" {
		dst = append(dst, `,"partition":`...)
		dst = strconv.AppendInt(dst, int64(Partition(e.Key, eventhub.DefaultPartitions)), 10)
		dst = append(dst, `,"key":`...)
		dst = strictjson.AppendString(dst, e.Key)
	}
	if e.SID != "" {
		dst = append(dst, `,"sid":`...)
		dst = strictjson.AppendString(dst, e.SID)
	}
	if len(e.Headers) > 0 {
		dst = appendHeaders(dst, e.Headers)
	}
	dst = appendStrings(dst, `,"tags":[`, e.Tags)
	return appendStrings(dst, `,"caused_by":[`, e.CausedBy)
}

// appendHeaders writes the names in byte order: equal events, equal bytes.
func appendHeaders(dst []byte, headers map[string]string) []byte {
	names := make([]string, 0, len(headers))
	for name := range headers {
		names = append(names, name)
	}
	slices.Sort(names)
	dst = append(dst, `,"headers":`...)
	separator := byte('{')
	for _, name := range names {
		dst = append(dst, separator)
		dst = strictjson.AppendString(dst, name)
		dst = append(dst, ':')
		dst = strictjson.AppendString(dst, headers[name])
		separator = ','
	}
	return append(dst, '}')
}

func appendStrings(dst []byte, open string, values []string) []byte {
	if len(values) == 0 {
		return dst
	}
	dst = append(dst, open...)
	for i, v := range values {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strictjson.AppendString(dst, v)
	}
	return append(dst, ']')
}

// Partition maps a key to one of n partitions: FNV-1a, 32 bits, modulo n.
func Partition(key string, n int) int {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int(h.Sum32() % uint32(n))
}
