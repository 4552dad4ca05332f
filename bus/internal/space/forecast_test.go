package space

import (
	"testing"
	"time"

	"eventhub/store"
)

// TestForecast: a disk that fills at a steady rate is full when it is; bursts, and room that
// is given back, count over the last hours. One that does not fill is never full.
func TestForecast(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	room := func(free uint64) store.Space { return store.Space{Free: free, Total: 100 * gib} } // 5 GiB are needed
	var f Forecast
	for minute := range 10 {
		if got := f.Observe(start.Add(time.Duration(minute)*time.Minute), room(50*gib-uint64(minute)*gib/60)); got >= 0 {
			t.Errorf("after %d minutes it is full in %s; want no forecast", minute, got)
		}
	}
	near := func(what string, got, want time.Duration) {
		t.Helper()
		if got < want-want/50 || got > want+want/50 {
			t.Errorf("%s: full in %s; want %s", what, got, want)
		}
	}
	free := uint64(50 * gib)
	for minute := 10; minute <= 60; minute++ {
		free = 50*gib - uint64(minute)*gib/60
		near("a GiB an hour", f.Observe(start.Add(time.Duration(minute)*time.Minute), room(free)), time.Duration(float64(free-5*gib)/gib*float64(time.Hour)))
	}
	// It takes six hours until the past is forgotten.
	at := start.Add(time.Hour)
	for range 8 * 60 {
		at = at.Add(time.Minute)
		f.Observe(at, room(free))
	}
	if got := f.Observe(at, room(free)); got >= 0 {
		t.Errorf("a disk whose room stays is full in %s", got)
	}
	if got := f.Observe(at, room(4*gib)); got != 0 {
		t.Errorf("a full disk is full in %s", got)
	}
	if len(f.samples) != mostSamples {
		t.Errorf("%d looks are remembered", len(f.samples))
	}
	if got := new(Forecast).Observe(start, store.Space{}); got >= 0 {
		t.Errorf("a store in memory is full in %s", got)
	}
}
