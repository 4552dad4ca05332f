package filter

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/ext"
	"cel.dev/cel-go/interpreter"

	"eventhub"
	"eventhub/internal/escape"
)

// Bounds of an expression.
const (
	// costLimit is in the units of the language: about one for each member that is
	// read and each operation, and a tenth for each character that one goes over.
	costLimit = 100_000
	// An expression has to nest less deep than parseDepth: a chain of members, and
	// one of operators other than && and ||, nests. nodeLimit is how many parts it
	// may have once its macros are written out.
	parseDepth = 64
	// typeDepth is how deep lists and maps may hold one another that an expression makes, also in a chain of loops: the
	// time in which the language finds out of what type they are grows with the cube of it.
	typeDepth = 32
	nodeLimit = 4096
	// regexSize is in instructions of the compiled pattern.
	regexSize = 1000
	// messageBytes keeps what is said about an expression one short line.
	messageBytes = 160
)

// expression is a compiled expression.
type expression struct {
	program cel.Program
	last    member // the last member that it reads
}

// environment is what all expressions are compiled in. It is safe for concurrent
// use.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	registry, err := types.NewRegistry()
	if err != nil {
		return nil, err
	}
	return cel.NewEnv(
		cel.CustomTypeProvider(typeProvider{registry}),
		cel.CustomTypeAdapter(registry),
		cel.Variable(variableName, variableType),
		ext.Strings(),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(eventhub.MaxFilterBytes),
		cel.ParserRecursionLimit(parseDepth),
		cel.ParserErrorRecoveryLimit(1),
		cel.ExpressionNodeLimit(nodeLimit),
		cel.RegexProgramSizeLimit(regexSize),
		cel.ASTValidators(cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals(), cel.ValidateRegexLiterals()),
	)
})

// compile checks an expression of a type, or of one that is not known before it is evaluated where
// loose says so, and compiles it.
func compile(text string, want *types.Type, loose bool) (*expression, error) {
	env, err := environment()
	if err != nil {
		return nil, eventhub.Wrap(eventhub.CodeInternal, err, "the language of filters is not there")
	}
	parsed, issues := env.Parse(text)
	if issues.Err() != nil {
		return nil, refuseIssues(issues)
	}
	n := nesting{of: make(map[string]int)}
	if n.look(parsed.NativeRep().Expr()); n.most > typeDepth {
		return nil, refuse(nil, fmt.Sprintf("the expression puts lists and maps %d deep into one another; at most %d levels are expected", n.most, typeDepth))
	}
	checked, issues := env.Check(parsed)
	if issues.Err() != nil {
		return nil, refuseIssues(issues)
	}
	tree := checked.NativeRep()
	x := &expression{}
	if err := x.inspect(tree); err != nil {
		return nil, err
	}
	if out := checked.OutputType(); !out.IsExactType(want) && !(loose && out.IsExactType(types.DynType)) {
		return nil, refuse(nil, fmt.Sprintf("the expression is of type %s; %s is expected", cel.FormatCELType(out), cel.FormatCELType(want)))
	}
	options := []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize), weighCalls(env)}
	bounded, err := judgeCost(env, checked)
	if err != nil {
		return nil, err
	}
	if !bounded {
		options = append(options, cel.CostLimit(costLimit))
	}
	if x.program, err = env.Program(checked, options...); err != nil {
		return nil, refuse(nil, oneLine(err.Error()))
	}
	return x, nil
}

// nesting finds out how many lists and maps hold one another at most, of those that an expression makes.
type nesting struct {
	most int
	of   map[string]int // the depth of the variables of loops
}

// look returns the depth of what an expression gives, or more where only its type says it.
func (n *nesting) look(e ast.Expr) (depth int) {
	defer func() { n.most = max(n.most, depth) }()
	switch e.Kind() {
	case ast.IdentKind:
		return n.of[e.AsIdent()]
	case ast.SelectKind:
		return n.look(e.AsSelect().Operand())
	case ast.CallKind:
		call := e.AsCall()
		if call.IsMemberFunction() {
			depth = n.look(call.Target())
		}
		for _, arg := range call.Args() {
			depth = max(depth, n.look(arg))
		}
	case ast.ListKind:
		for _, element := range e.AsList().Elements() {
			depth = max(depth, n.look(element))
		}
		depth++
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			depth = max(depth, n.look(entry.AsMapEntry().Value()))
		}
		depth++
	case ast.ComprehensionKind:
		loop := e.AsComprehension()
		element := max(0, n.look(loop.IterRange())-1)
		made := n.look(loop.AccuInit())
		outer := n.of
		n.of = maps.Clone(outer)
		n.of[loop.IterVar()], n.of[loop.AccuVar()] = element, made
		n.of[loop.AccuVar()] = max(made, n.look(loop.LoopStep()))
		depth = n.look(loop.Result())
		n.of = outer
	}
	return depth
}

