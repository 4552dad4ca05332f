// Package oracle judges the SBOM of make release by the official schema of CycloneDX.
package oracle

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// schema compiles the schema that the module of cyclonedx-go has.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	for id, name := range map[string]string{"bom-1.6.schema.json": "bom-1.6.schema.json", "spdx.schema.json": "spdx.schema.json", "jsf-0.82.schema.json": "jsf-0.82.schemax.json"} {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "schema", name))
		if err != nil {
			t.Fatal(err)
		}
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.AddResource("http://cyclonedx.org/schema/"+id, document); err != nil {
			t.Fatal(err)
		}
	}
	s, err := c.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// program builds a program that has some modules: staticcheck, which make lint has
// compiled already.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "-C", filepath.Join("..", "..", ".."), "build", "-o", path, "honnef.co/go/tools/cmd/staticcheck")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// sbom is what a release says of a program.
func sbom(t *testing.T, path string) []byte {
	t.Helper()
	cmd := exec.Command("go", "-C", "..", "run", ".", "sbom", path)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "VERSION=v1.2.3-4-gabcdef0", "SOURCE_DATE_EPOCH=1790000000")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestSchema: the SBOM of a Go program is valid, a program of others reads
// it, and it has every module with its version and licence.
func TestSchema(t *testing.T) {
	built := program(t)
	text := sbom(t, built)
	if again := sbom(t, built); !bytes.Equal(text, again) {
		t.Error("the same program has another SBOM the second time")
	}
	s := schema(t)
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(document); err != nil {
		t.Error(err)
	}
	var b cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(bytes.NewReader(text), cyclonedx.BOMFileFormatJSON).Decode(&b); err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	if len(info.Deps) < 2 || len(*b.Components) != len(info.Deps)+1 {
		t.Errorf("%d components for %d modules and the standard library", len(*b.Components), len(info.Deps))
	}
	for _, m := range info.Deps {
		i := slices.IndexFunc(*b.Components, func(c cyclonedx.Component) bool { return c.Name == m.Path && c.Version == m.Version })
		if i < 0 || (*b.Components)[i].PackageURL == "" || (*b.Components)[i].Licenses == nil {
			t.Errorf("%s %s is not there with a licence", m.Path, m.Version)
		}
	}
}

// TestSchemaJudges: the schema refuses what a mistake here would produce.
func TestSchemaJudges(t *testing.T) {
	text, s := sbom(t, program(t)), schema(t)
	for old, mistake := range map[string]string{
		`"specVersion": "1.6"`: `"specVersion": 16`,
		`"type": "library"`:    `"type": "module"`,
		`"id": "MIT"`:          `"id": "The MIT"`,
		`urn:uuid:`:            `uuid:`,
		`"SHA-256"`:            `"sha256"`,
	} {
		wrong := bytes.Replace(text, []byte(old), []byte(mistake), 1)
		var document any
		if err := json.Unmarshal(wrong, &document); err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(wrong, text) || s.Validate(document) == nil {
			t.Errorf("an SBOM with %s is taken for valid", mistake)
		}
	}
}
