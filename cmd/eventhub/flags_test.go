package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestFlagsMeanTheSame: a flag that says where to begin or to end, or that confirms, is
// of the same type and says the same in every command, and no other flag is named so. The
// flags of state, which compares two moments, are another pair.
func TestFlagsMeanTheSame(t *testing.T) {
	means := map[string]string{
		"from":  "where to begin: ",
		"to":    "end before this time: ",
		"yes":   "do not ask",
		"apply": "do it, and do not only say what it means",
	}
	moments := map[string]string{
		"from": "the first of two moments: ",
		"to":   "the second of two moments: ",
	}
	found := make(map[string]int)
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			says, ours := means[f.Name]
			ofOutbox := f.Name == "from" && cmd.HasParent() && cmd.Parent().Name() == "outbox" // a database
			if !ours || f.Hidden || ofOutbox {
				return
			}
			found[f.Name]++
			if cmd.Name() == "state" && moments[f.Name] != "" {
				says = moments[f.Name]
			}
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

// TestBadValuesOfFlags: a value that a flag cannot have is named with what is wanted, in no
// words of Go's parsers.
func TestBadValuesOfFlags(t *testing.T) {
	for _, tt := range []struct{ flag, value, want string }{
		{"retention-count", "-1", `--retention-count is "-1"; a whole number from 0 on is wanted`},
		{"retention-count", "many", `--retention-count is "many"; a whole number from 0 on is wanted`},
		{"retention-count", "99999999999999999999", `--retention-count is "99999999999999999999", which is more than can be counted`},
		{"key-required", "perhaps", `--key-required is "perhaps"; true or false is wanted`},
	} {
		cmd, _, err := rootCommand().Find([]string{"topic", "set"})
		if err != nil {
			t.Fatal(err)
		}
		if err := flagError(cmd, cmd.ParseFlags([]string{"--" + tt.flag + "=" + tt.value})); err.Error() != tt.want || exitCode(err) != exitUsage {
			t.Errorf("%v; want %s", err, tt.want)
		}
	}
	refused := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			for _, value := range []string{"-1x", "99999999999999999999"} {
				err := cmd.ParseFlags([]string{"--" + f.Name + "=" + value})
				if err == nil {
					continue // of strings everything is taken, and looked at later
				}
				refused++
				text := flagError(cmd, err).Error()
				if !strings.Contains(text, "--"+f.Name) || !strings.Contains(text, value) || strings.Contains(text, "strconv") || strings.Contains(text, "time: ") {
					t.Errorf("%s --%s=%s: %s", cmd.CommandPath(), f.Name, value, text)
				}
			}
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(rootCommand())
	if refused < 100 {
		t.Errorf("only %d values were refused", refused)
	}
}
