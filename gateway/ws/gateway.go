// Package ws is the hub's WebSocket gateway. It owns the connections: their
// handshake, framing, flow and end, and the conversation of package wire that
// goes over them. What the frames ask for it leaves to the Publisher and
// Subscriber that the hub's Authenticate hands out for each peer; it knows
// neither the engine nor a store. The hub makes one Gateway and mounts it.
//
// # One connection
//
// A connection has one goroutine, which reads, and a second one only while
// there is something to write. The reader takes every complete frame out of
// what one read brought before it reads again, so that consecutive PUBLISHes
// become one Enqueue and consecutive ACKs one Settle, and all their answers
// leave in one system call. Everything that has something to say to the peer (the
// reader, publishers that are done, groups that deliver) appends to the one
// outbound buffer under the session's mutex and never waits for the network.
//
// # Invariants
//
//   - The effects of a connection's frames happen in the order of the frames, except
//     that the events of an ACK with publish may come after those of a PUBLISH that
//     did not wait for its answer. A SUBSCRIBE and a CANCEL wait until the publishes
//     before them are committed. Answers carry corr and may overtake each other.
//   - No EVENT of a subscription comes before the OK of its SUBSCRIBE or after
//     the OK of its UNSUBSCRIBE.
//   - What waits for a peer is bounded. Deliveries are refused at the bound and
//     asked for again when there is room; answers are bounded because the
//     connection is not read above it, and because only so many publishes may be
//     unanswered. Nobody waits for a slow peer but its own reader.
//   - The session's mutex is never held while a Publisher, Subscriber or
//     Subscription is called; they call back into it, under locks of their own.
//   - Nothing follows a close frame, and when a session has ended, every one of
//     its subscriptions has been left and every one of its goroutines is gone.
//   - A session that its peer has ended counts as attempts what a write had taken by
//     then, and gives back what was still in the buffer.
//
// A panic is not recovered: it is a bug of the hub, and the hub restarts clean.
package ws

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	gws "github.com/gobwas/ws"

	"eventhub"
	"eventhub/internal/measure"
	"eventhub/internal/origin"
)

// Gateway is the http.Handler that turns requests into sessions. It is safe for
// concurrent use. The server it is mounted on bounds the time to read a request
// (ReadHeaderTimeout) and must speak HTTP/1.1. Over TLS, where a write that
// timed out can not be continued, a peer has WriteWait for all that is written
// at once.
type Gateway struct {
	cfg      Config
	log      *slog.Logger
	origins  *origin.Policy
	upgrader gws.HTTPUpgrader
	run      string // of ids

	mu       sync.Mutex
	numbered uint64 // connections so far
	sessions map[*session]struct{}
	taken    int // slots of MaxConnections: sessions and upgrades under way
	stopping bool
	paused   string          // why nobody is let in for now; empty where all are
	idle     chan struct{}   // closed when stopping and nothing is taken
	past     measure.Gateway // of what has ended, and of what never began
}

// New returns a gateway, or everything that is wrong with the configuration.
func New(cfg Config) (*Gateway, error) {
	cfg = cfg.withDefaults()
	origins, err := origin.New(cfg.Origins)
	if err := errors.Join(cfg.validate(), err); err != nil {
		return nil, fmt.Errorf("ws: configuration: %w", err)
	}
	return &Gateway{
		cfg:      cfg,
		log:      cfg.Logger,
		origins:  origins,
		upgrader: gws.HTTPUpgrader{Timeout: cfg.WriteWait},
		run:      strconv.FormatInt(time.Now().UnixMilli(), 36),
		sessions: make(map[*session]struct{}),
		idle:     make(chan struct{}),
		past:     measure.Gateway{Closed: make(map[int]uint64), Errors: make(map[string]uint64)},
	}, nil
}

// ServeHTTP upgrades the request and returns; the session lives on by itself.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !isUpgrade(r) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		refuseUpgrade(w, http.StatusUpgradeRequired, eventhub.CodeBadRequest,
			"This is a WebSocket endpoint: connect with a WebSocket client. The HTTP API has other paths, such as /v1/topics.")
		return
	}
	if !g.origins.Allowed(r) {
		g.log.Debug("websocket refused: foreign origin", "remote", r.RemoteAddr, "origin", r.Header.Get("Origin"), "host", r.Host)
		refuseUpgrade(w, http.StatusForbidden, eventhub.CodeForbidden, "Pages of this origin may not connect.")
		return
	}
	if why := checkHandshake(r); why != "" {
		g.log.Debug("websocket refused: handshake", "remote", r.RemoteAddr, "error", why)
		w.Header().Set("Connection", "close")
		refuseUpgrade(w, http.StatusBadRequest, eventhub.CodeBadRequest, why)
		return
	}
	place, err := g.cfg.Admit(r)
	if err != nil {
		g.refuseAnother(w, eventhub.AsError(err))
		return
	}
	if why := g.take(); why != "" {
		place.Leave()
		w.Header().Set("Retry-After", "1")
		refuseUpgrade(w, http.StatusServiceUnavailable, eventhub.CodeOverloaded, why)
		return
	}
	conn, rw, _, err := g.upgrader.Upgrade(r, w)
	if err != nil {
		g.log.Debug("websocket refused: handshake", "remote", r.RemoteAddr, "error", err)
		g.release(nil)
		place.Leave()
		if conn != nil {
			conn.Close() // the upgrader has answered, but what it hijacked is ours
		}
		return
	}
	g.start(conn, rw.Reader, r.RemoteAddr, place, g.cfg.AuthBy(r))
}

