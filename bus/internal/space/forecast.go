package space

import (
	"sync"
	"time"

	"eventhub/store"
)

const (
	// sampleEvery is the time between two looks that a forecast remembers, and mostSamples how
	// many it does: the last six hours.
	sampleEvery = time.Minute
	mostSamples = 360
	// leastSpan is how long it has to have looked: what a burst takes says nothing.
	leastSpan = 10 * time.Minute
)

// Forecast says when a disk is full, by how its room shrank in the last hours. It looks when
// it is asked. The zero value has not looked yet. It is safe for concurrent use.
type Forecast struct {
	mu      sync.Mutex
	samples []sample // the oldest first
}

type sample struct {
	at   time.Time
	free uint64
}

// Observe takes note of the room that there is now, and returns how long it takes until less
// than store.Space.Least is free; less than 0 where the room does not shrink, or is not
// known for long enough.
func (f *Forecast) Observe(now time.Time, room store.Space) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.samples); n == 0 || now.Sub(f.samples[n-1].at) >= sampleEvery {
		if n == mostSamples {
			f.samples = append(f.samples[:0], f.samples[1:]...)
		}
		f.samples = append(f.samples, sample{now, room.Free})
	}
	first := f.samples[0]
	span := now.Sub(first.at)
	switch {
	case room.Total == 0:
		return -1
	case room.IsLow():
		return 0
	case span < leastSpan || room.Free >= first.free:
		return -1
	}
	left := float64(room.Free-room.Least()) / float64(first.free-room.Free)
	return time.Duration(min(left*span.Seconds(), longest.Seconds()) * float64(time.Second))
}

// longest bounds a forecast.
const longest = 100 * 365 * 24 * time.Hour