// inspect finds out which members are read and refuses what the checker of the
// language lets pass.
func (x *expression) inspect(tree *ast.AST) error {
	var offence error
	followed := make(map[int64]bool) // by a member: the places of the variable
	visit := func(e ast.Expr) {
		switch e.Kind() {
		case ast.IdentKind:
			if tree.GetType(e.ID()).IsExactType(variableType) && !followed[e.ID()] && offence == nil {
				offence = refuse(tree.SourceInfo().GetStartLocation(e.ID()), "event is used alone; expected is one of its members: "+fieldNames())
			}
		case ast.SelectKind:
			operand := e.AsSelect().Operand()
			if tree.GetType(operand.ID()).IsExactType(variableType) {
				followed[operand.ID()] = true
				if f, ok := fieldNamed(e.AsSelect().FieldName()); ok {
					x.last = max(x.last, f.at)
				}
			}
		case ast.CallKind:
			if call := e.AsCall(); call.FunctionName() == overloads.Matches && offence == nil {
				if pattern := call.Args()[len(call.Args())-1]; pattern.Kind() != ast.LiteralKind {
					offence = refuse(tree.SourceInfo().GetStartLocation(pattern.ID()), "the pattern of matches is computed; a literal is expected")
				}
			}
		}
	}
	ast.PreOrderVisit(tree.Expr(), ast.NewExprVisitor(visit))
	x.last = max(x.last, memberTime)
	return offence
}

// refuseIssues returns the first of the issues, by its place.
func refuseIssues(issues *cel.Issues) error {
	var first *cel.Error
	for _, e := range issues.Errors() {
		if first == nil || before(e.Location, first.Location) {
			first = e
		}
	}
	if first == nil {
		return refuse(nil, oneLine(issues.Err().Error()))
	}
	return refuse(first.Location, explain(first.Message))
}

func before(a, b common.Location) bool {
	return a.Line() < b.Line() || a.Line() == b.Line() && a.Column() < b.Column()
}

// refuse builds the error about an expression; what is wrong with all of it is
// wrong at its start. Columns of the library start at 0.
func refuse(at common.Location, what string) error {
	if at == nil || at.Line() < 1 {
		at = common.NewLocation(1, 0)
	}
	return eventhub.Errorf(eventhub.CodeBadRequest, "filter.cel at %d:%d: %s", at.Line(), at.Column()+1, what)
}

// explain turns a message of the library into one short line that says what was
// expected.
func explain(message string) string {
	message = strings.Replace(message, "Syntax error: ", "syntax error: ", 1)
	message = strings.Replace(message, "token recognition error at: ", "not understood: ", 1)
	head, tokens, found := strings.Cut(message, " expecting ")
	switch {
	case strings.Contains(message, "recursion"):
		return fmt.Sprintf("the expression nests too deeply; at most %d levels of parentheses, operators and members are expected", parseDepth-1)
	case strings.HasPrefix(message, "undefined field "):
		return oneLine(message + "; expected is one of " + fieldNames())
	case strings.HasPrefix(message, "undeclared reference to "):
		return oneLine(message) + undeclared(message)
	case strings.HasPrefix(message, "syntax error: not understood: '= "):
		return oneLine(message) + "; to compare, write =="
	case strings.HasPrefix(message, "invalid matches argument"):
		return "the pattern of matches is not understood, or too large; RE2 syntax is expected"
	case !found:
		return oneLine(message)
	case strings.Contains(tokens, "IDENTIFIER") && strings.Contains(tokens, "NUM_INT"):
		tokens = "a value"
	case strings.Contains(tokens, "<EOF>"):
		tokens = "an operator or the end"
	}
	return oneLine(head) + ", expecting " + oneLine(tokens)
}

// undeclared says what may be meant by a name that the language does not know.
func undeclared(message string) string {
	_, name, _ := strings.Cut(message, "'")
	name, _, _ = strings.Cut(name, "'")
	if _, ok := fieldNamed(name); ok {
		return "; write event." + name
	}
	return "; the one variable is event, and text is in quotes"
}

// oneLine keeps what can be read of a message: its first line, cut where it is
// long.
func oneLine(message string) string {
	message, _, _ = strings.Cut(message, "\n")
	message = escape.Text(strings.ToValidUTF8(message, "\uFFFD"))
	if len(message) <= messageBytes {
		return message
	}
	return strings.ToValidUTF8(message[:messageBytes], "") + "…"
}

// judgeExpression decides with an expression, and whatever else is asked.
func (p *Program) judgeExpression(r eventhub.Record, offset uint64) (v Verdict) {
	e := evaluations.Get().(*evaluation)
	e.record, e.offset = r, offset
	if !e.read(r, p.last) {
		v = Fails
	} else if p.matchMembers(&e.envelope) {
		v = p.evaluate(e)
	}
	*e = evaluation{} // a record is not to be held on to
	evaluations.Put(e)
	return v
}

func (p *Program) evaluate(e *evaluation) Verdict {
	out, _, err := p.cel.program.Eval(e)
	switch {
	case err != nil:
		return whyNot(err)
	case out == types.True:
		return Passes
	}
	return Excludes
}

func whyNot(err error) Verdict {
	var cancelled interpreter.EvalCancelledError
	if errors.As(err, &cancelled) && cancelled.Cause == interpreter.CostLimitExceeded {
		return CostsTooMuch
	}
	return Fails
}
