package filter

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
)

// What a call costs in the units of the language is counted when it is over, and for some
// calls is a guess: one for the size of a text, however long; for a pattern, the length in
// which it is written. So the calls below are counted in bytes that they go over, before
// they begin (byteLimit): the time that one evaluation takes is bounded, whatever the
// event, and so is the memory.

const (
	// stepWeight is what one instruction of a pattern counts for one byte: it takes much longer
	// than to go over the byte.
	stepWeight = 4
	// partWeight is what an element or member of a list or map counts that the expression has made: one
	// that holds another several times has far more of them than it takes to make.
	partWeight = 16
	// pairWeight is what a comparison of two lists or maps counts, besides their elements.
	pairWeight = 64
	// zoneWeight is what the name of a time zone counts: files are read for it, and looked for in
	// several places where there is none of that name.
	zoneWeight = 32 << 10
)

// weights say how many bytes a call goes over or makes, by the function's name. The
// weight of matches depends on its pattern.
var weights = map[string]func(args []ref.Val) int{
	"size":   sumOf,
	"string": sumOf, "bytes": sumOf, "int": sumOf, "uint": sumOf, "double": sumOf, "bool": sumOf,
	"timestamp": sumOf, "duration": sumOf,
	"charAt": sumOf, "substring": sumOf, "split": sumOf, "trim": sumOf, "reverse": sumOf,
	"lowerAscii": sumOf, "upperAscii": sumOf, "strings.quote": sumOf,
	"indexOf": search, "lastIndexOf": search,
	"replace":                 replacement,
	"join":                    joined,
	"format":                  wholly,
	overloads.TimeGetFullYear: zone, overloads.TimeGetMonth: zone, overloads.TimeGetDayOfYear: zone,
	overloads.TimeGetDate: zone, overloads.TimeGetDayOfMonth: zone, overloads.TimeGetDayOfWeek: zone,
	overloads.TimeGetHours: zone, overloads.TimeGetMinutes: zone, overloads.TimeGetSeconds: zone, overloads.TimeGetMilliseconds: zone,
}

// bytesOf returns the length of a text.
func bytesOf(v ref.Val) int {
	switch v := v.(type) {
	case types.String:
		return len(v)
	case types.Bytes:
		return len(v)
	}
	return 0
}

// sumOf is the weight of what goes over its texts once.
func sumOf(args []ref.Val) (n int) {
	for _, v := range args {
		n += bytesOf(v)
	}
	return n
}

// zone is the weight of what looks at a time in a time zone. An offset, as +02:00, is no name.
func zone(args []ref.Val) int {
	if len(args) < 2 {
		return 0
	}
	name, ok := args[1].(types.String)
	if !ok || strings.Contains(string(name), ":") {
		return 0
	}
	return zoneWeight + len(name)
}

// search is the weight of what compares a text with each part of another.
func search(args []ref.Val) int {
	return bytesOf(args[0]) * max(1, bytesOf(args[1]))
}

// replacement is the weight of what replaces a part of a text wherever it is.
func replacement(args []ref.Val) int {
	text, ok := args[0].(types.String)
	old, isText := args[1].(types.String)
	if !ok || !isText {
		return 0
	}
	return len(text) + strings.Count(string(text), string(old))*bytesOf(args[2])
}

// joined is the weight of what puts the elements of a list together.
func joined(args []ref.Val) int {
	n := wholly(args[:1])
	if list, ok := args[0].(traits.Lister); ok && len(args) > 1 {
		if size, ok := list.Size().(types.Int); ok {
			n += int(size) * bytesOf(args[1])
		}
	}
	return n
}

// wholly is the weight of all that the arguments hold.
func wholly(args []ref.Val) (n int) {
	for _, v := range args {
		if n > byteLimit {
			break
		}
		switch v := v.(type) {
		case *object:
			n += valueWeight * len(v.raw)
		case *list:
			n += valueWeight * len(v.raw)
		case traits.Mapper:
			for it := v.Iterator(); it.HasNext() == types.True && n <= byteLimit; {
				key := it.Next()
				value, _ := v.Find(key)
				n += partWeight + wholly([]ref.Val{key, value})
			}
		case traits.Lister:
			for it := v.Iterator(); it.HasNext() == types.True && n <= byteLimit; {
				n += partWeight + wholly([]ref.Val{it.Next()})
			}
		default:
			n += bytesOf(v)
		}
	}
	return n
}

// weighed is a call that counts what it goes over before it begins.
type weighed struct {
	interpreter.InterpretableV2
	call   interpreter.InterpretableCall // for its name
	args   []interpreter.InterpretableV2 // of the call, which makes them anew whenever it is asked
	weight func(args []ref.Val) int
	run    func(args ...ref.Val) ref.Val
}

