package topicconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/naming"
)

// maxFileBytes bounds a file of settings: what is longer is none.
const maxFileBytes = 64 << 20

// ReadFile reads a file of settings. One that is empty the second time, such as a pipe, is
// refused: the hub would run without settings. The error has everything that is wrong, one line each,
// with the file's line.
func ReadFile(path string) ([]admin.SettingsEntry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file, and it is read more than once", path)
	}
	content, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxFileBytes {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxFileBytes)
	}
	return ParseFile(path, content)
}

// ParseFile reads the content of a file of settings, YAML or JSON: an object topics with the
// settings by name. path names it in errors.
func ParseFile(path string, content []byte) ([]admin.SettingsEntry, error) {
	f := &file{path: path}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var document, more yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, nil // nothing but comments
	} else if err != nil {
		return nil, f.syntaxError(err)
	}
	if err := decoder.Decode(&more); err == nil {
		f.fail(&more, "a second document; one is allowed")
	} else if !errors.Is(err, io.EOF) {
		return nil, f.syntaxError(err)
	}
	f.members(document.Content[0], "a line topics: with entries below it", func(name, value *yaml.Node) {
		if name.Value != "topics" {
			f.fail(name, "unknown name %q%s; topics is the only one", name.Value, naming.DidYouMean(name.Value, []string{"topics"}))
			return
		}
		f.members(value, "entries of the form name: settings", f.entry)
	})
	return f.entries, errors.Join(f.errs...)
}

// file is a file that is being read.
type file struct {
	path     string
	entries  []admin.SettingsEntry
	patterns []eventhub.Pattern
	errs     []error
}

func (f *file) fail(node *yaml.Node, format string, args ...any) {
	f.errs = append(f.errs, fmt.Errorf("%s:%d: %s", f.path, node.Line, fmt.Sprintf(format, args...)))
}

// members calls visit for each member of an object.
func (f *file) members(node *yaml.Node, wanted string, visit func(name, value *yaml.Node)) {
	if node.Kind != yaml.MappingNode {
		if node.Tag != "!!null" {
			f.fail(node, "wants %s", wanted)
		}
		return
	}
	lines := make(map[string]int)
	for i := 0; i < len(node.Content); i += 2 {
		name := node.Content[i]
		switch first, twice := lines[name.Value]; {
		case name.Kind != yaml.ScalarNode:
			f.fail(name, "a name that is no text")
		case twice:
			f.fail(name, "%s is there again, after line %d", name.Value, first)
		default:
			lines[name.Value] = name.Line
			visit(name, node.Content[i+1])
		}
	}
}

// entry reads one entry.
func (f *file) entry(name, value *yaml.Node) {
	if err := admin.ValidateSettingsName(name.Value); err != nil {
		f.fail(name, "%s", eventhub.AsError(err).Message)
		return
	}
	lines := make(map[string]*yaml.Node)
	known := len(f.errs)
	object := f.json(value, name.Value, "", lines)
	if len(f.errs) > known {
		return
	}
	src, err := json.Marshal(object)
	if err != nil {
		f.fail(name, "%s: %v", name.Value, err)
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
		f.fail(where, "%s: %s", name.Value, message)
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
		f.fail(name, "%s", eventhub.AsError(err).Message)
	case len(f.patterns) == admin.MaxSettingsPatterns:
		f.fail(name, "more than %d patterns", admin.MaxSettingsPatterns)
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
		f.members(node, "", func(name, value *yaml.Node) {
			member := strings.TrimPrefix(path+"."+name.Value, ".")
			lines[member] = name
			object[name.Value] = f.json(value, entry, member, lines)
		})
		return object
	case yaml.ScalarNode:
		var v any
		if node.Tag == "!!null" {
			f.fail(node, "%s: %s has no value; leave it out for the default", entry, orSettings(path))
		} else if err := node.Decode(&v); err != nil {
			f.fail(node, "%s: %s: %v", entry, orSettings(path), err)
		}
		return v
	}
	f.fail(node, "%s: %s is a list or a reference; a value is expected", entry, orSettings(path))
	return nil
}

func orSettings(path string) string {
	if path == "" {
		return "the entry"
	}
	return path
}

// syntaxError words an error of the YAML library.
func (f *file) syntaxError(err error) error {
	what := strings.TrimPrefix(err.Error(), "yaml: ")
	if strings.HasPrefix(what, "unknown anchor") || strings.Contains(what, "did not find expected alphabetic or numeric character") {
		what += "; a name that begins with * needs quotes"
	}
	if rest, ok := strings.CutPrefix(what, "line "); ok {
		return fmt.Errorf("%s:%s", f.path, rest)
	}
	return fmt.Errorf("%s: %s", f.path, what)
}
