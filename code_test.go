package eventhub

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"
)

// declaredCodes reads the constants of type Code from the source.
func declaredCodes(t *testing.T) (declared []Code) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "Code" {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			declared = append(declared, Code(value))
		}
		return true
	})
	return declared
}

// TestEveryCodeIsListed: a code without a row would reach clients as another one, and a
// row twice or without a constant would be nobody's.
func TestEveryCodeIsListed(t *testing.T) {
	declared := declaredCodes(t)
	for _, c := range declared {
		if !c.Known() {
			t.Errorf("%s has no row", c)
		}
	}
	if len(declared) < 20 || len(declared) != len(codes) {
		t.Errorf("%d codes are declared and %d have a row", len(declared), len(codes))
	}
	if c := Code("of_tomorrow"); c.Known() || c.Denied() || c.Passing() {
		t.Errorf("%s is known: %v, denied: %v, passing: %v", c, c.Known(), c.Denied(), c.Passing())
	}
}

// TestWhatARefusalIsAbout: who may try again, and who needs another token.
func TestWhatARefusalIsAbout(t *testing.T) {
	denied := []Code{CodeUnauthorized, CodeNoToken, CodeBadToken, CodeJWTInvalid, CodeForbidden}
	passing := []Code{CodeShuttingDown, CodeNotActive, CodeOverloaded, CodeInternal, CodeRateLimited}
	for c := range codes {
		if c.Denied() != slices.Contains(denied, c) || c.Passing() != slices.Contains(passing, c) {
			t.Errorf("%s is denied: %v, passing: %v", c, c.Denied(), c.Passing())
		}
	}
}