// weighCalls is a program option by which calls are weighed.
func weighCalls(env *cel.Env) cel.ProgramOption {
	functions := env.Functions()
	return cel.CustomDecoratorV2(func(node interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
		call, ok := node.(interpreter.InterpretableCall)
		if !ok {
			return node, nil
		}
		switch call.Function() {
		case overloads.Matches:
			return weighPattern(call)
		case operators.Equals, operators.NotEquals, operators.In:
			return weighComparison(call), nil
		}
		weight := weights[call.Function()]
		if weight == nil {
			return node, nil
		}
		overloads, err := functions[call.Function()].Bindings()
		if err != nil {
			return nil, err
		}
		for _, o := range overloads {
			if o.Operator != call.Function() {
				continue
			}
			run := o.Function
			switch n := len(call.Args()); {
			case n == 1 && o.Unary != nil:
				run = func(args ...ref.Val) ref.Val { return o.Unary(args[0]) }
			case n == 2 && o.Binary != nil:
				run = func(args ...ref.Val) ref.Val { return o.Binary(args[0], args[1]) }
			}
			if run != nil {
				return &weighed{node, call, call.Args(), weight, onlyWith(o.OperandTrait, call.Function(), run)}, nil
			}
		}
		return nil, fmt.Errorf("the function %s is not there", call.Function())
	})
}

// onlyWith returns a function that has no overload for a first argument without a trait: the library's own look
// for that is where the function is called, and its functions rely on it.
func onlyWith(trait int, name string, run func(args ...ref.Val) ref.Val) func(args ...ref.Val) ref.Val {
	if trait == 0 {
		return run
	}
	return func(args ...ref.Val) ref.Val {
		if !args[0].Type().HasTrait(trait) {
			return types.NewErr("no such overload: %s", name)
		}
		return run(args...)
	}
}

// weighPattern compiles the pattern of matches: at worst each of its instructions goes
// over each byte of the text.
func weighPattern(call interpreter.InterpretableCall) (interpreter.InterpretableV2, error) {
	args := call.Args()
	literal, ok := args[len(args)-1].(interpreter.InterpretableConst)
	if !ok {
		return nil, errors.New("the pattern of matches is computed; a literal is expected")
	}
	pattern, ok := literal.Value().(types.String)
	if !ok {
		return nil, errors.New("the pattern of matches is no string")
	}
	re, err := regexp.Compile(string(pattern))
	if err != nil {
		return nil, err
	}
	parsed, err := syntax.Parse(string(pattern), syntax.Perl)
	if err != nil {
		return nil, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, err
	}
	instructions := len(program.Inst)
	return &weighed{call, call, args,
		func(args []ref.Val) int { return stepWeight * instructions * bytesOf(args[0]) },
		func(args ...ref.Val) ref.Val {
			text, ok := args[0].(types.String)
			if !ok {
				return types.MaybeNoSuchOverloadErr(args[0])
			}
			return types.Bool(re.MatchString(string(text)))
		}}, nil
}

// Exec implements interpreter.InterpretableV2.
func (w *weighed) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	var few [3]ref.Val
	args := few[:0]
	for _, arg := range w.args {
		v := arg.Exec(frame)
		if types.IsUnknownOrError(v) {
			return v
		}
		args = append(args, v)
	}
	meterOf(frame).spend(w.weight(args))
	result := w.run(args...)
	if tracker := frame.CostTracker(); tracker != nil {
		tracker.EvalVarArgs(frame, w.call.ID(), w.call, args, result)
	}
	return result
}

// Eval implements interpreter.Interpretable.
func (w *weighed) Eval(vars interpreter.Activation) ref.Val {
	return interpreter.EvalActivation(vars, w.Exec)
}

// meterOf returns what counts the bytes of the evaluation.
func meterOf(frame *interpreter.ExecutionFrame) *meter {
	v, _ := frame.ResolveName(meterName)
	return &v.(*evaluation).meter
}

// compared is a comparison that counts what it goes over: the language counts the elements of the two lists
// or maps, and not what these hold.
type compared struct {
	interpreter.InterpretableV2
	call     interpreter.InterpretableCall // for its name
	lhs, rhs interpreter.InterpretableV2
	compare  func(m *meter, lhs, rhs ref.Val) ref.Val
}

func weighComparison(call interpreter.InterpretableCall) interpreter.InterpretableV2 {
	args := call.Args()
	c := &compared{call.(interpreter.InterpretableV2), call, args[0], args[1], nil}
	switch call.Function() {
	case operators.Equals:
		c.compare = func(m *meter, lhs, rhs ref.Val) ref.Val { return types.Bool(m.equal(lhs, rhs)) }
	case operators.NotEquals:
		c.compare = func(m *meter, lhs, rhs ref.Val) ref.Val { return types.Bool(!m.equal(lhs, rhs)) }
	default:
		if _, constant := c.rhs.(interpreter.InterpretableConst); constant {
			return c.InterpretableV2 // it is as long as it is written, and may be looked up
		}
		c.compare = (*meter).contains
	}
	return c
}

// Exec implements interpreter.InterpretableV2.
func (c *compared) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	lhs := c.lhs.Exec(frame)
	if types.IsUnknownOrError(lhs) {
		return lhs
	}
	rhs := c.rhs.Exec(frame)
	if types.IsUnknownOrError(rhs) {
		return rhs
	}
	result := c.compare(meterOf(frame), lhs, rhs)
	if tracker := frame.CostTracker(); tracker != nil {
		tracker.EvalBinary(frame, c.call.ID(), c.call, lhs, rhs, result)
	}
	return result
}

// Eval implements interpreter.Interpretable.
func (c *compared) Eval(vars interpreter.Activation) ref.Val {
	return interpreter.EvalActivation(vars, c.Exec)
}
