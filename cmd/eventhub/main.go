// Command eventhub is the hub and everything one does with it from a shell.
//
// Results go to standard output, everything else to standard error. Exit codes:
//
//	0  done; also where whoever read the results has gone away
//	1  failed: the hub refused, something is not there, an input line was bad,
//	   the hub speaks another version of the protocol, interrupted before it was done
//	2  wrong usage: a flag, an argument or an environment variable
//	3  no hub can be reached; of serve, jwt_jwks_url gives no keys; of outbox, the
//	   database cannot be reached
//	4  denied: no token, a wrong one, or one without the right
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/auth"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
)

// The exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitDenied      = 4
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
	// A reader that goes away is an error of the write, and not the end of the process: leases have to be given back, and
	// who reads a hub's log must not take the hub along. It is not ignored: what commands start would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	root := rootCommand()
	root.SetArgs(inOtherWords(args))
	cmd, err := root.ExecuteContextC(ctx)
	err = asInterrupted(ctx, err)
	code := exitCode(err)
	if code == exitDone {
		return code
	}
	fmt.Fprintf(os.Stderr, "eventhub: %s\n", oneLine(err.Error()))
	if hint := hintFor(cmd, err, code); hint != "" {
		fmt.Fprintln(os.Stderr, hint)
	}
	return code
}

// asInterrupted returns the error of a command that a signal has ended: what was cut short by it says neither that no hub
// is there nor that one has refused. ctx ends with the signal.
func asInterrupted(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	switch text := oneLine(err.Error()); {
	case errors.Is(err, client.ErrUnreachable), isAway(err), text == context.Canceled.Error():
		return errors.New("interrupted before there was an answer")
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted: %s", strings.Replace(text, ": "+context.Canceled.Error(), "", 1))
	}
	return err
}

func exitCode(err error) int {
	var usage usageError
	switch {
	case err == nil, errors.Is(err, output.ErrClosed), nobodyReads(err):
		return exitDone
	case errors.As(err, &usage):
		return exitUsage
	case eventhub.ErrorCode(err).Denied():
		return exitDenied
	case errors.Is(err, client.ErrUnreachable), isOfKeys(err), isAway(err):
		return exitUnreachable
	}
	return exitFailed
}

// nobodyReads reports whether an error is of a write to standard output that nobody reads any more.
func nobodyReads(err error) bool {
	of, ok := errors.AsType[*fs.PathError](err)
	return ok && of.Path == os.Stdout.Name() && errors.Is(of, syscall.EPIPE)
}

// isOfKeys reports whether an issuer of tokens was not reached, or gave no keys.
func isOfKeys(err error) bool {
	_, ok := errors.AsType[*auth.KeysError](err)
	return ok
}

// isAway reports whether the database of an outbox, or the servers of a journal, were not reached.
func isAway(err error) bool {
	_, database := errors.AsType[databaseAway](err)
	_, journal := errors.AsType[journalAway](err)
	return database || journal
}

// journalAway is an error of servers that are not reached.
type journalAway struct{ error }

// Unwrap returns the cause.
func (e journalAway) Unwrap() error { return e.error }

// hintFor says what to do next, where that is known.
func hintFor(cmd *cobra.Command, err error, code int) string {
	switch code {
	case exitUsage:
		return fmt.Sprintf("Run '%s --help' for usage.", cmd.CommandPath())
	case exitUnreachable:
		if eventhub.ErrorCode(err) != eventhub.CodeInternal || isOfKeys(err) || isAway(err) {
			return "" // something answers, and has said what it is
		}
		if cmd.Flags().Lookup("url") == nil {
			return "Is it running? 'eventhub serve' starts one; --ops or EVENTHUB_OPS says where it answers."
		}
		return "Is it running? 'eventhub serve' starts one; --url or EVENTHUB_URL says where it is."
	case exitDenied:
		if eventhub.ErrorCode(err) == eventhub.CodeNoToken {
			return "Give a token by --token-file, EVENTHUB_TOKEN or EVENTHUB_TOKEN_FILE."
		}
	}
	return ""
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "eventhub",
		Short:         "A durable event hub: one binary, JSON over WebSocket and HTTP",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	root.Version = versionString()
	root.SetVersionTemplate(versionLine())
	for _, g := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"everyday", "Everyday:", []*cobra.Command{pubCommand(), subCommand(), getCommand(), statusCommand()}},
		{"admin", "Administration:", []*cobra.Command{topicCommand(), groupCommand(), dlqCommand(), scheduleCommand(), outboxCommand(), replayCommand(), stateCommand(), connectionsCommand()}},
		{"run", "Run and check a hub:", []*cobra.Command{serveCommand(), configCommand(), tokenCommand(), healthCommand(), clusterCommand(), journalCommand(), checkCommand(), benchCommand(), demoCommand()}},
		{"copy", "Copies of the data:", []*cobra.Command{exportCommand(), importCommand(), backupCommand(), verifyCommand(), restoreCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.id
			c.Aliases = append(c.Aliases, wordsFor(c.Name())...)
			root.AddCommand(c)
		}
	}
	root.AddCommand(completionCommand(), versionCommand())
	setHelp(root)
	adopt(root)
	return root
}

// adopt makes what cobra finds wrong with flags and arguments, here and below, an
// error of usage. A command that only holds others shows its help.
func adopt(cmd *cobra.Command) {
	cmd.SuggestFor = append(cmd.SuggestFor, otherNames[cmd.Name()]...)
	if cmd.HasSubCommands() && cmd.Run == nil && cmd.RunE == nil {
		cmd.Args, cmd.SuggestionsMinimumDistance = onlySubcommands, 2
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	check := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := cmd.ValidateFlagGroups()
		if err == nil {
			err = check(cmd, args)
		}
		if err != nil {
			return usageError{err}
		}
		return nil
	}
	for _, c := range cmd.Commands() {
		adopt(c)
	}
}

// meant returns the commands below cmd that a word may mean: those that have it as another name,
// and where none has, those whose names are near.
func meant(cmd *cobra.Command, word string) (names []string) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && slices.Contains(c.SuggestFor, word) {
			names = append(names, c.Name())
		}
	}
	if len(names) == 0 {
		return cmd.SuggestionsFor(word)
	}
	return names
}

func onlySubcommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	if near := meant(cmd, args[0]); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return errors.New(text)
}
