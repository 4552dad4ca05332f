package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
)

// What of CycloneDX 1.6 an SBOM of a Go program needs.
type (
	bom struct {
		Schema       string       `json:"$schema"`
		Format       string       `json:"bomFormat"`
		SpecVersion  string       `json:"specVersion"`
		SerialNumber string       `json:"serialNumber"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Timestamp string    `json:"timestamp"`
		Component component `json:"component"`
	}
	component struct {
		Type       string          `json:"type"`
		Ref        string          `json:"bom-ref"`
		Name       string          `json:"name"`
		Version    string          `json:"version"`
		Hashes     []hash          `json:"hashes,omitempty"`
		Licences   []licenceChoice `json:"licenses,omitempty"`
		PURL       string          `json:"purl"`
		Properties []property      `json:"properties,omitempty"`
	}
	hash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	licenceChoice struct {
		Licence licence `json:"license"`
	}
	licence struct {
		ID string `json:"id"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	dependency struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn"`
	}
)

// packageURL names a Go module as package managers and scanners do.
func packageURL(path, version string) string {
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return "pkg:golang/" + strings.Join(parts, "/") + "@" + url.PathEscape(version)
}

// writeSBOM describes a binary of that version. A binary does not say which module needs
// which, so all of them are dependencies of the program.
func writeSBOM(out io.Writer, binary []byte, version string, at time.Time, modules []module) error {
	if version == "" {
		return errors.New("VERSION, the version of the binary, is not set")
	}
	digest := sha256.Sum256(binary)
	b := bom{
		Schema:       "http://cyclonedx.org/schema/bom-1.6.schema.json",
		Format:       "CycloneDX",
		SpecVersion:  "1.6",
		SerialNumber: "urn:uuid:" + uuid.NewSHA1(uuid.Nil, digest[:]).String(),
		Version:      1,
		Metadata: metadata{
			Timestamp: at.UTC().Format(time.RFC3339),
			Component: component{
				Type: "application", Name: "eventhub", Version: version,
				Ref: packageURL("eventhub", version), PURL: packageURL("eventhub", version),
				Hashes: []hash{{"SHA-256", hex.EncodeToString(digest[:])}},
			},
		},
	}
	all := dependency{Ref: b.Metadata.Component.Ref}
	for _, m := range modules {
		c := component{Type: "library", Name: m.path, Version: m.version, PURL: packageURL(m.path, m.version)}
		c.Ref = c.PURL
		for _, id := range m.licences {
			c.Licences = append(c.Licences, licenceChoice{licence{id}})
		}
		if m.sum != "" {
			c.Properties = []property{{"go:sum", m.sum}}
		}
		b.Components = append(b.Components, c)
		b.Dependencies = append(b.Dependencies, dependency{c.Ref, []string{}})
		all.DependsOn = append(all.DependsOn, c.Ref)
	}
	b.Dependencies = append([]dependency{all}, b.Dependencies...)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(b)
}
