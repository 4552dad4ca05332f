package output

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"eventhub"
)

// AppendEvent appends one event with a newline, or more than that.
type AppendEvent func(dst []byte, d *eventhub.Delivery) ([]byte, error)

// Events returns how events are printed as they come. In JSON each is a line, byte for
// byte as it is stored and as every other way shows it, which pub --events takes back. Tables
// name the topic where there is more than one, or a pattern, and the attempt where a
// group counts them. Where events were removed before one, its JSON has a ctx that says which.
func Events(f Format, color bool, topics []string, attempts bool) AppendEvent {
	switch f {
	case JSON, NDJSON:
		return func(dst []byte, d *eventhub.Delivery) ([]byte, error) {
			return append(appendContext(d.Record.AppendJSON(dst, d.Offset), d), '\n'), nil
		}
	case Payload:
		return func(dst []byte, d *eventhub.Delivery) ([]byte, error) {
			e, err := d.Event()
			return append(append(dst, e.Payload...), '\n'), err
		}
	}
	return eventTable(color, topics, attempts)
}

// appendContext adds the member ctx to an event, where there is something to say.
func appendContext(dst []byte, d *eventhub.Delivery) []byte {
	if d.Gap == nil && d.State == nil {
		return dst
	}
	dst = append(dst[:len(dst)-1], `,"ctx":{`...)
	if d.State != nil {
		dst = append(dst, `"state":true`...)
	}
	if d.Gap != nil {
		if d.State != nil {
			dst = append(dst, ',')
		}
		dst = fmt.Appendf(dst, `"gap":{"after":%d,"first":%d`, d.Gap.After, d.Gap.First)
		if d.Gap.Compacted > 0 {
			dst = fmt.Appendf(dst, `,"compacted":%d`, d.Gap.Compacted)
		}
		if d.Gap.Tombstones > 0 {
			dst = fmt.Appendf(dst, `,"tombstones":%d`, d.Gap.Tombstones)
		}
		dst = append(dst, '}')
	}
	return append(dst, "}}"...)
}

type row struct {
	eventhub.Event
	attempt  int
	redriven int
}

// try returns the attempt, and how often the event was redriven where it was.
func (r *row) try() string {
	if r.redriven == 0 {
		return strconv.Itoa(r.attempt)
	}
	return fmt.Sprintf("%d (redriven %d)", r.attempt, r.redriven)
}

func eventTable(color bool, topics []string, attempts bool) AppendEvent {
	columns := []Column[*row]{
		{Name: "TIME", Width: len(Time(time.Now().UnixMilli())), Dim: true, Cell: func(r *row) string { return Time(r.TS) }},
	}
	if len(topics) > 1 || slices.ContainsFunc(topics, eventhub.IsPattern) {
		width := 0
		for _, t := range topics {
			width = max(width, len(t))
		}
		columns = append(columns, Column[*row]{Name: "TOPIC", Width: width, Cell: func(r *row) string { return r.Topic }})
	}
	columns = append(columns, Column[*row]{Name: "OFFSET", Width: 8, Right: true, Cell: func(r *row) string { return strconv.FormatUint(r.Offset, 10) }})
	if attempts {
		columns = append(columns, Column[*row]{Name: "TRY", Width: 3, Right: true, Cell: (*row).try})
	}
	columns = append(columns,
		Column[*row]{Name: "KEY", Width: 12, Cell: func(r *row) string { return Safe(r.Key) }},
		Column[*row]{Name: "PAYLOAD", Cell: func(r *row) string { return Safe(string(r.Payload)) }})
	rows := Rows[*row]{Format: Table, Columns: columns, Color: color}
	return func(dst []byte, d *eventhub.Delivery) ([]byte, error) {
		e, err := d.Event()
		if err != nil {
			return dst, err
		}
		return rows.Append(dst, &row{e, d.Attempt, d.Redriven})
	}
}

// Template compiles a format string after kcat's: %t topic, %o offset, %k key,
// %s payload, %T time in epoch milliseconds, %h headers as name=value joined by
// commas, %i id, %g tags joined by commas, %% a percent sign; \n \t \r \\ as
// usual. Nothing is added after an event. An error names the position, in
// characters from 1, of what is unknown.
func Template(format string) (AppendEvent, error) {
	var parts []func(dst []byte, e *eventhub.Event) []byte
	var text []byte
	runes := []rune(format)
	for i := 0; i < len(runes); i++ {
		c := runes[i]
		if c != '%' && c != '\\' {
			text = append(text, string(c)...)
			continue
		}
		if i+1 == len(runes) {
			return nil, fmt.Errorf("format %q ends in a lone %c, at character %d; write %c%c for the character itself", format, c, i+1, c, c)
		}
		i++
		if c == '\\' {
			b, ok := escapes[runes[i]]
			if !ok {
				return nil, fmt.Errorf("format %q has the unknown escape \\%c at character %d; \\n, \\t, \\r and \\\\ are known", format, runes[i], i)
			}
			text = append(text, b)
			continue
		}
		if runes[i] == '%' {
			text = append(text, '%')
			continue
		}
		part, ok := verbs[runes[i]]
		if !ok {
			return nil, fmt.Errorf("format %q has the unknown %%%c at character %d; %%t %%o %%k %%s %%T %%h %%i %%g and %%%% are known", format, runes[i], i)
		}
		parts = append(parts, literal(text), part)
		text = nil
	}
	parts = append(parts, literal(text))
	return func(dst []byte, d *eventhub.Delivery) ([]byte, error) {
		e, err := d.Event()
		if err != nil {
			return dst, err
		}
		for _, part := range parts {
			dst = part(dst, &e)
		}
		return dst, nil
	}, nil
}

func literal(text []byte) func([]byte, *eventhub.Event) []byte {
	return func(dst []byte, _ *eventhub.Event) []byte { return append(dst, text...) }
}

var escapes = map[rune]byte{'n': '\n', 't': '\t', 'r': '\r', '\\': '\\'}

var verbs = map[rune]func(dst []byte, e *eventhub.Event) []byte{
	't': func(dst []byte, e *eventhub.Event) []byte { return append(dst, e.Topic...) },
	'o': func(dst []byte, e *eventhub.Event) []byte { return strconv.AppendUint(dst, e.Offset, 10) },
	'k': func(dst []byte, e *eventhub.Event) []byte { return append(dst, e.Key...) },
	's': func(dst []byte, e *eventhub.Event) []byte { return append(dst, e.Payload...) },
	'T': func(dst []byte, e *eventhub.Event) []byte { return strconv.AppendInt(dst, e.TS, 10) },
	'h': func(dst []byte, e *eventhub.Event) []byte { return append(dst, Headers(e.Headers)...) },
	'i': func(dst []byte, e *eventhub.Event) []byte { return append(dst, e.ID...) },
	'g': func(dst []byte, e *eventhub.Event) []byte { return append(dst, strings.Join(e.Tags, ",")...) },
}

// Headers writes headers as name=value, ordered by name, joined by commas.
func Headers(headers map[string]string) string {
	pairs := make([]string, 0, len(headers))
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		pairs = append(pairs, name+"="+headers[name])
	}
	return strings.Join(pairs, ",")
}
