package filter

import (
	"cel.dev/cel-go/common/types"

	"eventhub"
)

// Text is a compiled expression whose value on an event is a text. It is safe for concurrent use.
type Text struct{ expression *expression }

// CompileText checks an expression and compiles it. It is of type string, or of a type that depends on
// the event, such as a member of the payload. Errors are as those of Compile.
func CompileText(text string) (*Text, error) {
	x, err := compile(text, types.StringType, true)
	if err != nil {
		return nil, err
	}
	return &Text{expression: x}, nil
}

// Of returns the text of the event in record r, at that offset. ok is false where the expression
// cannot be evaluated on the event, or is no text there.
func (t *Text) Of(r eventhub.Record, offset uint64) (text string, ok bool) {
	e := evaluations.Get().(*evaluation)
	e.record, e.offset = r, offset
	if e.read(r, t.expression.last) {
		if out, _, err := t.expression.program.Eval(e); err == nil {
			var is types.String
			if is, ok = out.(types.String); ok {
				text = string(is)
			}
		}
	}
	*e = evaluation{} // a record is not to be held on to
	evaluations.Put(e)
	return text, ok
}
