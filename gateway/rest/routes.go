package rest

import "slices"

// Routes returns the methods and paths that there are, such as "GET /v1/topics", in
// order. HEAD, which goes with each GET, is not among them.
func (a *API) Routes() []string {
	var routes []string
	for path, m := range a.resources() {
		for method := range m {
			routes = append(routes, method+" "+path)
		}
	}
	slices.Sort(routes)
	return routes
}
