package pebble

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestPace: work rests for half of the time while others commit, and goes on where they have ended or are none.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Store{}
		work := func(d time.Duration, commits bool) time.Duration {
			began, pace := time.Now(), s.pace()
			for range int(d / (50 * time.Microsecond)) {
				time.Sleep(50 * time.Microsecond) // the work
				if commits {
					s.commits.Add(1)
				}
				for range paceEach {
					pace.turn()
				}
			}
			return time.Since(began)
		}
		if took := work(time.Second, false); took != time.Second {
			t.Errorf("alone a second of work took %s", took)
		}
		if took := work(time.Second, true); took != 2*time.Second {
			t.Errorf("beside commits a second of work took %s; want twice as much", took)
		}
		began, worked, pace := time.Now(), time.Duration(0), s.pace()
		for s.commits.Add(1); worked < time.Second; worked += 50 * time.Microsecond {
			time.Sleep(50 * time.Microsecond)
			for range paceEach {
				pace.turn()
			}
		}
		if rested := time.Since(began) - worked; rested == 0 || rested > paceBusy {
			t.Errorf("after one commit the work rested for %s; want some of the %s that it may be one of many", rested, paceBusy)
		}
	})
}
