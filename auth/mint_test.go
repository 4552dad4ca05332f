package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwk"
)

func claimsOf(ttl time.Duration) Claims {
	now := time.Now()
	return Claims{Subject: "ann", Scopes: []string{"*"}, Issued: now.Unix(), Expires: now.Add(ttl).Unix()}
}

// TestMintedIsVerified: what each kind of private key signs, in each form of a file, its public
// half verifies, and that of another key does not.
func TestMintedIsVerified(t *testing.T) {
	rsaKey, _ := rsa.GenerateKey(rand.Reader, 2048)
	ec256, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ec384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	ec521, _ := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	_, strange, _ := ed25519.GenerateKey(rand.Reader)
	block := func(kind string, der []byte, err error) []byte {
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	}
	asJWK := func(raw any, members ...string) []byte {
		k, err := jwk.Import(raw)
		for i := 0; i < len(members) && err == nil; i += 2 {
			err = k.Set(members[i], members[i+1])
		}
		b, bad := json.Marshal(k)
		if err != nil || bad != nil {
			t.Fatal(err, bad)
		}
		return b
	}
	pkcs8 := func(raw any) []byte {
		der, err := x509.MarshalPKCS8PrivateKey(raw)
		return block("PRIVATE KEY", der, err)
	}
	sec1, err := x509.MarshalECPrivateKey(ec256)
	for _, tt := range []struct {
		name    string
		key     crypto.Signer
		private []byte
		alg     string
	}{
		{"RSA", rsaKey, pkcs8(rsaKey), "RS256"},
		{"RSA PKCS 1", rsaKey, block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaKey), nil), "RS256"},
		{"RSA JWK", rsaKey, asJWK(rsaKey, "kid", "a"), "RS256"},
		{"RSA JWK of PS512", rsaKey, asJWK(rsaKey, "kid", "a", "alg", "PS512"), "PS512"},
		{"P-256", ec256, pkcs8(ec256), "ES256"},
		{"P-256 SEC 1", ec256, append(block("EC PARAMETERS", nil, nil), block("EC PRIVATE KEY", sec1, err)...), "ES256"},
		{"P-384", ec384, pkcs8(ec384), "ES384"},
		{"P-521 JWK", ec521, asJWK(ec521), "ES512"},
		{"Ed25519", ed, pkcs8(ed), "EdDSA"},
		{"Ed25519 JWK", ed, asJWK(ed, "kid", "a"), "EdDSA"},
	} {
		s, err := ReadSigner(write(t, "key", tt.private))
		if err != nil || s.Alg() != tt.alg {
			t.Errorf("%s: %+v, %v", tt.name, s, err)
			continue
		}
		token, err := s.Mint(claimsOf(time.Hour))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		public := asJWK(tt.key.Public(), "alg", tt.alg, "kid", "a")
		p, err := newKinds(t, Config{KeyFile: write(t, "public", public)}).Verify(t.Context(), token, true)
		if err != nil || p.Name != "ann" {
			t.Errorf("%s: %+v, %v", tt.name, p, err)
		}
		if _, err := newKinds(t, Config{KeyFile: write(t, "public", pemOf(t, strange.Public()))}).Verify(t.Context(), token, true); err == nil {
			t.Errorf("%s: another key verifies it", tt.name)
		}
	}
	token, err := SecretSigner(secret).Mint(claimsOf(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newKinds(t, Config{JWTSecret: secret}).Verify(t.Context(), token, true); err != nil {
		t.Error(err)
	}
	small, _ := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	for name, tt := range map[string]struct {
		content []byte
		want    string
	}{
		"alg of another type": {asJWK(ed, "alg", "ES256"), "does not suit"},
		"another curve":       {pkcs8(small), "curve"},
		"public PEM":          {pemOf(t, ed.Public()), "public key"},
		"public JWK":          {asJWK(ed.Public()), "public key"},
		"two blocks":          {append(pkcs8(ed), pkcs8(ed)...), "more than one"},
		"encrypted":           {block("ENCRYPTED PRIVATE KEY", []byte("s3cret"), nil), "encrypted"},
		"damaged":             {block("PRIVATE KEY", []byte("s3cret"), nil), "can not be read"},
		"a set":               {[]byte(`{"keys":[` + string(asJWK(ed)) + `]}`), "not one valid"},
		"empty":               {nil, "neither"},
	} {
		if _, err := ReadSigner(write(t, "key", tt.content)); err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v; want %q", name, err, tt.want)
		}
	}
}

// TestMintRefuses what hubs would refuse.
func TestMintRefuses(t *testing.T) {
	s := SecretSigner(secret)
	for name, change := range map[string]func(*Claims){
		"no time":     func(c *Claims) { c.Expires = c.Issued },
		"late":        func(c *Claims) { c.Expires = lastSecond + 1 },
		"scope":       func(c *Claims) { c.Scopes = []string{"publish:a", "all"} },
		"policy":      func(c *Claims) { c.Policy = json.RawMessage(`{"rules":[{}]}`) },
		"a long name": func(c *Claims) { c.Subject = strings.Repeat("a", maxJWTBytes) },
	} {
		c := claimsOf(time.Hour)
		change(&c)
		if token, err := s.Mint(c); err == nil {
			t.Errorf("%s: %s", name, token)
		}
	}
	s.SetKid(strings.Repeat("k", maxKidBytes+1))
	if _, err := s.Mint(claimsOf(time.Hour)); err == nil {
		t.Error("a long kid is taken")
	}
}

// FuzzRead: what is shown of a token is JSON and has nothing of its signature.
func FuzzRead(f *testing.F) {
	f.Add(hs(`{"exp":1}`))
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, token string) {
		p, err := Read(token)
		if (err == nil) != (json.Valid(p.Header) && json.Valid(p.Claims)) {
			t.Fatalf("%q: %s %s, %v", token, p.Header, p.Claims, err)
		}
	})
}
