package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func sample() *report {
	r := &report{
		Began: time.Unix(1723140000, 0), Rounds: 3, Seconds: 5,
		Systems: []systemInfo{{hubName, "v1", "fsync"}, {redisAlways, "7 & more", "fsync"}, {natsDefault, "2", "later"}},
	}
	for _, w := range workloads[:1] {
		r.Workloads = append(r.Workloads, w.info())
	}
	for _, w := range workloads {
		if w.name == "publish ids keys" || w.name == "latency 10k/s" || w.name == "idle 10000" {
			r.Workloads = append(r.Workloads, w.info())
		}
	}
	add := func(workload, system string, values ...float64) {
		for i, v := range values {
			o := outcome{Workload: workload, System: system, Round: i + 1, Value: v, Wall: 2, LoadCPU: 1}
			if workload == firstRow && system != natsDefault {
				o.ServerCPU, o.Events, o.Written = v*4e-6, int64(v), v*800 // of 4 µs and 800 bytes an event
				if system == redisAlways {
					o.ServerCPU, o.Written = 2*o.ServerCPU, 2*o.Written
				}
			}
			if workload != "idle 10000" {
				o.Quantiles = []quantile{{50, v / 1e5}, {99, v / 1e4}, {99.9, v / 1e3}, {99.99, v / 100}}
			}
			r.Outcomes = append(r.Outcomes, o)
		}
	}
	add(firstRow, hubName, 300_000, 100_000, 200_000)
	add(firstRow, redisAlways, 150_000, 400_000, 160_000)
	add(firstRow, natsDefault, 180_000, 150_000, 160_000)
	add("publish ids keys", hubName, 100_000, 110_000, 100_000)
	add("latency 10k/s", hubName, 1, 2, 1.2)
	add("latency 10k/s", redisAlways, 3, 3, 3)
	add("idle 10000", hubName, 30_000, 10_000, 21_000)
	return r
}

// TestReport: medians, spreads, ratios that say which is better, goals.
func TestReport(t *testing.T) {
	text := string(sample().markdown())
	for _, want := range []string{
		"| redis always | 7 & more | fsync |",
		"| publish 16x64 | **200,000** (100,000–300,000) | **160,000** (150,000–400,000) | **160,000** (150,000–180,000) |",
		"| publish ids keys | **100,000** (100,000–110,000) |  |  |",
		"| publish 16x64 | redis always | 1.25 | 1.4 | missed |",
		"| publish 16x64 | jetstream default | 1.25 | 1.4 | missed |",
		"| publish ids keys | its own publish 16x64 | 0.50 | 0.6 | missed |",
		"| latency 10k/s | redis always | 2.50 | |  |", // lower is better: 3 against 1.2
		"| latency 10k/s | at most, ms p50 | 1.20 | 0.60 | missed |",
		"| latency 10k/s | at most, ms p99 | 0.00 | 1.50 | reached |",
		"| publish 16x64 | 4.00 / 800 | 8.00 / 1,600 |  |",
		"| idle 10000 | at most, bytes | 21,000 | 20,480 | missed |",
		"| publish 16x64 | 2.00 / 20.00 / 200.00 |",
		"| publish 16x64 | 0.50 | 0.50 | 0.50 |",
		"![throughput](throughput.svg)",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

// TestPlotsAreWellFormed, and show every system that was measured.
func TestPlotsAreWellFormed(t *testing.T) {
	plots := sample().plots()
	if len(plots) != 4 {
		t.Fatalf("%d plots; want throughput and three of latencies", len(plots))
	}
	for name, plot := range plots {
		d := xml.NewDecoder(strings.NewReader(string(plot)))
		shapes := 0
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if e, ok := token.(xml.StartElement); ok && (e.Name.Local == "rect" || e.Name.Local == "polyline") {
				shapes++
			}
		}
		// The ground, three colours of the legend, and what is drawn.
		want := map[string]int{"throughput.svg": 4 + 4, "latency-publish-16x64.svg": 4 + 3, "latency-publish-ids-keys.svg": 4 + 1, "latency-latency-10k-s.svg": 4 + 2}[name]
		if shapes != want || strings.Contains(string(plot), "NaN") || strings.Contains(string(plot), "Inf") {
			t.Errorf("%s has %d shapes, want %d:\n%s", name, shapes, want, plot)
		}
	}
}

func TestMedian(t *testing.T) {
	if a, b := median([]float64{5, 1, 3}), median([]float64{4, 1, 3, 2}); a != 3 || b != 2.5 {
		t.Errorf("medians %g and %g; want 3 and 2.5", a, b)
	}
}

// TestPayloads: all have the bytes that were asked for, and say when they were due.
func TestPayloads(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	if p := noise(256, random); len(p) != 256 || p[0] != '"' || p[255] != '"' {
		t.Errorf("%d bytes: %s", len(p), p)
	}
	p := stamped(256, random)
	stamp(p, 1234567*time.Nanosecond)
	if due, ok := dueOf(p); len(p) != 256 || !ok || due != 1234567 {
		t.Errorf("%d bytes, due %v %t: %s", len(p), due, ok, p)
	}
	if _, ok := dueOf(noise(256, random)); ok {
		t.Error("a payload without a time has one")
	}
}
