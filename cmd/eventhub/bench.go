package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/bench"
	"eventhub/cmd/eventhub/internal/output"
)

// benching is one run of `eventhub bench`, whichever the workload.
type benching struct {
	reach
	serve  bool
	dir    string
	ops    string
	stall  time.Duration
	seed   uint64
	format *output.Choice
}

// workload runs one of package bench's.
type workload func(context.Context, *bench.Target) (*bench.Result, error)

func benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Put load on a hub and measure what comes back",
		Args:  onlySubcommands,
	}
	cmd.AddCommand(benchPublishCommand(), benchSubscribeCommand(), benchLatencyCommand(), benchFanoutCommand(),
		benchCatchupCommand(), benchIdleCommand(), benchOverloadCommand())
	return cmd
}

const benchNote = `

The load goes to the hub of --url, whoever else works with it, or with --serve to one of
its own: this program as a second process, over a fresh directory that is removed
afterwards. The topic of a run has a name of its own, and is deleted at the end with its
events and groups, also after Ctrl-C; one that --topic names stays. Refused requests are
counted and make the exit code 1, as does a hub whose own count differs.`

// benchmark makes a subcommand out of a workload.
func benchmark(cmd *cobra.Command, run workload) *cobra.Command {
	b := &benching{}
	cmd.Long += benchNote
	cmd.Args = words()
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return b.run(cmd, run) }
	flags := cmd.Flags()
	flags.BoolVar(&b.serve, "serve", false, "measure a hub of its own, started for this run")
	flags.StringVar(&b.dir, "dir", "", "where --serve makes its directory (default: that of temporary files)")
	flags.StringVar(&b.ops, "ops-url", "", "the hub's operations listener, http://host:port, where a workload reads metrics")
	flags.DurationVar(&b.stall, "stall", bench.DefaultPatience, "give up when nothing moves for so long")
	flags.Uint64Var(&b.seed, "seed", 1, "what payloads and keys are made from")
	b.format = formatFlag(cmd, []output.Format{output.Table, output.JSON})
	b.register(cmd)
	cmd.MarkFlagsMutuallyExclusive("serve", "url")
	cmd.MarkFlagsMutuallyExclusive("serve", "ops-url")
	return cmd
}

func (b *benching) run(cmd *cobra.Command, run workload) (err error) {
	if b.stall <= 0 {
		return usageError{fmt.Errorf("--stall is %s; it must be positive", b.stall)}
	}
	if b.dir != "" && !b.serve {
		return usageError{errors.New("--dir is given; it counts with --serve alone")}
	}
	if err := b.resolve(cmd); err != nil {
		return err
	}
	if len(b.urls) > 1 {
		return usageError{errors.New("--url names several hubs, and one is measured: the one that leads")}
	}
	out := results(cmd)
	t := &bench.Target{URL: b.url, Token: b.token, TLS: b.tls, Ops: b.ops, Patience: b.stall, Seed: b.seed}
	if b.serve {
		stop, err := b.start(cmd.Context(), t)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	if w := cmd.ErrOrStderr(); isTerminal(w) {
		line := &progressLine{w: w}
		t.Progress = line.show
		defer line.clear()
	}
	res, err := run(cmd.Context(), t)
	deleted, cleanErr := b.cleanUp(t)
	if err != nil {
		if deleted != "" {
			fmt.Fprintf(cmd.ErrOrStderr(), "eventhub: deleted topic %s\n", deleted)
		}
		if code := exitCode(err); code == exitUnreachable || code == exitDenied {
			cleanErr = nil // for the same reason
		}
		return errors.Join(benchError(err), cleanErr)
	}
	if cleanErr != nil {
		return cleanErr
	}
	err = output.Document(out, b.format.Format, res, func(w io.Writer) error { return printBench(w, res, deleted) })
	if err == nil && res.Errors > 0 {
		err = fmt.Errorf("the hub refused %s: %s", output.Things(res.Errors, "request"), res.FirstError)
	}
	return err
}

// cleanUp deletes what the run has made in a hub that is not its own. Ctrl-C does not stop
// it: it is about what would be left.
func (b *benching) cleanUp(t *bench.Target) (topic string, err error) {
	if b.serve {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), linger)
	defer cancel()
	return t.CleanUp(ctx)
}

