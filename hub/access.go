package hub

import (
	"context"
	"net/http"
	"time"

	"eventhub"
	"eventhub/auth"
	"eventhub/auth/audit"
	"eventhub/auth/guard"
	"eventhub/auth/limits"
	"eventhub/auth/policy"
	"eventhub/gateway/rest"
	"eventhub/gateway/ws"
	"eventhub/internal/caller"
	"eventhub/ops"
	"eventhub/ops/console"
)

// Who is let in gets the engine by a guard, whatever the transport: nothing in this file
// knows the engine but engineFor, and nothing in the others makes an access. A test of
// internal/archtest holds that.

// engineFor returns the engine as the policy of a principal allows it, which reports what it
// denies. The limits come after the rights: what is not allowed takes no token of a topic,
// which others have to share.
func (h *Hub) engineFor(p *auth.Principal, denied guard.Denied) guard.Engine {
	e := guard.For(h.bus, p.Policy, denied)
	if h.limits == nil && h.pressure.limit == 0 {
		return e
	}
	return guard.Within(e, func(next eventhub.Publisher) eventhub.Publisher {
		if h.limits != nil {
			next = h.limits.Publisher(next, p.Name)
		}
		return h.pressure.publisher(next) // first: what it refuses takes no token
	})
}

// identify verifies the token of a client of a transport. The audit knows it as the Peer; denied
// reports there.
func (h *Hub) identify(ctx context.Context, transport, token string, given bool) (p auth.Principal, who audit.Peer, denied guard.Denied, err error) {
	p, err = h.verifier.Verify(ctx, token, given)
	if err != nil {
		return p, who, nil, err
	}
	if c, ok := ctx.Value(connKey{}).(*conn); ok { // a WebSocket is known by its place
		c.know()
	}
	who = h.audit.Peer(p.Name, transport, caller.Addr(ctx))
	return p, who, func(a policy.Action, name, group string) { who.Denied(string(a), name, group) }, nil
}

// admit counts a WebSocket connection, which is a stranger's until its AUTH.
func (h *Hub) admit(r *http.Request) (ws.Place, error) {
	if err := h.pressure.connection(); err != nil {
		return nil, err
	}
	c, _ := r.Context().Value(connKey{}).(*conn)
	if h.limits == nil {
		return &guest{conn: c}, nil
	}
	place, err := h.limits.Admit(r.RemoteAddr)
	if err != nil {
		return nil, err // and no interface around a nil
	}
	return &guest{conn: c, place: place}, nil
}

// authBy returns until when the WebSocket that a request asks for has to say AUTH.
func authBy(r *http.Request) time.Time {
	if c, ok := r.Context().Value(connKey{}).(*conn); ok {
		return c.authBy()
	}
	return time.Time{}
}

// guest is the place of a WebSocket connection.
type guest struct {
	conn  *conn
	place *limits.Connection // nil: nothing counts it
}

// Become implements ws.Place.
func (g *guest) Become(principal string) error {
	if g.place != nil {
		if err := g.place.Become(principal); err != nil {
			return err
		}
	}
	g.conn.know()
	return nil
}

// Leave implements ws.Place.
func (g *guest) Leave() {
	if g.place != nil {
		g.place.Leave()
	}
}

// admitStream is admit for event streams over HTTP.
func (h *Hub) admitStream() func(remote, principal string) (leave func(), err error) {
	return func(remote, principal string) (leave func(), err error) {
		if err := h.pressure.connection(); err != nil {
			return nil, err
		}
		if h.limits == nil {
			return func() {}, nil
		}
		place, err := h.limits.Admit(remote)
		if err != nil {
			return nil, err
		}
		if err := place.Become(principal); err != nil {
			place.Leave()
			return nil, err
		}
		return place.Leave, nil
	}
}

// meter returns what bounds the publishes of one WebSocket connection; nil: nothing does.
func (h *Hub) meter() ws.Meter {
	if h.limits == nil {
		return nil
	}
	return h.limits.Meter()
}

// wsAccess lets a WebSocket connection in.
func (h *Hub) wsAccess(ctx context.Context, token string, given bool) (ws.Access, error) {
	p, who, denied, err := h.identify(ctx, transportWS, token, given)
	if err != nil {
		return ws.Access{}, err
	}
	e := h.engineFor(&p, denied)
	return ws.Access{
		Publisher: e, Producers: e, Subscriber: e, Scheduler: e,
		Adopt: func(sub eventhub.Subscription, patterns []eventhub.Pattern, group string) (eventhub.Subscription, error) {
			return guard.Adopt(e, sub, patterns, group)
		},
		Name: p.Name, Expires: p.Ends(), Revoked: p.Revoked,
		Decided: func(err error) {
			if err != nil {
				who.Refused(err)
			} else if h.cfg.authenticates() {
				who.Accepted() // by HTTP each request has a token, and only what it does is of interest
			}
		},
	}, nil
}

// restAccess lets a request to the API in.
func (h *Hub) restAccess(ctx context.Context, token string, given bool) (rest.Access, error) {
	p, who, denied, err := h.identify(ctx, transportHTTP, token, given)
	if err != nil {
		return rest.Access{}, err
	}
	e := h.engineFor(&p, denied)
	return rest.Access{
		Publisher: e, Recaller: e, Subscriber: e, Puller: e, Inspector: e, Scheduler: e, History: e,
		Operator: who.Operator(e), Importer: who.Importer(e), Backuper: who.Backuper(e),
		Redriver: who.Redriver(e), Remover: who.Remover(e), Settings: who.Settings(e),
		Connections: who.Connections(guard.ConnectionsFor(e, h.gateway)), Beginnings: guard.BeginningsFor(e), Rights: guard.RightsOf(e),
		Name: p.Name, Expires: p.Ends(), Revoked: p.Revoked,
	}, nil
}

// opsAccess lets a request to the operations listener in, which is served before the engine
// is there.
func (h *Hub) opsAccess(ctx context.Context, token string, given bool) (ops.Access, error) {
	p, who, denied, err := h.identify(ctx, transportOps, token, given)
	if err != nil {
		return ops.Access{}, err
	}
	rights := guard.For(nil, p.Policy, denied)
	access := ops.Access{
		Shows:    func() (func(string) bool, error) { return guard.Shows(rights) },
		Operates: func() error { return guard.Operates(rights) }, LevelSet: who.LogLevel,
		Name: p.Name, Expires: p.Ends(), Revoked: p.Revoked,
		May: func(topic string) console.Permitted { return console.Permitted(guard.May(rights, topic)) },
	}
	if h.opened.Load() {
		e := h.engineFor(&p, denied)
		access.Inspector, access.History, access.Tailer = e, e, e
		access.Connections = guard.ConnectionsFor(e, h.gateway)
	}
	return access, nil
}
