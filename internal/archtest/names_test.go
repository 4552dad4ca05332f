package archtest

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"eventhub/internal/naming"
)

// foreign are the names that are not in snake_case, or are another spelling of one that
// is, and why they stay.
var foreign = map[string]string{
	// Answers of /cursors and /lag, and payloads of the demo, as the first clients know them.
	"lastId": "ops", "lastTs": "ops", "lastCursor": "ops", "lagMs": "ops",
	"processId": "demo",
	// Attributes of CloudEvents, whose names have letters and digits alone.
	"causedby": "CloudEvents", "correlationid": "CloudEvents",
}

// notOurs are directories of tests, and of files in the format of others.
var notOurs = []string{"testdata", "node_modules", "oracle", "peers", "release"}

// fields are the names of fields in JSON and of options, and where each is first.
type fields map[string]string

func (f fields) add(name, where string) {
	if f[name] == "" {
		f[name] = where
	}
}

// handWritten finds the names of JSON that is put together from text.
var handWritten = regexp.MustCompile(`[{,]"([A-Za-z][A-Za-z0-9_]*)":`)

// inFile adds the names of JSON in a file of Go: those of tags, and of JSON in strings.
func (f fields) inFile(t *testing.T, path string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			if n.Tag == nil {
				return true
			}
			tag, _ := strconv.Unquote(n.Tag.Value)
			if name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ","); name != "" && name != "-" {
				f.add(name, path)
			}
			return true
		case *ast.BasicLit:
			if n.Kind != token.STRING {
				return true
			}
			text, _ := strconv.Unquote(n.Value)
			for _, found := range handWritten.FindAllStringSubmatch(text, -1) {
				f.add(found[1], path)
			}
		case *ast.CompositeLit:
			f.configurationKey(n, path)
		}
		return true
	})
}

// configurationKey adds the Name of a config.Key.
func (f fields) configurationKey(n *ast.CompositeLit, path string) {
	typed := false
	name := ""
	for _, element := range n.Elts {
		pair, ok := element.(*ast.KeyValueExpr)
		if !ok {
			return
		}
		key, _ := pair.Key.(*ast.Ident)
		if key == nil {
			return
		}
		value, _ := pair.Value.(*ast.BasicLit)
		switch {
		case key.Name == "Name" && value != nil:
			name, _ = strconv.Unquote(value.Value)
		case key.Name == "Type" && strings.HasSuffix(filepath.ToSlash(path), "cmd/eventhub/config.go"):
			typed = true
		}
	}
	if typed && name != "" {
		f.add(name, path)
	}
}

// inDocument adds the names of properties, and of parameters, in a document of the API.
func (f fields) inDocument(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var document any
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if properties, ok := v["properties"].(map[string]any); ok {
				for name := range properties {
					f.add(name, path)
				}
			}
			if name, ok := v["name"].(string); ok && v["in"] == "query" {
				f.add(name, path)
			}
			for _, inner := range v {
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	walk(document)
}

// TestFieldsHaveOneSpelling: fields of frames, of HTTP, of the command's JSON and of the
// configuration are in snake_case, and no two differ in case and underscores alone.
func TestFieldsHaveOneSpelling(t *testing.T) {
	found := make(fields)
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && (strings.HasPrefix(d.Name(), ".") || slices.Contains(notOurs, d.Name())) {
				return filepath.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			found.inFile(t, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range []string{"openapi.json", "asyncapi.json"} {
		found.inDocument(t, filepath.Join(root, "apidoc", document))
	}
	for _, name := range []string{"max_attempts", "ack_deadline_ms", "from_ts", "auth_token", "in_flight"} {
		if found[name] == "" {
			t.Errorf("%s was not found; the test looks in the wrong places", name)
		}
	}
	snake := regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	plain := make(map[string]string)
	for name := range found {
		if foreign[name] != "" {
			continue
		}
		if !snake.MatchString(name) {
			t.Errorf("%s, in %s, is not in snake_case", name, found[name])
		}
		bare := strings.ToLower(strings.ReplaceAll(name, "_", ""))
		if other := plain[bare]; other != "" {
			t.Errorf("%s, in %s, is %s in %s", name, found[name], other, found[other])
		}
		plain[bare] = name
	}
	for name := range foreign {
		if found[name] == "" {
			t.Errorf("%s is nowhere", name)
		}
	}
	for _, a := range naming.Aliases {
		if found[a.Alias] != "" || found[a.Name] == "" {
			t.Errorf("%s is in %q, its alias %s in %q", a.Name, found[a.Name], a.Alias, found[a.Alias])
		}
	}
}
