package eventhub

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// MaxFilterBytes bounds the expression of a filter.
const MaxFilterBytes = 4 << 10

// Filter says which events a subscription wants. What it asks for must all
// hold; the zero Filter asks for nothing and lets every event pass. An event that
// does not pass counts as done for a group: its cursor goes on.
//
// Where a text ends in *, the text before it has to be the beginning of what
// the event has; any other text has to be equal to it.
type Filter struct {
	// Key is what the event's key has to be. An event without a key has the
	// empty one, which only "*" names.
	Key string `json:"key,omitempty"`
	// Headers must all be there, with these values.
	Headers map[string]string `json:"headers,omitempty"`
	// Tags must all be there.
	Tags []string `json:"tags,omitempty"`
	// CEL is an expression in the Common Expression Language over the variable
	// event (see docs/filters.md). An event for which it cannot be evaluated does
	// not pass.
	CEL string `json:"cel,omitempty"`
}

// IsZero reports whether the filter asks for nothing.
func (f *Filter) IsZero() bool {
	return f == nil || f.Key == "" && len(f.Headers) == 0 && len(f.Tags) == 0 && f.CEL == ""
}

// Equal reports whether both ask for the same, in the same words, whatever the order of tags.
func (f *Filter) Equal(g *Filter) bool {
	if f.IsZero() || g.IsZero() {
		return f.IsZero() == g.IsZero()
	}
	return f.Key == g.Key && f.CEL == g.CEL && maps.Equal(f.Headers, g.Headers) && slices.Equal(sortedTags(f), sortedTags(g))
}

// sortedTags returns the tags, each once: an event has to have all of them, in whatever order they are named.
func sortedTags(f *Filter) []string { return slices.Compact(slices.Sorted(slices.Values(f.Tags))) }

// String returns the filter as JSON, names in order.
func (f *Filter) String() string {
	if f.IsZero() {
		return "{}"
	}
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // > and & are to be read as they were written
	_ = e.Encode(f)        // strings always can be
	return strings.TrimSuffix(text.String(), "\n")
}

// Validate checks sizes and names; the error has CodeBadRequest. Whether CEL is
// an expression is judged where it is compiled.
func (f *Filter) Validate() error {
	if f.IsZero() {
		return nil
	}
	err := checkText("key", f.Key, MaxKeyBytes)
	if err == nil {
		err = checkHeaders(f.Headers)
	}
	if err == nil {
		err = checkTags(f.Tags)
	}
	if err != nil {
		return Errorf(CodeBadRequest, "filter.%s", AsError(err).Message)
	}
	if len(f.CEL) > MaxFilterBytes {
		return Errorf(CodeBadRequest, "filter.cel has %d bytes; at most %d are allowed", len(f.CEL), MaxFilterBytes)
	}
	if !utf8.ValidString(f.CEL) {
		return Errorf(CodeBadRequest, "filter.cel is not valid UTF-8")
	}
	return nil
}
