package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// accessFile is the file of package hub in which those who were let in get what they may use,
// and guarded is its one function that knows the engine.
const (
	accessFile = "access.go"
	guarded    = "engineFor"
)

// TestOnlyTheGuardReachesTheEngine: the gateways and the operations listener cannot import the
// engine, so they have of it what package hub gives them. That is an Access, which only one
// file makes; and there the engine is named in one place alone, as what a guard stands
// before.
func TestOnlyTheGuardReachesTheEngine(t *testing.T) {
	for _, pkg := range []string{"gateway/ws", "gateway/rest", "ops"} {
		for _, engine := range []string{"eventhub/bus", "eventhub/store", "eventhub/hub"} {
			if offence(pkg, engine) == "" {
				t.Errorf("package %s may import %s", pkg, engine)
			}
		}
	}
	files, err := filepath.Glob(filepath.Join("..", "..", "hub", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		made += checkAccess(t, parsed, filepath.Base(file))
	}
	if made != 3 {
		t.Errorf("package hub makes %d accesses; one for each of WebSocket, HTTP and operations is expected", made)
	}
}

// checkAccess looks at one file, and returns how many accesses with something in them it makes.
func checkAccess(t *testing.T, file *ast.File, name string) (made int) {
	if name == accessFile {
		for _, spec := range file.Imports {
			if path := strings.Trim(spec.Path.Value, `"`); strings.HasPrefix(path, "eventhub/bus") || strings.HasPrefix(path, "eventhub/store") {
				t.Errorf("hub/%s imports %s", name, path)
			}
		}
	}
	for _, d := range file.Decls {
		before := make(map[ast.Node]bool) // what a guard stands before
		within := ""
		if f, ok := d.(*ast.FuncDecl); ok {
			within = f.Name.Name
		}
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				of, ok := n.Type.(*ast.SelectorExpr)
				if !ok || of.Sel.Name != "Access" || len(n.Elts) == 0 {
					return true
				}
				if made++; name != accessFile {
					t.Errorf("hub/%s makes an access in %s; that is for %s", name, within, accessFile)
				}
			case *ast.SelectorExpr:
				if name == accessFile && strings.EqualFold(n.Sel.Name, "bus") && !before[n] {
					t.Errorf("hub/%s has the engine in %s; only %s may, for a guard", name, within, guarded)
				}
			case *ast.CallExpr:
				if within == guarded && isGuardFor(n.Fun) {
					before[n.Args[0]] = true
				}
			case *ast.AssignStmt:
				for _, to := range n.Lhs {
					if s, ok := to.(*ast.SelectorExpr); ok && name != accessFile && slices.Contains([]string{"Publisher", "Subscriber", "Inspector"}, s.Sel.Name) {
						t.Errorf("hub/%s sets a part of an access in %s", name, within)
					}
				}
			}
			return true
		})
	}
	return made
}

func isGuardFor(fun ast.Expr) bool {
	s, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	from, ok := s.X.(*ast.Ident)
	return ok && from.Name == "guard" && s.Sel.Name == "For"
}
