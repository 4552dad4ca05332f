package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/cmd/eventhub/internal/output"
	"eventhub/outbox"
	"eventhub/outbox/outboxurl"
)

func outboxCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "outbox",
		Short: "Publish what services have written to an outbox in their database, and look after it",
	}
	cmd.AddCommand(outboxMigrateCommand(), outboxDrainCommand(), outboxListCommand(), outboxShowCommand(), outboxRetryCommand(), outboxPurgeCommand())
	return cmd
}

// outboxPlace is how a command finds the outbox.
type outboxPlace struct{ from string }

func (p *outboxPlace) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.from, "from", "", "the database: "+outboxurl.Forms+"; one with a password is better in the environment [$EVENTHUB_OUTBOX]")
	if err := cmd.RegisterFlagCompletionFunc("from", cobra.FixedCompletions(outboxurl.Prefixes(), cobra.ShellCompDirectiveNoSpace)); err != nil {
		panic(err) // the flag is not there, or has a completion
	}
}

// resolve takes the URL from the environment where no flag gave it. Its errors are of usage.
func (p *outboxPlace) resolve(cmd *cobra.Command) error {
	if !cmd.Flags().Changed("from") {
		p.from = os.Getenv("EVENTHUB_OUTBOX")
	}
	if p.from == "" {
		return usageError{fmt.Errorf("--from is missing, and EVENTHUB_OUTBOX is not set: %s", outboxurl.Forms)}
	}
	if err := outboxurl.Check(p.from); err != nil {
		return usageError{errors.New(eventhub.AsError(err).Message)}
	}
	return nil
}

// open opens the outbox, and checks that its table is one that can be used.
func (p *outboxPlace) open(ctx context.Context, cmd *cobra.Command) (outbox.Store, func(), error) {
	if err := p.resolve(cmd); err != nil {
		return nil, nil, err
	}
	store, closeStore, err := outboxurl.Open(ctx, p.from)
	if err != nil {
		return nil, nil, err
	}
	end := func() { _ = closeStore() } // all that matters is committed
	if err := store.Check(ctx); err != nil {
		end()
		return nil, nil, reached(err)
	}
	return store, end, nil
}

// databaseAway marks an error as that of a database that cannot be reached.
type databaseAway struct{ err error }

func (e databaseAway) Error() string {
	return "the database cannot be reached: " + strings.Join(strings.Fields(e.err.Error()), " ") // drivers write paragraphs
}
func (e databaseAway) Unwrap() error { return e.err }

// reached returns an error of a store, as databaseAway where it is one.
func reached(err error) error {
	if outboxurl.IsAway(err) {
		return databaseAway{err}
	}
	return err
}

func outboxMigrateCommand() *cobra.Command {
	var p outboxPlace
	var schema bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make the table of an outbox, or bring it to the present version",
		Long: `Makes the table that services insert their events into, and drainers publish from, where it
is not there; one of an older version is changed to the present one. A table of a newer
version is an error. It can be done again and again, and while services insert and
drainers run. An SQLite file that is missing is made.

--schema prints instead what does the same, for the migration tool of the service. Nothing
is opened then. docs/databases.md describes each column.`,
		Example: `  eventhub outbox migrate --from sqlite:service.db
  EVENTHUB_OUTBOX=postgres://shop:secret@db/shop eventhub outbox migrate
  eventhub outbox migrate --from postgres://db/shop --schema > migrations/0042_outbox.sql`,
		Args: words(),
	}
	cmd.Flags().BoolVar(&schema, "schema", false, "print the statements, and do nothing")
	p.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := p.resolve(cmd); err != nil {
			return err
		}
		if schema {
			text, err := outboxurl.Schema(p.from)
			if err == nil {
				_, err = io.WriteString(results(cmd), text)
			}
			return err
		}
		store, closeStore, err := outboxurl.Create(cmd.Context(), p.from)
		if err != nil {
			return err
		}
		defer func() { _ = closeStore() }() // what was made is committed
		if err := store.Migrate(cmd.Context()); err != nil {
			return reached(err)
		}
		_, err = fmt.Fprintf(results(cmd), "the outbox in %s is ready\n", output.Safe(outboxurl.Shown(p.from)))
		return err
	}
	return cmd
}

// statusFlag says which rows are meant.
func statusFlag(cmd *cobra.Command, into *[]string, byDefault []string, usage string, allowed []outbox.Status) {
	cmd.Flags().StringSliceVar(into, "status", byDefault, usage)
	names := make([]string, len(allowed))
	for i, s := range allowed {
		names[i] = string(s)
	}
	if err := cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag is not there, or has a completion
	}
}

// readStatuses reads what statusFlag was given. Its errors are of usage.
func readStatuses(given []string, allowed []outbox.Status) ([]outbox.Status, error) {
	var all []outbox.Status
	for _, name := range given {
		if !slices.Contains(allowed, outbox.Status(name)) {
			return nil, usageError{fmt.Errorf("--status %q is not one of %s", name, joined(allowed))}
		}
		all = append(all, outbox.Status(name))
	}
	if len(all) == 0 {
		return nil, usageError{fmt.Errorf("--status is empty; of %s at least one is needed", joined(allowed))}
	}
	return all, nil
}

func joined(statuses []outbox.Status) string {
	var b strings.Builder
	for i, s := range statuses {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(s))
	}
	return b.String()
}
