package filter

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
)

// The values that expressions see are read from the event's bytes as far as they
// are asked for: an object or array is its bytes, and only what is taken out of it
// becomes a value of its own. They live no longer than one evaluation, which is of
// one goroutine.

const (
	// scans is how often an object or array is searched from its start before the
	// places of all that it holds are noted down.
	scans = 4
	// byteLimit is how many bytes of an event one evaluation may go over: the
	// language counts one for a member, however large, and however deep what it is
	// compared with.
	byteLimit = 8 << 20
	// valueWeight is what a byte counts where all that an object or array holds is
	// made a value at once: that takes memory.
	valueWeight = 4
)

var errNoJSON = errors.New("the event holds something other than JSON")

// meter counts the bytes that an evaluation goes over.
type meter int

// spend ends the evaluation where that is too much, the way in which the library
// ends it.
func (m *meter) spend(bytes int) {
	if *m += meter(bytes); *m > byteLimit {
		panic(interpreter.EvalCancelledError{Cause: interpreter.CostLimitExceeded, Message: "too many bytes of the event are gone over"})
	}
}

// decode returns the value of a JSON value. Numbers without fraction and exponent
// that fit 64 bits are int, all others double.
func (m *meter) decode(raw []byte) ref.Val {
	if len(raw) == 0 {
		return types.WrapErr(errNoJSON)
	}
	switch raw[0] {
	case '"':
		m.spend(len(raw))
		return types.String(unquote(inside(raw)))
	case '{':
		return &object{meter: m, raw: raw}
	case '[':
		return &list{meter: m, raw: raw}
	case 't':
		return types.True
	case 'f':
		return types.False
	case 'n':
		return types.NullValue
	}
	m.spend(len(raw)) // a number may be as long as the payload
	return decodeNumber(raw)
}

func decodeNumber(raw []byte) ref.Val {
	if !bytes.ContainsAny(raw, ".eE") {
		if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
			return types.Int(n)
		}
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) { // beyond the range it is infinite
		return types.WrapErr(errNoJSON)
	}
	return types.Double(f)
}

// equal reports whether two values are equal. It counts each pair of lists or maps, and of texts their bytes.
func (m *meter) equal(a, b ref.Val) bool {
	switch a := a.(type) {
	case *object, *list: // count themselves
	case traits.Lister:
		return m.equalLists(a, b)
	case traits.Mapper:
		return m.equalMaps(a, b)
	default:
		if n := bytesOf(a); n > 0 && n == bytesOf(b) {
			m.spend(n)
		}
	}
	return types.Equal(a, b) == types.True
}

func (m *meter) equalLists(l traits.Lister, other ref.Val) bool {
	m.spend(pairWeight)
	o, ok := other.(traits.Lister)
	if !ok || o.Size() != l.Size() {
		return false
	}
	for mine, theirs := l.Iterator(), o.Iterator(); mine.HasNext() == types.True; {
		m.spend(1)
		if !m.equal(mine.Next(), theirs.Next()) {
			return false
		}
	}
	return true
}

func (m *meter) equalMaps(a traits.Mapper, other ref.Val) bool {
	m.spend(pairWeight)
	b, ok := other.(traits.Mapper)
	if !ok || b.Size() != a.Size() {
		return false
	}
	for it := a.Iterator(); it.HasNext() == types.True; {
		m.spend(1)
		key := it.Next()
		mine, _ := a.Find(key)
		theirs, found := b.Find(key)
		if !found || !m.equal(mine, theirs) {
			return false
		}
	}
	return true
}

// contains answers wanted in container.
func (m *meter) contains(wanted, container ref.Val) ref.Val {
	switch c := container.(type) {
	case *object, *list:
	case traits.Lister:
		for it := c.Iterator(); it.HasNext() == types.True; {
			m.spend(1)
			if m.equal(wanted, it.Next()) {
				return types.True
			}
		}
		return types.False
	}
	if c, ok := container.(traits.Container); ok {
		return c.Contains(wanted)
	}
	return types.NoSuchOverloadErr()
}

// object is a JSON object as a map.
type object struct {
	*meter
	raw      []byte
	size     ref.Val // once it was asked for
	searches int
	index    map[string][]byte
	nested   map[string]ref.Val // objects and arrays that were taken out
	whole    traits.Mapper      // for what is asked rarely
}

// member returns the value under a name, or nil.
func (o *object) member(want string) []byte {
	if o.index == nil {
		if o.searches++; o.searches > scans {
			o.spend(len(o.raw))
			o.index = make(map[string][]byte)
			for name, value, at := nextMember(o.raw, 0); at > 0; name, value, at = nextMember(o.raw, at) {
				o.index[unquote(name)] = value
			}
		}
	}
	if o.index != nil {
		return o.index[want]
	}
	for name, value, at := nextMember(o.raw, 0); at > 0; name, value, at = nextMember(o.raw, at) {
		o.spend(len(name) + len(value))
		if sameText(name, want, false) {
			return value
		}
	}
	return nil
}