// refuseAnother answers that there are as many connections as there may be.
func (g *Gateway) refuseAnother(w http.ResponseWriter, e *eventhub.Error) {
	g.mu.Lock()
	g.past.Refused++
	g.mu.Unlock()
	status := http.StatusServiceUnavailable
	if e.Code == eventhub.CodeRateLimited {
		status = http.StatusTooManyRequests
	}
	w.Header().Set("Retry-After", strconv.Itoa(max(1, int(e.RetryAfter/time.Second))))
	refuseUpgrade(w, status, e.Code, e.Message)
}

// take reserves a slot for one connection, or says why there is none.
func (g *Gateway) take() (refusal string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopping {
		g.past.Refused++
		return "The hub is shutting down."
	}
	if g.paused != "" {
		g.past.Refused++
		return g.paused
	}
	if g.taken >= g.cfg.MaxConnections {
		g.past.Refused++
		return fmt.Sprintf("The hub has %d connections; it takes no more.", g.taken)
	}
	g.taken++
	return ""
}

// release gives the slot back; s is nil where no session came of it.
func (g *Gateway) release(s *session) {
	if s != nil {
		s.place.Leave()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if s != nil {
		delete(g.sessions, s)
		g.past.Closed[s.addCounts(&g.past)]++
		g.remember(s)
	}
	g.taken--
	if g.stopping && g.taken == 0 {
		close(g.idle)
	}
}

// start begins a session with what the client sent right after its handshake. The address is the
// client's, where conn may be a proxy's; place is left when it has ended; authBy is what
// Config.AuthBy says.
func (g *Gateway) start(conn net.Conn, early *bufio.Reader, remote string, place Place, authBy time.Time) {
	s := newSession(g, conn, remote)
	s.place = place
	if !authBy.IsZero() {
		s.authBy = authBy
	}
	if n := early.Buffered(); n > 0 {
		bytes, _ := early.Peek(n) // can not fail: they are there
		s.in.preload(bytes)
	}
	g.mu.Lock()
	g.numbered++
	s.number = g.numbered
	g.sessions[s] = struct{}{}
	g.past.Opened++
	stopping, paused := g.stopping, g.paused
	g.mu.Unlock()
	switch {
	case stopping:
		s.sayGoodbye()
	case paused != "":
		s.sendAway(paused)
	}
	go s.run()
}

// Open returns the number of open sessions.
func (g *Gateway) Open() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.sessions)
}

// Pause sends all connections away (1001), with why as the reason, and lets nobody in until Resume. It
// returns at once; the sessions end as Shutdown has them end. why is a sentence.
func (g *Gateway) Pause(why string) {
	g.mu.Lock()
	g.paused = why
	g.mu.Unlock()
	for _, s := range g.open() {
		s.sendAway(why)
	}
}

// Resume lets connections in again.
func (g *Gateway) Resume() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.paused = ""
}

// Shutdown refuses new connections, answers the publishes that were accepted,
// asks the open connections to go (1001), and returns when every session has
// ended and all their goroutines with them, which takes CloseWait at most, and as
// long again where a publisher does not answer. When ctx ends before, connections are cut; the
// error then says how many sessions had not ended another CloseWait later,
// because a Publisher or Subscriber did not return. Leases of a connection that
// is shut down go back to their groups without counting as attempts.
func (g *Gateway) Shutdown(ctx context.Context) error {
	for _, s := range g.stop() {
		s.sayGoodbye()
	}
	select {
	case <-g.idle:
		return nil
	case <-ctx.Done():
	}
	for _, s := range g.open() {
		s.cut()
	}
	grace := time.NewTimer(g.cfg.CloseWait)
	defer grace.Stop()
	select {
	case <-g.idle:
		return nil
	case <-grace.C:
		return fmt.Errorf("ws: %d connections did not end: %w", len(g.open()), context.Cause(ctx))
	}
}

// stop makes take refuse and returns the open sessions.
func (g *Gateway) stop() []*session {
	g.mu.Lock()
	if !g.stopping {
		g.stopping = true
		if g.taken == 0 {
			close(g.idle)
		}
	}
	g.mu.Unlock()
	return g.open()
}

func (g *Gateway) open() []*session {
	g.mu.Lock()
	defer g.mu.Unlock()
	open := make([]*session, 0, len(g.sessions))
	for s := range g.sessions {
		open = append(open, s)
	}
	return open
}
