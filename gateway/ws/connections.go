package ws

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"eventhub"
	"eventhub/admin"
	"eventhub/wire"
)

var _ admin.Connections = (*Gateway)(nil)

// An id of a connection is the time at which the gateway was made, in milliseconds to base
// 36, and the connection's number: what was asked about an earlier run of the hub means
// nothing in this one.

// id returns the connection's id.
func (s *session) id() string { return s.gw.run + "-" + strconv.FormatUint(s.number, 10) }

// numberOf returns the number of an id; 0 if it is of another run.
func (g *Gateway) numberOf(id string) (uint64, error) {
	run, number, _ := strings.Cut(id, "-")
	n, err := strconv.ParseUint(number, 10, 64)
	if _, bad := strconv.ParseInt(run, 36, 64); err != nil || bad != nil || number[0] == '0' { // -07 would be another name of -7
		return 0, eventhub.Errorf(eventhub.CodeBadRequest, "%.40q is no id of a connection, such as %s-1", id, g.run)
	}
	if run != g.run {
		return 0, nil
	}
	return n, nil
}

// Connections implements admin.Connections.
func (g *Gateway) Connections(_ context.Context, after string, limit int) ([]admin.ConnectionInfo, error) {
	var last uint64
	if after != "" {
		var err error
		if last, err = g.numberOf(after); err != nil {
			return nil, err
		}
	}
	open := slices.DeleteFunc(g.open(), func(s *session) bool { return s.number <= last })
	slices.SortFunc(open, func(a, b *session) int { return cmp.Compare(a.number, b.number) })
	infos := make([]admin.ConnectionInfo, 0, min(limit, len(open)))
	for _, s := range open[:min(limit, len(open))] {
		infos = append(infos, s.describe())
	}
	return infos, nil
}

// describe shows the connection. No lock is held.
func (s *session) describe() admin.ConnectionInfo {
	s.mu.Lock()
	o := &s.out
	info := admin.ConnectionInfo{
		ID: s.id(), Transport: "ws", Remote: s.remote, Name: s.access.Name, Client: s.name, SinceTS: s.opened.UnixMilli(),
		Subscriptions: len(s.subs), Delivered: o.delivered, BytesIn: o.received, BytesOut: o.sent, QueuedBytes: o.queued(),
	}
	members := make([]eventhub.Subscription, 0, len(s.subs))
	for _, u := range s.subs {
		members = append(members, u.handle)
	}
	s.mu.Unlock() // a Subscription is not called under it
	for _, m := range members {
		if holder, ok := m.(interface{ InFlight() int }); ok {
			info.InFlight += holder.InFlight()
		}
	}
	return info
}

// CloseConnection implements admin.Connections.
func (g *Gateway) CloseConnection(ctx context.Context, id string) error {
	n, err := g.numberOf(id)
	if err != nil {
		return err
	}
	for _, s := range g.open() {
		if s.number == n {
			return s.closeByOrder(ctx)
		}
	}
	return eventhub.Errorf(eventhub.CodeUnknownID, "there is no connection %q", id)
}

// closeByOrder closes the connection and waits until it has left its groups.
func (s *session) closeByOrder(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(ending{code: wire.CloseGoingAway, why: "The connection was closed by an operator.", stop: true})
	for !s.left && ctx.Err() == nil {
		s.changed.Wait()
	}
	if !s.left {
		return eventhub.Wrap(eventhub.CodeShuttingDown, context.Cause(ctx), "gave up waiting; the connection is being closed")
	}
	return nil
}
