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
// untouched.
func CleanPaths(mux http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := r.URL.EscapedPath()
		// A mux takes the target of a CONNECT as it is.
		if want := cleaned(asked); want != asked && r.Method != http.MethodConnect {
			writeProblem(w, http.StatusNotFound,
				eventhub.Errorf(eventhub.CodeUnsupportedOp, "there is nothing at %.120q; is %.120q meant?", asked, want), nil)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// cleaned returns the escaped path that a mux would serve in the place of this one.
func cleaned(escaped string) string {
	clean := path.Clean("/" + escaped)
	if strings.HasSuffix(escaped, "/") && clean != "/" {
		clean += "/"
	}
	return clean
}
