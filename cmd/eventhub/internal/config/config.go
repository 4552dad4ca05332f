// Package config finds out what a command is to run with. A setting has one
// name, its key: the key in the file, with hyphens the long flag and, in capitals after
// the prefix EVENTHUB_, the environment variable. The strongest source that gives a key
// decides: flag, environment, file, default.
//
// It owns the sources, the text form of values and how all of it is shown; what
// the keys are and what they mean is the caller's, the serve, demo and config
// commands. Its invariants:
//
//   - Sources carry text. It is parsed once, when it is known which source
//     decides, so that a value reads the same and fails the same wherever it
//     came from, and all that is wrong is reported at once.
//   - A key in the file that is not known, or is there twice, is an error.
//   - The value of a secret is in no error, no warning and nothing printed.
//
// Nothing here is safe for concurrent use but reading Settings.
package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"

	"eventhub/internal/naming"
)

const (
	// fileFlag names the file; it is no key, since a file does not name a file.
	fileFlag     = "config"
	fileVariable = "EVENTHUB_CONFIG"
	envPrefix    = "EVENTHUB_"
	// delimiter parts the levels of a key for koanf. Keys here have one level,
	// and no dot.
	delimiter = "."
	// Redacted replaces a secret. It is refused as a secret.
	Redacted = "[redacted]"
)

// Key is one setting.
type Key struct {
	Name string // as in the file: in snake_case
	Type Type
	// Default is written as a user would write it; empty for none.
	Default string
	// Usage is one line for help and documentation.
	Usage string
	// Older are further environment variables, which count where the one named
	// after the key is not set, the first of them first.
	Older []string
	// Secret is a Text that is never shown. It has a twin Name_file, and _FILE
	// after the names of its variables, that names the file to read it from.
	Secret bool
	// Hide returns what may be shown of a value; nil: everything.
	Hide func(value string) string

	twinOf string // of a -file key: the secret's name
}

// IsTwin reports whether the key names the file of a secret.
func (k Key) IsTwin() bool { return k.twinOf != "" }

// Variables returns the environment variables of the key, the strongest first.
func (k Key) Variables() []string {
	own := envPrefix + strings.ToUpper(k.Name)
	return append([]string{own}, k.Older...)
}

// Flag returns the flag of the key: its name, with hyphens.
func (k Key) Flag() string { return strings.ReplaceAll(k.Name, "_", "-") }

// keyOf returns the name of the key that a flag, or an older file, writes with hyphens.
func keyOf(spelling string) string { return strings.ReplaceAll(spelling, "-", "_") }

// Schema is all that can be set.
type Schema struct {
	keys    []Key    // a secret's twin after the secret
	foreign []string // variables that begin with EVENTHUB_ and are no key's
}

// New returns the schema of the keys, in the order in which they are shown.
// Foreign variables begin with EVENTHUB_ and belong to somebody else.
func New(keys []Key, foreign ...string) *Schema {
	s := &Schema{foreign: append(slices.Clone(foreign), fileVariable)}
	for _, k := range keys {
		s.keys = append(s.keys, k)
		if !k.Secret {
			continue
		}
		twin := Key{Name: k.Name + "_file", Type: Text, Usage: "file that holds what " + k.Name + " would", twinOf: k.Name}
		for _, older := range k.Older {
			twin.Older = append(twin.Older, older+"_FILE")
		}
		s.keys = append(s.keys, twin)
	}
	return s
}

// Keys returns all keys, twins of secrets among them.
func (s *Schema) Keys() []Key { return s.keys }

// Register gives the command a flag for every key, or for these alone, and --config.
func (s *Schema) Register(flags *pflag.FlagSet, only ...string) {
	flags.String(fileFlag, "", "YAML file with settings, its keys named as the flags are, with _ for - [$"+fileVariable+"]")
	for _, k := range s.keys {
		if len(only) > 0 && !slices.Contains(only, k.Name) {
			continue
		}
		usage := fmt.Sprintf("%s [$%s]", k.Usage, strings.Join(k.Variables(), ", $"))
		f := flags.VarPF(&text{key: k}, k.Flag(), "", usage)
		if k.Type.isBool() {
			f.NoOptDefVal = "true"
		}
	}
}

// Kind is a kind of source.
type Kind string

// The kinds of sources, the weakest first.
const (
	FromDefault Kind = ""
	FromFile    Kind = "file"
	FromEnv     Kind = "env"
	FromFlag    Kind = "flag"
)

// Source is where a value came from. The zero value is the default.
type Source struct {
	Kind Kind
	Name string // of the variable or flag; of a file its path and more
	Path string // of a file
}

func (s Source) String() string {
	if s.Kind == FromDefault {
		return "default"
	}
	return string(s.Kind) + " " + s.Name
}

