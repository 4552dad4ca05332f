package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"eventhub"
	"eventhub/gateway/rest"
	"eventhub/hub/internal/member"
)

// suspend has a hub that leads serve nobody while its journal does not answer: connections are closed,
// and requests refused, for another hub may lead by now, and an ack would be lost with this one. Its engine
// waits. Where nobody else has led, it goes on from there: that costs less than a start.
func (h *Hub) suspend(silent bool) {
	if !h.opened.Load() || h.stopping.Load() {
		return
	}
	if !silent {
		h.suspended.Store(nil)
		h.gateway.Resume()
		h.log.Info("the journal answers again; this hub serves")
		return
	}
	since := time.Now().Add(-h.cfg.Lease)
	h.suspended.Store(&since)
	h.gateway.Pause("The hub's journal does not answer.")
	for _, d := range h.doors {
		if !h.isApart(d) {
			d.cut()
		}
	}
	h.log.Error("the journal does not answer; this hub serves nobody until it does", "lease", h.cfg.Lease, "error", h.whySilent())
}

// whySilent returns why the journal takes nothing: that it is full, or, where it gives no answer, what it says
// when it is asked once more: that its servers are away, or are not trusted any more.
func (h *Hub) whySilent() error {
	if full := h.cluster.full(); full != nil {
		return full
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), h.cfg.Lease/member.Looks, errNoAnswer)
	defer cancel()
	_, err := h.cluster.seat.Load().journal.Last(ctx)
	if err == nil {
		return errAnswered
	}
	if ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

var (
	errNoAnswer = errors.New("no answer")                // in time
	errAnswered = errors.New("it has answered just now") // after the lease
)

// suspendedFor returns why nobody is served until the journal answers, or nil.
func (h *Hub) suspendedFor() *eventhub.Error { return h.silentSince(h.suspended.Load()) }

// awayFor returns why nobody is served at this moment, or nil. It looks at the clock itself: a hub that was frozen,
// and wakes, has not been suspended yet.
func (h *Hub) awayFor() *eventhub.Error {
	if since := h.suspended.Load(); since != nil {
		return h.silentSince(since)
	}
	return h.silentSince(h.cluster.lapsed(h.cfg.Lease))
}

// silentSince is the answer of a hub whose journal has been silent, or full, for a lease; nil for nil.
func (h *Hub) silentSince(since *time.Time) *eventhub.Error {
	if since == nil {
		return nil
	}
	said := "has not answered"
	full := h.cluster.full()
	if full != nil {
		said = "is full and has taken nothing"
	}
	return &eventhub.Error{
		Code: eventhub.CodeNotActive, RetryAfter: time.Second, Err: full,
		Message: fmt.Sprintf("the journal of this hub %s for %s; nobody is served until it does", said, time.Since(*since).Round(time.Millisecond)),
	}
}

// away returns what awayFor says, empty where that is nothing.
func (h *Hub) away() string {
	if err := h.awayFor(); err != nil {
		return "The hub's journal does not answer."
	}
	return ""
}

// lapsed returns since when the journal is not known to have taken anything from this hub, where that is a lease or
// longer: another one may lead by now. nil elsewhere.
func (c *cluster) lapsed(lease time.Duration) *time.Time {
	if c == nil {
		return nil
	}
	leader := c.leading.Load()
	if leader == nil {
		return nil
	}
	sent := leader.Sent()
	if time.Since(sent) < lease {
		return nil
	}
	return &sent
}

// full returns the answer of a journal that is there and takes nothing from this hub; nil where that is not so.
func (c *cluster) full() error {
	if leader := c.leading.Load(); leader != nil {
		return leader.Full()
	}
	return nil
}

// unlessSuspended refuses the requests of a door while the hub is suspended, but those for the operations listener
// where that is the same one: the console is part of it, and HEAD goes with GET.
func (h *Hub) unlessSuspended(d *door, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.awayFor(); err != nil {
			if _, pattern := h.watched.Handler(r); pattern == "" || d.addr != h.cfg.OpsAddr {
				rest.Refuse(w, err)
				return
			}
		}
		handler.ServeHTTP(w, r)
	})
}
