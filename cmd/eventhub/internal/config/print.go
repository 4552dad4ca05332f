package config

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// shown returns a value as it may be shown, and whether that is the value
// itself, which a file could give. A key without a value shows as nil.
func (s *Settings) shown(k Key) (value any, whole bool) {
	switch v := s.values.Get(k.Name).(type) {
	case string:
		if v == "" {
			return nil, false
		}
		text := v
		if k.Secret {
			text = Redacted
		} else if k.Hide != nil {
			text = k.Hide(v)
		}
		return text, text == v
	case time.Duration:
		return v.String(), true
	default:
		return v, true
	}
}

// WriteYAML writes the settings as a file that Load reads: what has no value, or
// cannot be shown, is printed as a comment. With sources every line says
// where its value came from.
func (s *Settings) WriteYAML(w io.Writer, sources bool) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, k := range s.schema.keys {
		value, whole := s.shown(k)
		line := "# " + k.Name + ": not set"
		if value != nil {
			text, err := inline(value)
			if err != nil {
				return fmt.Errorf("write %s: %w", k.Name, err)
			}
			if line = k.Name + ": " + text; !whole {
				line = "# " + line
			}
		}
		if sources {
			line += "\t# " + s.Source(k.Name).String()
		}
		if _, err := fmt.Fprintln(table, line); err != nil {
			return err
		}
	}
	return table.Flush()
}

// inline returns a value as YAML of one line.
func inline(value any) (string, error) {
	var node yaml.Node
	if err := node.Encode(value); err != nil {
		return "", err
	}
	switch {
	case node.Kind == yaml.SequenceNode:
		node.Style = yaml.FlowStyle
	case strings.ContainsFunc(node.Value, unicode.IsControl):
		node.Style = yaml.DoubleQuotedStyle
	}
	text, err := yaml.Marshal(&node)
	return strings.TrimSuffix(string(text), "\n"), err
}

// WriteJSON writes the settings as one object, which Load reads as a file: what
// has no value, or can not be shown, is left out. With sources it is no such
// file: every key has an object of value and source, the redacted ones too.
func (s *Settings) WriteJSON(w io.Writer, sources bool) error {
	type sourced struct {
		Value  any    `json:"value"`
		Source string `json:"source"`
	}
	object := make(map[string]any)
	for _, k := range s.schema.keys {
		value, whole := s.shown(k)
		switch {
		case value == nil:
		case sources:
			object[k.Name] = sourced{value, s.Source(k.Name).String()}
		case whole:
			object[k.Name] = value
		}
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(object)
}
