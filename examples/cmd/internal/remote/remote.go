// Package remote is what the example programs have in common: each is work that
// is done with a client of a remote hub until the program is asked to stop.
//
// SIGINT or SIGTERM ends the work's context; when the work has returned, the
// client is drained, so that receipts arrive and groups are left in order. A
// second signal ends the program at once. The exit codes are those of the eventhub
// command: 0 done, 1 failed, 2 wrong usage, 3 no hub can be reached, 4 denied.
package remote

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"eventhub"
	"eventhub/client"
)

const (
	defaultURL = "ws://127.0.0.1:8090"
	// dialWait bounds the first attempt to connect, drainWait the end.
	dialWait  = 10 * time.Second
	drainWait = 10 * time.Second
)

// The exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitDenied      = 4
)

// Program is one example program.
type Program struct {
	Name string
	Does string // one line of help
	// Flags, where not nil, adds flags besides --url and --token.
	Flags func(*flag.FlagSet)
	// Work returns nil when ctx has ended, or an error when it can not go on.
	Work func(ctx context.Context, c *client.Client, log *slog.Logger) error
}

// Main runs the program with the arguments and environment of the process, and
// ends that.
func (p *Program) Main() {
	os.Exit(p.run(os.Args[1:], os.Getenv, os.Stderr))
}

func (p *Program) run(args []string, getenv func(string) string, stderr io.Writer) int {
	url, token, err := p.parse(args, getenv, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case err != nil:
		return exitUsage // flag has printed why
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the next signal does what it does by default
	if err := p.work(ctx, url, token, slog.New(slog.NewTextHandler(stderr, nil))); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
		return exitCode(err)
	}
	return exitDone
}

func (p *Program) parse(args []string, getenv func(string) string, stderr io.Writer) (url, token string, err error) {
	or := func(name, otherwise string) string {
		if value := getenv(name); value != "" {
			return value
		}
		return otherwise
	}
	flags := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&url, "url", or("EVENTHUB_URL", defaultURL), "the hub's `address`, also in EVENTHUB_URL")
	// No default in the flag: help would show it.
	flags.StringVar(&token, "token", "", "the `token` to present; better in EVENTHUB_TOKEN, for arguments can be seen")
	if p.Flags != nil {
		p.Flags(flags)
	}
	flags.Usage = func() {
		fmt.Fprintf(stderr, "%s %s until SIGINT or SIGTERM.\n", p.Name, p.Does)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return "", "", err
	}
	if flags.NArg() > 0 {
		err := fmt.Errorf("unexpected argument %q", flags.Arg(0))
		fmt.Fprintln(stderr, err)
		flags.Usage()
		return "", "", err
	}
	if token == "" {
		token = getenv("EVENTHUB_TOKEN")
	}
	return url, token, nil
}

// work does the work with a client and drains it.
func (p *Program) work(ctx context.Context, url, token string, log *slog.Logger) error {
	opts := []client.Option{client.WithLogger(log)}
	if token != "" {
		opts = append(opts, client.WithToken(token))
	}
	dialing, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	c, err := client.Dial(dialing, url, opts...)
	if err != nil {
		if ctx.Err() != nil {
			return nil // asked to stop before it began
		}
		return err
	}
	log.Info(p.Name+" is up", "url", url, "durability", c.Info().Durability)
	err = p.Work(ctx, c, log)
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainWait)
	defer cancel()
	err = errors.Join(err, c.Drain(draining))
	log.Info(p.Name + " stopped")
	return err
}

func exitCode(err error) int {
	if eventhub.ErrorCode(err).Denied() {
		return exitDenied
	}
	if errors.Is(err, client.ErrUnreachable) {
		return exitUnreachable
	}
	return exitFailed
}
