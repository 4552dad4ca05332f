// Package origin decides which web pages may talk to the hub. A browser would
// let any page connect with the network access of whoever looks at it, also to a
// hub on loopback; it names the page's origin, and that is judged here for all
// gateways alike.
package origin

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// Policy is the list of origins that may connect besides those that always may;
// see Allowed. It is safe for concurrent use.
type Policy struct{ listed map[string]bool }

// New returns the policy with these origins (scheme://host[:port]), or
// everything that is wrong with them.
func New(origins []string) (*Policy, error) {
	p := &Policy{listed: make(map[string]bool, len(origins))}
	var errs []error
	for _, s := range origins {
		u, err := parse(s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p.listed[u.String()] = true
	}
	return p, errors.Join(errs...)
}

// parse brings a web origin into the form in which origins are compared: lower
// case, no default port.
func parse(s string) (*url.URL, error) {
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

// Allowed reports whether the request may be served. One without Origin comes
// from no page and is not for here to judge. A page may connect when its origin
// is on the list, when it lives on this machine, or when it comes from the host
// that the request is for, on whatever port.
//
// The last does not count on a connection that came in over loopback: there any
// name that an attacker lets resolve to 127.0.0.1 would be the hub's own. A
// proxy on the same machine therefore needs its origin on the list.
func (p *Policy) Allowed(r *http.Request) bool {
	header := r.Header.Get("Origin")
	if header == "" {
		return true
	}
	u, err := parse(header)
	if err != nil {
		return false // "null" among others
	}
	if p.listed[u.String()] || isLoopback(u.Hostname()) {
		return true
	}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && local.IP.IsLoopback() {
		return false
	}
	host := url.URL{Host: strings.ToLower(r.Host)}
	return u.Hostname() == host.Hostname()
}

func isLoopback(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
