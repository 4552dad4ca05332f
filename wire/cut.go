package wire

import (
	"bytes"
	"iter"

	"github.com/go-json-experiment/json/jsontext"
)

// cutter walks over the inside of an array or object that was checked before: it
// finds where values end and judges nothing. Any number of them may be under way.
type cutter struct{ rest []byte }

// cut opens an array or object.
func cut(value []byte) cutter { return cutter{value[1:]} }

// value steps over the next value, or name of a member; nil at the end.
func (c *cutter) value() []byte {
	at := 0
	for at < len(c.rest) && between[c.rest[at]] {
		at++
	}
	end := at + valueEnd(c.rest[at:])
	value := c.rest[at:end:end]
	c.rest = c.rest[end:]
	if len(value) == 0 {
		return nil
	}
	return value
}

// eachMember ranges over an object that was checked before.
func eachMember(object []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		c := cut(object)
		for {
			quoted := c.value()
			if quoted == nil {
				return
			}
			name := quoted[1 : len(quoted)-1]
			if bytes.IndexByte(name, '\\') >= 0 {
				name, _ = jsontext.AppendUnquote(nil, quoted)
			}
			if !yield(name, c.value()) {
				return
			}
		}
	}
}

// eachElement ranges over an array that was checked before.
func eachElement(array []byte) iter.Seq2[int, []byte] {
	return func(yield func(i int, value []byte) bool) {
		c := cut(array)
		for i := 0; ; i++ {
			value := c.value()
			if value == nil || !yield(i, value) {
				return
			}
		}
	}
}

// What a byte may mean outside strings: between comes before a value,
// ending after a number or a literal, nesting changes the depth.
var between, ending, nesting = [256]bool{' ': true, '\t': true, '\r': true, '\n': true, ',': true, ':': true},
	[256]bool{' ': true, '\t': true, '\r': true, '\n': true, ',': true, ':': true, ']': true, '}': true},
	[256]bool{'"': true, '{': true, '[': true, '}': true, ']': true}

// valueEnd returns the length of the value that text begins with; 0 where there
// is none, or it breaks off inside quotes or brackets.
func valueEnd(text []byte) int {
	if len(text) == 0 {
		return 0
	}
	switch text[0] {
	case '"':
		return stringEnd(text)
	case '{', '[':
		return bracketsEnd(text)
	}
	for i, c := range text {
		if ending[c] {
			return i
		}
	}
	return len(text)
}

func stringEnd(text []byte) int {
	for at := 1; ; at++ {
		n := bytes.IndexByte(text[at:], '"')
		if n < 0 {
			return 0
		}
		escapes := 0 // in front of it; an even number of backslashes is those of others
		for at += n; text[at-1-escapes] == '\\'; {
			escapes++
		}
		if escapes%2 == 0 {
			return at + 1
		}
	}
}

func bracketsEnd(text []byte) int {
	for i, depth := 0, 0; i < len(text); i++ {
		c := text[i]
		if !nesting[c] {
			continue
		}
		switch c {
		case '"':
			n := stringEnd(text[i:])
			if n == 0 {
				return 0
			}
			i += n - 1
		case '{', '[':
			depth++
		default:
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return 0
}
