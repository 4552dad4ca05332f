package hub_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"eventhub/hub"
)

// pair is a certificate of this machine that signs itself, and its key, in files.
type pair struct {
	cert, key string
	trust     *tls.Config
}

// newPair writes a pair with a serial number.
func newPair(t *testing.T, dir string, serial int64) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Unix(0, 0),
		NotAfter: time.Unix(4e9+serial, 0), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	p := pair{filepath.Join(dir, "hub.pem"), filepath.Join(dir, "hub.key"), &tls.Config{RootCAs: x509.NewCertPool()}}
	for path, block := range map[string]*pem.Block{p.cert: {Type: "CERTIFICATE", Bytes: der}, p.key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.trust.RootCAs.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return p
}

func fetch(t *testing.T, trust *tls.Config, url string) (resp *http.Response, body string) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{TLSClientConfig: trust.Clone(), ForceAttemptHTTP2: true, DisableKeepAlives: true}}
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// TestTLS: with a certificate all listeners speak TLS but that of operations on loopback, and
// HTTP/1.1 even to who would rather speak HTTP/2, which has no WebSockets.
func TestTLS(t *testing.T) {
	p := newPair(t, t.TempDir(), 1)
	h := start(t, hub.Config{Store: hub.MemoryStore, WSAddr: "127.0.0.1:0", HTTPAddr: "localhost:0", OpsAddr: "127.0.0.2:0", TLSCertFile: p.cert, TLSKeyFile: p.key})
	for url, want := range map[string]int{"https://" + h.HTTPAddr() + "/v1/topics": 200, "https://" + h.WSAddr() + "/v1/topics": 200,
		"http://" + h.OpsAddr() + "/livez": 200, "http://" + h.WSAddr() + "/v1/topics": 400} {
		if resp, body := fetch(t, p.trust, url); resp.StatusCode != want || resp.ProtoMajor != 1 {
			t.Errorf("GET %s: %s %s: %s", url, resp.Proto, resp.Status, body)
		}
	}
	if _, metrics := fetch(t, p.trust, "http://"+h.OpsAddr()+"/metrics"); !strings.Contains(metrics, "\neventhub_tls_certificate_expires_timestamp_seconds 4.000000001e+09\n") {
		t.Error("the metrics do not say when the certificate ends")
	}
	conn, _, _, err := ws.Dialer{TLSConfig: p.trust}.Dial(t.Context(), "wss://"+h.WSAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := wsutil.WriteClientText(conn, []byte(`{"op":"AUTH"}`)); err != nil {
		t.Fatal(err)
	}
	if text, err := wsutil.ReadServerText(conn); err != nil || !strings.Contains(string(text), `"op":"OK"`) {
		t.Errorf("AUTH over TLS: %s, %v", text, err)
	}
	for at, want := range map[string]bool{"127.0.0.1:1": true, "127.0.0.1:2": true, "127.0.0.1:3": false} {
		c := hub.Config{WSAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", OpsAddr: "127.0.0.1:3", TLSCertFile: "x", TLSKeyFile: "y"}
		if c.TLSAt(at) != want {
			t.Errorf("TLS at %s: %t", at, !want)
		}
		c.OpsAddr = "10.0.0.7:1"
		if !c.TLSAt(c.OpsAddr) {
			t.Error("no TLS for operations on the network")
		}
		if c.OpsAddr = c.WSAddr; !c.TLSAt(c.OpsAddr) {
			t.Error("no TLS for all at one address")
		}
	}
}

// TestTLSStops: connections over TLS end in order when the hub does: a WebSocket by 1001, one
// that waits for a request at once.
func TestTLSStops(t *testing.T) {
	p := newPair(t, t.TempDir(), 1)
	h, err := hub.Start(hub.Config{Store: hub.MemoryStore, WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0", TLSCertFile: p.cert, TLSKeyFile: p.key})
	if err != nil {
		t.Fatal(err)
	}
	conn, _, _, err := ws.Dialer{TLSConfig: p.trust}.Dial(t.Context(), "wss://"+h.WSAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	idle, err := tls.Dial("tcp", h.HTTPAddr(), p.trust)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := wsutil.ReadServerText(conn)
		conn.Close()
		ended <- err
	}()
	if err := h.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-ended; !strings.Contains(fmt.Sprint(err), "1001") {
		t.Errorf("the WebSocket ended with %v", err)
	}
	if _, err := idle.Read(make([]byte, 1)); err == nil {
		t.Error("the idle connection is open")
	}
}

// TestTLSFilesAreReadAgain: new connections see the new certificate; a pair that does not fit
// leaves the old one.
func TestTLSFilesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	p := newPair(t, dir, 1)
	var log lines
	inBubble(t, hub.Config{WSAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", OpsAddr: "127.0.0.1:3", TLSCertFile: p.cert, TLSKeyFile: p.key,
		Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(b *hubInBubble) {
		serial := func() int64 {
			t.Helper()
			raw, err := b.network.Dial(context.Background(), "tcp", b.WSAddr())
			if err != nil {
				t.Fatal(err)
			}
			conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true})
			defer raw.Close()
			if err := conn.Handshake(); err != nil {
				t.Fatal(err)
			}
			return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
		}
		want := func(n int64, stale string) {
			t.Helper()
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if got := serial(); got != n {
				t.Errorf("certificate %d is presented; want %d", got, n)
			}
			if metrics := b.metrics(); !strings.Contains(metrics, `eventhub_setting_stale{setting="tls_cert_file"} `+stale+"\n") ||
				!strings.Contains(metrics, fmt.Sprintf("eventhub_tls_certificate_expires_timestamp_seconds %.9e\n", 4e9+float64(n))) {
				t.Errorf("stale is not %s, or another certificate ends", stale)
			}
		}
		want(1, "0")
		other := newPair(t, t.TempDir(), 2)
		copyFile(t, other.key, p.key)
		want(1, "1")
		if text := log.String(); strings.Count(text, "level=ERROR") != 1 || !strings.Contains(text, `setting="tls_cert_file, tls_key_file"`) || !strings.Contains(text, p.key) {
			t.Errorf("the log does not say what is wrong:\n%s", text)
		}
		copyFile(t, other.cert, p.cert)
		want(2, "0")
		if err := os.Remove(p.cert); err != nil {
			t.Fatal(err)
		}
		want(2, "1")
	})
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, content, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// metrics scrapes the hub.
func (b *hubInBubble) metrics() string { return b.metricsAs("") }

func (b *hubInBubble) metricsAs(token string) string {
	b.t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+b.OpsAddr()+"/metrics", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	c := http.Client{Transport: &http.Transport{DialContext: b.network.Dial, DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(body)
}

// TestTLSFilesThatAreWrong: one error that has the settings and the files, and no key.
func TestTLSFilesThatAreWrong(t *testing.T) {
	p, other := newPair(t, t.TempDir(), 1), newPair(t, t.TempDir(), 2)
	html := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(html, []byte("<html>"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		cert, key string
		says      string
	}{
		"no key":            {p.cert, "", "tls_cert_file: it needs tls_key_file"},
		"no certificate":    {"", p.key, "tls_key_file: it needs tls_cert_file"},
		"no such file":      {p.cert, p.key + ".old", "tls_key_file: stat " + p.key + ".old: no such file"},
		"of another":        {p.cert, other.key, "tls_cert_file, tls_key_file: " + p.cert + " and " + other.key + " are no certificate and its key: tls: private key does not match public key"},
		"the other way":     {p.key, p.cert, "tls_cert_file, tls_key_file: " + p.key + " and " + p.cert},
		"no PEM":            {html, p.key, "failed to find any PEM data in certificate input"},
		"no file at all":    {t.TempDir(), p.key, "is not a regular file"},
		"not there, either": {"/nowhere/a", "/nowhere/b", "tls_key_file: stat /nowhere/b"},
	} {
		err := hub.Config{TLSCertFile: tt.cert, TLSKeyFile: tt.key}.WithDefaults().Validate()
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v; want %s", name, err, tt.says)
		}
	}
}

// TestAuthenticationOfPublicAddresses: any kind is enough, and a file of tokens that can not be
// read, or has none, is not one.
func TestAuthenticationOfPublicAddresses(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tokens := put("tokens.yaml", "tokens: [{name: a, token: t, scopes: ['*']}]\n")
	p := newPair(t, dir, 1)
	for name, tt := range map[string]struct {
		config hub.Config
		ok     bool
	}{
		"nothing":             {hub.Config{}, false},
		"an audience alone":   {hub.Config{JWTAudience: "hub"}, false},
		"a certificate alone": {hub.Config{TLSCertFile: p.cert, TLSKeyFile: p.key}, false},
		"origins alone":       {hub.Config{Origins: []string{"https://app.example"}}, false},
		"a token":             {hub.Config{AuthToken: "t"}, true},
		"a file of tokens":    {hub.Config{AuthTokensFile: tokens}, true},
		"an empty file":       {hub.Config{AuthTokensFile: put("empty.yaml", "")}, false},
		"a secret":            {hub.Config{JWTSecret: "s"}, true},
		"a JWKS URL":          {hub.Config{JWKSURL: "https://login.example/jwks"}, true},
		"a key file":          {hub.Config{JWTKeyFile: p.cert}, true},
		"no key in it":        {hub.Config{JWTKeyFile: put("none.pem", "")}, false},
	} {
		for _, addr := range []string{"0.0.0.0:1", "[2001:db8::1]:1"} {
			c := tt.config.WithDefaults()
			c.WSAddr, c.HTTPAddr, c.OpsAddr = addr, addr, addr
			if err := c.Validate(); (err == nil) != tt.ok {
				t.Errorf("%s at %s: %v", name, addr, err)
			}
		}
	}
}