// Find implements traits.Mapper. A key that is no string is not there.
func (o *object) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return nil, false
	}
	if value := o.nested[string(name)]; value != nil {
		return value, true
	}
	raw := o.member(string(name))
	if raw == nil {
		return nil, false
	}
	value := o.decode(raw)
	if raw[0] == '{' || raw[0] == '[' {
		if o.nested == nil {
			o.nested = make(map[string]ref.Val)
		}
		o.nested[string(name)] = value
	}
	return value, true
}

// Get implements traits.Indexer.
func (o *object) Get(key ref.Val) ref.Val {
	value, ok := o.Find(key)
	if !ok {
		return types.NewErr("no such key: %v", key)
	}
	return value
}

// Contains implements traits.Container.
func (o *object) Contains(key ref.Val) ref.Val {
	name, ok := key.(types.String)
	return types.Bool(ok && o.member(string(name)) != nil)
}

// Size implements traits.Sizer.
func (o *object) Size() ref.Val {
	if o.size == nil {
		o.spend(len(o.raw))
		n := 0
		for _, _, at := nextMember(o.raw, 0); at > 0; _, _, at = nextMember(o.raw, at) {
			n++
		}
		o.size = types.Int(n)
	}
	return o.size
}

// Equal implements ref.Val.
func (o *object) Equal(other ref.Val) ref.Val {
	o.spend(pairWeight)
	m, ok := other.(traits.Mapper)
	if !ok || m.Size() != o.Size() {
		return types.False
	}
	for name, raw, at := nextMember(o.raw, 0); at > 0; name, raw, at = nextMember(o.raw, at) {
		o.spend(len(name) + len(raw))
		value, found := m.Find(types.String(unquote(name)))
		if !found || !o.equal(o.decode(raw), value) {
			return types.False
		}
	}
	return types.True
}

// Iterator implements traits.Iterable: it goes over the names.
func (o *object) Iterator() traits.Iterator {
	it := &iterator{}
	name, skipped, at := nextMember(o.raw, 0)
	it.more = at > 0
	it.next = func() ref.Val {
		value := types.String(unquote(name))
		o.spend(len(name) + len(skipped))
		name, skipped, at = nextMember(o.raw, at)
		it.more = at > 0
		return value
	}
	return it
}

// Type implements ref.Val.
func (o *object) Type() ref.Type { return types.MapType }

// Value implements ref.Val.
func (o *object) Value() any { return o.all().Value() }

// ConvertToNative implements ref.Val.
func (o *object) ConvertToNative(to reflect.Type) (any, error) { return o.all().ConvertToNative(to) }

// ConvertToType implements ref.Val.
func (o *object) ConvertToType(to ref.Type) ref.Val { return convert(o, to) }

// all holds the members as values.
func (o *object) all() traits.Mapper {
	if o.whole == nil {
		o.spend(valueWeight * len(o.raw))
		values := make(map[ref.Val]ref.Val)
		for name, value, at := nextMember(o.raw, 0); at > 0; name, value, at = nextMember(o.raw, at) {
			values[types.String(unquote(name))] = o.decode(value)
		}
		o.whole = types.NewRefValMap(types.DefaultTypeAdapter, values)
	}
	return o.whole
}

// list is a JSON array as a list.
type list struct {
	*meter
	raw      []byte
	size     ref.Val // once it was asked for
	place    int     // of the element that comes after at
	at       int
	searches int
	index    []int32
	nested   map[int]ref.Val // objects and arrays that were taken out
	whole    traits.Lister   // for what is asked rarely
}

// element returns the value at a place from 0, or nil. Who asks for one after the
// other, as loops do, goes over the array once.
func (l *list) element(place int) []byte {
	if l.index != nil {
		if place < 0 || place >= len(l.index) {
			return nil
		}
		return valueAt(l.raw, int(l.index[place]))
	}
	if place < l.place {
		if l.searches++; l.searches > scans {
			l.note()
			return l.element(place)
		}
		l.place, l.at = 0, 0
	}
	for l.at >= 0 {
		value, next := nextElement(l.raw, l.at)
		l.spend(len(value) + 1)
		if l.place == place && next > 0 {
			return value // and stays there: it may be asked for again
		}
		l.place, l.at = l.place+1, next
	}
	l.place = math.MaxInt // after the end
	return nil
}

