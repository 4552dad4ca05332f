package hub

import (
	"net"
	"net/http"
	"slices"
	"strings"

	"eventhub/gateway/rest"
)

// mountUnrouted gives every door the answer to what none of its routes takes.
func (h *Hub) mountUnrouted(d *door, hint func(r *http.Request) string) {
	unrouted := rest.Unrouted(d.mux, hint)
	if d.shared != nil {
		unrouted = d.shared(unrouted)
	}
	d.mux.Handle("/", unrouted)
}

// operationsHint is for clients that took the operations listener for the hub.
func (h *Hub) operationsHint(routes []string) func(r *http.Request) string {
	var paths []string
	for _, route := range routes {
		_, path, _ := strings.Cut(route, " ")
		paths = append(paths, path)
	}
	slices.Sort(paths)
	has := strings.Join(slices.Compact(paths), ", ")
	return func(r *http.Request) string {
		return " here: this is the operations listener; clients connect to " +
			urlOf(h.scheme("ws", h.cfg.WSAddr), h.WSAddr(), r) + ", or to " + urlOf(h.scheme("http", h.cfg.HTTPAddr), h.HTTPAddr(), r) + "; here are " + has
	}
}

// apiHint is for those who ask the HTTP API for what another path or listener has.
func (h *Hub) apiHint(r *http.Request) string {
	if h.isApart(h.door(h.cfg.OpsAddr)) && slices.Contains(h.operations.Routes(), "GET "+r.URL.Path) {
		return " here; the operations listener has it: " + urlOf(h.scheme("http", h.cfg.OpsAddr), h.OpsAddr(), r) + r.URL.Path
	}
	return h.api.Hint(r.URL.Path)
}

// scheme returns that of a configured address: over TLS another one.
func (h *Hub) scheme(plain, addr string) string {
	if h.cfg.TLSAt(addr) {
		return plain + "s"
	}
	return plain
}

// urlOf returns the URL of a listener as the client of a request reaches it: one that
// listens everywhere is at the host that this client has asked.
func urlOf(scheme, addr string, r *http.Request) string {
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		asked, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			asked = strings.Trim(r.Host, "[]")
		}
		addr = net.JoinHostPort(asked, port)
	}
	return scheme + "://" + addr
}
