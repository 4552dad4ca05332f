package origin

import (
	"net/http"
	"slices"
	"strings"
)

// The protocol by which a browser asks whether a page may read answers (CORS). An allowed
// origin is named back and nothing else is: never "*", and no credentials of the browser,
// because tokens come in a header that the page sets. Pages of other origins get none of
// these headers, and the browser shows them nothing.

// readable are the headers of answers that pages may read, besides those that they always may.
const readable = "Content-Encoding, Content-Disposition, ETag, Link, Retry-After, WWW-Authenticate, Allow"

// writable are the headers that pages may send; those that begin with x- or ce- besides.
var writable = []string{"accept", "accept-language", "authorization", "cache-control", "content-encoding", "content-type", "idempotency-key",
	"if-match", "if-none-match", "last-event-id", "traceparent", "tracestate"}

// preflightSeconds is how long a browser may remember an answer to a preflight.
const preflightSeconds = "600"

// Share lets the page of an allowed origin read the answer. It is to be called before
// anything is written.
func (p *Policy) Share(w http.ResponseWriter, r *http.Request) {
	w.Header().Add("Vary", "Origin")
	if r.Header.Get("Origin") == "" || !p.Allowed(r) {
		return
	}
	w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
	w.Header().Set("Access-Control-Expose-Headers", readable)
}

// IsPreflight reports whether a browser asks what a page may send.
func IsPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// Preflight answers that pages of the request's origin, which is allowed, may use these
// methods, separated by commas. Share was called before.
func (p *Policy) Preflight(w http.ResponseWriter, r *http.Request, methods string) {
	h := w.Header()
	h.Add("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers")
	h.Set("Access-Control-Allow-Methods", methods)
	h.Set("Access-Control-Max-Age", preflightSeconds)
	h.Del("Access-Control-Expose-Headers")
	var may []string
	for _, line := range r.Header.Values("Access-Control-Request-Headers") {
		for name := range strings.SplitSeq(strings.ToLower(line), ",") {
			name = strings.TrimSpace(name)
			if slices.Contains(writable, name) || isToken(name) && (strings.HasPrefix(name, "x-") || strings.HasPrefix(name, "ce-")) {
				may = append(may, name)
			}
		}
	}
	if may != nil {
		h.Set("Access-Control-Allow-Headers", strings.Join(may, ", "))
	}
	w.WriteHeader(http.StatusNoContent)
}

// isToken reports whether a name has nothing but what names of headers have, in lower case.
func isToken(name string) bool {
	return !strings.ContainsFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	})
}
