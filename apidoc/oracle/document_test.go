// Package oracle judges the documents of package apidoc: by the official schemas of
// OpenAPI and AsyncAPI, and by a running hub, which is sent every example that they
// have and whose answers have to be what they say, no more and no less.
package oracle

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.uber.org/goleak"

	"eventhub/apidoc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type object = map[string]any

// document is one of the documents, and what was seen of it in examples and answers.
// Places in it are JSON pointers (RFC 6901).
type document struct {
	tb       testing.TB
	name     string
	root     any
	compiler *jsonschema.Compiler
	seen     map[string]bool // properties, by the pointers of their schemas
}

func openAPI(tb testing.TB) *document {
	return read(tb, "openapi.json", apidoc.OpenAPI, jsonschema.Draft2020)
}

func asyncAPI(tb testing.TB) *document {
	return read(tb, "asyncapi.json", apidoc.AsyncAPI, jsonschema.Draft7)
}

func read(tb testing.TB, name string, doc apidoc.Document, draft *jsonschema.Draft) *document {
	tb.Helper()
	d := &document{tb: tb, name: name, compiler: jsonschema.NewCompiler(), seen: make(map[string]bool)}
	d.root = parsed(tb, doc.JSON)
	d.compiler.DefaultDraft(draft)
	d.compiler.AssertFormat()
	if err := d.compiler.AddResource("https://eventhub.invalid/"+name, d.root); err != nil {
		tb.Fatal(err)
	}
	return d
}

// parsed reads JSON as the judge wants it.
func parsed(tb testing.TB, text []byte) any {
	tb.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		tb.Fatalf("%v: %.300s", err, text)
	}
	return v
}

func child(pointer string, names ...string) string {
	for _, n := range names {
		pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(n)
	}
	return pointer
}

// find returns what a pointer leads to, nil for nothing.
func (d *document) find(pointer string) any {
	v := d.root
	for _, name := range strings.Split(pointer, "/")[1:] {
		name = strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
		switch in := v.(type) {
		case object:
			v = in[name]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i >= len(in) {
				return nil
			}
			v = in[i]
		default:
			return nil
		}
	}
	return v
}

// follow returns the pointer at the end of a chain of $refs, and the object there.
func (d *document) follow(pointer string) (string, object) {
	for range 10 {
		at, ok := d.find(pointer).(object)
		if !ok {
			d.tb.Fatalf("%s: there is no object at %s", d.name, pointer)
		}
		ref, ok := at["$ref"].(string)
		if !ok {
			return pointer, at
		}
		pointer = strings.TrimPrefix(ref, "#")
	}
	d.tb.Fatalf("%s: %s refers to itself", d.name, pointer)
	return "", nil
}

func (d *document) names(pointer string) []string {
	at, _ := d.find(pointer).(object)
	return slices.Sorted(maps.Keys(at))
}

func (d *document) schema(pointer string) *jsonschema.Schema {
	s, err := d.compiler.Compile("https://eventhub.invalid/" + d.name + "#" + pointer)
	if err != nil {
		d.tb.Fatalf("%s: the schema at %s: %v", d.name, pointer, err)
	}
	return s
}

// judge says what is wrong with a value: that it is not what the schema says, or has
// names that the schema does not list. The properties that it has count as seen.
func (d *document) judge(pointer string, v any) error {
	if err := d.schema(pointer).Validate(v); err != nil {
		return err
	}
	var unlisted []string
	d.walk([]string{pointer}, v, "", &unlisted)
	if len(unlisted) > 0 {
		return fmt.Errorf("the schema at %s does not list %q", pointer, unlisted)
	}
	return nil
}

// walk visits a value and the schemas that hold for it.
func (d *document) walk(schemas []string, v any, where string, unlisted *[]string) {
	var flat []string
	for _, s := range schemas {
		flat = append(flat, d.flatten(s, v)...)
	}
	switch v := v.(type) {
	case []any:
		var items []string
		for _, s := range flat {
			if d.find(child(s, "items")) != nil {
				items = append(items, child(s, "items"))
			}
		}
		for i, element := range v {
			d.walk(items, element, fmt.Sprintf("%s[%d]", where, i), unlisted)
		}
	case object:
		d.walkObject(flat, v, where, unlisted)
	}
}

func (d *document) walkObject(flat []string, v object, where string, unlisted *[]string) {
	listed := false
	for _, s := range flat {
		listed = listed || d.find(child(s, "properties")) != nil || d.find(child(s, "additionalProperties")) != nil
	}
	if !listed {
		return // any object, such as a payload
	}
	for name, value := range v {
		var of []string
		for _, s := range flat {
			if at := child(s, "properties", name); d.find(at) != nil {
				of = append(of, at)
				d.seen[at] = true
			}
		}
		if of == nil {
			for _, s := range flat {
				if at := child(s, "additionalProperties"); d.find(at) != nil && d.find(at) != false {
					of = append(of, at)
				}
			}
		}
		if of == nil {
			*unlisted = append(*unlisted, where+"."+name)
			continue
		}
		d.walk(of, value, where+"."+name, unlisted)
	}
}

// flatten returns the schemas that one is made of, as far as they hold for v.
func (d *document) flatten(pointer string, v any) []string {
	pointer, s := d.follow(pointer)
	all := []string{pointer}
	for _, word := range []string{"allOf", "anyOf", "oneOf"} {
		list, _ := s[word].([]any)
		for i := range list {
			if at := child(pointer, word, strconv.Itoa(i)); d.schema(at).Validate(v) == nil {
				all = append(all, d.flatten(at, v)...)
			}
		}
	}
	return all
}

// unseen returns the properties under a schema that nothing had so far. Where pass
// says so of a shared schema, it is not looked into.
func (d *document) unseen(pointer string, pass func(name string) bool) []string {
	var missing []string
	visited := make(map[string]bool)
	var visit func(string)
	visit = func(at string) {
		if name, ok := strings.CutPrefix(at, "/components/schemas/"); ok && pass(name) || visited[at] {
			return
		}
		visited[at] = true
		s, ok := d.find(at).(object)
		if !ok {
			return
		}
		if ref, ok := s["$ref"].(string); ok {
			visit(strings.TrimPrefix(ref, "#"))
			return
		}
		for _, name := range d.names(child(at, "properties")) {
			property := child(at, "properties", name)
			if !d.seen[property] {
				missing = append(missing, property)
			}
			visit(property)
		}
		for _, word := range []string{"items", "additionalProperties"} {
			visit(child(at, word))
		}
		for _, word := range []string{"allOf", "anyOf", "oneOf"} {
			list, _ := s[word].([]any)
			for i := range list {
				visit(child(at, word, strconv.Itoa(i)))
			}
		}
	}
	visit(pointer)
	return missing
}

// properties returns the names that the schemas at these places list.
func (d *document) properties(pointers ...string) map[string]bool {
	listed := make(map[string]bool)
	for _, p := range pointers {
		p, _ = d.follow(p)
		for _, name := range d.names(child(p, "properties")) {
			listed[name] = true
		}
	}
	return listed
}

// words returns every name that is in quotes in the sources of these packages:
// whatever they read from a request is among them.
func words(tb testing.TB, dirs ...string) []string {
	tb.Helper()
	name := regexp.MustCompile(`"([a-z][A-Za-z0-9_]{1,20})[,"]`)
	found := make(map[string]bool)
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join("..", "..", dir, "*.go"))
		if err != nil || len(files) == 0 {
			tb.Fatalf("%s has no sources: %v", dir, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				tb.Fatal(err)
			}
			for _, m := range name.FindAllSubmatch(text, -1) {
				found[string(m[1])] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}
