package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"eventhub/cmd/eventhub/internal/output"
	"eventhub/hub"
	"eventhub/internal/backup"
)

func verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify DIR",
		Short: "Read all of a backup, or of a store",
		Long: `Reads every event of the store in DIR: each has to be one, offsets and commit times have
to rise. Of a backup the files are held against its checksums first. It works on a copy
that is made next to DIR and shares with it what never changes, so DIR stays as it is; no
hub may run on it in the meantime. Damage is reported, and ends the command with 1. What may
be wrong and leaves a whole store is a warning: the end of a log that is not whole, which
a crash may leave as well. In JSON that is an object with nothing but "warning".`,
		Example: `  eventhub verify /backups/eventhub-2026-01-31
  eventhub verify ./eventhub-data -o json`,
		Args: words("DIR"),
	}
	format := formatFlag(cmd, listFormats)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		stock, warnings, err := verifyDir(cmd.Context(), filepath.Clean(args[0]))
		for _, text := range warnings {
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", text)
		}
		if err != nil {
			return err
		}
		var lines []verified
		if format.Format != output.Table {
			for _, text := range warnings {
				lines = append(lines, verified{Warning: text})
			}
		}
		for i := range stock {
			lines = append(lines, verified{Stock: &stock[i]})
		}
		out := results(cmd)
		if err := output.List(out, format.Format, out.Color, stockColumns(), each(lines)); err != nil {
			return err
		}
		var events, bytes uint64
		for _, s := range stock {
			events += s.Events
			bytes += s.Bytes
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "verified %s, %s, %s\n", output.Things(len(stock), "topic"), output.Things(events, "event"), output.Things(bytes, "byte"))
		return nil
	}
	return cmd
}

// verified is a topic, or a warning.
type verified struct {
	*hub.Stock
	Warning string `json:"warning,omitempty"`
}

func stockColumns() []output.Column[verified] {
	return []output.Column[verified]{
		{Name: "TOPIC", Cell: func(s verified) string { return s.Topic }},
		{Name: "EVENTS", Right: true, Cell: func(s verified) string { return strconv.FormatUint(s.Events, 10) }},
		{Name: "BYTES", Right: true, Cell: func(s verified) string { return strconv.FormatUint(s.Bytes, 10) }},
		{Name: "FIRST", Right: true, Cell: func(s verified) string { return offsetCell(s.First) }},
		{Name: "LAST", Right: true, Cell: func(s verified) string { return offsetCell(s.Last) }},
		{Name: "GROUPS", Right: true, Cell: func(s verified) string { return strconv.Itoa(s.Groups) }},
		{Name: "NEWEST EVENT", Cell: func(s verified) string { return output.Time(s.LastTS) }},
	}
}

// verifyDir reads a copy of the store in dir.
func verifyDir(ctx context.Context, dir string) (stock []hub.Stock, warnings []string, err error) {
	err = backup.WithCopy(dir, func(temp string) error {
		warn := func(text string) { warnings = append(warnings, strings.ReplaceAll(text, temp, dir)) }
		return hub.VerifyStore(ctx, temp, warn, func(s hub.Stock) error {
			stock = append(stock, s)
			return nil
		})
	})
	return stock, warnings, placeError(err)
}
