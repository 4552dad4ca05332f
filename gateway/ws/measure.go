package ws

import (
	"maps"
	"slices"
	"time"

	"eventhub/internal/measure"
)

// peersCodes is where the close codes begin that libraries and applications give
// a meaning of their own.
const peersCodes = 3000

// Measure says what the gateway has counted since it was made. A session counts
// under its own mutex, where it holds it anyway; what those that are open have
// counted is added up when somebody asks, what those that ended had, when they
// end. Both happen under Gateway.mu, so that nothing is missed or counted twice:
// Opened is always Connections and all of Closed.
//
// Close codes from 3000 on, which peers make up, are counted under their thousand.
// Bytes are those of the WebSocket frames.
func (g *Gateway) Measure() measure.Gateway {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.past
	m.Closed, m.Errors, m.Ended = maps.Clone(m.Closed), maps.Clone(m.Errors), slices.Clone(m.Ended)
	m.Connections = len(g.sessions)
	for s := range g.sessions {
		s.addCounts(&m)
	}
	return m
}

// addCounts adds what the session has counted to m, and returns the code with
// which it was closed, if it is. The gateway's mutex may be held.
func (s *session) addCounts(m *measure.Gateway) (closed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.BytesReceived += uint64(s.out.received)
	m.BytesSent += uint64(s.out.sent)
	m.Subscriptions += len(s.subs)
	for code, n := range s.out.errors {
		m.Errors[string(code)] += n
	}
	if closed = int(s.out.code); closed >= peersCodes {
		closed -= closed % 1000
	}
	return closed
}

// remember notes how a session has ended, where it had signed in: anybody can cause the end of others, as often as
// they like. The gateway's mutex is held.
func (g *Gateway) remember(s *session) {
	if !s.authed {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g.past.Ended = slices.Insert(g.past.Ended, 0, measure.Ended{
		ID: s.id(), Remote: s.remote, Name: s.access.Name, Client: s.name, Since: s.opened, At: time.Now(),
		Code: int(s.out.code), Why: s.out.why, Delivered: s.out.delivered,
	})
	g.past.Ended = g.past.Ended[:min(len(g.past.Ended), measure.MaxEnded)]
}
