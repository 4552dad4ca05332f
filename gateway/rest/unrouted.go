package rest

import (
	"net/http"
	"strings"

	"eventhub"
)

// Unrouted returns the answer to the requests that no other route of the mux takes; it is
// to be mounted there as "/". A path that has other methods is 405 and names them, any
// other is 404 with what hint adds, which may be empty.
func Unrouted(mux *http.ServeMux, hint func(r *http.Request) string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if allow := allowed(mux, r); allow != "" {
			w.Header().Set("Allow", allow)
			writeProblem(w, http.StatusMethodNotAllowed,
				eventhub.Errorf(eventhub.CodeUnsupportedOp, "%.20q is no method of %.120s, which has %s", r.Method, r.URL.Path, allow), nil)
			return
		}
		writeProblem(w, http.StatusNotFound,
			eventhub.Errorf(eventhub.CodeUnsupportedOp, "there is nothing at %.120q%s", r.URL.Path, hint(r)), nil)
	})
}

// allowed lists the methods for which the mux has a route with the path of the request.
func allowed(mux *http.ServeMux, r *http.Request) string {
	var methods []string
	for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodPatch, http.MethodPost, http.MethodPut} {
		other := *r
		other.Method = method
		if _, pattern := mux.Handler(&other); pattern != "/" && pattern != "" {
			methods = append(methods, method)
		}
	}
	return strings.Join(methods, ", ")
}

// Hint returns "; did you mean …?" for a path that the API does not have and that is near
// to one it has: another one begins with /v1 or does not. It returns "" if there is none.
func (a *API) Hint(path string) string {
	given := strings.Split(strings.Trim(path, "/"), "/")
	versioned := append([]string{"v1"}, given...)
	if given[0] == "v1" {
		versioned = given[1:]
	}
	for route := range a.resources() {
		segments := strings.Split(route[1:], "/")
		for _, meant := range [][]string{versioned, given} {
			if matches(segments, meant) {
				return "; did you mean /" + strings.Join(meant, "/") + "?"
			}
		}
	}
	return ""
}

// matches reports whether a path is one of a route's.
func matches(route, path []string) bool {
	if len(route) != len(path) {
		return false
	}
	for i, segment := range route {
		if !strings.HasPrefix(segment, "{") && segment != path[i] || path[i] == "" {
			return false
		}
	}
	return true
}
