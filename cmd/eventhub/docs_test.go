package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write docs/cli.md instead of comparing it")

// TestCommandReference keeps docs/cli.md in step with the commands.
func TestCommandReference(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "cli.md")
	want := commandReference(rootCommand())
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("docs/cli.md is not what the commands say; write it: go test ./cmd/eventhub -run TestCommandReference -update")
	}
}

const referenceIntro = `# The command line

For people who use a hub from a shell: every command, its flags and examples. One binary runs a hub and is its
client.

Results go to standard output, everything else to standard error. ` + "`-o table`" + ` is for people,
the same on terminals and in pipes; ` + "`json`" + ` is one indented document, or one for each event that is printed, ` + "`ndjson`" + ` one value
a line. Colour is used on terminals only and never with ` + "`NO_COLOR`" + `. A flag overrides
the environment variable in its brackets.

| Exit code | |
|---|---|
| 0 | done; also if the reader of the results has gone away |
| 1 | failed: the hub refused, something is not there, an input line was bad, the hub speaks another version of the protocol, or interrupted before it was done |
| 2 | wrong usage: a flag, an argument or an environment variable |
| 3 | no hub can be reached; of serve, jwt_jwks_url gives no keys; of outbox, the database cannot be reached |
| 4 | denied: no token, a wrong one, or one without the right |

Other words for commands: ` + "`publish` (`pub`), `consume`, `subscribe` and `tail` (`sub`), `trace ID` (`get --trace ID`)," + `
` + "`topics` (`topic ls`), `groups` (`group ls`)." + ` A misspelt command or flag is answered with the one that may be meant.

A test generates this page from the commands themselves.
`

const connectionIntro = `
## The flags of a connection

Every command that talks to a hub takes these; its own section does not repeat them.

`

func commandReference(root *cobra.Command) []byte {
	var b bytes.Buffer
	b.WriteString(referenceIntro)
	b.WriteString("\n| Command | |\n|---|---|\n")
	for _, g := range append(root.Groups(), &cobra.Group{Title: "Other:"}) {
		fmt.Fprintf(&b, "| **%s** | |\n", strings.TrimSuffix(g.Title, ":"))
		for _, c := range described(root) {
			if c.GroupID == g.ID {
				listCommands(&b, c)
			}
		}
	}
	b.WriteString(connectionIntro)
	shared := connectionFlags()
	writeFlags(&b, shared, nil)
	describeCommand(&b, root, shared)
	return b.Bytes()
}

// connectionFlags are those that all commands have that talk to a hub.
func connectionFlags() *pflag.FlagSet {
	var r reach
	var cmd cobra.Command
	r.register(&cmd)
	return cmd.Flags()
}

// described are the subcommands that have sections, or their subcommands.
func described(cmd *cobra.Command) []*cobra.Command {
	return slices.DeleteFunc(slices.Clone(cmd.Commands()), func(c *cobra.Command) bool {
		return !c.IsAvailableCommand() || c.Name() == "help"
	})
}

// listCommands writes a row for each command that does something.
func listCommands(b *bytes.Buffer, cmd *cobra.Command) {
	if !cmd.HasSubCommands() {
		path := cmd.CommandPath()
		fmt.Fprintf(b, "| [`%s`](#%s) | %s |\n", strings.TrimPrefix(path, "eventhub "), strings.ReplaceAll(path, " ", "-"), cmd.Short)
	}
	for _, c := range described(cmd) {
		listCommands(b, c)
	}
}

// describeCommand writes the section of each command that does something.
func describeCommand(b *bytes.Buffer, cmd *cobra.Command, shared *pflag.FlagSet) {
	if cmd.HasSubCommands() {
		for _, c := range described(cmd) {
			describeCommand(b, c, shared)
		}
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n", cmd.CommandPath())
	about := cmd.Long
	if about == "" {
		about = cmd.Short + "."
	}
	fmt.Fprintf(b, "```\n%s\n```\n\n%s\n", cmd.UseLine(), strings.ReplaceAll(about, `\`, `\\`))
	if cmd.Example != "" {
		fmt.Fprintf(b, "\n```\n%s\n```\n", unindent(cmd.Example))
	}
	flags := cmd.NonInheritedFlags()
	if hasAll(flags, shared) {
		b.WriteString("\nFlags: those of a [connection](#the-flags-of-a-connection)")
		if hasOwn(flags, shared) {
			b.WriteString(", and\n\n")
			writeFlags(b, flags, shared)
		} else {
			b.WriteString(".\n")
		}
	} else if hasOwn(flags, nil) {
		b.WriteString("\n")
		writeFlags(b, flags, nil)
	}
}

// hasAll reports whether a command has each of the shared flags, with the same meaning.
func hasAll(flags, shared *pflag.FlagSet) bool {
	all := true
	shared.VisitAll(func(f *pflag.Flag) { all = all && isShared(f, flags) })
	return all
}

// isShared reports whether shared has a flag with the same meaning.
func isShared(f *pflag.Flag, shared *pflag.FlagSet) bool {
	if shared == nil {
		return false
	}
	other := shared.Lookup(f.Name)
	return other != nil && other.Usage == f.Usage && other.DefValue == f.DefValue
}

// isDescribed reports whether a flag has a row: shared flags have theirs elsewhere.
func isDescribed(f *pflag.Flag, shared *pflag.FlagSet) bool {
	return !f.Hidden && f.Name != "help" && !isShared(f, shared)
}

func hasOwn(flags, shared *pflag.FlagSet) bool {
	own := false
	flags.VisitAll(func(f *pflag.Flag) { own = own || isDescribed(f, shared) })
	return own
}

// writeFlags writes the table of the flags that are not shared.
func writeFlags(b *bytes.Buffer, flags, shared *pflag.FlagSet) {
	b.WriteString("| Flag | Default | |\n|---|---|---|\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if !isDescribed(f, shared) {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, defaultOf(f), strings.ReplaceAll(f.Usage, "|", `\|`))
	})
}

func defaultOf(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "[]", "false", "0":
		return ""
	}
	return "`" + f.DefValue + "`"
}

// unindent takes away what all lines of an example begin with.
func unindent(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "  ")
	}
	return strings.Join(lines, "\n")
}
