package filter

import (
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"eventhub"
)

// variableName is the one variable of an expression.
const variableName = "event"

// meterName is the name under which the meter of an evaluation is found wherever it counts. No loop can have a
// variable of that name, as it can have one that is called event.
const meterName = "the meter"

// variableType is its type. The name has a space, so that no expression can make
// a value of it.
var variableType = types.NewObjectType("an event")

// evaluation is the variable while an expression is evaluated on one event, and
// what resolves it: each member is read from the record where it is asked for.
type evaluation struct {
	envelope
	meter
	record eventhub.Record
	offset uint64
	// values holds objects and arrays that were asked for, with what they know of
	// themselves by now.
	values [members]ref.Val
}

var evaluations = sync.Pool{New: func() any { return new(evaluation) }}

// ResolveName implements interpreter.Activation.
func (e *evaluation) ResolveName(name string) (any, bool) {
	return e, name == variableName || name == meterName
}

// Parent implements interpreter.Activation.
func (e *evaluation) Parent() cel.Activation { return nil }

// field is a member of the variable.
type field struct {
	name  string
	typ   *types.Type
	at    member // where it is read
	value func(e *evaluation) ref.Val
}

// fields are in the order of the documentation. What an event does not have is
// empty, an unknown partition -1.
var fields = []field{
	{"id", types.StringType, memberID, func(e *evaluation) ref.Val { return e.text(memberID) }},
	{"topic", types.StringType, memberTopic, func(e *evaluation) ref.Val { return e.text(memberTopic) }},
	{"key", types.StringType, memberKey, func(e *evaluation) ref.Val { return e.text(memberKey) }},
	{"sid", types.StringType, memberSID, func(e *evaluation) ref.Val { return e.text(memberSID) }},
	{"ts", types.IntType, memberTS, func(e *evaluation) ref.Val {
		if e.envelope[memberTS] == nil {
			return types.Int(e.record.CommitTime())
		}
		return e.decode(e.envelope[memberTS])
	}},
	{"committed_ts", types.IntType, memberTS, func(e *evaluation) ref.Val { return types.Int(e.record.CommitTime()) }},
	{"offset", types.IntType, memberTime, func(e *evaluation) ref.Val { return types.Int(e.offset) }},
	{"partition", types.IntType, memberPartition, func(e *evaluation) ref.Val {
		if e.envelope[memberPartition] == nil {
			return types.Int(-1)
		}
		return e.decode(e.envelope[memberPartition])
	}},
	{"headers", types.NewMapType(types.StringType, types.StringType), memberHeaders, func(e *evaluation) ref.Val { return e.nested(memberHeaders, "{}") }},
	{"tags", types.NewListType(types.StringType), memberTags, func(e *evaluation) ref.Val { return e.nested(memberTags, "[]") }},
	{"caused_by", types.NewListType(types.StringType), memberCausedBy, func(e *evaluation) ref.Val { return e.nested(memberCausedBy, "[]") }},
	{"payload", types.DynType, memberPayload, func(e *evaluation) ref.Val { return e.nested(memberPayload, "null") }},
}

// fieldNames lists them for messages.
func fieldNames() string {
	names := make([]string, len(fields))
	for i := range fields {
		names[i] = fields[i].name
	}
	return strings.Join(names, ", ")
}

func fieldNamed(name string) (*field, bool) {
	for i := range fields {
		if fields[i].name == name {
			return &fields[i], true
		}
	}
	return nil, false
}

func (e *evaluation) text(m member) ref.Val {
	e.spend(len(e.envelope[m]))
	return types.String(unquote(inside(e.envelope[m])))
}

// nested returns the value of a member, the same one each time it is asked.
func (e *evaluation) nested(m member, absent string) ref.Val {
	if e.values[m] == nil {
		raw := e.envelope[m]
		if raw == nil {
			raw = []byte(absent)
		}
		e.values[m] = e.decode(raw)
	}
	return e.values[m]
}

// has answers has(event.x): whether x is in the event as it is delivered.
func (e *evaluation) has(f *field) bool {
	switch f.name {
	case "ts", "offset":
		return true
	case "committed_ts":
		return e.envelope[memberTS] != nil
	}
	return e.envelope[f.at] != nil
}

// typeProvider adds the variable's type to those of the language.
type typeProvider struct{ types.Provider }

// FindStructType implements types.Provider.
func (p typeProvider) FindStructType(name string) (*types.Type, bool) {
	if name == variableType.TypeName() {
		return types.NewTypeTypeWithParam(variableType), true
	}
	return p.Provider.FindStructType(name)
}

// FindStructFieldNames implements types.Provider.
func (p typeProvider) FindStructFieldNames(name string) ([]string, bool) {
	if name == variableType.TypeName() {
		return strings.Split(fieldNames(), ", "), true
	}
	return p.Provider.FindStructFieldNames(name)
}

// FindStructFieldType implements types.Provider.
func (p typeProvider) FindStructFieldType(name, fieldName string) (*types.FieldType, bool) {
	if name != variableType.TypeName() {
		return p.Provider.FindStructFieldType(name, fieldName)
	}
	f, ok := fieldNamed(fieldName)
	if !ok {
		return nil, false
	}
	return &types.FieldType{
		Type:    f.typ,
		IsSet:   func(target any) bool { return target.(*evaluation).has(f) },
		GetFrom: func(target any) (any, error) { return f.value(target.(*evaluation)), nil },
	}, true
}
