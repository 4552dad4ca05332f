package auth

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jws"

	"eventhub/auth/policy"
	"eventhub/internal/livefile"
	"eventhub/internal/yamlfile"
)

// Signer makes JSON Web Tokens by one key, which fixes the algorithm, as it does for who
// verifies them.
type Signer struct {
	alg jwa.SignatureAlgorithm
	kid string
	raw any
}

// SecretSigner returns a Signer by HS256.
func SecretSigner(secret string) *Signer { return &Signer{alg: jwa.HS256(), raw: []byte(secret)} }

// ReadSigner returns a Signer by a private key of a file, PEM or one JSON Web Key. Errors name
// the file.
func ReadSigner(path string) (*Signer, error) {
	content, err := yamlfile.Content(path, livefile.MaxBytes)
	if err != nil {
		return nil, err
	}
	content = bytes.TrimSpace(content)
	var s *Signer
	switch {
	case bytes.HasPrefix(content, []byte("-----BEGIN")):
		s, err = signerOfPEM(content)
	case bytes.HasPrefix(content, []byte("{")):
		s, err = signerOfJWK(content)
	default:
		err = errors.New("it has neither a JSON Web Key nor PEM")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

func signerOfPEM(content []byte) (*Signer, error) {
	block, rest := pem.Decode(content)
	for block != nil && block.Type == "EC PARAMETERS" { // openssl puts them before the key
		block, rest = pem.Decode(rest)
	}
	if block == nil {
		return nil, errors.New("its PEM is not valid")
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("it has more than one PEM block; one private key is wanted")
	}
	var raw any
	var err error
	switch block.Type {
	case "PRIVATE KEY":
		raw, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		raw, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		raw, err = x509.ParseECPrivateKey(block.Bytes)
	case "PUBLIC KEY", "RSA PUBLIC KEY", "CERTIFICATE":
		return nil, errors.New("it is a public key, which verifies; the private one signs")
	case "ENCRYPTED PRIVATE KEY":
		return nil, errors.New("the key is encrypted, which is not supported")
	default:
		return nil, errors.New("its PEM is not a private key")
	}
	if err != nil {
		return nil, errors.New("the private key can not be read; is it encrypted?")
	}
	return newSigner(raw)
}

func signerOfJWK(content []byte) (*Signer, error) {
	k, err := jwk.ParseKey(content)
	if err != nil {
		return nil, errors.New("it is not one valid JSON Web Key")
	}
	var raw any
	if err := jwk.Export(k, &raw); err != nil {
		return nil, errors.New("its key can not be read")
	}
	s, err := newSigner(raw)
	if err != nil {
		return nil, err
	}
	s.kid, _ = k.KeyID()
	if alg, ok := k.Algorithm(); ok {
		named, ok := jwa.LookupSignatureAlgorithm(alg.String())
		if !ok || !suits(named, public(raw)) {
			return nil, errors.New("its alg does not suit its type")
		}
		s.alg = named
	}
	return s, nil
}

// public returns the public half of a private key, nil of anything else.
func public(raw any) any {
	switch k := raw.(type) {
	case *rsa.PrivateKey:
		return &k.PublicKey
	case *ecdsa.PrivateKey:
		return &k.PublicKey
	case ed25519.PrivateKey:
		return k.Public()
	}
	return nil
}

// newSigner gives a private key the algorithm by which its public half verifies.
func newSigner(raw any) (*Signer, error) {
	half := public(raw)
	if half == nil {
		if _, err := newKey(raw); err == nil {
			return nil, errors.New("it is a public key, which verifies; the private one signs")
		} else if _, secret := raw.([]byte); secret {
			return nil, errors.New("it is a shared secret; give that as jwt_secret")
		}
		return nil, errors.New("its type is not RSA, EC or Ed25519")
	}
	k, err := newKey(half)
	if err != nil {
		return nil, err
	}
	return &Signer{alg: k.alg, raw: raw}, nil
}

// Alg is the algorithm of the key.
func (s *Signer) Alg() string { return s.alg.String() }

// Kid is the name of the key, as it has it or as SetKid has set it; empty: it has none.
func (s *Signer) Kid() string { return s.kid }

// SetKid gives the key another name.
func (s *Signer) SetKid(kid string) { s.kid = kid }

// Claims are what a token says.
type Claims struct {
	Issuer   string          `json:"iss,omitempty"`
	Subject  string          `json:"sub"`
	Audience string          `json:"aud,omitempty"`
	Expires  int64           `json:"exp"` // seconds since 1970, as the next
	Issued   int64           `json:"iat"`
	Scopes   []string        `json:"scopes,omitempty"`
	Policy   json.RawMessage `json:"policy,omitempty"`
}

// Validate returns what a hub would refuse, and scopes that allow nothing.
func (c *Claims) Validate() error {
	scopes, err := json.Marshal(c.Scopes)
	if err != nil {
		return err
	}
	if err := checkScopes(scopes); err != nil {
		return fmt.Errorf("scope %w", err)
	}
	if _, err := policy.Parse(c.Policy, scopes, nil); err != nil {
		return err
	}
	if c.Expires <= c.Issued || c.Expires > lastSecond {
		return fmt.Errorf("the end, %s, is not between now and the year 10000", time.Unix(c.Expires, 0).UTC().Format(time.RFC3339))
	}
	return nil
}

// Mint returns a token with the claims.
func (s *Signer) Mint(c Claims) (string, error) {
	if err := c.Validate(); err != nil {
		return "", err
	}
	if len(s.kid) > maxKidBytes {
		return "", fmt.Errorf("the kid has %d bytes; at most %d are allowed", len(s.kid), maxKidBytes)
	}
	payload, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	h := jws.NewHeaders()
	for name, value := range map[string]string{"typ": "JWT", "kid": s.kid} {
		if value == "" {
			continue
		}
		if err := h.Set(name, value); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
	}
	token, err := jws.Sign(payload, jws.WithKey(s.alg, s.raw, jws.WithProtectedHeaders(h)))
	if err != nil {
		return "", fmt.Errorf("sign: %w", err)
	}
	if len(token) > maxJWTBytes {
		return "", fmt.Errorf("the token has %d bytes; a hub takes at most %d", len(token), maxJWTBytes)
	}
	return string(token), nil
}

// ReadPolicy returns the policy of a file, YAML or JSON, of the form {rules: [...]}, as a claim. One
// that allows nothing is an error.
// Errors name the file.
func ReadPolicy(path string) (json.RawMessage, error) {
	content, err := yamlfile.Content(path, livefile.MaxBytes)
	if err != nil {
		return nil, err
	}
	f := &yamlfile.File{Path: path}
	top := f.Document(content)
	if err := f.Err(); err != nil {
		return nil, err
	}
	var v any
	if top != nil {
		err = top.Decode(&v)
	}
	claim, bad := json.Marshal(v)
	if err != nil || bad != nil || v == nil {
		return nil, fmt.Errorf("%s: it is not of the form {rules: [...]}", path)
	}
	rights, err := policy.Parse(claim, nil, nil)
	if err == nil && rights.Nothing() {
		err = errNothing
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return claim, nil
}
