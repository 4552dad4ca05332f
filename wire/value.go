package wire

import (
	"bytes"
	"hash/maphash"
	"math"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"eventhub"
)

// The readers of this file take the raw value of one member. What a value may
// be is the caller's to know; that it is sound JSON is known. A reader with a
// destination leaves it alone where the value is absent or null.

const jsonSpace = " \t\r\n"

// rewind makes the JSON reader start over with text.
func (d *Decoder) rewind(text []byte) {
	d.in = *bytes.NewBuffer(text)
	d.json.Reset(&d.in)
}

// nextName reads the name of the next member of the object that is open, or
// its end, where the name is nil. The name lives as long as the text does.
func (d *Decoder) nextName() ([]byte, error) {
	if d.json.PeekKind() == jsontext.KindEndObject {
		_, err := d.json.ReadToken()
		return nil, err
	}
	quoted, err := d.json.ReadValue()
	if err != nil {
		return nil, err
	}
	if bytes.IndexByte(quoted, '\\') >= 0 {
		return jsontext.AppendUnquote([]byte{}, quoted)
	}
	return quoted[1 : len(quoted)-1], nil
}

// unquote returns the text of a string, valid until the next call, and false
// for any other value.
func (d *Decoder) unquote(value []byte) ([]byte, bool) {
	if len(value) < 2 || value[0] != '"' {
		return nil, false
	}
	text := value[1 : len(value)-1]
	if bytes.IndexByte(text, '\\') >= 0 {
		d.text, _ = jsontext.AppendUnquote(d.text[:0], value)
		text = d.text
	}
	return text, true
}

func (d *Decoder) readText(name string, value []byte, into *string) error {
	if absent(value) {
		return nil
	}
	text, ok := d.unquote(value)
	if !ok {
		return wrongType(name, value, "a string")
	}
	*into = string(text)
	return nil
}

// within says which entry of an array that has no events the error is about. One about an
// event has an index: see [eventhub.AtIndex].
func within(name string, i int, err error) error {
	e := *eventhub.AsError(err)
	e.Message = name + "[" + strconv.Itoa(i) + "]: " + e.Message
	return &e
}

// readTexts reads an array of at most limit strings; a longer one has the code.
func (d *Decoder) readTexts(name string, value []byte, limit int, code eventhub.Code, into *[]string) error {
	if absent(value) {
		return nil
	}
	if value[0] != '[' {
		return wrongType(name, value, "an array of strings")
	}
	var texts []string
	for i, element := range eachElement(value) {
		text, ok := d.unquote(element)
		if !ok {
			return wrongType(name+"["+strconv.Itoa(i)+"]", element, "a string")
		}
		if i == limit {
			return eventhub.Errorf(code, "%s has more than %d entries", name, limit)
		}
		texts = append(texts, string(text))
	}
	*into = texts
	return nil
}

func readBool(name string, value []byte, into *bool) error {
	if absent(value) {
		return nil
	}
	if value[0] != 't' && value[0] != 'f' {
		return wrongType(name, value, "a boolean")
	}
	*into = value[0] == 't'
	return nil
}

func readInteger(name string, value []byte, into *int64) error {
	if absent(value) {
		return nil
	}
	if value[0] != '-' && (value[0] < '0' || value[0] > '9') {
		return wrongType(name, value, "an integer")
	}
	n, ok := parseInteger(value)
	if !ok {
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s is %.24s; an integer of at most 64 bits is expected", name, value)
	}
	*into = n
	return nil
}

// parseInteger reads a JSON number without exponent whose fraction, if it has
// one, is zero: some languages write every number as a fraction.
func parseInteger(number []byte) (int64, bool) {
	whole, fraction, _ := bytes.Cut(number, []byte{'.'})
	if len(bytes.Trim(fraction, "0")) > 0 {
		return 0, false
	}
	n, err := strconv.ParseInt(string(whole), 10, 64)
	return n, err == nil
}

// readCount reads an integer from 1 on; the upper bound is the domain's to
// check. 0 is refused because it would mean the default there.
func readCount(name string, value []byte, into *int) error {
	n := int64(*into)
	if err := readInteger(name, value, &n); err != nil || absent(value) {
		return err
	}
	if n < 1 || n > math.MaxInt32 {
		return outOfRange(name, n, 1, math.MaxInt32)
	}
	*into = int(n)
	return nil
}

// maxMillis is the longest duration in milliseconds that a time.Duration holds.
const maxMillis = int64(math.MaxInt64 / time.Millisecond)

// readMillis reads a duration in milliseconds, from least on; the upper bound
// is the domain's to check.
func readMillis(name string, value []byte, least int64, into *time.Duration) error {
	n := into.Milliseconds()
	if err := readInteger(name, value, &n); err != nil || absent(value) {
		return err
	}
	if n < least || n > maxMillis {
		return outOfRange(name, n, least, maxMillis)
	}
	*into = time.Duration(n) * time.Millisecond
	return nil
}

// outOfRange is for values that the domain can not even hold.
func outOfRange(name string, n, least, most int64) error {
	if n < least {
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s is %d; at least %d is expected", name, n, least)
	}
	return eventhub.Errorf(eventhub.CodeBadRequest, "%s is %d; at most %d is possible", name, n, most)
}

// absent reports whether a member is not there or null.
func absent(value []byte) bool { return len(value) == 0 || value[0] == 'n' }

// kindName names the type of a value for messages.
func kindName(value []byte) string {
	switch value[0] {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "a number"
}

func missing(name string) error {
	return eventhub.Errorf(eventhub.CodeBadRequest, "%s is missing", name)
}

// wrongType names what was found by its type alone: the value may be a secret.
func wrongType(name string, value []byte, want string) error {
	return eventhub.Errorf(eventhub.CodeBadRequest, "%s is %s; %s is expected", name, kindName(value), want)
}

// names keeps recent topics or groups, so that the text of a frame becomes a
// string without a copy where an earlier frame had the same. Each text has one
// place, which the last one there holds.
type names [16]string

var namesSeed = maphash.MakeSeed()

func (n *names) intern(text []byte) string {
	if len(text) > eventhub.MaxTopicBytes {
		return string(text) // too long to be valid, and to be kept
	}
	place := &n[maphash.Bytes(namesSeed, text)%uint64(len(n))]
	if *place != string(text) {
		*place = string(text)
	}
	return *place
}

// timeOf is the reverse of eventhub.Millis.
func timeOf(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}
