package wire

import (
	"github.com/go-json-experiment/json/jsontext"

	"eventhub/internal/strictjson"
)

// maxPlainFrame bounds the frames, in bytes, in which splitPlain takes values that are
// not plain themselves: nothing in a shorter one can nest so deep that it matters where
// the JSON reader started to count.
const maxPlainFrame = 16 << 10

// splitPlain is split for the frames that programs send all day: no space
// between tokens, no escapes and nothing but ASCII in names and strings outside
// payload and opts, no name twice or unknown. Plain values (strictjson.Plain) it reads
// itself and leaves every other one to the JSON reader. At the first thing that is
// otherwise it gives up and reports false, and split has the word: splitPlain
// never refuses a frame, and what it accepts split would read the same way.
func (d *Decoder) splitPlain(frame []byte) bool {
	d.m = members{}
	d.opts = d.opts[:0]
	if len(frame) == 0 || frame[0] != '{' {
		return false
	}
	for at := 1; ; at++ {
		name := plainString(frame[at:])
		at += len(name)
		if name == nil || at >= len(frame) || frame[at] != ':' {
			return false
		}
		at++
		slot := d.m.slot(name[1 : len(name)-1])
		if slot == nil || *slot != nil {
			return false
		}
		end, ok := d.plainValue(frame, at, slot)
		if !ok || end >= len(frame) {
			return false
		}
		at = end
		if frame[at] == '}' {
			return at == len(frame)-1
		}
		if frame[at] != ',' {
			return false
		}
	}
}

// plainValue puts the value at frame[at:] into slot and returns its end.
func (d *Decoder) plainValue(frame []byte, at int, slot *[]byte) (end int, ok bool) {
	if n := strictjson.Plain(frame[at:]); n > 0 {
		end = at + n
		*slot = frame[at:end:end]
		if slot == &d.m.opts && frame[at] == '{' {
			d.m.opts = emptyObject
			d.cutOptions(frame[at:end:end])
		}
		return end, true
	}
	if len(frame) > maxPlainFrame {
		return 0, false
	}
	d.rewind(frame[at:])
	if slot == &d.m.opts && d.json.PeekKind() == jsontext.KindBeginObject {
		if err := d.splitOpts(); err != nil {
			return 0, false
		}
	} else {
		value, err := d.json.ReadValue()
		if err != nil {
			return 0, false
		}
		*slot = value
	}
	return at + int(d.json.InputOffset()), true
}

// cutOptions appends the members of an object that is known to be sound to d.opts.
func (d *Decoder) cutOptions(object []byte) {
	for name, value := range eachMember(object) {
		if len(d.opts) < maxOptions {
			d.opts = append(d.opts, option{name, value})
		}
	}
}

// plainString returns the string that text starts with, quotes and all, where
// it needs no look at escapes or UTF-8, and nil otherwise.
func plainString(text []byte) []byte {
	n := strictjson.PlainString(text)
	if n == 0 {
		return nil
	}
	return text[:n:n]
}
