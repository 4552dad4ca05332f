package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// report is everything that was seen, as report.json keeps it.
type report struct {
	Began     time.Time      `json:"began"`
	Rounds    int            `json:"rounds"`
	Seconds   float64        `json:"seconds"`
	Machine   machine        `json:"machine"`
	Systems   []systemInfo   `json:"systems"`
	Workloads []workloadInfo `json:"workloads"`
	Outcomes  []outcome      `json:"outcomes"`
}

type systemInfo struct {
	Name       string `json:"name"`
	Version    string `json:"version"`
	Durability string `json:"durability"`
}

type workloadInfo struct {
	Name  string `json:"name"`
	About string `json:"about"`
	Unit  string `json:"unit"`
	goals []goal
}

func (w *workload) info() workloadInfo { return workloadInfo{w.name, w.about, w.unit, w.goals} }

// machine is what the figures depend on.
type machine struct {
	CPU     string  `json:"cpu"`
	Cores   int     `json:"cores"`
	Memory  string  `json:"memory"`
	Kernel  string  `json:"kernel"`
	Go      string  `json:"go"`
	FsyncMS float64 `json:"fsync_ms"` // median of small appends, each synced
}

func describeMachine(dir string) (machine, error) {
	m := machine{
		CPU: field("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(),
		Memory: field("/proc/meminfo", "MemTotal"), Go: runtime.Version(),
	}
	var u syscall.Utsname
	if err := syscall.Uname(&u); err == nil {
		for _, c := range u.Release {
			if c != 0 {
				m.Kernel += string(rune(c))
			}
		}
	}
	var err error
	m.FsyncMS, err = fsyncMS(dir)
	return m, err
}

// field returns the first value of a name in a file of /proc, or "unknown".
func field(file, name string) string {
	text, _ := os.ReadFile(file) // a machine without it is unknown
	for line := range strings.Lines(string(text)) {
		if n, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(n) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// fsyncMS appends 4 KiB and syncs, 101 times, and returns the median.
func fsyncMS(dir string) (float64, error) {
	f, err := os.CreateTemp(dir, "fsync-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var took []float64
	for range 101 {
		began := time.Now()
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		took = append(took, float64(time.Since(began).Microseconds())/1000)
	}
	return median(took), nil
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(values))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// values returns what a system reached in a row, by the rounds.
func (r *report) values(workload, system string, of func(*outcome) float64) (vs []float64) {
	for i := range r.Outcomes {
		if o := &r.Outcomes[i]; o.Workload == workload && o.System == system {
			vs = append(vs, of(o))
		}
	}
	return vs
}

func (r *report) median(workload, system string) float64 {
	return median(r.values(workload, system, func(o *outcome) float64 { return o.Value }))
}

// write writes report.md, report.json and the plots.
func (r *report) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	all, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	files := map[string][]byte{"report.json": all, "report.md": r.markdown()}
	for name, plot := range r.plots() {
		files[name] = plot
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "written: %s\n", filepath.Join(dir, "report.md"))
	return nil
}

func (r *report) markdown() []byte {
	var b bytes.Buffer
	m := r.Machine
	fmt.Fprintf(&b, "# Measured side by side, %s\n\n", r.Began.UTC().Format("2006-01-02 15:04 UTC"))
	fmt.Fprintf(&b, "%d cores (%s), %s memory, Linux %s, %s; an fsync takes %.2f ms. Load and server share the\nmachine. Medians of %d rounds of %g s, lowest and highest in brackets.\n\n",
		m.Cores, m.CPU, m.Memory, m.Kernel, m.Go, m.FsyncMS, r.Rounds, r.Seconds)
	b.WriteString("| System | Version | An OK means |\n|---|---|---|\n")
	for _, s := range r.Systems {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", s.Name, s.Version, s.Durability)
	}
	r.ratios(&b)
	r.figures(&b)
	r.latencies(&b)
	r.costs(&b)
	r.processors(&b)
	b.WriteString("\n")
	for _, name := range slices.Sorted(keysOf(r.plots())) {
		fmt.Fprintf(&b, "![%s](%s)\n", strings.TrimSuffix(name, ".svg"), name)
	}
	return b.Bytes()
}

func keysOf(m map[string][]byte) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// table writes a table with a column for each system.
func (r *report) table(b *bytes.Buffer, title string, rows []workloadInfo, cell func(w *workloadInfo, system string) string) {
	fmt.Fprintf(b, "\n## %s\n\n| |", title)
	for _, s := range r.Systems {
		fmt.Fprintf(b, " %s |", s.Name)
	}
	fmt.Fprintf(b, "\n|---|%s\n", strings.Repeat("---:|", len(r.Systems)))
	for i := range rows {
		fmt.Fprintf(b, "| %s |", rows[i].Name)
		for _, s := range r.Systems {
			fmt.Fprintf(b, " %s |", cell(&rows[i], s.Name))
		}
		b.WriteString("\n")
	}
}

func (r *report) figures(b *bytes.Buffer) {
	r.table(b, "Figures", r.Workloads, func(w *workloadInfo, system string) string {
		vs := r.values(w.Name, system, func(o *outcome) float64 { return o.Value })
		if len(vs) == 0 {
			return ""
		}
		return fmt.Sprintf("**%s** (%s–%s)", figure(median(vs)), figure(slices.Min(vs)), figure(slices.Max(vs)))
	})
	b.WriteString("\n")
	for _, w := range r.Workloads {
		fmt.Fprintf(b, "- %s (%s): %s\n", w.Name, w.Unit, w.About)
	}
}

// figure writes a number with as many digits as mean something.
func figure(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.2f", v)
	}
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// ratios compares medians: above 1 eventhub is better, costs included.
func (r *report) ratios(b *bytes.Buffer) {
	b.WriteString("\n## Ratios of medians\n\nAbove 1 eventhub is better.\n\n| | against | ratio | goal | |\n|---|---|---:|---:|---|\n")
	for _, w := range r.Workloads {
		own := r.median(w.Name, hubName)
		if math.IsNaN(own) {
			continue
		}
		for _, s := range r.Systems {
			other := r.median(w.Name, s.Name)
			if s.Name == hubName || math.IsNaN(other) {
				continue
			}
			ratio := own / other
			if lowerIsBetter(w.Unit) {
				ratio = other / own
			}
			goal := ""
			for _, g := range w.goals {
				if g.of == s.Name && g.row == "" {
					goal = fmt.Sprintf("%g | %s", g.least, reached(ratio >= g.least))
				}
			}
			if goal == "" {
				goal = "| "
			}
			fmt.Fprintf(b, "| %s | %s | %.2f | %s |\n", w.Name, s.Name, ratio, goal)
		}
		for _, g := range w.goals {
			r.ownGoal(b, &w, &g, own)
		}
	}
}

// ownGoal writes a goal that is no ratio to another system.
func (r *report) ownGoal(b *bytes.Buffer, w *workloadInfo, g *goal, own float64) {
	switch {
	case g.percent != 0:
		got := r.quantileOf(w.Name, hubName, g.percent)
		fmt.Fprintf(b, "| %s | at most, ms p%g | %s | %s | %s |\n", w.Name, g.percent, figure(got), figure(g.least), reached(got <= g.least))
	case g.row != "":
		if first := r.median(g.row, g.of); !math.IsNaN(first) {
			fmt.Fprintf(b, "| %s | its own %s | %.2f | %g | %s |\n", w.Name, g.row, own/first, g.least, reached(own/first >= g.least))
		}
	case g.of == "" && lowerIsBetter(w.Unit):
		fmt.Fprintf(b, "| %s | at most, %s | %s | %s | %s |\n", w.Name, w.Unit, figure(own), figure(g.least), reached(own <= g.least))
	case g.of == "":
		fmt.Fprintf(b, "| %s | at least, %s | %s | %s | %s |\n", w.Name, w.Unit, figure(own), figure(g.least), reached(own >= g.least))
	}
}

func reached(yes bool) string {
	if yes {
		return "reached"
	}
	return "missed"
}

// timed are the rows that have latencies.
func (r *report) timed() (rows []workloadInfo) {
	for _, w := range r.Workloads {
		if slices.ContainsFunc(r.Outcomes, func(o outcome) bool { return o.Workload == w.Name && len(o.Quantiles) > 0 }) {
			rows = append(rows, w)
		}
	}
	return rows
}

// quantileOf is the median over the rounds.
func (r *report) quantileOf(workload, system string, percent float64) float64 {
	return median(r.values(workload, system, func(o *outcome) float64 { return o.at(percent) }))
}

func (r *report) latencies(b *bytes.Buffer) {
	r.table(b, "Latencies in ms: p50 / p99 / p99.9", r.timed(), func(w *workloadInfo, system string) string {
		if math.IsNaN(r.median(w.Name, system)) {
			return ""
		}
		return fmt.Sprintf("%.2f / %.2f / %.2f", r.quantileOf(w.Name, system, 50), r.quantileOf(w.Name, system, 99), r.quantileOf(w.Name, system, 99.9))
	})
	b.WriteString("\nOf publish rows until the answer, else until the delivery.\n")
}

// processors says how busy the load was: where it took all that there was, the load
// is what was measured.
func (r *report) processors(b *bytes.Buffer) {
	r.table(b, "Processors that the load kept busy", r.Workloads, func(w *workloadInfo, system string) string {
		vs := r.values(w.Name, system, (*outcome).loadCores)
		if len(vs) == 0 {
			return ""
		}
		return fmt.Sprintf("%.2f", median(vs))
	})
}

// costs is what an event costs the server, from its start to its end: the rows that publish alone.
func (r *report) costs(b *bytes.Buffer) {
	var rows []workloadInfo
	for _, w := range r.Workloads {
		if strings.HasPrefix(w.Name, "publish") {
			rows = append(rows, w)
		}
	}
	r.table(b, "What an event costs the server: µs of processor time / bytes written", rows, func(w *workloadInfo, system string) string {
		per := func(of func(*outcome) float64) float64 {
			return median(r.values(w.Name, system, func(o *outcome) float64 { return of(o) / float64(o.Events) }))
		}
		cpu := per(func(o *outcome) float64 { return o.ServerCPU * 1e6 })
		if math.IsNaN(cpu) || math.IsInf(cpu, 0) {
			return ""
		}
		return fmt.Sprintf("%s / %s", figure(cpu), figure(per(func(o *outcome) float64 { return o.Written })))
	})
	b.WriteString("\nBytes are what the process has had the system write: where nothing is synced the system may not have written all of it yet.\n")
}
