// Package origin decides which web pages may talk to the hub. A browser would
// let any page connect with the network access of whoever looks at it, also to a
// hub on loopback. It names the page's origin, and that is judged here for all
// gateways alike (Allowed); where it thinks that page and hub are one origin it may
// leave that out of a GET, and then the name by which it calls the hub is judged
// (Named).
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
type Policy struct {
	listed map[string]bool
	hosts  map[string]bool // of those listed
}

// New returns the policy with these origins (scheme://host[:port]), or
// everything that is wrong with them.
func New(origins []string) (*Policy, error) {
	p := &Policy{listed: make(map[string]bool, len(origins)), hosts: make(map[string]bool, len(origins))}
	var errs []error
	for _, s := range origins {
		u, err := parse(s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p.listed[u.String()] = true
		p.hosts[u.Hostname()] = true
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

// Allowed reports whether the request may be served. One without Origin comes from
// no page, or from one that can not read the answer: browsers leave it out where a page
// loads an image, follows a link or starts a download. Those still cost the hub
// something, so where the browser says that such a page is of another site
// (Sec-Fetch-Site) the request is refused. A page may connect when its origin
// is on the list, when it lives on this machine, or when it comes from the host
// that the request is for, on whatever port.
//
// The last does not count on a connection that came in over loopback: there any
// name that an attacker lets resolve to 127.0.0.1 would be the hub's own. A
// proxy on the same machine therefore needs its origin on the list.
func (p *Policy) Allowed(r *http.Request) bool {
	header := r.Header.Get("Origin")
	if header == "" {
		return !strings.EqualFold(r.Header.Get("Sec-Fetch-Site"), "cross-site")
	}
	u, err := parse(header)
	if err != nil {
		return false // "null" among others
	}
	if p.listed[u.String()] || isLoopback(u.Hostname()) {
		return true
	}
	if overLoopback(r) {
		return false
	}
	return u.Hostname() == hostname(r)
}

// NotAllowed is what a gateway says of a request that is not Allowed.
func NotAllowed(r *http.Request) string {
	if header := r.Header.Get("Origin"); header != "" {
		return fmt.Sprintf("pages of the origin %q may not use this hub", header)
	}
	return "pages of another site may not use this hub; a person who wants this address opens it without a link"
}

// NotNamed is what a gateway says of a request that is not Named; it takes the
// request's Host.
const NotNamed = "%.120q is not known as a name of this hub, which asks for no token: call it localhost or by its address, or list an origin with that host"

// Named reports whether the name by which the request calls the hub may be the
// hub's own. It is to be asked where the hub lets in whoever comes: a page of
// evil.example whose name is made to resolve to 127.0.0.1 is of one origin with the
// hub in the browser's eyes, which then sends no Origin with a GET and shows the
// page the answer. What gives it away is the Host, which is still the page's.
//
// So over loopback the hub answers to addresses (a page whose host is an address
// was served from there), to localhost and what is below it, and to the hosts of the
// listed origins. A request without a Host, as only programs send it, has none of these names.
// Elsewhere any name may be the hub's own: who opens a hub to the network without
// asking for a token knows its names, and the hub does not.
func (p *Policy) Named(r *http.Request) bool {
	if !overLoopback(r) {
		return true
	}
	host := strings.TrimSuffix(hostname(r), ".")
	return net.ParseIP(host) != nil || isLoopback(host) || p.hosts[host]
}

// hostname returns the host that the request is for, in lower case and without a
// port.
func hostname(r *http.Request) string {
	host := url.URL{Host: strings.ToLower(r.Host)}
	return host.Hostname()
}

// overLoopback reports whether the request came in on an address of this machine
// alone.
func overLoopback(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && local.IP.IsLoopback()
}

func isLoopback(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
