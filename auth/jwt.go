package auth

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/lestrrat-go/jwx/v3/jws"
	"github.com/lestrrat-go/jwx/v3/jwt"

	"eventhub"
	"eventhub/auth/policy"
)

const (
	// Leeway is how far clocks may be apart.
	Leeway = 5 * time.Second

	maxJWTBytes  = 8 << 10
	maxKidBytes  = 256
	maxNameBytes = 128
	// lastSecond is the end of the year 9999: later times overflow calendars.
	lastSecond = 253402300799
)

// jwtVerifier checks JSON Web Tokens. Sources are asked in turn for a key.
type jwtVerifier struct {
	sources          []keySource
	audience, issuer string
}

// keySource holds keys that may change.
type keySource interface {
	// find returns the keys for a token. It may look for new ones, once, where none has the
	// kid; other callers do not wait meanwhile.
	find(ctx context.Context, alg, kid string) []key
}

// find implements keySource for keys that do not change.
func (s fixedKeys) find(_ context.Context, alg, kid string) []key {
	found, _ := keySet(s).find(alg, kid)
	return found
}

type fixedKeys keySet

// header has the members of a JOSE header that say how a token is verified. Those of which
// a token would name or bring its own key are refused, never followed.
type header struct {
	Alg  string         `json:"alg"`
	Typ  string         `json:"typ"`
	Kid  string         `json:"kid"`
	Crit jsontext.Value `json:"crit"`
	B64  jsontext.Value `json:"b64"`
	JKU  jsontext.Value `json:"jku"`
	JWK  jsontext.Value `json:"jwk"`
	X5U  jsontext.Value `json:"x5u"`
	X5C  jsontext.Value `json:"x5c"`
}

type claims struct {
	Sub    string         `json:"sub"`
	Exp    *float64       `json:"exp"`
	Policy jsontext.Value `json:"policy"`
	Scopes jsontext.Value `json:"scopes"`
	Scope  jsontext.Value `json:"scope"`
}

func invalid(why string) error {
	return eventhub.Errorf(eventhub.CodeJWTInvalid, "the token is not valid: %s", why)
}

// verify returns who a token is of. Its errors name the check that failed and repeat
// nothing of the token.
func (v *jwtVerifier) verify(ctx context.Context, token string) (Principal, error) {
	if len(token) > maxJWTBytes {
		return Principal{}, eventhub.Errorf(eventhub.CodeJWTInvalid, "the token is not valid: it has %d bytes; at most %d are allowed", len(token), maxJWTBytes)
	}
	h, err := readHeader(token)
	if err != nil {
		return Principal{}, err
	}
	payload := v.checkSignature(ctx, token, h)
	if payload == nil {
		return Principal{}, invalid("no key of this hub fits its kid, alg and signature")
	}
	var c claims
	if err := json.Unmarshal(payload, &c); err != nil {
		return Principal{}, invalid("its claims are not JSON, have a name twice, or have a wrong type")
	}
	if err := v.checkClaims(payload, &c); err != nil {
		return Principal{}, err
	}
	rights, err := policy.Parse(c.Policy, c.Scopes, c.Scope)
	if err != nil {
		return Principal{}, invalid("its policy or scopes can not be read: " + err.Error())
	}
	return Principal{Name: nameOf(c.Sub), Policy: rights, Expires: time.Unix(int64(*c.Exp), 0)}, nil
}

func readHeader(token string) (h header, err error) {
	if strings.Count(token, ".") != 2 {
		return h, invalid("it has not the three parts of a JWT")
	}
	first, _, _ := strings.Cut(token, ".")
	text, err := base64.RawURLEncoding.Strict().DecodeString(first)
	if err != nil {
		return h, invalid("its header is not base64url")
	}
	if err := json.Unmarshal(text, &h); err != nil {
		return h, invalid("its header is not JSON, has a name twice, or has a wrong type")
	}
	switch {
	case h.JKU != nil || h.JWK != nil || h.X5U != nil || h.X5C != nil:
		return h, invalid("its header brings or names a key (jku, jwk, x5u, x5c), which this hub never follows")
	case h.Crit != nil || h.B64 != nil:
		return h, invalid("its header has crit or b64, which this hub does not know")
	case len(h.Kid) > maxKidBytes || strings.ContainsFunc(h.Kid, unicode.IsControl):
		return h, invalid("its kid is too long or has control characters")
	}
	switch strings.ToLower(strings.TrimPrefix(strings.ToLower(h.Typ), "application/")) {
	case "", "jwt", "at+jwt":
		return h, nil
	}
	return h, invalid("its typ is not JWT or at+jwt")
}

// checkSignature returns the payload that one of the keys has signed, or nil.
func (v *jwtVerifier) checkSignature(ctx context.Context, token string, h header) []byte {
	for _, source := range v.sources {
		for _, k := range source.find(ctx, h.Alg, h.Kid) {
			if payload, err := jws.VerifyCompactFast(k.raw, []byte(token), k.alg); err == nil {
				return payload
			}
		}
	}
	return nil
}

func (v *jwtVerifier) checkClaims(payload []byte, c *claims) error {
	if c.Exp == nil {
		return invalid("it has no exp")
	}
	if !(*c.Exp > 0 && *c.Exp <= lastSecond) {
		return invalid("its exp is not a time")
	}
	t := jwt.New()
	err := stdjson.Unmarshal(payload, t)
	if err != nil {
		return invalid("a registered claim has a wrong type")
	}
	options := []jwt.ValidateOption{jwt.WithAcceptableSkew(Leeway)}
	if v.audience != "" {
		options = append(options, jwt.WithAudience(v.audience))
	}
	if v.issuer != "" {
		options = append(options, jwt.WithIssuer(v.issuer))
	}
	err = jwt.Validate(t, options...)
	for _, check := range []struct {
		is  error
		why string
	}{
		{jwt.TokenExpiredError(), "it has expired (exp)"},
		{jwt.TokenNotYetValidError(), "it is not valid yet (nbf)"},
		{jwt.InvalidIssuedAtError(), "it was issued in the future (iat)"},
		{jwt.InvalidAudienceError(), "its aud is not that of this hub"},
		{jwt.InvalidIssuerError(), "its iss is not that of this hub"},
	} {
		if errors.Is(err, check.is) {
			return invalid(check.why)
		}
	}
	if err != nil {
		return invalid("a claim is not valid")
	}
	return nil
}

// nameOf makes a subject fit for logs, in at most maxNameBytes. Names also say whose a producer is, and whose a
// key, so what is cut or replaced, and what looks so, ends in a hash of the subject: no two subjects have one name.
func nameOf(sub string) string {
	if sub == "" {
		return "jwt"
	}
	name := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, sub)
	if name == sub && len(name) <= maxNameBytes && !hashedName.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(sub))
	hash := fmt.Sprintf("~%x", sum[:8])
	return strings.ToValidUTF8(name[:min(len(name), maxNameBytes-len(hash))], "") + hash
}

var hashedName = regexp.MustCompile(`~[0-9a-f]{16}$`)
