package hub_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws/wsutil"

	"eventhub/hub"
)

const jwtSecret = "0123456789abcdef0123456789abcdef"

// mint makes a token by HS256.
func mint(header, claims string) string {
	return signedBy(header, claims, byHMAC([]byte(jwtSecret)))
}

// full is a token of full rights that ends at a time.
func full(exp int64) string {
	return mint(`{"alg":"HS256","typ":"JWT"}`, fmt.Sprintf(`{"sub":"ann","exp":%d,"scopes":["*"]}`, exp))
}

// get asks with a token. The caller closes the body.
func get(t *testing.T, url, token string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// signedBy makes a token of any header and claims by whatever signs.
func signedBy(header, claims string, sign func(text []byte) ([]byte, error)) string {
	text := b64(header) + "." + b64(claims)
	signature, err := sign([]byte(text))
	if err != nil {
		panic(err)
	}
	return text + "." + b64(string(signature))
}

func b64(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

// byEC signs as ES256 and ES384 do: with a digest of the curve's size, and two numbers of it.
func byEC(key *ecdsa.PrivateKey) func([]byte) ([]byte, error) {
	return func(text []byte) ([]byte, error) {
		size := (key.Params().BitSize + 7) / 8
		digest := sha512.Sum384(text)
		sum := digest[:]
		if size == 32 {
			digest := sha256.Sum256(text)
			sum = digest[:]
		}
		r, s, err := ecdsa.Sign(rand.Reader, key, sum)
		if err != nil {
			return nil, err
		}
		return append(r.FillBytes(make([]byte, size)), s.FillBytes(make([]byte, size))...), nil
	}
}

func byHMAC(key []byte) func([]byte) ([]byte, error) {
	return func(text []byte) ([]byte, error) {
		mac := hmac.New(sha256.New, key)
		mac.Write(text)
		return mac.Sum(nil), nil
	}
}

// TestJWTAtEachDoor: the same token has the same outcome over WebSocket and HTTP, and a refusal
// says which check failed. Each kind of forged or unfit token has a row.
func TestJWTAtEachDoor(t *testing.T) {
	ec256, other256, ec384 := newEC(t, elliptic.P256()), newEC(t, elliptic.P256()), newEC(t, elliptic.P384())
	public, err := x509.MarshalPKIXPublicKey(&ec256.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	file := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	path := filepath.Join(t.TempDir(), "keys.pem")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	h := start(t, hub.Config{Store: hub.MemoryStore, JWTSecret: jwtSecret, JWTKeyFile: path, JWTAudience: "hub", JWTIssuer: "https://iss"})
	now := time.Now().Unix()
	claims := func(more string) string {
		return fmt.Sprintf(`{"sub":"ann","exp":%d,"aud":"hub","iss":"https://iss","scopes":["*"]%s}`, now+3600, more)
	}
	good := claims("")
	hs := func(claims string) string { return mint(`{"alg":"HS256","typ":"JWT"}`, claims) }
	head := func(more string) string { return mint(`{"alg":"HS256"`+more+`}`, good) }
	for _, tt := range []struct{ name, token, why string }{
		{"good HS256", hs(good), ""},
		{"good ES256", signedBy(`{"alg":"ES256"}`, good, byEC(ec256)), ""},
		{"few rights", hs(strings.Replace(good, `"*"`, `"publish:a"`, 1)), ""},
		{"no rights", hs(strings.Replace(good, `"*"`, ``, 1)), ""},
		{"none", b64(`{"alg":"none"}`) + "." + b64(good) + ".", "no key"},
		{"none with a signature", mint(`{"alg":"none"}`, good), "no key"},
		{"public key as HS secret", signedBy(`{"alg":"HS256"}`, good, byHMAC(file)), "no key"},
		{"its DER as HS secret", signedBy(`{"alg":"HS256"}`, good, byHMAC(public)), "no key"},
		{"RS256 by HMAC", mint(`{"alg":"RS256"}`, good), "no key"},
		{"ES256 by HMAC", mint(`{"alg":"ES256"}`, good), "no key"},
		{"wrong secret", signedBy(`{"alg":"HS256"}`, good, byHMAC([]byte("guessed"))), "no key"},
		{"wrong curve", signedBy(`{"alg":"ES384"}`, good, byEC(ec384)), "no key"},
		{"wrong curve under the right name", signedBy(`{"alg":"ES256"}`, good, byEC(ec384)), "no key"},
		{"foreign key", signedBy(`{"alg":"ES256"}`, good, byEC(other256)), "no key"},
		{"wrong aud", hs(strings.Replace(good, `"hub"`, `"other"`, 1)), "aud"},
		{"wrong iss", hs(strings.Replace(good, `//iss`, `//other`, 1)), "iss"},
		{"wrong typ", head(`,"typ":"logout+jwt"`), "typ"},
		{"no exp", hs(`{"sub":"ann","aud":"hub","iss":"https://iss","scopes":["*"]}`), "no exp"},
		{"expired", hs(strings.Replace(good, fmt.Sprint(now+3600), fmt.Sprint(now-60), 1)), "expired"},
		{"future nbf", hs(claims(fmt.Sprintf(`,"nbf":%d`, now+600))), "nbf"},
		{"future iat", hs(claims(fmt.Sprintf(`,"iat":%d`, now+600))), "iat"},
		{"kid of a file", signedBy(`{"alg":"HS256","kid":"../../../../dev/null"}`, good, byHMAC(nil)), "no key"},
		{"kid of a query", signedBy(`{"alg":"HS256","kid":"x' UNION SELECT 'a"}`, good, byHMAC([]byte("a"))), "no key"},
		{"kid of two lines", head(`,"kid":"a\nlevel=INFO"`), "kid"},
		{"long kid", head(`,"kid":"` + strings.Repeat("k", 257) + `"`), "kid"},
		{"jku", head(`,"jku":"http://127.0.0.1:1"`), "jku"},
		{"x5u", head(`,"x5u":"http://127.0.0.1:1"`), "x5u"},
		{"jwk", head(`,"jwk":{"kty":"oct","k":"AA"}`), "jwk"},
		{"x5c", head(`,"x5c":["AA"]`), "x5c"},
		{"crit", head(`,"crit":["exp"]`), "crit"},
		{"alg twice", head(`,"alg":"none"`), "twice"},
		{"exp twice", hs(claims(`,"exp":9999999999`)), "twice"},
		{"scopes twice", hs(claims(`,"scopes":[]`)), "twice"},
		{"sub twice, one escaped", hs(claims(`,"s\u0075b":"root"`)), "twice"},
		{"giant", strings.Repeat("a", 9000) + ".b.c", "bytes"},
		{"no policy", hs(claims(`,"policy":{"rules":[{"effect":"deny","action":"eat","topics":["a"]}]}`)), "policy"},
	} {
		code, status := "", http.StatusOK
		if tt.why != "" {
			code, status = `"code":"jwt_invalid"`, http.StatusUnauthorized
		}
		answer := get(t, "http://"+h.HTTPAddr()+"/v1/topics", tt.token)
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != status || !strings.Contains(string(body), code) || !strings.Contains(string(body), tt.why) {
			t.Errorf("%s over HTTP: %d %s, %v; want %d with %q", tt.name, answer.StatusCode, body, err, status, tt.why)
		}
		conn := dial(t, h.WSAddr())
		if _, err := conn.Write(masked([]byte(`{"op":"AUTH","token":"` + tt.token + `"}`))); err != nil {
			t.Fatal(err)
		}
		said, err := wsutil.ReadServerText(conn)
		conn.Close()
		if ok := strings.Contains(string(said), `"op":"OK"`); err != nil || ok != (tt.why == "") || !strings.Contains(string(said), code) || !strings.Contains(string(said), tt.why) {
			t.Errorf("%s over WebSocket: %s, %v; want it accepted: %t, with %q", tt.name, said, err, tt.why == "", tt.why)
		}
	}
}

func newEC(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestGiantTokens: one that is larger than what a door reads before it knows who comes is
// refused before the rest of it has come.
func TestGiantTokens(t *testing.T) {
	h := start(t, hub.Config{Store: hub.MemoryStore, JWTSecret: jwtSecret})
	token := strings.Repeat("a", 1<<20)
	web, err := net.Dial("tcp", h.HTTPAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	if _, err := io.WriteString(web, "GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+token[:80<<10]); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(web), nil)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("over HTTP: status %d; want 431", answer.StatusCode)
	}
	conn := dial(t, h.WSAddr())
	defer conn.Close()
	if _, err := conn.Write(masked([]byte(`{"op":"AUTH","token":"` + token + `"}`))[:1<<10]); err != nil {
		t.Fatal(err)
	}
	if said, err := wsutil.ReadServerText(conn); err == nil || !strings.Contains(err.Error(), "1009") {
		t.Errorf("over WebSocket: %s, %v; want it closed with 1009", said, err)
	}
}
