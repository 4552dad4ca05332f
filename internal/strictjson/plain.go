package strictjson

import (
	"bytes"
	"encoding/binary"
)

const (
	// plainDepth is how deep a plain value may be nested.
	plainDepth = 16
	// plainNames is how many names the objects around one place of a plain value may
	// have: each is held against all others of its object.
	plainNames = 48
)

// Plain returns the length of the value that text begins with where that value is
// plain, else 0. A plain value is what programs send all day, and what can be distinguished from
// anything else at a glance: strict JSON without whitespace, with nothing but ASCII and
// no escapes in its strings, neither deep nor with many names. AppendCompact would append
// it as it is. Of any other value Plain says nothing.
//
// After a number there may be more of it that is not JSON; the caller knows what must
// follow.
func Plain(text []byte) int {
	if len(text) > 0 && text[0] == '"' {
		return PlainString(text)
	}
	p := plain{text: text}
	return p.value(0, 0)
}

// plain is a walk over a value. Its methods return where something ends that begins at
// a place, or 0.
type plain struct {
	text  []byte
	names [plainNames]span // of the objects that are open
	n     int
}

// span is a part of the text.
type span struct{ from, to uint32 }

func (p *plain) at(s span) []byte { return p.text[s.from:s.to] }

func (p *plain) value(at, depth int) int {
	if at >= len(p.text) {
		return 0
	}
	switch p.text[at] {
	case '"':
		return p.string(at)
	case '{':
		return p.object(at, depth+1)
	case '[':
		return p.array(at, depth+1)
	case 't':
		return p.literal(at, "true")
	case 'f':
		return p.literal(at, "false")
	case 'n':
		return p.literal(at, "null")
	}
	return p.number(at)
}

func (p *plain) string(at int) int {
	if n := PlainString(p.text[at:]); n > 0 {
		return at + n
	}
	return 0
}

// PlainString is Plain for a string.
func PlainString(text []byte) int {
	if len(text) < 2 || text[0] != '"' {
		return 0
	}
	n := bytes.IndexByte(text[1:], '"')
	if n < 0 || bytes.IndexByte(text[1:1+n], '\\') >= 0 || !isSimple(text[1:1+n]) {
		return 0
	}
	return n + 2
}

// isSimple reports whether a text is ASCII without what JSON takes for control
// characters.
func isSimple(text []byte) bool {
	// Eight bytes at a time: the highest bit of a byte is set in word where it is no
	// ASCII, and in word less spaces where it, or one before it, is below a space.
	const spaces, highs = 0x2020202020202020, 0x8080808080808080
	found := uint64(0)
	for ; len(text) >= 8; text = text[8:] {
		word := binary.LittleEndian.Uint64(text)
		found |= word | (word - spaces)
	}
	for _, c := range text {
		if c < ' ' || c >= 0x80 {
			return false
		}
	}
	return found&highs == 0
}

func (p *plain) literal(at int, word string) int {
	if len(p.text)-at < len(word) || string(p.text[at:at+len(word)]) != word {
		return 0
	}
	return at + len(word)
}

// number is that of RFC 8259, section 6.
func (p *plain) number(at int) int {
	if p.is(at, '-') {
		at++
	}
	if p.is(at, '0') {
		at++
	} else if at = p.digits(at); at == 0 {
		return 0
	}
	if p.is(at, '.') {
		if at = p.digits(at + 1); at == 0 {
			return 0
		}
	}
	if p.is(at, 'e') || p.is(at, 'E') {
		if at++; p.is(at, '+') || p.is(at, '-') {
			at++
		}
		at = p.digits(at)
	}
	return at
}

// digits wants at least one.
func (p *plain) digits(at int) int {
	first := at
	for at < len(p.text) && p.text[at]-'0' <= 9 {
		at++
	}
	if at == first {
		return 0
	}
	return at
}

func (p *plain) is(at int, c byte) bool { return at < len(p.text) && p.text[at] == c }

func (p *plain) array(at, depth int) int {
	if depth > plainDepth {
		return 0
	}
	if at++; p.is(at, ']') {
		return at + 1
	}
	for ; ; at++ {
		if at = p.value(at, depth); at == 0 {
			return 0
		}
		if p.is(at, ']') {
			return at + 1
		}
		if !p.is(at, ',') {
			return 0
		}
	}
}

func (p *plain) object(at, depth int) int {
	if depth > plainDepth {
		return 0
	}
	if at++; p.is(at, '}') {
		return at + 1
	}
	first := p.n
	for ; ; at++ {
		name := at
		if at = p.string(at); at == 0 || !p.is(at, ':') || !p.add(first, span{uint32(name), uint32(at)}) {
			return 0
		}
		if at = p.value(at+1, depth); at == 0 {
			return 0
		}
		if p.is(at, '}') {
			p.n = first
			return at + 1
		}
		if !p.is(at, ',') {
			return 0
		}
	}
}

// add notes a name of an object, whose first one has the index first. It is false where
// the object has that name, and where there is no room.
func (p *plain) add(first int, name span) bool {
	if p.n == len(p.names) {
		return false
	}
	for _, other := range p.names[first:p.n] {
		if bytes.Equal(p.at(other), p.at(name)) {
			return false
		}
	}
	p.names[p.n] = name
	p.n++
	return true
}
