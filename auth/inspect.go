package auth

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Parts are what can be read of a JSON Web Token without a key. Nobody has said yet that it is
// true.
type Parts struct {
	Header json.RawMessage
	Claims json.RawMessage
}

// IsJWT reports whether a token has the form of a JSON Web Token.
func IsJWT(token string) bool { return strings.Count(token, ".") == 2 }

// Read returns the parts of a JSON Web Token, without its signature. Errors repeat nothing of it.
func Read(token string) (p Parts, err error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return p, errors.New("it has not the three parts of a JSON Web Token")
	}
	if p.Header, err = readPart(parts[0]); err != nil {
		return p, errors.New("its header is not base64url of a JSON object")
	}
	if p.Claims, err = readPart(parts[1]); err != nil {
		return p, errors.New("its claims are not base64url of a JSON object")
	}
	return p, nil
}

func readPart(part string) (json.RawMessage, error) {
	text, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		return nil, err
	}
	v := jsontext.Value(text)
	if err := v.Compact(); err != nil {
		return nil, err
	}
	if v.Kind() != '{' {
		return nil, errors.New("no object")
	}
	return json.RawMessage(v), nil
}