// note notes down where each element starts.
func (l *list) note() {
	l.spend(len(l.raw))
	l.index = make([]int32, 0, 16)
	for value, at := nextElement(l.raw, 0); at > 0; value, at = nextElement(l.raw, at) {
		l.index = append(l.index, int32(at-len(value)))
	}
}

// Get implements traits.Indexer.
func (l *list) Get(key ref.Val) ref.Val {
	place, ok := key.ConvertToType(types.IntType).(types.Int)
	if !ok || types.Equal(place, key) != types.True { // 1.0 is a place, 1.5 is none
		return types.NewErr("no such index: %v", key)
	}
	if value := l.nested[int(place)]; value != nil {
		return value
	}
	raw := l.element(int(place))
	if raw == nil {
		return types.NewErr("index out of bounds: %d", place)
	}
	value := l.decode(raw)
	if raw[0] == '{' || raw[0] == '[' {
		if l.nested == nil {
			l.nested = make(map[int]ref.Val)
		}
		l.nested[int(place)] = value
	}
	return value
}

// Contains implements traits.Container. A text is compared where it is.
func (l *list) Contains(wanted ref.Val) ref.Val {
	if types.IsUnknownOrError(wanted) {
		return wanted
	}
	want, isText := wanted.(types.String)
	for value, at := nextElement(l.raw, 0); at > 0; value, at = nextElement(l.raw, at) {
		l.spend(len(value))
		if isText {
			if value[0] == '"' && sameText(inside(value), string(want), false) {
				return types.True
			}
		} else if l.equal(l.decode(value), wanted) {
			return types.True
		}
	}
	return types.False
}

// Size implements traits.Sizer.
func (l *list) Size() ref.Val {
	if l.size == nil {
		l.spend(len(l.raw))
		n := 0
		for _, at := nextElement(l.raw, 0); at > 0; _, at = nextElement(l.raw, at) {
			n++
		}
		l.size = types.Int(n)
	}
	return l.size
}

// Equal implements ref.Val.
func (l *list) Equal(other ref.Val) ref.Val { return types.Bool(l.equalLists(l, other)) }

// Iterator implements traits.Iterable.
func (l *list) Iterator() traits.Iterator {
	it := &iterator{}
	raw, at := nextElement(l.raw, 0)
	it.more = at > 0
	it.next = func() ref.Val {
		l.spend(len(raw))
		value := l.decode(raw)
		raw, at = nextElement(l.raw, at)
		it.more = at > 0
		return value
	}
	return it
}

// Add implements traits.Adder.
func (l *list) Add(other ref.Val) ref.Val { return l.all().Add(other) }

// Type implements ref.Val.
func (l *list) Type() ref.Type { return types.ListType }

// Value implements ref.Val.
func (l *list) Value() any { return l.all().Value() }

// ConvertToNative implements ref.Val.
func (l *list) ConvertToNative(to reflect.Type) (any, error) { return l.all().ConvertToNative(to) }

// ConvertToType implements ref.Val.
func (l *list) ConvertToType(to ref.Type) ref.Val { return convert(l, to) }

// all holds the elements as values.
func (l *list) all() traits.Lister {
	if l.whole == nil {
		l.spend(valueWeight * len(l.raw))
		var values []ref.Val
		for value, at := nextElement(l.raw, 0); at > 0; value, at = nextElement(l.raw, at) {
			values = append(values, l.decode(value))
		}
		l.whole = types.NewRefValList(types.DefaultTypeAdapter, values)
	}
	return l.whole
}

// convert answers type(x) and conversions of a value to its own type.
func convert(v ref.Val, to ref.Type) ref.Val {
	switch to {
	case v.Type():
		return v
	case types.TypeType:
		return v.Type().(*types.Type)
	}
	return types.NewErr("type conversion error from '%s' to '%s'", v.Type(), to)
}

// iterator goes over an object or array once.
type iterator struct {
	more bool
	next func() ref.Val
}

// HasNext implements traits.Iterator.
func (it *iterator) HasNext() ref.Val { return types.Bool(it.more) }

// Next implements traits.Iterator.
func (it *iterator) Next() ref.Val {
	if !it.more {
		return nil
	}
	return it.next()
}

// The rest of ref.Val, which no expression asks of an iterator.

// ConvertToNative implements ref.Val.
func (it *iterator) ConvertToNative(to reflect.Type) (any, error) {
	return nil, fmt.Errorf("an iterator is no %s", to)
}

// ConvertToType implements ref.Val.
func (it *iterator) ConvertToType(to ref.Type) ref.Val { return convert(it, to) }

// Equal implements ref.Val.
func (it *iterator) Equal(ref.Val) ref.Val { return types.False }

// Type implements ref.Val.
func (it *iterator) Type() ref.Type { return types.IteratorType }

// Value implements ref.Val.
func (it *iterator) Value() any { return nil }
