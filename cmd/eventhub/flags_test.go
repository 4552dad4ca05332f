package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestFlagsMeanTheSame: a flag that says where to begin or to end, or that confirms, is
// of the same type and says the same in every command, and no other flag is named so.
func TestFlagsMeanTheSame(t *testing.T) {
	means := map[string]string{
		"from":  "where to begin: ",
		"to":    "end before this time: ",
		"yes":   "do not ask",
		"apply": "do it, and do not only say what it means",
	}
	found := make(map[string]int)
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			says, ours := means[f.Name]
			if !ours || f.Hidden {
				return
			}
			found[f.Name]++
			if !strings.HasPrefix(f.Usage, says) || (f.Shorthand == "y") != (f.Name == "yes") {
				t.Errorf("%s --%s means %q; elsewhere it means %q", cmd.CommandPath(), f.Name, f.Usage, says)
			}
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(rootCommand())
	for name := range means {
		if found[name] < 2 {
			t.Errorf("%d commands have --%s", found[name], name)
		}
	}
}
