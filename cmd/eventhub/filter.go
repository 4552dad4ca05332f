package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/cmd/eventhub/internal/input"
)

// filterFlags say which events are wanted.
type filterFlags struct {
	filter eventhub.Filter
	wanted []string // headers of filter
}

func (f *filterFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.filter.Key, "filter-key", "", "only events with this key")
	flags.StringArrayVar(&f.wanted, "filter-header", nil, "only events with this header, name=value; repeat for more")
	flags.StringArrayVar(&f.filter.Tags, "filter-tag", nil, "only events with this tag; repeat for more")
	flags.StringVar(&f.filter.CEL, "filter", "", "only events for which this CEL expression is true")
}

// filters reports whether a filter is given.
func (f *filterFlags) filters(cmd *cobra.Command) bool {
	return slices.ContainsFunc([]string{"filter-key", "filter-header", "filter-tag", "filter"}, cmd.Flags().Changed)
}

// read makes the filter of what was given.
func (f *filterFlags) read(cmd *cobra.Command) (err error) {
	if f.filter.Headers, err = input.Headers(f.wanted); err != nil {
		return fmt.Errorf("--filter-header: %w", err)
	}
	if f.filters(cmd) && f.filter.IsZero() {
		return errors.New("the filter is empty, and would let every event pass")
	}
	return nil
}
