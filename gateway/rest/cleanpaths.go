package rest

import (
	"net/http"
	"path"
	"strings"

	"eventhub"
)

// CleanPaths puts a problem in the place of the page with which an http.ServeMux
// sends clients elsewhere whose path has an empty segment, a "." or a "..": a hub
// redirects nobody, for few programs follow, fewer with their body and their token.
// It runs before the mux of every door, and lets all other requests through
// untouched. shared is what the problem goes through, API.Shared where pages may read it; nil:
// nothing.
func CleanPaths(mux http.Handler, shared func(http.Handler) http.Handler) http.Handler {
	var refuse http.Handler = http.HandlerFunc(refuseUnclean)
	if shared != nil {
		refuse = shared(refuse)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := r.URL.EscapedPath()
		// A mux takes the target of a CONNECT as it is.
		if cleaned(asked) != asked && r.Method != http.MethodConnect {
			refuse.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func refuseUnclean(w http.ResponseWriter, r *http.Request) {
	asked := r.URL.EscapedPath()
	writeProblem(w, http.StatusNotFound,
		eventhub.Errorf(eventhub.CodeUnsupportedOp, "there is nothing at %.120q; is %.120q meant?", asked, cleaned(asked)), nil)
}

// cleaned returns the escaped path that a mux would serve in the place of this one.
func cleaned(escaped string) string {
	clean := path.Clean("/" + escaped)
	if strings.HasSuffix(escaped, "/") && clean != "/" {
		clean += "/"
	}
	return clean
}
