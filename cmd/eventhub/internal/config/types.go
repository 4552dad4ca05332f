package config

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"eventhub/internal/naming"
)

// Type says how the value of a key is written. Nothing is ever given as an empty
// text, except a list without elements: who means "not set" leaves the key out.
type Type struct {
	name    string   // for help
	choices []string // all there are, where they can be counted
	zero    any      // the value of a key that nobody gave and that has no default
	parse   func(text string) (any, error)
	element func(text string) error // of a list
}

// Choices returns all values there are, for types that can say.
func (t Type) Choices() []string { return t.choices }

func (t Type) isBool() bool { return t.name == "bool" }
func (t Type) isList() bool { return t.element != nil }

// Text is any text that is not empty; it never appears in an error.
var Text = Type{name: "string", zero: "", parse: func(text string) (any, error) { return text, nil }}

// Bool is true or false; a flag alone means true.
var Bool = Type{name: "bool", zero: false, parse: func(text string) (any, error) {
	b, err := strconv.ParseBool(text)
	if err != nil {
		return nil, fmt.Errorf("%q is not true or false", text)
	}
	return b, nil
}}

// Duration is a time above zero, with its unit; Pause may be zero too.
var (
	Duration = Type{name: "duration", zero: time.Duration(0), parse: parseDuration(1, "above zero")}
	Pause    = Type{name: "duration", zero: time.Duration(0), parse: parseDuration(0, "zero or more")}
)

func parseDuration(least time.Duration, says string) func(string) (any, error) {
	return func(text string) (any, error) {
		d, err := time.ParseDuration(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not a duration like 10s or 1m30s", text)
		}
		if d < least {
			return nil, fmt.Errorf("%s is not %s", d, says)
		}
		return d, nil
	}
}

// Address is host:port; a port alone means that port on loopback.
var Address = Type{name: "address", zero: "", parse: func(text string) (any, error) {
	addr := text
	if !strings.Contains(addr, ":") {
		addr = net.JoinHostPort("127.0.0.1", addr)
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%q is neither host:port nor a port", text)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return nil, fmt.Errorf("port %q is not a number from 0 to 65535", port)
	}
	return addr, nil
}}

// Int is a whole number, at least least.
func Int(least int) Type {
	return Type{name: "int", zero: 0, parse: func(text string) (any, error) {
		n, err := strconv.Atoi(strings.ReplaceAll(text, "_", ""))
		if err != nil {
			return nil, fmt.Errorf("%q is not a whole number", text)
		}
		if n < least {
			return nil, fmt.Errorf("%d is below %d", n, least)
		}
		return n, nil
	}}
}

// OneOf is one of some words, in whatever case.
func OneOf(words ...string) Type {
	return Type{name: "string", choices: words, zero: "", parse: func(text string) (any, error) {
		if word := strings.ToLower(text); slices.Contains(words, word) {
			return word, nil
		}
		return nil, fmt.Errorf("%q is not one of %s%s", text, strings.Join(words, ", "), naming.DidYouMean(text, words))
	}}
}

// List is any number of texts that element accepts: a sequence in the file, one
// text parted by commas elsewhere, where a flag may also be given several times.
func List(element func(text string) error) Type {
	return Type{name: "list", zero: []string{}, element: element}
}

// read turns what a source has into a value. The error holds the text.
func (t Type) read(raw any) (any, error) {
	if t.isList() {
		return t.readList(raw)
	}
	text, ok := raw.(string)
	if !ok {
		return nil, errors.New("wants one value and not a list")
	}
	if text == "" {
		return nil, errors.New("is empty; leave it out for the default")
	}
	return t.parse(text)
}

func (t Type) readList(raw any) (any, error) {
	parts, ok := raw.([]string)
	if !ok {
		parts = []string{raw.(string)}
	}
	list := []string{}
	var wrong []string
	for _, part := range parts {
		for _, text := range strings.Split(part, ",") {
			if text = strings.TrimSpace(text); text == "" {
				continue
			}
			if err := t.element(text); err != nil {
				wrong = append(wrong, err.Error())
			}
			list = append(list, text)
		}
	}
	if wrong != nil {
		return nil, errors.New(strings.Join(wrong, "; "))
	}
	return list, nil
}

// text is a flag that keeps what it is given: Load judges it, together with all
// else.
type text struct {
	key   Key
	given []string
}

func (v *text) Set(s string) error {
	if !v.key.Type.isList() {
		v.given = nil // the last one counts
	}
	v.given = append(v.given, s)
	return nil
}

func (v *text) Type() string { return v.key.Type.name }

func (v *text) String() string {
	if v.given == nil {
		return v.key.Default
	}
	if v.key.Secret {
		return Redacted
	}
	return strings.Join(v.given, ",")
}

// given returns the key and the text of a flag that was given, or an empty key.
func given(f *pflag.Flag) (string, any) {
	v, ok := f.Value.(*text)
	switch {
	case !ok || !f.Changed:
		return "", nil
	case v.key.Type.isList():
		return v.key.Name, v.given
	}
	return v.key.Name, v.given[0]
}
