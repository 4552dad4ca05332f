package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"eventhub/admin"
	"eventhub/bench"
)

// TestReport: the picture is well-formed and has a line for each size and latency; the tables
// have all sizes and the whole windows; a window of a moment does not count.
func TestReport(t *testing.T) {
	o := options{out: filepath.Join(t.TempDir(), "r"), after: 30 * time.Second, bounds: admin.Retention{Bytes: 100 * mib},
		load: bench.PublishOptions{Duration: time.Minute, Window: 10 * time.Second}}
	window := func(end, p99 float64) bench.Window {
		return bench.Window{End: end, Latency: &bench.Latency{Count: 7, Quantiles: []bench.Quantile{{Percent: 99, MS: p99}}}}
	}
	one := func(name string) *trial {
		return &trial{name: name, sizes: []size{{-1, mib, 0, 0}, {1, 90 * mib, 30 * mib, 60 * mib}, {61, 120 * mib, 0, 0}},
			result: &bench.Result{Windows: []bench.Window{window(10, 5), window(20, 7), window(30, 9), {End: 40}, window(40.01, 900)}}}
	}
	runs := []*trial{one("without & so on"), one("with")}
	picture := string(draw(&o, runs))
	for d := xml.NewDecoder(strings.NewReader(picture)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in %s", err, picture)
		}
	}
	if n := strings.Count(picture, "<polyline"); n != 2+2+1+2 { // the cap, sizes, logs, latencies
		t.Errorf("the picture has %d lines; want 7", n)
	}
	if got := runs[1].usualP99(&o); got != 7 {
		t.Errorf("the usual p99 is %g; want 7", got)
	}
	if all, logs := runs[1].largest(0, time.Minute); all != 90*mib || logs != 30*mib {
		t.Errorf("in the first minute the directory has %g bytes, its logs %g; want 90 MiB and 30", all, logs)
	}
	if err := writeTables(&o, runs); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"-directory.csv": 1 + 6, "-latency.csv": 1 + 6} {
		content, err := os.ReadFile(o.out + name)
		if err != nil || strings.Count(string(content), "\n") != want {
			t.Errorf("%s: %v, want %d lines: %s", name, err, want, content)
		}
	}
}

// TestMeasure: files are counted by their blocks, logs and tables on their own.
func TestMeasure(t *testing.T) {
	dir := t.TempDir()
	empty := measure(dir)
	for _, name := range []string{"1.log", "2.sst", "MANIFEST"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 8<<10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := measure(dir)
	if s.logs <= 0 || s.tables <= 0 || s.all-empty.all < s.logs+s.tables {
		t.Errorf("measured %+v, before %+v", s, empty)
	}
	if s = measure(filepath.Join(dir, "none")); s != (size{}) {
		t.Errorf("no directory has %+v", s)
	}
}
