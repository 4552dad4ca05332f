package sdk

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"testing"
)

// linesOf counts the lines of each function, from its first to its closing brace.
func linesOf(t *testing.T, path string) map[string]string {
	t.Helper()
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	lines := make(map[string]string)
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok {
			lines[d.Name.Name] = strconv.Itoa(files.Position(d.End()).Line - files.Position(d.Pos()).Line + 1)
		}
	}
	return lines
}

// TestTheTableIsRight: docs/go-sdk.md says how long each program is.
func TestTheTableIsRight(t *testing.T) {
	page, err := os.ReadFile("../../docs/go-sdk.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\d+) \\| (\\d+|–) \\| (\\d+|–) \\|")
	said := make(map[string][]string)
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		said[m[1]] = m[2:]
	}
	ours := linesOf(t, "programs.go")
	if len(said) != len(ours) {
		t.Errorf("the page has %d programs; there are %d", len(said), len(ours))
	}
	for i, has := range []map[string]string{ours, linesOf(t, "peers/nats/programs.go"), linesOf(t, "peers/watermill/programs.go")} {
		for name := range ours {
			want := has[name]
			if want == "" {
				want = "–"
			}
			if len(said[name]) < 3 || said[name][i] != want {
				t.Errorf("%s has %s lines in column %d; the page says %v", name, want, i+1, said[name])
			}
		}
	}
}
