package idle

import (
	"testing"
	"time"
)

// TestClock: what a timer is late does not count, and all does where none was set.
func TestClock(t *testing.T) {
	c := clock{watched: time.Hour}
	for _, step := range []struct {
		at, planned, want time.Duration
	}{
		{10 * time.Second, never, time.Hour + 10*time.Second},
		{time.Minute, 30 * time.Second, time.Hour + time.Minute},
		{90 * time.Second, time.Minute, time.Hour + 90*time.Second}, // in time
		{24 * time.Hour, time.Minute, time.Hour + 151*time.Second},  // a day late: planned, and slack
		{24*time.Hour + time.Minute, never, time.Hour + 211*time.Second},
		{48 * time.Hour, never, 25*time.Hour + 151*time.Second},
		{47 * time.Hour, never, 25*time.Hour + 151*time.Second}, // it never goes back
	} {
		if got := c.time(step.at); got != step.want {
			t.Errorf("at %v: %v; want %v", step.at, got, step.want)
		}
		c.look(step.at, step.planned)
		if got := c.time(step.at); got != step.want {
			t.Errorf("after the look at %v: %v; want %v", step.at, got, step.want)
		}
	}
}

// TestEndedAreBoundedInNumber: of very many the oldest are left out.
func TestEndedAreBoundedInNumber(t *testing.T) {
	now := time.UnixMilli(EndedKept.Milliseconds() * 2)
	groups := make(map[Group]Ended)
	for i := range MaxEnded {
		groups[Group{"t", string(rune('a'+i%26)) + time.Duration(i).String()}] = Ended{TS: now.UnixMilli() - int64(i)}
	}
	var e endings
	e.init(groups)
	e.add(Group{"t", "newest"}, Ended{TS: now.UnixMilli() + 1})
	e.add(Group{"t", "older"}, Ended{TS: now.UnixMilli() - MaxEnded - 7})
	stale := e.stale(now)
	if len(stale) != 2 || stale[0] != (Group{"t", "older"}).row(endedPrefix) || len(e.groups) != MaxEnded || len(e.order) != MaxEnded {
		t.Errorf("%d are left out, %d kept", len(stale), len(e.groups))
	}
	if stale = e.stale(now.Add(EndedKept)); len(stale) != MaxEnded-2 {
		t.Errorf("%d are too old; want all but those of the last two milliseconds", len(stale))
	}
}
