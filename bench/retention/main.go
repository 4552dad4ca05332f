// Command retention shows what retention bounds: it publishes at a rate to a fresh hub, and notes
// how large the directory of the hub gets and how long an OK takes. With -compare a hub without
// retention has the same load first.
//
// It writes PREFIX-directory.csv, PREFIX-latency.csv and PREFIX.svg, and prints a summary. The hub
// is another process, of the program that -eventhub names.
package main

import (
	"context"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"eventhub/admin"
	"eventhub/bench"
)

// options say what is run.
type options struct {
	binary, dir, out string
	load             bench.PublishOptions
	bounds           admin.Retention
	compare          bool
	after            time.Duration
}

const mib = 1 << 20

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "retention:", err)
		os.Exit(1)
	}
}

func readOptions() (options, error) {
	o := options{load: bench.PublishOptions{Topic: "heartbeat.received", Batch: 1, Warmup: 3 * time.Second}}
	var age, bytes string
	flag.StringVar(&o.binary, "eventhub", "bin/eventhub", "the program to run as the hub")
	flag.StringVar(&o.dir, "dir", "", "where the directory of the hub is made (default: that of temporary files)")
	flag.StringVar(&o.out, "out", "retention", "what the names of the files begin with")
	flag.Float64Var(&o.load.Rate, "rate", 2000, "events a second")
	flag.DurationVar(&o.load.Duration, "duration", 5*time.Minute, "how long each hub is published to")
	flag.DurationVar(&o.after, "after", 30*time.Second, "how long it is looked at after that")
	flag.DurationVar(&o.load.Window, "window", 10*time.Second, "the stretches of time whose latencies are noted")
	flag.IntVar(&o.load.Connections, "connections", 16, "WebSocket connections")
	flag.IntVar(&o.load.InFlight, "in-flight", 256, "events under way on each, at most")
	flag.IntVar(&o.load.Payload, "payload", 200, "bytes of each payload")
	flag.BoolVar(&o.load.IDs, "ids", false, "give each event an id")
	flag.IntVar(&o.load.Keys, "keys", 0, "give each event one of so many keys")
	flag.StringVar(&age, "age", "", "the setting retention.age")
	flag.StringVar(&bytes, "bytes", "", "the setting retention.bytes")
	flag.BoolVar(&o.compare, "compare", false, "put the same load on a hub without retention first")
	flag.Parse()
	var errs [2]error
	if age != "" {
		o.bounds.Age, errs[0] = admin.ParsePeriod(age)
	}
	if bytes != "" {
		o.bounds.Bytes, errs[1] = admin.ParseSize(bytes)
	}
	path, err := filepath.Abs(o.binary) // the hub runs in a directory of its own
	o.binary = path
	return o, errors.Join(errs[0], errs[1], err)
}

func run() error {
	o, err := readOptions()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var runs []*trial
	if o.compare {
		runs = append(runs, &trial{name: "without retention"})
	}
	runs = append(runs, &trial{name: "with retention", bounds: o.bounds})
	for _, t := range runs {
		if err := t.run(ctx, &o); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		t.summarize(&o)
	}
	if o.compare {
		a, b := runs[0].result.Publish, runs[1].result.Publish
		fmt.Printf("p99 with retention is %.2f of that without; of the medians of the windows %.2f\n",
			b.At(99)/a.At(99), runs[1].usualP99(&o)/runs[0].usualP99(&o))
	}
	return errors.Join(writeTables(&o, runs), os.WriteFile(o.out+".svg", draw(&o, runs), 0o644))
}

// summarize prints what a run was.
func (t *trial) summarize(o *options) {
	fmt.Printf("%s: %.0f events/s, p50 %.1f, p99 %.1f, p99.9 %.1f, max %.0f ms; median p99 of the windows %.1f ms\n", t.name, t.result.PerSecond,
		t.result.Publish.At(50), t.result.Publish.At(99), t.result.Publish.At(99.9), t.result.Publish.Max, t.usualP99(o))
	fmt.Print("  largest directory in each minute, MiB:")
	for from := time.Duration(0); from < o.load.Duration; from += time.Minute {
		largest, logs := t.largest(from, from+time.Minute)
		fmt.Printf(" %.0f (logs %.0f)", largest/mib, logs/mib)
	}
	last := t.sizes[len(t.sizes)-1]
	fmt.Printf("; %s after the end %.0f\n", o.after, last.all/mib)
	if t.kept != nil {
		fmt.Printf("  kept: %d events, %.1f MiB\n", t.kept.Events, float64(t.kept.Bytes)/mib)
	}
}

// largest returns the largest size within a stretch of time, and that of the logs.
func (t *trial) largest(from, to time.Duration) (all, logs float64) {
	for _, s := range t.sizes {
		if s.at >= from.Seconds() && s.at < to.Seconds() {
			all, logs = max(all, s.all), max(logs, s.logs)
		}
	}
	return all, logs
}

// usualP99 is the median of the windows: one that was disturbed from outside does not count.
func (t *trial) usualP99(o *options) float64 {
	var all []float64
	for _, w := range t.windows(o) {
		all = append(all, w.Latency.At(99))
	}
	slices.Sort(all)
	if len(all) == 0 {
		return 0
	}
	return all[len(all)/2]
}

func writeTables(o *options, runs []*trial) error {
	sizes := [][]string{{"run", "seconds", "directory_bytes", "log_bytes", "table_bytes"}}
	latencies := [][]string{{"run", "end_seconds", "events", "p50_ms", "p99_ms", "max_ms"}}
	number := func(v float64, digits int) string { return strconv.FormatFloat(v, 'f', digits, 64) }
	for _, t := range runs {
		for _, s := range t.sizes {
			sizes = append(sizes, []string{t.name, number(s.at, 1), number(s.all, 0), number(s.logs, 0), number(s.tables, 0)})
		}
		for _, w := range t.windows(o) {
			l := w.Latency
			latencies = append(latencies, []string{t.name, number(w.End, 1), strconv.FormatInt(l.Count, 10),
				number(l.At(50), 3), number(l.At(99), 3), number(l.Max, 3)})
		}
	}
	return errors.Join(writeCSV(o.out+"-directory.csv", sizes), writeCSV(o.out+"-latency.csv", latencies))
}

func writeCSV(path string, rows [][]string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(csv.NewWriter(f).WriteAll(rows), f.Close())
}
