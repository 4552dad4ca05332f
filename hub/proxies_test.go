package hub

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestOriginBehindProxies: X-Forwarded-For counts from its end, as far as trusted proxies
// have written it, and of nobody else.
func TestOriginBehindProxies(t *testing.T) {
	p, err := newProxies([]string{"10.0.0.0/8", "192.0.2.1", "2001:db8::/32", "::1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		peer      string
		forwarded []string
		want      string
	}{
		{"10.0.0.1:1", nil, "10.0.0.1:1"},
		{"10.0.0.1:1", []string{""}, "10.0.0.1:1"},
		{"10.0.0.1:1", []string{"203.0.113.9"}, "203.0.113.9"},
		{"[::ffff:10.0.0.1]:1", []string{"203.0.113.9"}, "203.0.113.9"},
		{"[::1]:1", []string{"203.0.113.9"}, "203.0.113.9"},
		{"192.0.2.1:1", []string{"203.0.113.9"}, "203.0.113.9"},
		// Somebody else's word.
		{"192.0.2.2:1", []string{"203.0.113.9"}, "192.0.2.2:1"},
		{"[2001:db9::1]:1", []string{"203.0.113.9"}, "[2001:db9::1]:1"},
		{"", []string{"203.0.113.9"}, ""},
		{"@", []string{"203.0.113.9"}, "@"},
		// What a client has made up comes before what the proxies have added.
		{"10.0.0.1:1", []string{"1.1.1.1, 203.0.113.9"}, "203.0.113.9"},
		{"10.0.0.1:1", []string{"10.9.9.9, 203.0.113.9, 10.0.0.2"}, "203.0.113.9"},
		{"10.0.0.1:1", []string{"1.1.1.1", "203.0.113.9, 10.0.0.2", "192.0.2.1"}, "203.0.113.9"},
		{"10.0.0.1:1", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		// What is no address ends it: the last that is known counts.
		{"10.0.0.1:1", []string{"1.1.1.1, unknown, 10.0.0.2"}, "10.0.0.2"},
		{"10.0.0.1:1", []string{"1.1.1.1, , 10.0.0.2"}, "10.0.0.2"},
		{"10.0.0.1:1", []string{"x"}, "10.0.0.1:1"},
		{"10.0.0.1:1", []string{"203.0.113.9\n"}, "203.0.113.9"},
		// Forms.
		{"10.0.0.1:1", []string{"203.0.113.9:4711"}, "203.0.113.9"},
		{"10.0.0.1:1", []string{"[2001:db9::7]:4711"}, "2001:db9::7"},
		{"10.0.0.1:1", []string{"2001:db9::7"}, "2001:db9::7"},
		{"10.0.0.1:1", []string{"[2001:db9::7]"}, "2001:db9::7"},
		{"10.0.0.1:1", []string{"fe80::1%eth0"}, "fe80::1"},
		{"10.0.0.1:1", []string{"203.0.113.9, ::ffff:10.0.0.2"}, "203.0.113.9"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = tt.peer
		r.Header["X-Forwarded-For"] = tt.forwarded
		r.Header.Set("Forwarded", "for=198.51.100.1")
		r.Header.Set("X-Real-IP", "198.51.100.2")
		if got := p.origin(r); got != tt.want {
			t.Errorf("%s, forwarded for %q: %s; want %s", tt.peer, tt.forwarded, got, tt.want)
		}
		if got := (proxies)(nil).origin(r); got != tt.peer {
			t.Errorf("%s, without trusted proxies: %s", tt.peer, got)
		}
	}
	for _, bad := range []string{"", "proxy", "10.0.0.0/33", "10.0.0.1/8", "10.0.0.0/", "*", "fe80::1%eth0", "::ffff:10.0.0.0/104"} {
		if p, err := newProxies([]string{bad}); err == nil {
			t.Errorf("%q is %v", bad, p)
		}
	}
}
