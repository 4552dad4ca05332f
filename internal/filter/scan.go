package filter

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"

	"eventhub"
)

// member counts an event's members in the order in which a record holds them.
type member uint8

const (
	memberNone member = iota
	memberTime        // ts where the publisher gave none, or committed_ts
	memberID
	memberTS
	memberTopic
	memberPartition
	memberKey
	memberSID
	memberHeaders
	memberTags
	memberCausedBy
	memberPayload
	members // their number
)

// envelope holds the members of a record as the record has them: JSON values, nil
// for those that the event does not have.
type envelope [members][]byte

// read finds the members up to the one called last, and stops there: what comes
// after last, above all the payload, is not looked at. It returns false for bytes
// that are no record; it never reads beyond them.
func (e *envelope) read(r eventhub.Record, last member) bool {
	if len(r) == 0 || r[0] != '{' {
		return false
	}
	for at := 0; at < len(r) && r[at] != '}'; {
		name, start := nameAt(r, at+1)
		if start < 0 {
			return false
		}
		m := memberNamed(name, at == 0)
		if m >= last && last != memberPayload {
			if m == last {
				e[m] = valueAt(r, start)
				return e[m] != nil
			}
			return m <= memberPayload // last is not there
		}
		if m == memberPayload { // nothing comes after it but the closing brace
			if start >= len(r)-1 {
				return false
			}
			e[m] = r[start : len(r)-1]
			return true
		}
		if m == members {
			return false
		}
		if e[m] = valueAt(r, start); e[m] == nil {
			return false
		}
		at = start + len(e[m])
	}
	return false // without a payload
}

// memberNamed returns members for a name that no record has.
func memberNamed(name []byte, first bool) member {
	switch string(name) {
	case "ts":
		if first {
			return memberTime
		}
		return memberTS
	case "committed_ts":
		return memberTime
	case "id":
		return memberID
	case "topic":
		return memberTopic
	case "partition":
		return memberPartition
	case "key":
		return memberKey
	case "sid":
		return memberSID
	case "headers":
		return memberHeaders
	case "tags":
		return memberTags
	case "caused_by":
		return memberCausedBy
	case "payload":
		return memberPayload
	}
	return members
}

// The functions below read compact JSON that was checked before it was stored.
// For anything else they answer something, and never read out of bounds.

// nameAt reads the name of an object's member, and the colon after it, at byte
// at. It returns what is between the quotes and where the value starts, or -1.
func nameAt(b []byte, at int) (name []byte, value int) {
	end := stringEnd(b, at)
	if end < 0 || end >= len(b) || b[end] != ':' {
		return nil, -1
	}
	return b[at+1 : end-1], end + 1
}

// stringEnd returns the byte after the string that starts at byte at, or -1.
func stringEnd(b []byte, at int) int {
	if at >= len(b) || b[at] != '"' {
		return -1
	}
	for i := at + 1; ; {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return -1
		}
		i += n + 1
		// The quote is the string's end unless an odd number of backslashes
		// is before it.
		escapes := 0
		for b[i-2-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i
		}
	}
}

// valueAt returns the value that starts at byte at, or nil.
func valueAt(b []byte, at int) []byte {
	if at >= len(b) {
		return nil
	}
	end := at
	switch b[at] {
	case '"':
		end = stringEnd(b, at)
	case '{', '[':
		end = nestedEnd(b, at)
	default:
		for end < len(b) && b[end] != ',' && b[end] != '}' && b[end] != ']' {
			end++
		}
	}
	if end <= at {
		return nil
	}
	return b[at:end]
}

// nestedEnd returns the byte after the object or array that starts at byte at,
// or -1.
func nestedEnd(b []byte, at int) int {
	depth := 0
	for i := at; i < len(b); {
		switch b[i] {
		case '"':
			if i = stringEnd(b, i); i < 0 {
				return -1
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
	return -1
}

// nextMember returns the member of an object that follows byte at, which is
// the opening brace or a comma, and the byte after it; -1 where there is none.
func nextMember(object []byte, at int) (name, value []byte, next int) {
	if at >= len(object) || object[at] == '}' {
		return nil, nil, -1
	}
	name, start := nameAt(object, at+1)
	if start < 0 {
		return nil, nil, -1
	}
	if value = valueAt(object, start); value == nil {
		return nil, nil, -1
	}
	return name, value, start + len(value)
}

// nextElement is nextMember for an array.
func nextElement(array []byte, at int) (value []byte, next int) {
	if at >= len(array) || array[at] == ']' {
		return nil, -1
	}
	if value = valueAt(array, at+1); value == nil {
		return nil, -1
	}
	return value, at + 1 + len(value)
}

// inside returns what is between the quotes of a JSON string.
func inside(quoted []byte) []byte {
	if len(quoted) < 2 {
		return nil
	}
	return quoted[1 : len(quoted)-1]
}

// sameText compares what was between the quotes of a JSON string with a text,
// or, for a prefix, the beginning of it.
func sameText(escaped []byte, text string, prefix bool) bool {
	if len(escaped) < len(text) { // no escape is shorter than what it stands for
		return false
	}
	if bytes.IndexByte(escaped, '\\') < 0 {
		return string(escaped[:len(text)]) == text && (prefix || len(escaped) == len(text))
	}
	for len(escaped) > 0 && len(text) > 0 {
		if escaped[0] != '\\' {
			if escaped[0] != text[0] {
				return false
			}
			escaped, text = escaped[1:], text[1:]
			continue
		}
		var utf [utf8.UTFMax]byte
		c, size := unescape(escaped)
		n := utf8.EncodeRune(utf[:], c)
		if len(text) < n || text[:n] != string(utf[:n]) {
			return false
		}
		escaped, text = escaped[size:], text[n:]
	}
	return text == "" && (prefix || len(escaped) == 0)
}

// unquote returns the text of what was between the quotes of a JSON string.
func unquote(escaped []byte) string {
	if bytes.IndexByte(escaped, '\\') < 0 {
		return string(escaped)
	}
	text := make([]byte, 0, len(escaped))
	for len(escaped) > 0 {
		if escaped[0] != '\\' {
			text, escaped = append(text, escaped[0]), escaped[1:]
			continue
		}
		c, size := unescape(escaped)
		text, escaped = utf8.AppendRune(text, c), escaped[size:]
	}
	return string(text)
}

// unescape reads the escape at the start of b, which is a backslash, and returns
// its character and length.
func unescape(b []byte) (c rune, size int) {
	if len(b) < 2 {
		return utf8.RuneError, len(b)
	}
	switch b[1] {
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
	default:
		return rune(b[1]), 2
	}
	c, ok := unescapeHex(b)
	if !ok {
		return utf8.RuneError, 2
	}
	if utf16.IsSurrogate(c) {
		low, _ := unescapeHex(b[6:])
		if pair := utf16.DecodeRune(c, low); pair != utf8.RuneError {
			return pair, 12
		}
		return utf8.RuneError, 6
	}
	return c, 6
}

// unescapeHex reads the escape \uXXXX at the start of b.
func unescapeHex(b []byte) (c rune, ok bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return utf8.RuneError, false
	}
	for _, digit := range b[2:6] {
		switch {
		case digit >= '0' && digit <= '9':
			c = c<<4 | rune(digit-'0')
		case digit|0x20 >= 'a' && digit|0x20 <= 'f':
			c = c<<4 | rune(digit|0x20-'a'+10)
		default:
			return utf8.RuneError, false
		}
	}
	return c, true
}
