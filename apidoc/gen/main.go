// Command gen makes the documents of package apidoc out of their sources:
//
//	go generate ./apidoc
//
// It turns YAML into JSON, names in the order of the file, and adds two
// things. A $ref to #/components/schemas/ takes the schema out of schemas.yaml into
// the document, with all that it refers to in its turn. And in an OpenAPI document
//
//	problems: [bad_request, not_found]
//
// of an operation becomes its responses of these names, besides those that every
// guarded operation has; "problems: none" is for one without any.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

func main() {
	for _, name := range []string{"openapi", "asyncapi"} {
		text, err := build("source", name+".yaml")
		if err == nil {
			err = os.WriteFile(name+".json", text, 0o644)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "gen: %s: %v\n", name, err)
			os.Exit(1)
		}
	}
}

const (
	schemaRef = "#/components/schemas/"
	// always are the problems that every guarded operation may answer with.
	always = "unauthorized,forbidden,rate_limited,internal,unavailable"
)

// build returns the JSON of one document.
func build(dir, name string) ([]byte, error) {
	doc, err := load(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	shared, err := load(filepath.Join(dir, "schemas.yaml"))
	if err != nil {
		return nil, err
	}
	if err := addProblems(doc); err != nil {
		return nil, err
	}
	if err := addSchemas(doc, shared); err != nil {
		return nil, err
	}
	var compact, pretty bytes.Buffer
	if err := write(&compact, doc); err != nil {
		return nil, err
	}
	if err := json.Indent(&pretty, compact.Bytes(), "", " "); err != nil {
		return nil, err
	}
	pretty.WriteByte('\n')
	return pretty.Bytes(), nil
}

func load(file string) (*yaml.Node, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s is not an object", file)
	}
	return doc.Content[0], nil
}

// member returns the value of a name in a mapping, nil where there is none.
func member(mapping *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			return mapping.Content[i+1]
		}
	}
	return nil
}

func text(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }

func mapping(pairs ...*yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Content: pairs}
}

// addProblems replaces each "problems" by responses. Their names are those of
// #/components/responses, which say their status as x-status.
func addProblems(doc *yaml.Node) error {
	paths := member(doc, "paths")
	if paths == nil {
		return nil
	}
	known := member(member(doc, "components"), "responses")
	for _, item := range values(paths) {
		for _, operation := range values(item) {
			operation.Content = merged(operation)
			responses := member(operation, "responses")
			if responses == nil {
				continue // the parameters of a path
			}
			at := slices.IndexFunc(operation.Content, func(n *yaml.Node) bool { return n.Value == "problems" })
			if at < 0 {
				return fmt.Errorf("line %d: an operation says nothing of its problems", operation.Line)
			}
			names := strings.Split(always, ",")
			for _, n := range operation.Content[at+1].Content {
				names = append(names, n.Value)
			}
			if operation.Content[at+1].Value == "none" {
				names = nil
			}
			operation.Content = slices.Delete(operation.Content, at, at+2)
			if err := addResponses(responses, known, names); err != nil {
				return err
			}
		}
	}
	return nil
}

func addResponses(responses, known *yaml.Node, names []string) error {
	var added [][2]string
	for _, name := range names {
		response := member(known, name)
		if response == nil || member(response, "x-status") == nil {
			return fmt.Errorf("there is no response %q with an x-status", name)
		}
		added = append(added, [2]string{member(response, "x-status").Value, name})
	}
	slices.SortFunc(added, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	for _, a := range added {
		if member(responses, a[0]) != nil {
			return fmt.Errorf("line %d: status %s is there twice", responses.Line, a[0])
		}
		responses.Content = append(responses.Content, text(a[0]), mapping(text("$ref"), text("#/components/responses/"+a[1])))
	}
	return nil
}

func values(mapping *yaml.Node) (all []*yaml.Node) {
	for i := 1; i < len(mapping.Content); i += 2 {
		if v := resolve(mapping.Content[i]); v.Kind == yaml.MappingNode {
			all = append(all, v)
		}
	}
	return all
}

// addSchemas puts the shared schemas that the document refers to into it, in the
// order that they have in their file.
func addSchemas(doc, shared *yaml.Node) error {
	wanted := make(map[string]bool)
	var missing []error
	var visit func(*yaml.Node)
	visit = func(n *yaml.Node) {
		n = resolve(n)
		name, isRef := strings.CutPrefix(n.Value, schemaRef)
		if isRef && n.Kind == yaml.ScalarNode && !wanted[name] {
			wanted[name] = true
			if s := member(shared, name); s != nil {
				visit(s)
			} else {
				missing = append(missing, fmt.Errorf("line %d: there is no schema %q", n.Line, name))
			}
		}
		for _, child := range n.Content {
			visit(child)
		}
	}
	visit(doc)
	schemas := mapping()
	for i := 0; i+1 < len(shared.Content); i += 2 {
		if wanted[shared.Content[i].Value] {
			schemas.Content = append(schemas.Content, shared.Content[i], shared.Content[i+1])
		}
	}
	components := member(doc, "components")
	components.Content = append(components.Content, text("schemas"), schemas)
	return errors.Join(missing...)
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// write writes a node as JSON.
func write(to *bytes.Buffer, n *yaml.Node) error {
	switch n = resolve(n); n.Kind {
	case yaml.MappingNode:
		return writeObject(to, n)
	case yaml.SequenceNode:
		to.WriteByte('[')
		for i, child := range n.Content {
			if i > 0 {
				to.WriteByte(',')
			}
			if err := write(to, child); err != nil {
				return err
			}
		}
		to.WriteByte(']')
		return nil
	}
	return writeScalar(to, n)
}

func writeObject(to *bytes.Buffer, n *yaml.Node) error {
	pairs := merged(n)
	to.WriteByte('{')
	for i := 0; i+1 < len(pairs); i += 2 {
		if i > 0 {
			to.WriteByte(',')
		}
		if err := writeScalar(to, text(pairs[i].Value)); err != nil {
			return err
		}
		to.WriteByte(':')
		if err := write(to, pairs[i+1]); err != nil {
			return err
		}
	}
	to.WriteByte('}')
	return nil
}

// merged returns the members of a mapping with those that "<<" takes over from
// another in its place, except the ones that it has itself.
func merged(n *yaml.Node) (pairs []*yaml.Node) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Tag != "!!merge" {
			pairs = append(pairs, n.Content[i], n.Content[i+1])
			continue
		}
		from := merged(resolve(n.Content[i+1]))
		for k := 0; k+1 < len(from); k += 2 {
			if member(n, from[k].Value) == nil {
				pairs = append(pairs, from[k], from[k+1])
			}
		}
	}
	return pairs
}

func writeScalar(to *bytes.Buffer, n *yaml.Node) error {
	var v any
	if err := n.Decode(&v); err != nil {
		return err
	}
	if s, ok := v.(string); ok {
		v = strings.TrimRight(s, "\n")
	}
	e := json.NewEncoder(to)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	to.Truncate(to.Len() - 1)
	return nil
}
