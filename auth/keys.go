package auth

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
)

const (
	maxKeys    = 100
	minRSABits = 2048
)

// key verifies tokens of one algorithm; what a token says about its own has to agree.
type key struct {
	id  string // kid; empty: it has none
	alg jwa.SignatureAlgorithm
	raw any // []byte, *rsa.PublicKey, *ecdsa.PublicKey, ed25519.PublicKey
}

// keySet does not change.
type keySet []key

// find returns the keys that may have signed a token with an algorithm and a kid. A token
// without kid may be of any key; one with a kid of that key, or of one without a name.
func (s keySet) find(alg, kid string) (found []key, known bool) {
	for _, k := range s {
		if kid != "" && k.id != "" && k.id != kid {
			continue
		}
		known = true
		if k.alg.String() == alg {
			found = append(found, k)
		}
	}
	return found, known
}

// parseKeys reads public keys: a JWK set, one JWK, or PEM blocks. With skip, keys of a set
// that are not for signatures of a supported kind are left out, as long as one remains.
func parseKeys(data []byte, skip bool) (keySet, error) {
	data = bytes.TrimSpace(data)
	if bytes.HasPrefix(data, []byte("-----BEGIN")) {
		return parsePEM(data)
	}
	if !bytes.HasPrefix(data, []byte("{")) {
		return nil, errors.New("it has neither JSON Web Keys nor PEM")
	}
	var options []jwk.ParseOption
	if skip && bytes.Contains(data, []byte(`"keys"`)) { // the option is refused for one key alone
		options = append(options, jwk.WithIgnoreParseError(true))
	}
	set, err := jwk.Parse(data, options...)
	if err != nil {
		return nil, errors.New("it is not a valid JSON Web Key set")
	}
	if set.Len() > maxKeys {
		return nil, fmt.Errorf("it has %d keys; at most %d are allowed", set.Len(), maxKeys)
	}
	var keys keySet
	var problems error
	for i := range set.Len() {
		k, _ := set.Key(i)
		made, err := fromJWK(k)
		if err != nil {
			problems = errors.Join(problems, fmt.Errorf("key %d: %w", i+1, err))
			continue
		}
		keys = append(keys, made)
	}
	if problems != nil && (!skip || len(keys) == 0) {
		return nil, problems
	}
	if len(keys) == 0 {
		return nil, errors.New("it has no keys")
	}
	return keys, nil
}

func fromJWK(k jwk.Key) (key, error) {
	if use, ok := k.KeyUsage(); ok && use != "sig" {
		return key{}, errors.New("its use is not sig")
	}
	var raw any
	if err := jwk.Export(k, &raw); err != nil {
		return key{}, errors.New("it can not be read")
	}
	made, err := newKey(raw)
	if err != nil {
		return key{}, err
	}
	made.id, _ = k.KeyID()
	if alg, ok := k.Algorithm(); ok {
		named, ok := jwa.LookupSignatureAlgorithm(alg.String())
		if !ok || !suits(named, made.raw) {
			return key{}, errors.New("its alg does not suit its type")
		}
		made.alg = named
	}
	return made, nil
}

// suits reports whether a JWK of the type may name the algorithm.
func suits(alg jwa.SignatureAlgorithm, raw any) bool {
	switch raw := raw.(type) {
	case *rsa.PublicKey:
		switch alg {
		case jwa.RS256(), jwa.RS384(), jwa.RS512(), jwa.PS256(), jwa.PS384(), jwa.PS512():
			return true
		}
		return false
	default:
		made, err := newKey(raw)
		return err == nil && made.alg == alg
	}
}

// newKey gives a public key the algorithm that its type has.
func newKey(raw any) (key, error) {
	switch k := raw.(type) {
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n < minRSABits {
			return key{}, fmt.Errorf("an RSA key has %d bits; at least %d are needed", n, minRSABits)
		}
		return key{alg: jwa.RS256(), raw: k}, nil
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return key{alg: jwa.ES256(), raw: k}, nil
		case elliptic.P384():
			return key{alg: jwa.ES384(), raw: k}, nil
		case elliptic.P521():
			return key{alg: jwa.ES512(), raw: k}, nil
		}
		return key{}, errors.New("its curve is not one of P-256, P-384, P-521")
	case ed25519.PublicKey:
		return key{alg: jwa.EdDSA(), raw: k}, nil
	case *rsa.PrivateKey, *ecdsa.PrivateKey, ed25519.PrivateKey:
		return key{}, errors.New("it is a private key; the hub needs the public one alone")
	case []byte:
		return key{}, errors.New("it is a shared secret; give that as jwt_secret")
	}
	return key{}, errors.New("its type is not RSA, EC or Ed25519")
}

func parsePEM(data []byte) (keySet, error) {
	var keys keySet
	for len(bytes.TrimSpace(data)) > 0 {
		block, rest := pem.Decode(data)
		if block == nil {
			return nil, fmt.Errorf("PEM block %d is not valid", len(keys)+1)
		}
		data = rest
		var raw any
		var err error
		switch block.Type {
		case "PUBLIC KEY":
			raw, err = x509.ParsePKIXPublicKey(block.Bytes)
		case "RSA PUBLIC KEY":
			raw, err = x509.ParsePKCS1PublicKey(block.Bytes)
		case "CERTIFICATE":
			var c *x509.Certificate
			if c, err = x509.ParseCertificate(block.Bytes); err == nil {
				raw = c.PublicKey
			}
		default:
			return nil, fmt.Errorf("PEM block %d is not a public key or certificate", len(keys)+1)
		}
		if err != nil {
			return nil, fmt.Errorf("PEM block %d can not be read: %w", len(keys)+1, err)
		}
		made, err := newKey(raw)
		if err != nil {
			return nil, fmt.Errorf("PEM block %d: %w", len(keys)+1, err)
		}
		if keys = append(keys, made); len(keys) > maxKeys {
			return nil, fmt.Errorf("it has more than %d keys", maxKeys)
		}
	}
	return keys, nil
}