// Settings are the values that count, and where each came from.
type Settings struct {
	// File is the path of the file that was read; empty without one.
	File string
	// Warnings are about what was given and has no effect.
	Warnings []string

	schema  *Schema
	values  *koanf.Koanf
	sources map[string]Source
}

// Text returns the value of a Text, Address or OneOf; it is empty if nobody
// gave one and there is no default. The other getters are for the other types.
func (s *Settings) Text(key string) string            { return s.values.String(key) }
func (s *Settings) Bool(key string) bool              { return s.values.Bool(key) }
func (s *Settings) Int(key string) int                { return s.values.Int(key) }
func (s *Settings) Duration(key string) time.Duration { return s.values.Duration(key) }
func (s *Settings) Strings(key string) []string       { return s.values.Strings(key) }

// Source says where the value of a key came from.
func (s *Settings) Source(key string) Source { return s.sources[key] }

// Changed returns the keys whose value in now is another.
func (s *Settings) Changed(now *Settings) []string {
	var keys []string
	for _, k := range s.schema.keys {
		if !reflect.DeepEqual(s.values.Get(k.Name), now.values.Get(k.Name)) {
			keys = append(keys, k.Name)
		}
	}
	return keys
}

// Load reads all sources. The file is the one that --config or EVENTHUB_CONFIG
// names; none is looked for. The error is an Errors with everything that is
// wrong; the Settings are usable even so, with defaults where a value is wrong
// and Redacted where a secret is, so that a caller can go on to check what the
// values mean. The flags are those of Register, parsed; environ is as os.Environ
// returns it.
func (s *Schema) Load(flags *pflag.FlagSet, environ []string) (*Settings, error) {
	return s.load(flags, environ, func(string) error { return nil })
}

// Reload is Load for a process that has loaded before and is at work: a file
// that is not a regular one is an error. A pipe would be empty by now, or keep
// the process waiting until somebody writes to it.
func (s *Schema) Reload(flags *pflag.FlagSet, environ []string) (*Settings, error) {
	return s.load(flags, environ, func(path string) error {
		if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a regular file", path)
		}
		return nil
	})
}

func (s *Schema) load(flags *pflag.FlagSet, environ []string, mayOpen func(path string) error) (*Settings, error) {
	l := &loading{
		Settings: &Settings{schema: s, values: koanf.New(delimiter), sources: make(map[string]Source)},
		mayOpen:  mayOpen,
	}
	l.layer(confmap.Provider(s.defaults(), delimiter), nil, func(string) Source { return Source{} })
	l.file(flags, environ)
	l.environment(environ)
	l.layer(posflag.ProviderWithFlag(flags, delimiter, nil, given), nil,
		func(key string) Source { return Source{Kind: FromFlag, Name: "--" + Key{Name: key}.Flag()} })
	l.parse()
	l.secrets()
	l.Warnings = s.unknownVariables(environ)
	if len(l.errs) == 0 {
		return l.Settings, nil
	}
	return l.Settings, l.errs
}

func (s *Schema) defaults() map[string]any {
	values := make(map[string]any)
	for _, k := range s.keys {
		if k.Default != "" {
			values[k.Name] = k.Default
		}
	}
	return values
}

// loading is Settings in the making. Its values are the text of the sources, a
// string or a []string, until parse has been called.
type loading struct {
	*Settings
	mayOpen  func(path string) error
	fileFrom Source // where the path of the file came from
	errs     Errors
}

func (l *loading) fail(format string, args ...any) {
	l.errs = append(l.errs, fmt.Errorf(format, args...))
}

// layer lays what a provider has over what there is.
func (l *loading) layer(p koanf.Provider, parser koanf.Parser, source func(key string) Source) {
	err := l.values.Load(p, parser, koanf.WithMergeFunc(func(layer, merged map[string]any) error {
		for key, raw := range layer {
			merged[key], l.sources[key] = raw, source(key)
		}
		return nil
	}))
	if err != nil { // of the file; the other providers do not fail
		l.fail("%s: %w (%s)", fileFlag, err, l.fileFrom)
	}
}

// file reads the file, if one is named.
func (l *loading) file(flags *pflag.FlagSet, environ []string) {
	l.fileFrom = Source{Kind: FromEnv, Name: fileVariable}
	path := lookup(environ, fileVariable)
	if f := flags.Lookup(fileFlag); f.Changed {
		l.fileFrom = Source{Kind: FromFlag, Name: "--" + fileFlag}
		if path = f.Value.String(); path == "" {
			l.fail("%s: the path is empty (%s)", fileFlag, l.fileFrom)
		}
	}
	if path == "" {
		return
	}
	l.File = path
	if err := l.mayOpen(path); err != nil {
		l.fail("%s: %w (%s)", fileFlag, err, l.fileFrom)
		return
	}
	parser := &yamlFile{path: path, keys: l.schema.keys, lines: make(map[string]int)}
	l.layer(file.Provider(path), parser, func(key string) Source {
		return Source{FromFile, fmt.Sprintf("%s:%d", path, parser.lines[key]), path}
	})
	l.errs = append(l.errs, parser.errs...)
}

