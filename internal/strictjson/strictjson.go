// Package strictjson is the one door to the JSON library for bytes that the hub
// stores: what goes through it is I-JSON (RFC 7493): one value, valid UTF-8, no
// lone surrogates, no duplicate names at any depth. Tokens are kept byte for
// byte; only the whitespace between them may go.
package strictjson

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

// AppendCompact checks that src is exactly one JSON value and appends it
// without insignificant whitespace. On an error dst is returned as it was; the
// error says what is wrong at which byte of src.
func AppendCompact(dst, src []byte) ([]byte, error) {
	start := len(dst)
	out, err := jsontext.AppendFormat(dst, src, jsontext.PreserveRawStrings(true))
	if err != nil {
		return out[:start], describe(err)
	}
	return out, nil
}

// AppendString appends s as a JSON string. Invalid UTF-8 in s is replaced by
// U+FFFD; callers that must not lose it check before.
func AppendString(dst []byte, s string) []byte {
	out, _ := jsontext.AppendQuote(dst, s) // the error only tells of a replacement
	return out
}

// describe turns the library's error into one short line.
func describe(err error) error {
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) {
		return fmt.Errorf("invalid JSON: %w", err)
	}
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return fmt.Errorf("duplicate name %q at byte %d", syntax.JSONPointer.LastToken(), syntax.ByteOffset)
	}
	return fmt.Errorf("invalid JSON at byte %d: %w", syntax.ByteOffset, syntax.Err)
}
