package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"eventhub/cmd/eventhub/internal/input"
	"eventhub/internal/when"
)

// The flags of this file mean the same in every command that has them.

// fromFlag says where to begin.
func fromFlag(cmd *cobra.Command, into *string, byDefault, more string) {
	cmd.Flags().StringVar(into, "from", byDefault, "where to begin: "+input.StartForms+more)
}

// toFlag says where to end: before this time.
func toFlag(cmd *cobra.Command, into *string) {
	cmd.Flags().StringVar(into, "to", "", "end before this time: "+when.Forms)
}

// readTo reads what toFlag was given; 0 is no end.
func readTo(text string, given bool) (int64, error) {
	if !given {
		return 0, nil
	}
	ms, err := when.Parse(text, time.Now())
	if err == nil && ms < 1 {
		err = fmt.Errorf("%q is the beginning of time, before which there is nothing", text)
	}
	if err != nil {
		return 0, fmt.Errorf("--to %w", err)
	}
	return ms, nil
}

// yesFlag answers the question before something is removed for good.
func yesFlag(cmd *cobra.Command, into *bool) {
	cmd.Flags().BoolVarP(into, "yes", "y", false, "do not ask")
}

// applyFlag makes a command do what it otherwise only describes.
func applyFlag(cmd *cobra.Command, into *bool) {
	cmd.Flags().BoolVar(into, "apply", false, "do it, and do not only say what it means")
	// Other tools have --dry-run, which is the default here.
	cmd.Flags().Bool("dry-run", false, "only say what it means, as without --apply")
	_ = cmd.Flags().MarkHidden("dry-run") // the line above defines it
	cmd.MarkFlagsMutuallyExclusive("apply", "dry-run")
}

// olderFlag keeps another name of a flag working, with a line that says which to use.
func olderFlag(cmd *cobra.Command, older string, into *string, name string) {
	cmd.Flags().StringVar(into, older, "", "as --"+name)
	if err := cmd.Flags().MarkDeprecated(older, "use --"+name); err != nil {
		panic(err) // there is no such flag
	}
	cmd.MarkFlagsMutuallyExclusive(older, name)
}
