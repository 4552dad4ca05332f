// Package yamlfile reads YAML files, and JSON ones, of settings: one document, each name once,
// and every error with the path and the line. What the names mean is the caller's.
package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// Content returns what is in a file of at most so many bytes. It has to be a regular one: such
// files are read more than once, and a pipe would be empty by then, or keep the reader waiting.
func Content(path string, most int) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file, and it is read more than once", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err != nil {
		return nil, err
	}
	if len(content) > most {
		return nil, fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return content, nil
}

// File is a file that is being read.
type File struct {
	Path string
	// Secret keeps everything but the first word of a name out of errors: where a space is
	// missing after a colon, the rest may be a secret.
	Secret bool

	errs []error
}

// Document returns the top of the only document; nil where there is none but comments, or
// where it can not be read.
func (f *File) Document(content []byte) *yaml.Node {
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var document, more yaml.Node
	if err := decoder.Decode(&document); err != nil {
		if !errors.Is(err, io.EOF) {
			f.errs = append(f.errs, f.syntaxError(err))
		}
		return nil
	}
	if err := decoder.Decode(&more); err == nil {
		f.Fail(&more, "a second document; one is allowed")
	} else if !errors.Is(err, io.EOF) {
		f.errs = append(f.errs, f.syntaxError(err))
		return nil
	}
	return document.Content[0]
}

// Members calls visit for each member of an object. Anything else but null is an error that
// says what is wanted.
func (f *File) Members(node *yaml.Node, wanted string, visit func(name, value *yaml.Node)) {
	if node.Kind != yaml.MappingNode {
		if node.Tag != "!!null" {
			f.Fail(node, "wants %s", wanted)
		}
		return
	}
	lines := make(map[string]int)
	for i := 0; i < len(node.Content); i += 2 {
		name := node.Content[i]
		switch first, twice := lines[name.Value]; {
		case name.Kind != yaml.ScalarNode:
			f.Fail(name, "a name that is no text")
		case twice:
			f.Fail(name, "%s is there again, after line %d", f.Shown(name), first)
		default:
			lines[name.Value] = name.Line
			visit(name, node.Content[i+1])
		}
	}
}

// Shown returns what an error may say of a name.
func (f *File) Shown(name *yaml.Node) string {
	end := strings.IndexFunc(name.Value, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-' && r != '_'
	})
	if !f.Secret || end < 0 {
		return name.Value
	}
	return name.Value[:end] + "…"
}

// Fail notes that something is wrong at a node.
func (f *File) Fail(node *yaml.Node, format string, args ...any) {
	f.errs = append(f.errs, fmt.Errorf("%s:%d: %s", f.Path, node.Line, fmt.Sprintf(format, args...)))
}

// Faults returns how much is wrong so far.
func (f *File) Faults() int { return len(f.errs) }

// Err returns everything that is wrong, one line each.
func (f *File) Err() error { return errors.Join(f.errs...) }

// syntaxError words an error of the YAML library. The one that repeats a value, which may be a
// secret that begins with an asterisk, is replaced.
func (f *File) syntaxError(err error) error {
	what := strings.TrimPrefix(err.Error(), "yaml: ")
	if strings.HasPrefix(what, "unknown anchor") || strings.Contains(what, "did not find expected alphabetic or numeric character") {
		line, _, _ := strings.Cut(what, ": ")
		what = "a name or value that begins with * or & needs quotes"
		if strings.HasPrefix(line, "line ") {
			what = line + ": " + what
		}
	}
	if rest, ok := strings.CutPrefix(what, "line "); ok {
		return fmt.Errorf("%s:%s", f.Path, rest)
	}
	return fmt.Errorf("%s: %s", f.Path, what)
}