// environment lays the variables of every rank, the weakest first. An empty
// variable counts as not set.
func (l *loading) environment(environ []string) {
	ranks := 0
	for _, k := range l.schema.keys {
		ranks = max(ranks, len(k.Variables()))
	}
	for rank := ranks - 1; rank >= 0; rank-- {
		keys := make(map[string]string) // by the variable of this rank
		variables := make(map[string]string)
		for _, k := range l.schema.keys {
			if v := k.Variables(); rank < len(v) {
				keys[v[rank]], variables[k.Name] = k.Name, v[rank]
			}
		}
		l.layer(env.Provider(delimiter, env.Opt{
			EnvironFunc: func() []string { return environ },
			TransformFunc: func(variable, value string) (string, any) {
				if value == "" {
					return "", nil
				}
				return keys[variable], value
			},
		}), nil, func(key string) Source { return Source{Kind: FromEnv, Name: variables[key]} })
	}
}

// lookup returns the value of a variable, the first as os.Getenv does.
func lookup(environ []string, variable string) string {
	for _, v := range environ {
		if name, value, _ := strings.Cut(v, "="); name == variable {
			return value
		}
	}
	return ""
}

// parse turns text into values.
func (l *loading) parse() {
	values := make(map[string]any)
	for _, k := range l.schema.keys {
		raw := l.values.Get(k.Name)
		if raw == nil {
			values[k.Name] = k.Type.zero
			continue
		}
		value, err := k.Type.read(raw)
		if err == nil && k.Secret && value == Redacted {
			err = fmt.Errorf("%q is shown instead of a secret and is none; give the secret itself", Redacted)
		}
		if err != nil {
			l.fail("%s: %w (%s)", k.Name, err, l.Source(k.Name))
			value = k.fallback()
		}
		values[k.Name] = value
	}
	l.layer(confmap.Provider(values, delimiter), nil, l.Source)
}

// fallback is the value of a key whose text is wrong.
func (k Key) fallback() any {
	if k.Secret {
		return Redacted
	}
	if value, err := k.Type.read(k.Default); err == nil {
		return value
	}
	return k.Type.zero
}

// secrets reads the files that secrets are in.
func (l *loading) secrets() {
	for _, twin := range l.schema.keys {
		if twin.twinOf == "" {
			continue
		}
		path, source := l.Text(twin.Name), l.Source(twin.Name)
		if path == "" {
			continue
		}
		if l.Text(twin.twinOf) != "" {
			l.fail("%s and %s are both given; take one away (%s; %s)", twin.twinOf, twin.Name, l.Source(twin.twinOf), source)
			continue
		}
		err, secret := l.mayOpen(path), ""
		if err == nil {
			secret, err = readSecret(path)
		}
		if err != nil {
			l.fail("%s: %w (%s)", twin.Name, err, source)
			secret = Redacted
		}
		l.layer(confmap.Provider(map[string]any{twin.twinOf: secret}, delimiter), nil, func(string) Source {
			return Source{FromFile, fmt.Sprintf("%s, named by %s", path, source), path}
		})
	}
}

// unknownVariables warns of variables that look like a setting. They are no
// errors: container platforms put such variables there on their own account,
// as in EVENTHUB_SERVICE_HOST.
func (s *Schema) unknownVariables(environ []string) []string {
	known := slices.Clone(s.foreign)
	for _, k := range s.keys {
		known = append(known, k.Variables()[0])
	}
	ends := make([]string, len(known)) // what distinguishes them
	for i, name := range known {
		ends[i] = strings.TrimPrefix(name, envPrefix)
	}
	var warnings []string
	for _, v := range environ {
		name, _, _ := strings.Cut(v, "=")
		end, ours := strings.CutPrefix(name, envPrefix)
		if !ours || slices.Contains(known, name) {
			continue
		}
		warning := "environment variable " + name + " is unknown and has no effect"
		if near := naming.Nearest(end, ends); near != "" {
			warning += "; did you mean " + envPrefix + near + "?"
		}
		warnings = append(warnings, warning)
	}
	slices.Sort(warnings)
	return warnings
}

// Errors are all that is wrong, one line each.
type Errors []error

func (e Errors) Error() string { return errors.Join(e...).Error() }

// Unwrap makes errors.Is and errors.As look into each.
func (e Errors) Unwrap() []error { return e }
