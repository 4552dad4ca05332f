package oracle

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// official returns one of the schemas that the makers of OpenAPI and AsyncAPI publish.
func official(t *testing.T, file string) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("https://eventhub.invalid/"+file, parsed(t, text)); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("https://eventhub.invalid/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestOfficialSchemas: both documents are what their makers call one.
func TestOfficialSchemas(t *testing.T) {
	for d, file := range map[*document]string{
		openAPI(t): "openapi-3.1.schema.json", asyncAPI(t): "asyncapi-3.0.0.schema.json",
	} {
		s := official(t, file)
		if err := s.Validate(d.root); err != nil {
			t.Errorf("%s: %#v", d.name, err)
		}
		broken := d.root.(object)["info"].(object)
		title := broken["title"]
		if delete(broken, "title"); s.Validate(d.root) == nil {
			t.Errorf("%s without a title is taken: the schema judges nothing", d.name)
		}
		broken["title"] = title
	}
}

// schemasIn calls visit for every place in a document where a schema is.
func schemasIn(d *document, visit func(pointer string)) {
	var walk func(at string, v any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case object:
			for name, value := range v {
				place := child(at, name)
				switch {
				case name == "example" || name == "examples" || name == "value":
				case name == "schema" || name == "x-item" || name == "payload" && strings.HasPrefix(at, "/components/messages"):
					visit(place)
				default:
					walk(place, value)
				}
			}
		case []any:
			for i, value := range v {
				walk(child(at, strconv.Itoa(i)), value)
			}
		}
	}
	for name, value := range d.root.(object) {
		if name != "components" {
			walk("/"+name, value)
		}
	}
	for name, value := range d.find("/components").(object) {
		if name == "schemas" {
			for _, s := range d.names("/components/schemas") {
				visit(child("/components/schemas", s))
			}
			continue
		}
		walk("/components/"+name, value)
	}
}

// keywords are what the schemas are written with: what JSON Schema 2020-12 and draft 7
// understand alike. A misspelt one would be taken for a note and hold for nothing.
var keywords = map[string]bool{
	"$ref": true, "description": true, "default": true, "type": true, "enum": true, "const": true, "format": true, "pattern": true,
	"minLength": true, "maxLength": true, "minimum": true, "maximum": true, "minItems": true, "maxItems": true, "items": true,
	"maxProperties": true, "properties": true, "propertyNames": true, "additionalProperties": true, "required": true,
	"allOf": true, "anyOf": true, "oneOf": true, "not": true, "if": true, "then": true, "else": true,
	"contentEncoding": true, "contentMediaType": true,
}

// TestSchemas: every schema can be compiled, is written with known keywords, has
// nothing next to a $ref, requires only what it lists, and has defaults that hold.
func TestSchemas(t *testing.T) {
	for _, d := range []*document{openAPI(t), asyncAPI(t)} {
		count := 0
		schemasIn(d, func(pointer string) {
			count++
			d.schema(pointer)
			lintSchema(t, d, pointer)
		})
		if count < 40 {
			t.Errorf("%s: only %d schemas were found", d.name, count)
		}
	}
}

func lintSchema(t *testing.T, d *document, pointer string) {
	s, ok := d.find(pointer).(object)
	if !ok {
		return
	}
	if s["$ref"] != nil && len(s) > 1 {
		t.Errorf("%s: %s has names next to its $ref", d.name, pointer)
	}
	if value, ok := s["default"]; ok {
		if err := d.schema(pointer).Validate(value); err != nil {
			t.Errorf("%s: the default at %s: %v", d.name, pointer, err)
		}
	}
	for word, value := range s {
		at := child(pointer, word)
		if !keywords[word] {
			t.Errorf("%s: %s has the unknown keyword %q", d.name, pointer, word)
		}
		switch word {
		case "properties":
			for name := range value.(object) {
				lintSchema(t, d, child(at, name))
			}
		case "required":
			if s["properties"] == nil {
				continue // a condition on what others list
			}
			for _, name := range value.([]any) {
				if s["properties"].(object)[name.(string)] == nil {
					t.Errorf("%s: %s requires %q, which it does not list", d.name, pointer, name)
				}
			}
		case "items", "additionalProperties", "propertyNames", "not", "if", "then", "else":
			lintSchema(t, d, at)
		case "allOf", "anyOf", "oneOf":
			for i := range value.([]any) {
				lintSchema(t, d, child(at, strconv.Itoa(i)))
			}
		}
	}
}
