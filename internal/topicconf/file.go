package topicconf

import (
	"encoding/json"
	"errors"
	"strings"

	"go.yaml.in/yaml/v3"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/naming"
	"eventhub/internal/yamlfile"
)

// maxFileBytes bounds a file of settings: what is longer is none.
const maxFileBytes = 64 << 20

// ReadFile reads a file of settings, a regular one: a pipe would be empty the second time, and
// the hub would run without settings. The error has everything that is wrong, one line each,
// with the file's line.
func ReadFile(path string) ([]admin.SettingsEntry, error) {
	content, err := yamlfile.Content(path, maxFileBytes)
	if err != nil {
		return nil, err
	}
	return ParseFile(path, content)
}

// ParseFile reads the content of a file of settings, YAML or JSON: an object topics with the
// settings by name. path names it in errors.
func ParseFile(path string, content []byte) ([]admin.SettingsEntry, error) {
	f := &file{File: yamlfile.File{Path: path}}
	if top := f.Document(content); top != nil {
		f.Members(top, "a line topics: with entries below it", func(name, value *yaml.Node) {
			if name.Value != "topics" {
				f.Fail(name, "unknown name %q%s; topics is the only one", name.Value, naming.DidYouMean(name.Value, []string{"topics"}))
				return
			}
			f.Members(value, "entries of the form name: settings", f.entry)
		})
	}
	return f.entries, f.Err()
}

// file is a file that is being read.
type file struct {
	yamlfile.File
	entries  []admin.SettingsEntry
	patterns []eventhub.Pattern
}

// entry reads one entry.
func (f *file) entry(name, value *yaml.Node) {
	if err := admin.ValidateSettingsName(name.Value); err != nil {
		f.Fail(name, "%s", eventhub.AsError(err).Message)
		return
	}
	lines := make(map[string]*yaml.Node)
	known := f.Faults()
	object := f.json(value, name.Value, "", lines)
	if f.Faults() > known {
		return
	}
	src, err := json.Marshal(object)
	if err != nil {
		f.Fail(name, "%s: %v", name.Value, err)
		return
	}
	settings, err := Parse(name.Value, src)
	if err != nil {
		message := eventhub.AsError(err).Message
		where := name
		member, _, _ := strings.Cut(message, " ")
		if node := lines[strings.TrimSuffix(member, ":")]; node != nil {
			where = node
		}
		f.Fail(where, "%s: %s", name.Value, message)
		return
	}
	if eventhub.IsPattern(name.Value) && !f.place(name) {
		return
	}
	f.entries = append(f.entries, admin.SettingsEntry{Name: name.Value, Source: admin.SourceFile, Settings: settings})
}

// place checks that a pattern ties with none before it.
func (f *file) place(name *yaml.Node) bool {
	p, _ := eventhub.ParsePattern(name.Value) // it is one
	_, err := Place(f.patterns, p)
	switch {
	case err != nil:
		f.Fail(name, "%s", eventhub.AsError(err).Message)
	case len(f.patterns) == admin.MaxSettingsPatterns:
		f.Fail(name, "more than %d patterns", admin.MaxSettingsPatterns)
		err = errors.ErrUnsupported
	}
	if err == nil {
		f.patterns = append(f.patterns, p)
	}
	return err == nil
}

// json returns the value of a node as the JSON library writes it, and notes where each member
// is by its path. entry names the entry in errors.
func (f *file) json(node *yaml.Node, entry, path string, lines map[string]*yaml.Node) any {
	switch node.Kind {
	case yaml.MappingNode:
		object := make(map[string]any)
		f.Members(node, "", func(name, value *yaml.Node) {
			member := strings.TrimPrefix(path+"."+name.Value, ".")
			lines[member] = name
			object[name.Value] = f.json(value, entry, member, lines)
		})
		return object
	case yaml.ScalarNode:
		var v any
		if node.Tag == "!!null" {
			f.Fail(node, "%s: %s has no value; leave it out for the default", entry, orSettings(path))
		} else if err := node.Decode(&v); err != nil {
			f.Fail(node, "%s: %s: %v", entry, orSettings(path), err)
		}
		return v
	}
	f.Fail(node, "%s: %s is a list or a reference; a value is expected", entry, orSettings(path))
	return nil
}

func orSettings(path string) string {
	if path == "" {
		return "the entry"
	}
	return path
}