// start makes a hub for this run.
func (b *benching) start(ctx context.Context, t *bench.Target) (stop func() error, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	server, err := bench.Serve(ctx, program, b.dir)
	if err != nil {
		return nil, err
	}
	t.URL, t.Ops, t.Token = server.URL, server.Ops, ""
	return server.Stop, nil
}

// benchError distinguishes options that are out of range from what the hub says.
func benchError(err error) error {
	if eventhub.ErrorCode(err) == eventhub.CodeBadRequest {
		return usageError{err}
	}
	return err
}

// progressLine shows how far a run is on the last line of a terminal.
type progressLine struct {
	w     io.Writer
	shown int
}

func (l *progressLine) show(p bench.Progress) {
	text := fmt.Sprintf("%s: %s", p.Phase, output.Count(p.Done))
	if p.Total > 0 {
		text += fmt.Sprintf(" of %s (%d %%)", output.Count(p.Total), p.Done*100/p.Total)
	}
	l.say(text + fmt.Sprintf(", %s/s", output.Count(int64(p.PerSecond))))
}

// say replaces what the line has.
func (l *progressLine) say(text string) {
	pad := max(l.shown-len(text), 0)
	l.shown = len(text)
	fmt.Fprintf(l.w, "\r%s%s", text, strings.Repeat(" ", pad))
}

func (l *progressLine) clear() {
	if l.shown > 0 {
		fmt.Fprintf(l.w, "\r%s\r", strings.Repeat(" ", l.shown))
		l.shown = 0
	}
}

// benchRow is one line of a result.
type benchRow struct{ name, value string }

func printBench(w io.Writer, res *bench.Result, deleted string) error {
	rows := []benchRow{
		{"workload", res.Workload},
		{"hub", fmt.Sprintf("%s, durability %s", res.Hub.Version, res.Hub.Durability)},
	}
	add := func(name, format string, args ...any) {
		rows = append(rows, benchRow{name, fmt.Sprintf(format, args...)})
	}
	if res.Hub.Topic != "" {
		then := ""
		if deleted != "" {
			then = ", then deleted"
		}
		add("topic", "%s, %s published%s", res.Hub.Topic, output.Things(res.Published, "event"), then)
	}
	add(res.Unit, "%s in %.2f s", output.Count(res.Count), res.Seconds)
	add("per second", "%s", output.Count(int64(res.PerSecond)))
	for _, l := range []struct {
		name string
		*bench.Latency
	}{{"until OK", res.Publish}, {"until EVENT", res.Delivery}} {
		if l.Latency == nil {
			continue
		}
		add(l.name, "p50 %.2f  p90 %.2f  p99 %.2f  p99.9 %.2f  max %.2f ms", l.At(50), l.At(90), l.At(99), l.At(99.9), l.Max)
	}
	if m := res.Memory; m != nil {
		add("resident", "%.1f MiB before, %.1f MiB with them, %.1f KiB each", float64(m.Before)/(1<<20), float64(m.After)/(1<<20), m.PerConnection/(1<<10))
	}
	if o := res.Overload; o != nil {
		add("best", "%s/s; %s/s were due under overload, %s refused, %s not sent", output.Count(int64(o.Best)), output.Count(int64(o.Offered)), output.Count(o.Refused), output.Count(o.NotSent))
		add("full", "%s/s were taken where the best rate was due", output.Count(int64(o.Full)))
		add("goodput", "%.2f of the best, %.2f of full", o.Ratio, o.OfFull)
		if o.Half != nil && o.After != nil {
			add("half rate", "until OK p99 %.2f ms before, %.2f ms after; as before %.1f s after the overload", o.Half.At(99), o.After.At(99), o.Back)
		}
	}
	if res.Redelivered > 0 {
		add("redelivered", "%s", output.Count(res.Redelivered))
	}
	add("errors", "%s", output.Count(res.Errors))
	for _, r := range rows {
		if _, err := fmt.Fprintf(w, "%-12s %s\n", r.name, r.value); err != nil {
			return err
		}
	}
	return nil
}
