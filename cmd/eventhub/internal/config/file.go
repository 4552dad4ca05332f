package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"eventhub/internal/naming"
)

// yamlFile is the koanf.Parser of the file. It takes the text of scalars as it
// is there: a token 0123 is no octal number, and a port no number either
// until the key's type says so. What is wrong is reported with its line.
type yamlFile struct {
	path string
	keys []Key
	// Filled by Unmarshal: where each key is, and all that is wrong. The
	// latter is no error of Unmarshal, so that what is right still counts.
	lines map[string]int
	errs  Errors
}

// Unmarshal returns a string or a []string for every key that is right.
func (f *yamlFile) Unmarshal(b []byte) (map[string]any, error) {
	values := make(map[string]any)
	decoder := yaml.NewDecoder(bytes.NewReader(b))
	var document, more yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return values, nil // nothing but comments
	} else if err != nil {
		f.errs = append(f.errs, f.syntaxError(err))
		return values, nil
	}
	if err := decoder.Decode(&more); err == nil {
		f.fail(&more, "a second document; one is allowed")
	} else if !errors.Is(err, io.EOF) {
		f.errs = append(f.errs, f.syntaxError(err))
	}
	top := document.Content[0]
	switch {
	case top.Kind == yaml.MappingNode:
		for i := 0; i < len(top.Content); i += 2 {
			f.take(values, top.Content[i], top.Content[i+1])
		}
	case top.Tag != "!!null":
		f.fail(top, "wants lines of the form key: value")
	}
	return values, nil
}

// take puts one entry of the file into values.
func (f *yamlFile) take(values map[string]any, name, value *yaml.Node) {
	var names []string
	for _, k := range f.keys {
		names = append(names, k.Name)
	}
	key := keyOf(name.Value)
	first, twice := f.lines[key]
	switch {
	case name.Kind != yaml.ScalarNode:
		f.fail(name, "a key that is no text")
		return
	case !slices.Contains(names, key):
		f.fail(name, "unknown key %q%s", keyPart(name.Value), naming.DidYouMean(keyPart(name.Value), names))
		return
	case twice:
		f.fail(name, "%s is set again, after line %d", key, first)
		return
	}
	f.lines[key] = name.Line
	raw, err := f.raw(value)
	if err != nil {
		f.fail(value, "%s: %w", key, err)
		return
	}
	values[key] = raw
}

// keyPart returns the beginning of a name that could be a key. In
// {auth_token:s3cret}, where a space is missing, all of it is the name.
func keyPart(name string) string {
	end := strings.IndexFunc(name, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-' && r != '_'
	})
	if end < 0 {
		return name
	}
	return name[:end] + "…"
}

// raw returns the text of a value.
func (f *yamlFile) raw(value *yaml.Node) (any, error) {
	switch {
	case value.Kind == yaml.ScalarNode && value.Tag == "!!null":
		return nil, errors.New("has no value; leave the key out for the default")
	case value.Kind == yaml.ScalarNode:
		return value.Value, nil
	case value.Kind == yaml.MappingNode:
		return nil, errors.New("wants a value and not keys below it")
	case value.Kind != yaml.SequenceNode:
		return nil, errors.New("wants a value and not a reference to one")
	}
	list := make([]string, 0, len(value.Content))
	for _, element := range value.Content {
		if element.Kind != yaml.ScalarNode || element.Tag == "!!null" {
			return nil, errors.New("wants a list of texts")
		}
		list = append(list, element.Value)
	}
	return list, nil
}

func (f *yamlFile) fail(node *yaml.Node, format string, args ...any) {
	f.errs = append(f.errs, fmt.Errorf("%s:%d: %w", f.path, node.Line, fmt.Errorf(format, args...)))
}

// syntaxError words an error of the YAML library. The one that repeats a value,
// which may be a secret that begins with an asterisk, is replaced.
func (f *yamlFile) syntaxError(err error) error {
	what := strings.TrimPrefix(err.Error(), "yaml: ")
	if strings.HasPrefix(what, "unknown anchor") {
		what = "a value begins with * and is not in quotes"
	}
	if rest, ok := strings.CutPrefix(what, "line "); ok {
		return fmt.Errorf("%s:%s", f.path, rest)
	}
	return fmt.Errorf("%s: %s", f.path, what)
}

// Marshal makes yamlFile a koanf.Parser; koanf is never asked to write.
func (f *yamlFile) Marshal(map[string]any) ([]byte, error) {
	return nil, errors.ErrUnsupported
}

// maxSecretBytes bounds the file of a secret: what is longer is no token, and
// may be a device that never ends.
const maxSecretBytes = 16 << 10

// readSecret returns what the file holds, without the newline at its end. The
// error names the path and nothing of the content.
func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecretBytes+1))
	if err != nil {
		return "", err
	}
	secret := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	switch {
	case len(b) > maxSecretBytes:
		return "", fmt.Errorf("%s has more than %d bytes", path, maxSecretBytes)
	case secret == "":
		return "", fmt.Errorf("%s is empty", path)
	case strings.ContainsFunc(secret, unicode.IsControl):
		return "", fmt.Errorf("%s has more than one line, or control characters", path)
	case secret == Redacted:
		return "", fmt.Errorf("%s holds %q, which is shown instead of a secret and is none", path, Redacted)
	}
	return secret, nil
}
