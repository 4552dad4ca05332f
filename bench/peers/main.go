// Command peers measures eventhub, Redis Streams and NATS JetStream side by side on
// this machine and writes what it saw: a Markdown table of medians, spreads and
// ratios, plots, and all single figures.
//
// Every figure is a run of its own: a server is started over a fresh directory, the
// load is put on it over loopback, the server is asked whether it holds what was
// counted, and all of it is removed. Rounds go through all workloads and systems one
// after the other, so that a machine that slows down slows all of them.
//
//	peers -eventhub ./bin/eventhub -rounds 5 -seconds 5 -out ./bin/bench-peers
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == natsCommand {
		if err := runNATSServer(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "peers:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// plan is what one call measures.
type plan struct {
	eventhub  string
	redis     string
	rounds    int
	seconds   float64
	dir       string // where servers keep their data
	out       string
	workloads []workload
	systems   []system
}

func run(ctx context.Context, args []string) error {
	p, err := parse(args)
	if err != nil {
		return err
	}
	report, err := measure(ctx, p)
	if err != nil {
		return err
	}
	return report.write(p.out)
}

func parse(args []string) (*plan, error) {
	p := &plan{}
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.StringVar(&p.eventhub, "eventhub", "bin/eventhub", "the built `binary`")
	flags.StringVar(&p.redis, "redis", "redis-server", "the redis-server `binary`")
	flags.IntVar(&p.rounds, "rounds", 0, "how often everything is measured (default 5)")
	flags.Float64Var(&p.seconds, "seconds", 0, "how long each run measures, 5 if not given; backlogs are sized by it")
	flags.StringVar(&p.dir, "dir", os.TempDir(), "where servers get their fresh directories; the disk that is measured")
	flags.StringVar(&p.out, "out", "bin/bench-peers", "where the report goes")
	only := flags.String("workloads", "", "run workloads whose name matches this `regexp` alone")
	quick := flags.Bool("quick", false, "one round of 1.5 seconds of eventhub, Redis with an fsync before every reply and JetStream as it comes, unless rounds, seconds or systems say otherwise: less than four minutes")
	among := flags.String("systems", "", "run systems whose name matches this `regexp` alone")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if *quick {
		p.quicken(among)
	}
	p.rounds, p.seconds = cmp.Or(p.rounds, 5), cmp.Or(p.seconds, 5)
	if flags.NArg() > 0 || p.rounds < 1 || p.seconds < 0.1 {
		return nil, fmt.Errorf("rounds is %d and seconds is %g; at least 1 and 0.1 are needed, and no argument", p.rounds, p.seconds)
	}
	// Servers run in directories of their own.
	var err error
	if p.eventhub, err = filepath.Abs(p.eventhub); err != nil {
		return nil, err
	}
	keepWorkload, err := regexp.Compile(*only)
	if err != nil {
		return nil, err
	}
	keepSystem, err := regexp.Compile(*among)
	if err != nil {
		return nil, err
	}
	for _, w := range workloads {
		if keepWorkload.MatchString(w.name) {
			p.workloads = append(p.workloads, w)
		}
	}
	for _, s := range p.allSystems() {
		if keepSystem.MatchString(s.name()) {
			p.systems = append(p.systems, s)
		}
	}
	if len(p.workloads) == 0 || len(p.systems) == 0 {
		return nil, errors.New("nothing is left to be measured")
	}
	return p, nil
}

// quicken shortens what the caller has not given.
func (p *plan) quicken(systems *string) {
	p.rounds, p.seconds, *systems = cmp.Or(p.rounds, 1), cmp.Or(p.seconds, 1.5), cmp.Or(*systems, "^("+hubName+"|"+redisAlways+"|"+natsDefault+")$")
}

func (p *plan) allSystems() []system {
	return []system{
		&eventhub{binary: p.eventhub, mode: modeSync},
		&eventhub{binary: p.eventhub, mode: modeInterval},
		&redis{binary: p.redis, fsync: "always"},
		&redis{binary: p.redis, fsync: "everysec"},
		&jetstream{},
		&jetstream{syncAlways: true},
	}
}

// measure does all runs.
func measure(ctx context.Context, p *plan) (*report, error) {
	r := &report{Began: time.Now(), Rounds: p.rounds, Seconds: p.seconds}
	var err error
	if r.Machine, err = describeMachine(p.dir); err != nil {
		return nil, err
	}
	for _, s := range p.systems {
		version, err := s.version(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name(), err)
		}
		r.Systems = append(r.Systems, systemInfo{s.name(), version, s.durability()})
	}
	for _, w := range p.workloads {
		r.Workloads = append(r.Workloads, w.info())
	}
	for round := range p.rounds {
		for _, w := range p.workloads {
			for _, s := range p.systems {
				o, err := w.once(ctx, p, s)
				if errors.Is(err, errNotFor) {
					continue
				}
				if err != nil {
					return nil, fmt.Errorf("%s, %s, round %d: %w", w.name, s.name(), round+1, err)
				}
				o.Workload, o.System, o.Round = w.name, s.name(), round+1
				r.Outcomes = append(r.Outcomes, *o)
				fmt.Fprintln(os.Stderr, o)
			}
		}
	}
	return r, nil
}

// once starts the system over a fresh directory, runs the workload, and takes
// everything away.
func (w *workload) once(ctx context.Context, p *plan, s system) (o *outcome, err error) {
	if w.only != "" && w.only != s.name() {
		return nil, errNotFor
	}
	dir, err := os.MkdirTemp(p.dir, "bench-peers-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	server, err := s.start(ctx, dir)
	if err != nil {
		return nil, err
	}
	o, err = w.run(ctx, server, p.seconds)
	used, written, stopped := server.stop()
	if err = errors.Join(err, stopped); err != nil {
		return nil, err
	}
	o.ServerCPU, o.Written = used.Seconds(), written
	return o, nil
}
