package hub

import (
	"context"
	"time"

	"eventhub"
	"eventhub/hub/internal/member"
	"eventhub/internal/measure"
	"eventhub/ops"
	"eventhub/store/pebble"
)

// mostBehind is for how long a standby may not have had everything, to be one that can take over.
const mostBehind = 10 * time.Second

// measureCluster returns how this hub and the others that share its journal are doing; nil where it
// shares none. Of a journal that was not there yet it says for how long it is silent.
func (h *Hub) measureCluster() *measure.Cluster {
	c := h.cluster
	if c == nil {
		return nil
	}
	at := c.seat.Load()
	if at == nil {
		return &measure.Cluster{ID: h.cfg.MemberID, Silent: time.Since(c.since), AppendSeconds: measure.NewHistogram(measure.Seconds)}
	}
	s := at.member.Status()
	m := &measure.Cluster{
		ID: s.ID, Leads: s.Role == member.Active, Epoch: s.Epoch, Active: s.Active, Position: s.Position, Last: s.Last,
		Behind: s.Behind, Silent: s.Silent, Full: s.Full, Durability: string(at.durability), Used: s.Limits.Used, Most: s.Limits.Most,
		AppendSeconds: measure.NewHistogram(measure.Seconds), Members: make([]measure.Member, len(s.Members)), Now: s.Now,
	}
	for i, other := range s.Members {
		m.Members[i] = measure.Member{ID: other.ID, URLs: other.URLs, Synced: other.Synced, Layout: other.Layout, Seen: other.Seen, Released: other.Released}
	}
	if m.Leads {
		m.Failovers = 1 // the process ends with the lead
	} else {
		m.StoreBytes, m.FreeBytes, m.NeededBytes = measureCopy(at.replica)
	}
	select {
	case <-c.led:
	default:
		return m
	}
	m.Projection = c.measureProjection()
	if c.leader != nil {
		m.AppendSeconds = c.leader.Took()
		m.Position = c.leader.Position().Seq // the member looks but now and then
		m.Last = max(m.Last, m.Position)
	}
	return m
}

// measureCopy returns how large the copy of a standby is, how much its disk has free, and how much a hub needs that leads; zeros
// where that is not known, as while a copy is replaced.
func measureCopy(r *pebble.Replica) (size, free, needed uint64) {
	size, err := r.Size()
	if err != nil {
		return 0, 0, 0
	}
	room, err := r.Space()
	if err != nil || room.Total == 0 {
		return 0, 0, 0
	}
	return size, room.Free, room.Least()
}

// standbyChecks say whether a hub is a standby that can take over; nil where it shares no journal.
func (h *Hub) standbyChecks() []ops.Check {
	if !h.cfg.shares() {
		return nil
	}
	return []ops.Check{{Name: "serving", Check: h.notStopping}, {Name: "standby", Check: h.standsBy}}
}

func (h *Hub) standsBy(context.Context) error {
	if cause := h.broken.Load(); cause != nil {
		return h.brokenBy(*cause)
	}
	at := h.cluster.seat.Load()
	if at == nil {
		return h.cluster.notSeated()
	}
	if e := h.cluster.isFetching(); e != nil {
		return e
	}
	s := at.member.Status()
	switch {
	case s.Role == member.Active:
		return eventhub.Errorf(eventhub.CodeConflict, "this hub leads the journal")
	case s.Silent > 0:
		return eventhub.Errorf(eventhub.CodeOverloaded, "the journal has not answered for %s", s.Silent.Round(time.Millisecond))
	case s.Full > 0:
		return eventhub.Errorf(eventhub.CodeOverloaded, "the journal is full and has taken nothing for %s, so nobody can take the lead", s.Full.Round(time.Millisecond))
	case !s.CaughtUp:
		return eventhub.Errorf(eventhub.CodeOverloaded, "this hub has not caught up with the journal since its start: it is at %d of %d", s.Position, s.Last)
	case s.Behind > mostBehind:
		return eventhub.Errorf(eventhub.CodeOverloaded, "this hub is %d entries behind, for %s", s.Last-s.Position, s.Behind.Round(time.Millisecond))
	}
	return nil
}

// Place returns the last place of the journal that this hub has, 0 where it shares none or has nothing yet.
func (h *Hub) Place() uint64 {
	if c := h.cluster; c != nil {
		if at := c.seat.Load(); at != nil {
			return at.member.Status().Position
		}
	}
	return 0
}
