// Package filter decides whether an event passes an eventhub.Filter, on the bytes
// of its record. Keys, headers and tags are compared where they are; of the
// payload nothing is looked at unless an expression reads it, and then only the
// members that it reads.
package filter

import (
	"slices"
	"strings"
	"sync/atomic"

	"cel.dev/cel-go/common/types"

	"eventhub"
)

// Program is a compiled filter. Its methods are safe for concurrent use, and a
// nil Program lets every event pass.
type Program struct {
	last    member // the last member that is looked at
	key     *text
	headers []header
	tags    []text
	cel     *expression

	failed, costly atomic.Uint64
}

// Verdict is what a filter says of one event.
type Verdict uint8

// An event passes or it does not, which it does not either where it cannot be judged:
// the expression cannot be evaluated on it, or costs too much.
const (
	Excludes Verdict = iota
	Passes
	Fails
	CostsTooMuch
)

// header is one that an event has to have.
type header struct {
	name  string
	value text
}

// text is what a member has to be, or to begin with.
type text struct {
	want   string
	prefix bool
}

func newText(s string) text {
	want, prefix := strings.CutSuffix(s, "*")
	return text{want, prefix}
}

// matches compares with a JSON string.
func (t text) matches(quoted []byte) bool { return sameText(inside(quoted), t.want, t.prefix) }

// Compile checks a filter and compiles it. A nil or zero filter gives a nil
// Program. Errors have CodeBadRequest; that of an expression names its line and
// column, from 1.
func Compile(f *eventhub.Filter) (*Program, error) {
	if f.IsZero() {
		return nil, nil
	}
	if err := f.Validate(); err != nil {
		return nil, err
	}
	p := &Program{}
	if f.Key != "" {
		key := newText(f.Key)
		p.key = &key
		p.last = memberKey
	}
	for name, value := range f.Headers {
		p.headers = append(p.headers, header{name, newText(value)})
		p.last = max(p.last, memberHeaders)
	}
	slices.SortFunc(p.headers, func(a, b header) int { return strings.Compare(a.name, b.name) })
	for _, tag := range f.Tags {
		p.tags = append(p.tags, newText(tag))
		p.last = max(p.last, memberTags)
	}
	if f.CEL != "" {
		var err error
		if p.cel, err = compile(f.CEL, types.BoolType, false); err != nil {
			return nil, err
		}
		p.last = max(p.last, p.cel.last)
	}
	return p, nil
}

// Match reports whether the event in record r, at that offset, passes.
func (p *Program) Match(r eventhub.Record, offset uint64) bool { return p.Judge(r, offset) == Passes }

// Judge decides about the event in record r, at that offset.
func (p *Program) Judge(r eventhub.Record, offset uint64) (v Verdict) {
	if p == nil {
		return Passes
	}
	var e envelope
	switch {
	case p.cel != nil:
		v = p.judgeExpression(r, offset)
	case !e.read(r, p.last):
		v = Fails
	case p.matchMembers(&e):
		v = Passes
	}
	switch v {
	case CostsTooMuch:
		p.costly.Add(1)
		fallthrough
	case Fails:
		p.failed.Add(1)
	}
	return v
}

// Evaluates reports whether the filter has an expression, which may take milliseconds
// for one event; anything else takes microseconds at most.
func (p *Program) Evaluates() bool { return p != nil && p.cel != nil }

// Failed counts the events that did not pass because the expression could not be
// evaluated on them; TooCostly those among them on which it cost too much.
func (p *Program) Failed() uint64 {
	if p == nil {
		return 0
	}
	return p.failed.Load()
}

// TooCostly is a part of Failed.
func (p *Program) TooCostly() uint64 {
	if p == nil {
		return 0
	}
	return p.costly.Load()
}

func (p *Program) matchMembers(e *envelope) bool {
	if p.key != nil && !p.key.matches(e[memberKey]) {
		return false
	}
	return p.matchHeaders(e[memberHeaders]) && p.matchTags(e[memberTags])
}

// matchHeaders goes over the event's headers once. Records hold them by name, as
// the wanted ones are, so that the one after the last found is looked at first.
func (p *Program) matchHeaders(object []byte) bool {
	missing, next := len(p.headers), 0
	for name, value, at := nextMember(object, 0); missing > 0 && at > 0; name, value, at = nextMember(object, at) {
		for range p.headers {
			h := &p.headers[next]
			if next++; next == len(p.headers) {
				next = 0
			}
			if !sameText(name, h.name, false) {
				continue
			}
			if !h.value.matches(value) {
				return false
			}
			missing--
			break
		}
	}
	return missing == 0
}

// matchTags goes over the event's tags once for each that is wanted: one of them
// may be what two prefixes want.
func (p *Program) matchTags(array []byte) bool {
	for i := range p.tags {
		found := false
		for value, at := nextElement(array, 0); !found && at > 0; value, at = nextElement(array, at) {
			found = p.tags[i].matches(value)
		}
		if !found {
			return false
		}
	}
	return true
}
