// Package strictjson is the one door to the JSON library for bytes that the hub
// stores: what goes through it is I-JSON (RFC 7493): one value, valid UTF-8, no
// lone surrogates, no duplicate names at any depth. Tokens are kept byte for
// byte; only the whitespace between them may go.
package strictjson

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"eventhub/internal/escape"
)

// MaxDepth is how deep objects and arrays may nest. Readers give up somewhere
// (encoding/json at 10,000, browsers' stacks earlier), also inside the frames and
// dead letters that wrap a payload; what is stored must be readable everywhere.
const MaxDepth = 1000

// AppendCompact checks that src is exactly one JSON value, nested at most
// MaxDepth deep, and appends it without insignificant whitespace. On an error dst is returned as it was; the
// error says what is wrong at which byte of src.
func AppendCompact(dst, src []byte) ([]byte, error) { return AppendCompactTo(MaxDepth, dst, src) }

// AppendCompactTo is AppendCompact with another depth.
func AppendCompactTo(depth int, dst, src []byte) ([]byte, error) {
	if Plain(src) == len(src) && len(src) > 0 {
		return append(dst, src...), nil
	}
	start := len(dst)
	out, err := jsontext.AppendFormat(dst, src, jsontext.PreserveRawStrings(true))
	if err != nil {
		return out[:start], describe(err)
	}
	if tooDeep(out[start:], depth) {
		return out[:start], fmt.Errorf("invalid JSON: nested more than %d deep", depth)
	}
	return out, nil
}

// tooDeep looks closely only at values that have as many brackets as that.
func tooDeep(value []byte, most int) bool {
	if bytes.Count(value, []byte{'{'})+bytes.Count(value, []byte{'['}) <= most {
		return false
	}
	depth, inString := 0, false
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > most {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// Unmarshal decodes one JSON value into v, which is a pointer. Names that v does
// not have are an error, as are duplicate ones; in an object itself, and not in what it
// holds, a name may be given by its alias.
func Unmarshal(src []byte, v any) error {
	err := json.Unmarshal(src, v, json.RejectUnknownMembers(true))
	if errors.Is(err, json.ErrUnknownName) {
		return unknownName(src, v, err)
	}
	if err != nil {
		return describe(err)
	}
	return nil
}

// AppendString appends s as a JSON string. Invalid UTF-8 in s is replaced by
// U+FFFD; callers that must not lose it check before.
func AppendString(dst []byte, s string) []byte {
	out, _ := jsontext.AppendQuote(dst, s) // the error only reports a replacement
	return out
}

// describe turns the library's error into one short line.
func describe(err error) error {
	var meaning *json.SemanticError
	if errors.As(err, &meaning) {
		return &MeaningError{Where: string(meaning.JSONPointer), Err: meaning.Err, Kind: kindName(meaning.JSONKind)}
	}
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) {
		return fmt.Errorf("invalid JSON: %w", err)
	}
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return fmt.Errorf("duplicate name %q at byte %d", syntax.JSONPointer.LastToken(), syntax.ByteOffset)
	}
	return fmt.Errorf("invalid JSON at byte %d: %w", syntax.ByteOffset, syntax.Err)
}

// MeaningError says that a value is sound JSON and not what was wanted.
type MeaningError struct {
	Where string // JSON pointer (RFC 6901) of the value
	Kind  string // what was found there
	Err   error  // may be nil
	text  string // instead of what follows from the others
}

func (e *MeaningError) Error() string {
	if e.text != "" {
		return e.text
	}
	where := shown(e.Where)
	if where == "" {
		where = "the value"
	}
	if errors.Is(e.Err, json.ErrUnknownName) {
		return where + " is not a known name"
	}
	return where + " can not be " + e.Kind
}

// mostShown is how much of a pointer is shown, in bytes: a name may have a megabyte.
const mostShown = 256

// shown is a pointer as it may stand in a message, and in a log: its names are the sender's.
func shown(pointer string) string {
	if len(pointer) > mostShown {
		pointer = strings.ToValidUTF8(pointer[:mostShown], "") + "…"
	}
	return escape.Text(pointer)
}

func (e *MeaningError) Unwrap() error { return e.Err }

func kindName(k jsontext.Kind) string {
	switch k {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "such a string"
	case '0':
		return "such a number"
	}
	return k.String()
}
