package bench

import (
	"sync"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are kept in microseconds, from 1 µs to 2 minutes, to three digits.
const (
	maxMicros = 120_000_000
	digits    = 3
)

// quantiles are those that a Latency has, in percent.
var quantiles = []float64{50, 75, 90, 95, 99, 99.9, 99.99}

// Latency is the distribution of one kind of latency, in milliseconds.
type Latency struct {
	Count     int64      `json:"count"`
	Mean      float64    `json:"mean_ms"`
	Max       float64    `json:"max_ms"`
	Quantiles []Quantile `json:"quantiles"`
}

// Quantile says that so many percent took no longer than MS.
type Quantile struct {
	Percent float64 `json:"percent"`
	MS      float64 `json:"ms"`
}

// At returns the latency of one of the quantiles, in milliseconds; 0 where it is
// not reported, or nothing was measured.
func (l *Latency) At(percent float64) float64 {
	if l == nil {
		return 0
	}
	for _, q := range l.Quantiles {
		if q.Percent == percent {
			return q.MS
		}
	}
	return 0
}

// recorder collects latencies. It is safe for concurrent use; who records many at
// once holds its lock for all of them.
type recorder struct {
	sync.Mutex
	h *hdr.Histogram
}

func newRecorder() *recorder { return &recorder{h: newHistogram()} }

// add records one latency, in nanoseconds. The lock is held.
func (r *recorder) add(nanos int64) {
	micros := min(max(nanos/1000, 1), maxMicros)
	_ = r.h.RecordValue(micros) // fails beyond its bounds only
}

// reset forgets everything: the warm-up is over.
func (r *recorder) reset() {
	r.Lock()
	defer r.Unlock()
	r.h.Reset()
}

// drain moves what it has to another histogram.
func (r *recorder) drain(into *hdr.Histogram) {
	r.Lock()
	defer r.Unlock()
	into.Merge(r.h)
	r.h.Reset()
}

func newHistogram() *hdr.Histogram { return hdr.New(1, maxMicros, digits) }

// summarize sums up what all recorders have; nil where they have nothing.
func summarize(recorders ...*recorder) *Latency {
	all := newHistogram()
	for _, r := range recorders {
		r.Lock()
		all.Merge(r.h)
		r.Unlock()
	}
	return describe(all)
}

// describe returns nil for one that has nothing.
func describe(h *hdr.Histogram) *Latency {
	if h.TotalCount() == 0 {
		return nil
	}
	l := &Latency{Count: h.TotalCount(), Mean: h.Mean() / 1000, Max: float64(h.Max()) / 1000}
	for _, q := range quantiles {
		l.Quantiles = append(l.Quantiles, Quantile{q, float64(h.ValueAtQuantile(q)) / 1000})
	}
	return l
}

// Window is a stretch of a run: the latencies of what was answered in it.
type Window struct {
	End     float64  `json:"end_seconds"` // since the run began to measure
	Latency *Latency `json:"latency"`     // nil where nothing was answered
}
