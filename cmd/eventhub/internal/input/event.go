package input

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"eventhub"
	"eventhub/internal/strictjson"
)

// Payload returns text as a payload: JSON as it is, or any UTF-8 as a JSON
// string.
func Payload(text []byte, asString bool) (json.RawMessage, error) {
	if asString {
		if !utf8.Valid(text) {
			return nil, fmt.Errorf("invalid UTF-8 at byte %d", invalidAt(text))
		}
		return strictjson.AppendString(nil, string(text)), nil
	}
	return strictjson.AppendCompact(nil, text)
}

func invalidAt(text []byte) int {
	at := 0
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r == utf8.RuneError && size == 1 {
			break
		}
		at += size
		text = text[size:]
	}
	return at
}

// Event reads a whole event: an object with a payload and whatever else an event
// may have. What only the hub says (offset, committed_ts, partition) may stand
// there, as in what it once delivered, and is passed over.
func Event(text []byte) (eventhub.Event, error) {
	var e eventhub.Event
	if trimmed := bytes.TrimLeft(text, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return e, errors.New("not a JSON object; an event is one")
	}
	if err := strictjson.Unmarshal(text, &e); err != nil {
		return e, err
	}
	if len(e.Payload) == 0 {
		return e, errors.New("payload is missing; null is a payload")
	}
	e.Offset, e.CommittedTS, e.Partition = 0, 0, nil
	return e, nil
}

// Headers reads name=value pairs. A name given twice is an error: one of the
// values would be lost.
func Headers(pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	headers := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, fmt.Errorf("header %q is not name=value", pair)
		}
		if _, twice := headers[name]; twice {
			return nil, fmt.Errorf("header %q is given twice", name)
		}
		headers[name] = value
	}
	return headers, nil
}
