package hub

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"eventhub"
	"eventhub/gateway/rest"
	"eventhub/ops/console"
)

// consoleAPI is where the page of the console has the HTTP API: at its own origin, so that one
// address, one tunnel or one rule of a proxy is enough, and the page may call nothing else.
const consoleAPI = "/console/api/"

// mountConsoleAPI mounts the HTTP API for the page.
func (h *Hub) mountConsoleAPI(mux *http.ServeMux) {
	if h.cfg.Console != ConsoleOff {
		mux.HandleFunc(consoleAPI, h.serveConsoleAPI)
	}
}

// mountConsole mounts the page at the path / of a listener that has no other.
func (h *Hub) mountConsole(d *door) {
	if h.cfg.Console == ConsoleOff || !h.isApart(d) { // there / is the WebSocket's
		return
	}
	notHere := rest.Unrouted(http.NewServeMux(), h.operationsHint(h.operations.Routes()))
	d.mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			notHere.ServeHTTP(w, r) // a client that took this listener for the hub
			return
		}
		console.Index(w, r)
	})
}

// openConsoleAPI opens the HTTP API for the page of the console. It is the same API, with the same
// tokens and rights.
func (h *Hub) openConsoleAPI() {
	mux := http.NewServeMux()
	h.api.Register(mux)
	mux.Handle("/", rest.Unrouted(mux, func(*http.Request) string { return " of the API for the console" }))
	var api http.Handler = http.StripPrefix(consoleAPI[:len(consoleAPI)-1], mux)
	h.consoleAPI.Store(&api)
}

// serveConsoleAPI answers the page's requests to the API.
func (h *Hub) serveConsoleAPI(w http.ResponseWriter, r *http.Request) {
	if h.widens() {
		rest.Refuse(w, eventhub.Errorf(eventhub.CodeForbidden,
			"this hub asks for no token, and others reach its operations listener but not its HTTP API: the console shows the hub here and changes nothing"))
		return
	}
	if err := h.awayFor(); err != nil {
		rest.Refuse(w, err)
		return
	}
	h.consoleCalls.RLock()
	defer h.consoleCalls.RUnlock()
	if api := h.consoleAPI.Load(); api != nil {
		(*api).ServeHTTP(w, r)
		return
	}
	rest.Refuse(w, eventhub.AsError(h.notOpen()))
}

// notOpen is what is answered that needs the store of a hub which has none open: a standby says who leads.
func (h *Hub) notOpen() error {
	if c := h.cluster; c != nil {
		if standby := c.leads(); standby != nil {
			return standby
		}
	}
	return eventhub.Errorf(eventhub.CodeOverloaded, "the hub's store is not open; ask again when /readyz is ok")
}

// endConsoleAPI waits, at most until ctx ends, for the requests that are under way there: the
// operations listener outlives the store. The API takes no others by now. Where none is under way it
// is no error that ctx has ended already.
func (h *Hub) endConsoleAPI(ctx context.Context) error {
	if h.consoleCalls.TryLock() {
		h.consoleCalls.Unlock()
		return nil
	}
	ended := make(chan struct{})
	go func() {
		h.consoleCalls.Lock()
		defer h.consoleCalls.Unlock()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("hub: requests of the console are still under way: %w", ctx.Err())
	}
}

// widens reports whether the API at the operations listener would let in whom no other listener
// does: where no token is asked for, who reaches an address may do everything there.
func (h *Hub) widens() bool {
	return !h.cfg.authenticates() && !onLoopback(h.OpsAddr()) && onLoopback(h.WSAddr()) && onLoopback(h.HTTPAddr())
}

func onLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}
