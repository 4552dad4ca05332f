package auth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jws"
	"go.uber.org/goleak"

	"eventhub"
	"eventhub/auth/policy"
	"eventhub/internal/bubble"
	"eventhub/internal/livefile"
	"eventhub/internal/measure"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var discard = slog.New(slog.DiscardHandler)

const secret = "0123456789abcdef0123456789abcdef"

var b64 = base64.RawURLEncoding.EncodeToString

// signed makes a token of any header and claims by HMAC, which no library would.
func signed(key []byte, header, claims string) string {
	text := b64([]byte(header)) + "." + b64([]byte(claims))
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return text + "." + b64(mac.Sum(nil))
}

func hs(claims string) string { return signed([]byte(secret), `{"alg":"HS256","typ":"JWT"}`, claims) }

func withKey(t testing.TB, alg jwa.SignatureAlgorithm, key any, kid, claims string) string {
	t.Helper()
	h := jws.NewHeaders()
	if kid != "" {
		if err := h.Set("kid", kid); err != nil {
			t.Fatal(err)
		}
	}
	b, err := jws.Sign([]byte(claims), jws.WithKey(alg, key, jws.WithProtectedHeaders(h)))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func pemOf(t testing.TB, public any) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func write(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newKinds(t testing.TB, cfg Config) *Kinds {
	t.Helper()
	k, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

func claimsIn(d time.Duration) string {
	return fmt.Sprintf(`{"sub":"ann","exp":%d,"aud":"hub","iss":"https://iss","scopes":["*"]}`, time.Now().Add(d).Unix())
}

// TestJWTMatrix: each hostile token is refused with jwt_invalid, and a text that says why and
// repeats nothing of it; the same token without the fault is accepted.
func TestJWTMatrix(t *testing.T) { bubble.Test(t, testJWTMatrix) }

func testJWTMatrix(t *testing.T) {
	rsaKey, _ := rsa.GenerateKey(rand.Reader, 2048)
	ec, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ec384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	var public []byte
	for _, k := range []crypto.PublicKey{rsaKey.Public(), ec.Public(), ed.Public()} {
		public = append(public, pemOf(t, k)...)
	}
	v := newKinds(t, Config{JWTSecret: secret, KeyFile: write(t, "keys.pem", public), Audience: "hub", Issuer: "https://iss"})
	good := claimsIn(time.Hour)
	exp := time.Now().Add(time.Hour).Unix()
	head := func(more string) string {
		return signed([]byte(secret), `{"alg":"HS256","typ":"JWT"`+more+`}`, good)
	}
	with := func(format string, args ...any) string { return hs(fmt.Sprintf(format, args...)) }
	for _, tt := range []struct{ name, token, why string }{
		{"good HS256", hs(good), ""},
		{"good RS256", withKey(t, jwa.RS256(), rsaKey, "", good), ""},
		{"good ES256", withKey(t, jwa.ES256(), ec, "any", good), ""},
		{"good EdDSA", withKey(t, jwa.EdDSA(), ed, "", good), ""},
		{"good typ", signed([]byte(secret), `{"alg":"HS256","typ":"at+jwt"}`, good), ""},
		{"expired in the leeway", hs(claimsIn(-3 * time.Second)), ""},
		{"at the end of the leeway", hs(claimsIn(-Leeway + time.Second)), ""},
		{"none", b64([]byte(`{"alg":"none"}`)) + "." + b64([]byte(good)) + ".", "no key"},
		{"None", b64([]byte(`{"alg":"None"}`)) + "." + b64([]byte(good)) + ".", "no key"},
		{"no alg", signed([]byte(secret), `{}`, good), "no key"},
		{"RS key as HS secret", signed(pemOf(t, rsaKey.Public()), `{"alg":"HS256"}`, good), "no key"},
		{"RS256 by HMAC", signed([]byte(secret), `{"alg":"RS256"}`, good), "no key"},
		{"HS512 named", signed([]byte(secret), `{"alg":"HS512"}`, good), "no key"},
		{"PS with an RS key", withKey(t, jwa.PS256(), rsaKey, "", good), "no key"},
		{"other curve", withKey(t, jwa.ES384(), ec384, "", good), "no key"},
		{"wrong secret", signed([]byte("other"), `{"alg":"HS256"}`, good), "no key"},
		{"wrong aud", with(`{"exp":%d,"aud":"other","iss":"https://iss"}`, exp), "aud"},
		{"no aud", with(`{"exp":%d,"iss":"https://iss"}`, exp), "aud"},
		{"wrong iss", with(`{"exp":%d,"aud":"hub","iss":"https://other"}`, exp), "iss"},
		{"no iss", with(`{"exp":%d,"aud":"hub"}`, exp), "iss"},
		{"wrong typ", signed([]byte(secret), `{"alg":"HS256","typ":"logout+jwt"}`, good), "typ"},
		{"no exp", with(`{"aud":"hub","iss":"https://iss","scopes":["*"]}`), "no exp"},
		{"exp as text", with(`{"exp":"%d","aud":"hub","iss":"https://iss"}`, exp), "claims"},
		{"endless exp", with(`{"exp":1e300,"aud":"hub","iss":"https://iss"}`), "exp"},
		{"expired", hs(claimsIn(-6 * time.Second)), "expired"},
		{"nbf", with(`{"exp":%d,"nbf":%d,"aud":"hub","iss":"https://iss"}`, exp, exp-100), "nbf"},
		{"long kid", head(`,"kid":"` + strings.Repeat("k", 257) + `"`), "kid"},
		{"kid with a line", head(`,"kid":"a\nlevel=INFO"`), "kid"},
		{"jku", head(`,"jku":"http://127.0.0.1:1/"`), "jku"},
		{"x5u", head(`,"x5u":"http://127.0.0.1:1/"`), "x5u"},
		{"jwk", head(`,"jwk":{"kty":"oct","k":"AA"}`), "jwk"},
		{"crit", head(`,"crit":["exp"]`), "crit"},
		{"b64", head(`,"b64":false`), "b64"},
		{"alg twice", head(`,"alg":"HS256"`), "twice"},
		{"exp twice", with(`{"exp":1,"exp":%d,"aud":"hub","iss":"https://iss"}`, exp), "twice"},
		{"scopes of a wrong type", with(`{"exp":%d,"aud":"hub","iss":"https://iss","scopes":5}`, exp), "scopes"},
		{"giant", strings.Repeat("a", 1<<20), "bytes"},
		{"no JWT", "s3cret-word", "three parts"},
		{"four parts", hs(good) + ".x", "three parts"},
		{"other base64", "=" + hs(good), "base64url"},
		{"signature cut", hs(good)[:len(hs(good))-2], "no key"},
	} {
		p, err := v.Verify(t.Context(), tt.token, true)
		if tt.why == "" {
			if left := time.Until(p.Expires); err != nil || p.Name != "ann" || !p.Policy.Full() || left != time.Hour && left != -3*time.Second && left != -Leeway+time.Second {
				t.Errorf("%s: %+v, %v", tt.name, p, err)
			}
			continue
		}
		if eventhub.ErrorCode(err) != eventhub.CodeJWTInvalid || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%s: %v; want jwt_invalid with %q", tt.name, err, tt.why)
			continue
		}
		if text := err.Error(); len(text) > 200 || strings.Contains(text, "\n") || strings.Contains(text, "127.0.0.1") || strings.Contains(text, "s3cret") {
			t.Errorf("%s: the error repeats the token: %q", tt.name, text)
		}
	}
	for scopes, some := range map[string]bool{`,"scopes":["publish:a.*"]`: true, `,"scopes":[]`: false, ``: false, `,"policy":{"rules":[]},"scopes":["*"]`: false} {
		p, err := v.Verify(t.Context(), with(`{"exp":%d,"aud":"hub","iss":"https://iss"%s}`, exp, scopes), true)
		if err != nil || p.Policy.Full() || p.Policy.Allows(policy.Publish, "a.b", "") != some || p.Policy.Allows(policy.Read, "a.b", "") {
			t.Errorf("%s: %+v, %v; nobody may have other rights than the token says", scopes, p.Policy, err)
		}
	}
}

// TestAKeyFixesItsAlgorithm: a key of another algorithm than the token's, or of another name,
// is not tried at all, whatever the library that verifies would say of it.
func TestAKeyFixesItsAlgorithm(t *testing.T) {
	keys := keySet{{id: "a", alg: jwa.RS256()}, {id: "b", alg: jwa.RS256()}, {id: "b", alg: jwa.PS256()}, {alg: jwa.ES256()}, {alg: jwa.HS256()}}
	for _, tt := range []struct {
		alg, kid string
		want     []int // of keys
	}{
		{"RS256", "a", []int{0}},
		{"RS256", "b", []int{1}},
		{"PS256", "b", []int{2}},
		{"PS256", "a", nil},
		{"RS256", "", []int{0, 1}},
		{"ES256", "c", []int{3}},
		{"HS256", "a", []int{4}},
		{"HS512", "a", nil},
		{"none", "a", nil},
		{"", "", nil},
	} {
		var want []key
		for _, i := range tt.want {
			want = append(want, keys[i])
		}
		if found, known := keys.find(tt.alg, tt.kid); !slices.Equal(found, want) || !known {
			t.Errorf("keys for alg %q, kid %q: %v, known: %t; want %v", tt.alg, tt.kid, found, known, want)
		}
	}
	if found, known := keys[:3].find("RS256", "c"); found != nil || known {
		t.Errorf("a kid that no key has: %v, known: %t", found, known)
	}
}

// TestStaticAndJWT: the static token first, and each refusal has the code of its kind.
func TestStaticAndJWT(t *testing.T) {
	v := newKinds(t, Config{Token: "a.b.c", JWTSecret: secret})
	for token, want := range map[string]eventhub.Code{"a.b.c": "", hs(claimsIn(time.Hour)): "", "": eventhub.CodeNoToken, "word": eventhub.CodeBadToken, "a.b.d": eventhub.CodeJWTInvalid} {
		if _, err := v.Verify(t.Context(), token, true); eventhub.ErrorCode(err) != want {
			t.Errorf("%q: %v; want %q", token, err, want)
		}
	}
}

// TestKeyFileIsReadAgain, and what can not be read leaves the old keys.
func TestKeyFileIsReadAgain(t *testing.T) {
	_, a, _ := ed25519.GenerateKey(rand.Reader)
	_, b, _ := ed25519.GenerateKey(rand.Reader)
	path := write(t, "keys.pem", pemOf(t, a.Public()))
	bubble.Test(t, func(t *testing.T) {
		v, err := New(t.Context(), Config{KeyFile: path})
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		want := func(key ed25519.PrivateKey, ok bool) {
			t.Helper()
			if _, err := v.Verify(t.Context(), withKey(t, jwa.EdDSA(), key, "", claimsIn(time.Hour)), true); (err == nil) != ok {
				t.Errorf("%v; want accepted: %t", err, ok)
			}
		}
		change := func(data []byte) {
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * livefile.LookEvery)
			synctest.Wait()
		}
		want(a, true)
		want(b, false)
		change([]byte("<html>"))
		want(a, true)
		if m := v.Measure(); m[0].Failures != 1 || !m[0].Stale {
			t.Errorf("measured %+v; want 1 failure", m)
		}
		change(pemOf(t, b.Public()))
		want(a, false)
		want(b, true)
		if v.Measure()[0].Stale {
			t.Error("stale after a file that could be read")
		}
	})
}

// issuer serves a JWKS within a synctest bubble, over pipes.
type issuer struct {
	fetches atomic.Int64
	answer  atomic.Pointer[func() (int, []byte)]
}

func (i *issuer) RoundTrip(*http.Request) (*http.Response, error) {
	i.fetches.Add(1)
	status, body := (*i.answer.Load())()
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(string(body)))}, nil
}

