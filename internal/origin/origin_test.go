package origin

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAllowed(t *testing.T) {
	policy, err := New([]string{"https://App.example", "http://tool.example:8080", "https://port.example:443"})
	if err != nil {
		t.Fatal(err)
	}
	loopback, public := net.IPv4(127, 0, 0, 1), net.IPv4(192, 0, 2, 7)
	for _, tt := range []struct {
		origin, host string
		local        net.IP
		want         bool
	}{
		{"", "hub.example:8090", public, true},
		{"https://app.example", "hub.example", public, true},
		{"https://APP.example:443", "hub.example", public, true},
		{"https://port.example", "hub.example", public, true},
		{"http://app.example", "hub.example", public, false},
		{"https://app.example:8443", "hub.example", public, false},
		{"http://tool.example:8080", "hub.example", public, true},
		{"http://tool.example", "hub.example", public, false},
		{"https://app.example.evil.example", "hub.example", public, false},
		{"http://hub.example:8090", "hub.example:8090", public, true},
		{"http://HUB.example", "hub.example:8090", public, true},
		{"http://[2001:db8::1]:8082", "[2001:db8::1]:8090", public, true},
		{"http://evil.example", "hub.example:8090", public, false},
		{"http://hub.example.evil.example", "hub.example", public, false},
		{"null", "hub.example", public, false},
		{"garbage", "hub.example", public, false},
		{"http://localhost:3000", "127.0.0.1:8090", loopback, true},
		{"http://127.0.0.1:8082", "127.0.0.1:8090", loopback, true},
		{"http://[::1]:8082", "localhost:8090", loopback, true},
		{"http://localhost.evil.example", "127.0.0.1:8090", loopback, false},
		{"http://evil.example", "127.0.0.1:8090", loopback, false},
		// A name that was made to resolve to this machine.
		{"http://evil.example:8090", "evil.example:8090", loopback, false},
		{"https://app.example", "app.example", loopback, true},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = tt.host
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: tt.local}))
		if tt.origin != "" {
			r.Header.Set("Origin", tt.origin)
		}
		if got := policy.Allowed(r); got != tt.want {
			t.Errorf("origin %q, host %q, reached at %s: %v; want %v", tt.origin, tt.host, tt.local, got, tt.want)
		}
	}
}

// TestForeignPagesWithoutOrigin: a browser leaves the origin out where a page loads an
// image, follows a link or starts a download, and says where that comes from in
// another header, which no page can set.
func TestForeignPagesWithoutOrigin(t *testing.T) {
	policy, err := New([]string{"https://app.example"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		site, origin string
		want         bool
	}{
		{"", "", true}, // no browser, or an old one
		{"none", "", true},
		{"same-origin", "", true},
		{"same-site", "", true},
		{"cross-site", "", false},
		{"Cross-Site", "", false},
		{"cross-site", "https://app.example", true},
		{"cross-site", "https://evil.example", false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/v1/backup", nil)
		r.Header.Set("Sec-Fetch-Site", tt.site)
		if tt.origin != "" {
			r.Header.Set("Origin", tt.origin)
		}
		if got := policy.Allowed(r); got != tt.want {
			t.Errorf("from %q with origin %q: %v; want %v", tt.site, tt.origin, got, tt.want)
		}
	}
}

// TestNamed: over loopback a name that anybody may own is not the hub's.
func TestNamed(t *testing.T) {
	policy, err := New([]string{"https://App.example", "http://host.docker.internal:8081"})
	if err != nil {
		t.Fatal(err)
	}
	loopback, public := net.IPv4(127, 0, 0, 1), net.IPv4(192, 0, 2, 7)
	for _, tt := range []struct {
		host  string
		local net.IP
		want  bool
	}{
		{"127.0.0.1:8081", loopback, true},
		{"127.1.2.3", loopback, true},
		{"192.0.2.7:8081", loopback, true}, // forwarded to loopback; no page has it but the hub's
		{"[::1]:8081", net.IPv6loopback, true},
		{"[::ffff:127.0.0.1]:8081", loopback, true},
		{"localhost:8081", loopback, true},
		{"LOCALHOST", loopback, true},
		{"localhost.:8081", loopback, true},
		{"hub.localhost", loopback, true},
		{"", loopback, false},
		{"", public, true},
		{"app.example", loopback, true},
		{"APP.example:8443", loopback, true}, // on whatever port
		{"host.docker.internal:9999", loopback, true},
		{"evil.example:8081", loopback, false},
		{"evil.example:8081", net.IPv6loopback, false},
		{"localhost.evil.example", loopback, false},
		{"evillocalhost", loopback, false},
		{"127.0.0.1.evil.example", loopback, false},
		{"127.0.0.1.nip.io", loopback, false},
		{"x.app.example", loopback, false},
		{"0x7f.1", loopback, false},
		{"hub", loopback, false},
		{"hub.internal:8081", loopback, false},
		{"evil.example", public, true},
		{"hub.internal:8081", public, true},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = tt.host
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: tt.local}))
		if got := policy.Named(r); got != tt.want {
			t.Errorf("host %q, reached at %s: %v; want %v", tt.host, tt.local, got, tt.want)
		}
	}
}

func TestNewNamesAllThatIsWrong(t *testing.T) {
	_, err := New([]string{"https://ok.example", "app.example", "https://x/y", "https://u@x", "https://x?q"})
	for _, part := range []string{`"app.example"`, `"https://x/y"`, `"https://u@x"`, `"https://x?q"`} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("New = %v; it does not speak of %s", err, part)
		}
	}
	if err != nil && strings.Contains(err.Error(), "ok.example") {
		t.Errorf("a sound origin is blamed: %v", err)
	}
}
