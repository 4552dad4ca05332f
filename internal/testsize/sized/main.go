// Command sized prints the packages that have tests of two sizes (internal/testsize), one a
// line, or with -run the expression that matches these tests, for go test. All others do
// the same in both sizes, and need not run twice.
//
// A test has two sizes where it, or what it names of its package, uses package testsize or a
// package that does; and where its file is not built with the race detector, which is its
// small size.
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	module   = "eventhub"
	testsize = module + "/internal/testsize"
)

func main() {
	names := flag.Bool("run", false, "print the expression instead of the packages")
	flag.Parse()
	found, err := sized(os.DirFS("."))
	if err != nil {
		fmt.Fprintln(os.Stderr, "sized:", err)
		os.Exit(1)
	}
	if *names {
		fmt.Println(expression(found))
		return
	}
	for _, dir := range slices.Sorted(keys(found)) {
		fmt.Println("./" + dir)
	}
}

func keys(found map[string][]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for dir := range found {
			if !yield(dir) {
				return
			}
		}
	}
}

// expression matches the tests of all packages, and nothing that is named longer.
func expression(found map[string][]string) string {
	var all []string
	for _, tests := range found {
		all = append(all, tests...)
	}
	slices.Sort(all)
	return "^(" + strings.Join(slices.Compact(all), "|") + ")$"
}

// isModule reports whether a directory is a module of its own, whose tests go test does not find from here.
func isModule(root fs.FS, dir string) bool {
	_, err := fs.Stat(root, path.Join(dir, "go.mod"))
	return err == nil
}

// sized returns the tests with two sizes, by directory.
func sized(root fs.FS) (map[string][]string, error) {
	dirs := make(map[string][]*ast.File)
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || isModule(root, name)) {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
		if err != nil {
			return err
		}
		dir := path.Dir(name)
		dirs[dir] = append(dirs[dir], file)
		return nil
	})
	if err != nil {
		return nil, err
	}
	helpers := map[string]bool{testsize: true} // import paths whose use makes a test one of two sizes
	for dir, files := range dirs {
		if slices.ContainsFunc(files, func(f *ast.File) bool { return !isTest(f) && imports(f, testsize) }) {
			helpers[module+"/"+dir] = true
		}
	}
	found := make(map[string][]string)
	for dir, files := range dirs {
		if tests := sizedTests(files, helpers); len(tests) > 0 {
			found[dir] = tests
		}
	}
	return found, nil
}

// isTest reports whether a file has tests.
func isTest(f *ast.File) bool {
	return slices.ContainsFunc(f.Decls, func(d ast.Decl) bool {
		fn, ok := d.(*ast.FuncDecl)
		return ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") && len(fn.Type.Params.List) == 1
	})
}

func imports(f *ast.File, path string) bool {
	return slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == strconv.Quote(path) })
}

// sizedTests returns the tests of a package that use a helper, directly or by what they
// name of their package.
func sizedTests(files []*ast.File, helpers map[string]bool) (tests []string) {
	uses := make(map[string]map[string]bool) // by name of what is declared: the names in it
	marked := make(map[string]bool)          // of those: what uses a helper
	for _, f := range files {
		global, onlyFull := globals(f), withoutRace(f)
		helper := make(map[string]bool) // names of the helpers in this file
		for _, i := range f.Imports {
			if p, _ := strconv.Unquote(i.Path.Value); helpers[p] {
				helper[path.Base(p)] = true
			}
		}
		for _, d := range f.Decls {
			for name, node := range declared(d) {
				if uses[name] == nil {
					uses[name] = make(map[string]bool)
				}
				marked[name] = marked[name] || onlyFull && strings.HasPrefix(name, "Test")
				ast.Inspect(node, func(n ast.Node) bool {
					if id, ok := n.(*ast.Ident); ok && global[id] {
						uses[name][id.Name] = true
						marked[name] = marked[name] || helper[id.Name]
					}
					return true
				})
			}
		}
	}
	for grown := true; grown; {
		grown = false
		for name, used := range uses {
			for other := range used {
				if !marked[name] && marked[other] {
					marked[name], grown = true, true
				}
			}
		}
	}
	for name := range marked {
		if marked[name] && strings.HasPrefix(name, "Test") && name != "TestMain" {
			tests = append(tests, name)
		}
	}
	slices.Sort(tests)
	return tests
}

// withoutRace reports whether a file is left out where the race detector is on.
func withoutRace(f *ast.File) bool {
	for _, group := range f.Comments {
		for _, c := range group.List {
			if expr, err := constraint.Parse(c.Text); err == nil && c.Pos() < f.Package {
				with := func(race bool) bool {
					return expr.Eval(func(tag string) bool { return tag != "race" || race })
				}
				return with(false) && !with(true)
			}
		}
	}
	return false
}

// globals returns the identifiers of a file that mean what its package or its imports
// declare, and nothing local.
func globals(f *ast.File) map[*ast.Ident]bool {
	global := make(map[*ast.Ident]bool)
	for _, id := range f.Unresolved {
		global[id] = true
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && id.Obj != nil && f.Scope.Lookup(id.Name) == id.Obj {
			global[id] = true
		}
		return true
	})
	return global
}

// declared returns what a declaration declares. A method belongs to its type: who names
// that may call it.
func declared(d ast.Decl) map[string]ast.Node {
	names := make(map[string]ast.Node)
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			of := d.Recv.List[0].Type
			if star, ok := of.(*ast.StarExpr); ok {
				of = star.X
			}
			if id, ok := of.(*ast.Ident); ok {
				name = id.Name
			}
		}
		names[name] = d
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.ValueSpec:
				for _, name := range s.Names {
					names[name.Name] = s
				}
			case *ast.TypeSpec:
				names[s.Name.Name] = s
			}
		}
	}
	return names
}
