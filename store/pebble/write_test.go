package pebble

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// writesFile is the only file that changes keys, and harmless are the methods of a database that change
// none.
const writesFile = "write.go"

var harmless = []string{"Get", "NewIter", "NewIterWithContext", "NewBatch", "Metrics", "AsyncFlush", "Checkpoint", "Compact", "Close"}

// TestWritesAreInOnePlace: what does not go through write.go would be missing on the other members of
// a store that shares a journal.
func TestWritesAreInOnePlace(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	inPlace := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		called := make(map[ast.Expr]bool) // databases whose method is called
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if f, ok := call.Fun.(*ast.SelectorExpr); ok && isDatabase(f.X) {
					called[f.X] = true
					switch {
					case slices.Contains(harmless, f.Sel.Name):
					case name == writesFile:
						inPlace++
					default:
						t.Errorf("%s: %s changes the database; that is for %s", fset.Position(call.Pos()), f.Sel.Name, writesFile)
					}
				} else if ok && f.Sel.Name == "Commit" {
					t.Errorf("%s: a batch is applied; that is for %s", fset.Position(call.Pos()), writesFile)
				}
			}
			if e, ok := n.(*ast.SelectorExpr); ok && isDatabase(e) && !called[e] {
				t.Errorf("%s: the database is handed over", fset.Position(e.Pos()))
			}
			return true
		})
	}
	if inPlace != 6 {
		t.Errorf("%s changes the database in %d places; 6 are expected", writesFile, inPlace)
	}
}

// isDatabase reports whether an expression is the database of a store: x.db, or db where one is
// opened.
func isDatabase(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		return e.Sel.Name == "db"
	case *ast.Ident:
		return e.Name == "db"
	}
	return false
}
