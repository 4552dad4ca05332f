package ws

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// parseOrigin brings a web origin into the form in which origins are compared:
// lower case, no default port.
func parseOrigin(s string) (*url.URL, error) {
	u, err := url.Parse(strings.ToLower(s))
	if err != nil {
		return nil, fmt.Errorf("origin %q: %w", s, err)
	}
	if u.Scheme == "" || u.Hostname() == "" || u.User != nil || strings.TrimSuffix(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("origin %q: want scheme://host[:port]", s)
	}
	if u.Scheme == "http" && u.Port() == "80" || u.Scheme == "https" && u.Port() == "443" {
		u.Host = strings.TrimSuffix(u.Host, ":"+u.Port())
	}
	u.Path = ""
	return u, nil
}

// originAllowed keeps pages of other sites out, which a browser would connect
// with the network access of whoever looks at them. A request without Origin
// comes from no browser and is not for here to judge. A page may connect when
// its origin is on the list, when it lives on this machine, or when it comes
// from the host that the request is for, on whatever port.
//
// The last does not count on a connection that came in over loopback: there any
// name that an attacker lets resolve to 127.0.0.1 would be the hub's own. A
// proxy on the same machine therefore needs its origin on the list.
func (g *Gateway) originAllowed(r *http.Request) bool {
	header := r.Header.Get("Origin")
	if header == "" {
		return true
	}
	origin, err := parseOrigin(header)
	if err != nil {
		return false // "null" among others
	}
	if g.origins[origin.String()] {
		return true
	}
	host := origin.Hostname()
	if isLoopback(host) {
		return true
	}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && local.IP.IsLoopback() {
		return false
	}
	return host == hostname(r.Host)
}

// hostname returns a Host header without its port.
func hostname(host string) string {
	u := url.URL{Host: strings.ToLower(host)}
	return u.Hostname()
}

func isLoopback(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
