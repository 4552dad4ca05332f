package main

import (
	"context"
	"encoding/base64"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// recorder collects latencies in microseconds, up to two minutes, to three digits.
type recorder struct {
	sync.Mutex
	h *hdr.Histogram
}

const maxMicros = 120_000_000

func newRecorder() *recorder { return &recorder{h: hdr.New(1, maxMicros, 3)} }

// add records one latency. The lock is held.
func (r *recorder) add(d time.Duration) {
	_ = r.h.RecordValue(min(max(d.Microseconds(), 1), maxMicros)) // fails beyond its bounds only
}

func (r *recorder) reset() {
	r.Lock()
	defer r.Unlock()
	r.h.Reset()
}

func summarize(recorders ...*recorder) []quantile {
	all := hdr.New(1, maxMicros, 3)
	for _, r := range recorders {
		r.Lock()
		all.Merge(r.h)
		r.Unlock()
	}
	var qs []quantile
	for _, p := range []float64{50, 75, 90, 95, 99, 99.9, 99.99} {
		qs = append(qs, quantile{p, float64(all.ValueAtQuantile(p)) / 1000})
	}
	return qs
}

// noise is a JSON string of n bytes that no store can compress by much, as that of
// eventhub's own load.
func noise(n int, random *rand.Rand) []byte {
	raw := make([]byte, n)
	for i := range raw {
		raw[i] = byte(random.Uint32())
	}
	return []byte(`"` + base64.RawURLEncoding.EncodeToString(raw)[:n-2] + `"`)
}

// Events of the workload latency say when they were due, in nanoseconds of the run
// from stampBase, in the place of stampText.
const (
	stampBase  = 1_000_000_000_000_000_000
	stampBegin = `{"t":`
	stampText  = `1000000000000000000`
	stampRest  = `,"x":"`
)

func stamped(n int, random *rand.Rand) []byte {
	fill := n - len(stampBegin+stampText+stampRest) - len(`"}`)
	text := noise(fill+2, random)
	return append([]byte(stampBegin+stampText+stampRest), append(text[1:len(text)-1], `"}`...)...)
}

func stamp(payload []byte, due time.Duration) {
	var digits [20]byte
	copy(payload[len(stampBegin):], strconv.AppendInt(digits[:0], stampBase+int64(due), 10))
}

// dueOf reads the stamp of a payload.
func dueOf(payload []byte) (time.Duration, bool) {
	if len(payload) < len(stampBegin+stampText) {
		return 0, false
	}
	n, err := strconv.ParseInt(string(payload[len(stampBegin):len(stampBegin+stampText)]), 10, 64)
	return time.Duration(n - stampBase), err == nil && n >= stampBase
}

// pace calls send for each of count events when it is due, with the time at which it
// was, counted from began. It does not wait for send's effects, and stops with ctx.
func pace(ctx context.Context, began time.Time, from time.Duration, rate float64, count int64, send func(i int64, due time.Duration)) {
	const longest = 10 * time.Millisecond // it has to notice the end
	interval := float64(time.Second) / rate
	for i := int64(0); i < count && ctx.Err() == nil; {
		due := from + time.Duration(float64(i)*interval)
		if wait := due - time.Since(began); wait > 0 {
			// The runtime's timers may be late by a millisecond.
			left := unix.NsecToTimespec(int64(min(wait, longest)))
			_ = unix.Nanosleep(&left, nil) // who was woken early looks at the clock again
			continue
		}
		send(i, due)
		i++
	}
}

// gather runs work for 0 to n-1 at the same time and returns the first error.
func gather(ctx context.Context, n int, work func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var workers sync.WaitGroup
	for i := range n {
		workers.Go(func() {
			if err := work(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}
