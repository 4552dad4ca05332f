package input

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
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

// given is a whole event, with what only its publish says.
type given struct {
	eventhub.Event
	DelayMS   *int64 `json:"delay_ms"`
	DeliverAt *int64 `json:"deliver_at"`
	Expect    *struct {
		KeyOffset   *uint64 `json:"key_offset"`
		TopicOffset *uint64 `json:"topic_offset"`
	} `json:"expect"`
}

// expect hands the condition on to the event.
func (g *given) expect() (err error) {
	if g.Expect == nil {
		return nil
	}
	if g.Event.Expect, err = eventhub.ExpectOf(g.Expect.KeyOffset, g.Expect.TopicOffset); err != nil {
		return errors.New(eventhub.AsError(err).Message)
	}
	return nil
}

// schedule hands the times on to the event.
func (g *given) schedule() error {
	if g.DeliverAt != nil {
		g.Event.DeliverAt = time.UnixMilli(*g.DeliverAt)
	}
	if g.DelayMS == nil {
		return nil
	}
	if g.DeliverAt != nil {
		return errors.New("both delay_ms and deliver_at are given; one of them is expected")
	}
	if ms, most := *g.DelayMS, eventhub.MaxDelay.Milliseconds(); ms < 0 || ms > most {
		return fmt.Errorf("delay_ms is %d; 0 to %d (a year) are allowed", ms, most)
	}
	g.Delay = time.Duration(*g.DelayMS) * time.Millisecond
	return nil
}

// Event reads a whole event: an object with a payload and whatever else an event
// may have, delay_ms or deliver_at, and expect. What only the hub says (offset, committed_ts, partition) may be
// there, as in what it once delivered, and is passed over.
func Event(text []byte) (eventhub.Event, error) {
	var g given
	if trimmed := bytes.TrimLeft(text, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return g.Event, errors.New("not a JSON object; an event is one")
	}
	if err := strictjson.Unmarshal(text, &g); err != nil {
		return g.Event, err
	}
	if len(g.Payload) == 0 {
		return g.Event, errors.New("payload is missing; null is a payload")
	}
	if err := g.schedule(); err != nil {
		return g.Event, err
	}
	if err := g.expect(); err != nil {
		return g.Event, err
	}
	g.Offset, g.CommittedTS, g.Partition = 0, 0, nil
	return g.Event, nil
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
