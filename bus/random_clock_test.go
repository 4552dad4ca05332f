package bus

import (
	"time"

	"pgregory.net/rapid"

	"eventhub/admin"
	"eventhub/bus/internal/delayed"
)

// The clock in the histories: somebody sets it, by hours or by a moment, and no lease, no
// retry and no claim is early or late. What is to be delivered later goes by it, and what is
// shown has its time.

// clockSet is what the model knows of settings of the clock.
type clockSet struct {
	most    int64 // the highest skew that there was
	before  int64 // what the clock had before it was set back while commits were held up
	noticed int64 // by when the mover has seen the last one; the bubble's time
}

func (w *world) wall() int64 { return w.clock.now().UnixMilli() }

// setClock sets the wall clock ahead or back.
func (w *world) setClock() {
	by := time.Duration(rapid.SampledFrom([]int{-18_000, -3600, -61, -1, 1, 59, 3600, 7200}).Draw(w.t, "set by")) * time.Second
	if w.commits != nil {
		w.set.before = max(w.set.before, w.wall())
	}
	w.skew(w.clock.skew.Load() + int64(by))
}

func (w *world) skew(to int64) {
	w.clock.skew.Store(to)
	w.set.most = max(w.set.most, to)
	w.set.noticed = now() + delayed.LookEvery.Milliseconds()
}

// checkTimes: times are shown as the wall clock has them now.
func (w *world) checkTimes(g *modelGroup, e *modelEvent, f *admin.InFlight) {
	skew := time.Duration(w.clock.skew.Load()).Milliseconds()
	since, deadline := e.since+skew, e.deadline+skew
	switch {
	case f.State == "leased" && e.state == modelLeased && (f.SinceTS != since || f.Deadline != deadline):
		w.t.Fatalf("%s has %+v in flight; it is leased since %d until %d", g, f, since, deadline)
	case f.State == "waiting" && e.state == modelWaiting && f.DueTS > max(e.latest, now())+skew:
		w.t.Fatalf("%s has %+v in flight; it is due at %d at the latest", g, f, e.latest+skew)
	}
}
