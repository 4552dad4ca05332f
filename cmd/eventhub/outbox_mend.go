package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"eventhub/admin"
	"eventhub/cmd/eventhub/internal/output"
	"eventhub/internal/when"
	"eventhub/outbox"
)

func outboxRetryCommand() *cobra.Command {
	var place outboxPlace
	var all bool
	cmd := &cobra.Command{
		Use:   "retry ID... | --all",
		Short: "Have rows of an outbox published that were parked",
		Long: `Makes rows pending again that the hub has refused, after what was wrong is mended: a right,
a setting of the topic, or the row itself, which the service's own SQL may change. They
begin with no attempts, and keep their place in the table; rows of their key that were
published meanwhile are before them in the topic.`,
		Example: `  eventhub outbox retry --from sqlite:service.db 0197f2b1c86f7bd58a94f1f2d1d3a5b0
  eventhub outbox retry --from sqlite:service.db --all`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case all && len(args) > 0:
				return errors.New("IDs and --all are both given; one of them is expected")
			case !all && len(args) == 0:
				return errors.New("ID is missing; --all retries all that are parked")
			}
			return nil
		},
	}
	format := formatFlag(cmd, listFormats)
	cmd.Flags().BoolVar(&all, "all", false, "all that are parked")
	place.register(cmd)
	cmd.ValidArgsFunction = completeOutbox(&place, []outbox.Status{outbox.Parked}, true)
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		store, end, err := place.open(cmd.Context(), cmd)
		if err != nil {
			return err
		}
		defer end()
		if err := areAllParked(cmd.Context(), store, ids); err != nil {
			return err
		}
		n, err := store.Retry(cmd.Context(), ids...)
		if err != nil {
			return err
		}
		return output.Document(results(cmd), format.Format, retriedRows{n}, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "pending again: %s\n", output.Things(n, "row"))
			return err
		})
	}
	return cmd
}

type retriedRows struct {
	Retried int `json:"retried"`
}

// areAllParked returns what is wrong with the first of the ids that names no parked row.
func areAllParked(ctx context.Context, store outbox.Keeper, ids []string) error {
	for _, id := range ids {
		row, err := store.Show(ctx, id)
		if err != nil {
			return err
		}
		if row.Status != outbox.Parked {
			return fmt.Errorf("row %q is not parked, but %s; nothing was changed", id, row.Status)
		}
	}
	return nil
}

// purged are the rows that purge removes, or would.
type purged struct {
	Status  outbox.Status `json:"status"`
	Before  int64         `json:"before"`
	Rows    int           `json:"rows"`
	Applied bool          `json:"applied"`
}

var purgeable = []outbox.Status{outbox.Sent, outbox.Parked}

func outboxPurgeCommand() *cobra.Command {
	var place outboxPlace
	var given []string
	var older string
	var apply bool
	cmd := &cobra.Command{
		Use:   "purge --status sent|error --older-than AGE",
		Short: "Remove rows of an outbox that were sent, or that nobody will mend",
		Long: `Says how many rows would be removed, and with --apply removes them: those with the status
that were added longer ago than --older-than. Rows that are pending or claimed stay.

A drainer removes sent rows by itself (its --keep). A row that is removed while the hub still
knows its id can be inserted again and is a duplicate then; docs/databases.md says how long
that is.`,
		Example: `  eventhub outbox purge --from sqlite:service.db --status sent --older-than 7d
  eventhub outbox purge --from sqlite:service.db --status error --older-than 30d --apply`,
		Args: words(),
	}
	format := formatFlag(cmd, listFormats)
	statusFlag(cmd, &given, nil, "those with this of "+joined(purgeable), purgeable)
	cmd.Flags().StringVar(&older, "older-than", "", "those that were added so long ago, such as 12h or 7d")
	applyFlag(cmd, &apply)
	place.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		statuses, err := readStatuses(given, purgeable)
		if err == nil && len(statuses) > 1 {
			err = usageError{errors.New("--status has several; one of them is expected")}
		}
		if err != nil {
			return err
		}
		age, err := when.Span(older)
		if err != nil {
			return usageError{fmt.Errorf("--older-than %w", err)}
		}
		store, end, err := place.open(cmd.Context(), cmd)
		if err != nil {
			return err
		}
		defer end()
		before := time.Now().Add(-age)
		done := purged{Status: statuses[0], Before: before.UnixMilli(), Applied: apply}
		if apply {
			done.Rows, err = store.Purge(cmd.Context(), done.Status, before)
		} else {
			done.Rows, err = countOlder(cmd.Context(), store, done.Status, before)
		}
		if err != nil {
			return err
		}
		out := results(cmd)
		err = output.Document(out, format.Format, done, func(w io.Writer) error { return describePurged(w, out.Color, &done) })
		if err == nil && !apply {
			fmt.Fprintln(cmd.ErrOrStderr(), "Nothing was changed. The same with --apply removes the rows.")
		}
		return err
	}
	return cmd
}

// countOlder counts what Purge would remove.
func countOlder(ctx context.Context, store outbox.Keeper, status outbox.Status, before time.Time) (n int, err error) {
	for after := ""; ; {
		rows, err := store.List(ctx, []outbox.Status{status}, after, admin.MaxPage)
		if err != nil {
			return n, err
		}
		for _, r := range rows {
			if r.Event.TS < before.UnixMilli() {
				n++
			}
		}
		if len(rows) < admin.MaxPage {
			return n, nil
		}
		after = rows[len(rows)-1].Event.ID
	}
}

func describePurged(w io.Writer, color bool, p *purged) error {
	removed := "no"
	if p.Applied {
		removed = "yes"
	}
	return output.Fields(w, color, []output.Field{
		{Name: "Status", Value: string(p.Status)},
		{Name: "Added before", Value: output.Time(p.Before)},
		{Name: "Rows", Value: output.Count(p.Rows)},
		{Name: "Removed", Value: removed},
	})
}
