package member

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"eventhub/internal/bubble"
	"eventhub/store/journal"
	"eventhub/store/journal/memory"
)

// TestTwins: of two hubs with one id the second gives up, whoever leads, and the first goes on; a hub that
// is started again has no twin.
func TestTwins(t *testing.T) {
	for name, leads := range map[string]bool{"the first leads": true, "another hub leads": false} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				j := memory.New(memory.Options{})
				var first, other *hub
				if !leads {
					other = start(t, j, "other")
					settle(2 * lease)
				}
				first = start(t, j, "x")
				settle(announceEvery)
				if leads {
					other = start(t, j, "other")
					settle(announceEvery)
				}
				settle(announceEvery / 2) // so that they say how they are at different times
				second := start(t, j, "x")
				settle((seenAgain + 2) * announceEvery)
				if err := second.kill(); !errors.Is(err, ErrTwin) || !strings.Contains(err.Error(), `"x"`) {
					t.Errorf("the second ended with %v", err)
				}
				settle(4 * announceEvery)
				first.mustLead(leads)
				other.mustLead(!leads)
				for range 3 { // and started again, at once and later
					_ = first.kill() // of one that leads nothing: that it was stopped
					first = start(t, j, "x")
					settle(5 * announceEvery)
					select {
					case <-first.ended:
						t.Fatalf("a hub that was started again ended with %v", first.kill())
					default:
					}
				}
				_ = first.kill()
				_ = other.kill()
			})
		})
	}
}

// TestTwinThatLeads: a hub that took the lead under the id of a standby gives up as well.
func TestTwinThatLeads(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		lead := start(t, j, "lead")
		settle(lease)
		first := start(t, j, "x")
		settle(announceEvery)
		second := start(t, j, "x")
		settle(announceEvery / 2)
		_ = lead.kill()
		settle(6 * announceEvery)
		if err := second.kill(); !errors.Is(err, ErrTwin) {
			t.Errorf("the second ended with %v", err)
		}
		settle(3 * lease)
		first.mustLead(true)
		_ = first.kill()
	})
}

// TestTwinsTrim: what one twin has on its disk, and the other has not, is not trimmed.
func TestTwinsTrim(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	var w twins
	own := journal.Member{ID: "own", Run: "o", Synced: 90, Seen: now}
	said := func(run string, synced uint64, at time.Duration) []journal.Member {
		return []journal.Member{{ID: "x", Run: run, Synced: synced, Seen: now.Add(at)}}
	}
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	for i, step := range []struct {
		said []journal.Member
		want uint64
	}{
		{said("a", 10, 0), 10},
		{said("b", 80, 10*time.Second), 10},
		{said("a", 12, 20*time.Second), 12},
		{said("b", 85, 30*time.Second), 12},
		{said("b", 86, 3*time.Minute), 86}, // the other is gone
	} {
		if err := w.look(step.said, &own, logger); err != nil {
			t.Fatal(err)
		}
		lowest := w.lowest(withOwn(step.said, &own))
		if got := Trimmable(lowest, step.said[0].Seen, SeenWithin); got != step.want {
			t.Errorf("step %d: trimmed up to %d; want %d", i, got, step.want)
		}
	}
	released := []journal.Member{{ID: "gone", Released: true, Synced: 1, Seen: now}, {ID: "x", Synced: 20, Seen: now}}
	if got := Trimmable(withOwn(released, &own), now, SeenWithin); got != 20 {
		t.Errorf("with a member that was released: trimmed up to %d", got)
	}
	own.Synced = 95
	if err := w.look([]journal.Member{{ID: "own", Run: "new", Synced: 5, Seen: now}}, &own, logger); err != nil {
		t.Fatal(err)
	}
	if got := w.lowest([]journal.Member{own})[0].Synced; got != 5 || !strings.Contains(log.String(), "another hub has started with the id") {
		t.Errorf("over a twin that came: %d, %s", got, log.String())
	}
}
