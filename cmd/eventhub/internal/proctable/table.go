package proctable

import (
	"time"

	"eventhub/internal/demo/process"
)

const (
	// forgetAfter is how long after its last heartbeat a stale process stays in
	// the table.
	forgetAfter = time.Minute
	// rateWindow is the time over which events per second are averaged: several
	// of the agents' ticks, so that the figure is steady.
	rateWindow = 5 * time.Second
)

// table keeps the latest state of each process, and counts. It is a plain data
// structure.
type table struct {
	states  map[string]process.State // by key
	places  map[string]place         // of the states
	round   int                      // of the state that came last, or is coming
	seen    int                      // events, whatever they were, without those of the state
	samples []sample                 // seen over time, oldest first, spanning rateWindow
}

type sample struct {
	at   time.Time
	seen int
}

// place says where a state is from.
type place struct {
	offset uint64
	round  int
}

func newTable(now time.Time) *table {
	return &table{states: make(map[string]process.State), places: make(map[string]place), samples: []sample{{at: now}}}
}

func (t *table) apply(u *update) {
	if u.begins {
		t.round++
	}
	switch u.kind {
	case complete:
		t.keep(func(p place) bool { return p.round == t.round })
		return
	case trimmed:
		t.keep(func(p place) bool { return p.offset >= u.offset })
		return
	case changed:
		t.states[u.key], t.places[u.key] = u.state, place{u.offset, t.round}
	case removed:
		t.drop(u.key)
	}
	if !u.isState {
		t.seen++
	}
}

// keep drops the states that are from other places.
func (t *table) keep(is func(place) bool) {
	for key, p := range t.places {
		if !is(p) {
			t.drop(key)
		}
	}
}

func (t *table) drop(key string) {
	delete(t.states, key)
	delete(t.places, key)
}

// forget removes the processes that have been stale for long.
func (t *table) forget(now time.Time) {
	limit := now.Add(-forgetAfter).UnixMilli()
	for key, s := range t.states {
		if s.Status == process.Stale && s.LastSeenTS < limit {
			t.drop(key)
		}
	}
}

// rate returns the events per second of late; each call takes a sample.
func (t *table) rate(now time.Time) float64 {
	t.samples = append(t.samples, sample{at: now, seen: t.seen})
	for len(t.samples) > 1 && now.Sub(t.samples[1].at) >= rateWindow {
		t.samples = t.samples[1:]
	}
	oldest := t.samples[0]
	// In the first second a burst would look like a rate.
	span := max(now.Sub(oldest.at), time.Second)
	return float64(t.seen-oldest.seen) / span.Seconds()
}
