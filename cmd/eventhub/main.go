// Command eventhub is the hub and everything one does with it from a shell.
//
// Results go to standard output, everything else to standard error. Exit codes:
// 0 done, 1 failed, 2 wrong usage, 3 hub not reachable, 4 denied.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// The exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// usageError marks an error that is the caller's: a flag, an argument or an
// environment value.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	ctx, stop := untilSignal()
	defer stop()
	root := rootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	fmt.Fprintf(os.Stderr, "eventhub: %v\n", err)
	var usage usageError
	if errors.As(err, &usage) {
		fmt.Fprintln(os.Stderr, "Run 'eventhub --help' for usage.")
		return exitUsage
	}
	return exitFailed
}

// untilSignal returns a context that the first SIGINT or SIGTERM ends; a second
// one ends the process at once.
func untilSignal() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		<-signals
		fmt.Fprintln(os.Stderr, "eventhub: second signal, not waiting any longer")
		os.Exit(exitFailed)
	}()
	return ctx, cancel
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "eventhub",
		Short:         "A durable event hub: one binary, JSON over WebSocket",
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(serveCommand(), demoCommand(), versionCommand())
	for _, c := range append(root.Commands(), root) {
		check := c.Args
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageError{err}
			}
			return nil
		}
	}
	return root
}