func (i *issuer) set(status int, body []byte) {
	f := func() (int, []byte) { return status, body }
	i.answer.Store(&f)
}

func setOf(t testing.TB, kid string, public any) []byte {
	t.Helper()
	k, err := jwk.Import(public)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Set("kid", kid); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(map[string]any{"keys": []any{k, map[string]string{"kty": "oct", "k": "AAAA"}}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestUnknownKids: a flood of them makes at most one request in RefetchEvery, for which only
// one waits; new keys are found, and a failure leaves the old ones.
func TestUnknownKids(t *testing.T) {
	_, a, _ := ed25519.GenerateKey(rand.Reader)
	_, b, _ := ed25519.GenerateKey(rand.Reader)
	bubble.Test(t, func(t *testing.T) {
		i := new(issuer)
		i.set(200, setOf(t, "a", a.Public()))
		k := new(Kinds)
		state := new(livefile.Status)
		r := &remoteKeys{url: "http://issuer", client: &http.Client{Transport: i}, log: discard, state: state, last: time.Now()}
		keys, err := r.fetch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.keys.Store(&keys)
		k.jwt = &jwtVerifier{sources: []keySource{r}}
		verify := func(key ed25519.PrivateKey, kid string) error {
			_, err := k.Verify(t.Context(), withKey(t, jwa.EdDSA(), key, kid, claimsIn(time.Hour)), true)
			return err
		}
		want := func(n int64) {
			t.Helper()
			if got := i.fetches.Load(); got != n {
				t.Errorf("%d requests; want %d", got, n)
			}
		}
		for n := range 1000 {
			if verify(b, fmt.Sprint("unknown", n)) == nil {
				t.Fatal("accepted")
			}
		}
		want(1)
		time.Sleep(RefetchEvery)
		release := make(chan struct{})
		slow := func() (int, []byte) { <-release; return 500, nil }
		i.answer.Store(&slow)
		first := make(chan error, 1)
		go func() { first <- verify(b, "b") }()
		synctest.Wait()
		for n := range 100 {
			if verify(b, fmt.Sprint("more", n)) == nil {
				t.Fatal("accepted")
			}
			if err := verify(a, "a"); err != nil {
				t.Fatalf("a good client is refused: %v", err)
			}
		}
		close(release)
		if err := <-first; eventhub.ErrorCode(err) != eventhub.CodeJWTInvalid {
			t.Error(err)
		}
		want(2)
		if err := verify(a, "a"); err != nil || state.Measure() != (measure.Source{Failures: 1, Stale: true}) {
			t.Errorf("after a failure: %v, %+v", err, state.Measure())
		}
		time.Sleep(RefetchEvery)
		i.set(200, setOf(t, "b", b.Public()))
		if err := verify(b, "b"); err != nil {
			t.Errorf("the new key: %v", err)
		}
		if verify(a, "a") == nil {
			t.Error("the key that was withdrawn is accepted")
		}
		want(3)
		if state.Measure().Stale {
			t.Error("stale after an answer")
		}
	})
}

// TestBadIssuers are one clear error at the start.
func TestBadIssuers(t *testing.T) {
	for name, answer := range map[string]struct {
		status int
		body   string
		want   string
	}{
		"500":   {500, "", "status 500"},
		"HTML":  {200, "<html></html>", "neither JSON Web Keys nor PEM"},
		"large": {200, strings.Repeat(" ", 2<<20), "more than"},
		"empty": {200, `{"keys":[]}`, "no keys"},
		"oct":   {200, `{"keys":[{"kty":"oct","k":"AAAA"}]}`, "shared secret"},
		"moved": {302, "", "status 302"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(answer.status)
				_, _ = io.WriteString(w, answer.body)
			}))
			defer server.Close()
			_, err := New(t.Context(), Config{JWKSURL: server.URL})
			if keys, ok := errors.AsType[*KeysError](err); !ok || keys.URL != server.URL || !strings.Contains(err.Error(), answer.want) || !strings.Contains(err.Error(), server.URL) {
				t.Errorf("%v; want a KeysError with %q", err, answer.want)
			}
		})
	}
	l, _ := net.Listen("tcp", "127.0.0.1:0")
	l.Close()
	for _, path := range []string{"/keys", "/keys?key=s3cret", "?s3cret"} { // what is asked with may be secret
		_, err := New(t.Context(), Config{JWKSURL: "http://" + l.Addr().String() + path})
		shown, _, hidden := strings.Cut(path, "?")
		if err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), l.Addr().String()+shown) || hidden != strings.Contains(err.Error(), "?[redacted]: ") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := New(t.Context(), Config{JWKSURL: "http://" + l.Addr().String()}); err == nil {
		t.Error("nobody listens, and that is no error")
	}
}

// isSigned reports whether a token is signed with the secret, as those are too that a fuzz run before this one has kept.
func isSigned(token string) bool {
	end := strings.LastIndexByte(token, '.')
	if end < 0 {
		return false
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(token[:end]))
	return token[end+1:] == b64(mac.Sum(nil))
}

// FuzzJWT: whatever comes is refused with a code, and nothing is accepted that was not signed.
func FuzzJWT(f *testing.F) {
	v, err := New(context.Background(), Config{JWTSecret: secret})
	if err != nil {
		f.Fatal(err)
	}
	good := hs(claimsIn(24 * time.Hour))
	f.Add(good)
	f.Add("a.b.c")
	f.Add(b64([]byte(`{"alg":"none"}`)) + ".e30.")
	f.Fuzz(func(t *testing.T, token string) {
		_, err := v.Verify(context.Background(), token, true)
		if err == nil && !isSigned(token) {
			t.Fatalf("%q is accepted", token)
		}
		if err != nil && !eventhub.ErrorCode(err).Denied() {
			t.Fatalf("%q: %v", token, err)
		}
	})
}
