package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"eventhub/internal/naming"
)

// otherWords are what people type for a command, with what it means. Those that mean one
// word are aliases; a plural without a subcommand lists.
var otherWords = []struct{ word, means string }{
	{"publish", "pub"}, {"consume", "sub"}, {"subscribe", "sub"}, {"tail", "sub"},
	{"trace", "get --trace"}, {"topics", "topic ls"}, {"groups", "group ls"},
}

// otherNames are names under which people look for a command; its own is suggested then.
var otherNames = map[string][]string{
	"pub": {"send", "produce", "emit", "post"}, "sub": {"listen", "follow", "watch", "read", "receive"},
	"get": {"show", "event", "events", "find"}, "status": {"info", "ps", "top", "overview"},
	"serve": {"start", "run", "server", "up"}, "dlq": {"deadletters", "dead-letters", "letters"},
	"schedule": {"delayed", "scheduled"}, "rm": {"delete", "remove", "del"}, "ls": {"show", "all"},
	"mint": {"create", "new", "sign", "issue"}, "inspect": {"show", "decode", "verify"}, "token": {"jwt", "tokens"},
	"health": {"ping", "ready"}, "restore": {"recover"}, "info": {"describe", "show"},
}

// inOtherWords returns the arguments with the commands that the first one means.
func inOtherWords(args []string) []string {
	if len(args) == 0 {
		return args
	}
	at := slices.IndexFunc(otherWords, func(o struct{ word, means string }) bool { return o.word == args[0] })
	if at < 0 {
		return args
	}
	means := strings.Fields(otherWords[at].means)
	if lists := means[len(means)-1] == "ls"; lists && len(args) > 1 && !strings.HasPrefix(args[1], "-") {
		means = means[:1] // of a subcommand
	}
	return append(means, args[1:]...)
}

// wordsFor returns the aliases of a command.
func wordsFor(command string) (aliases []string) {
	for _, o := range otherWords {
		if means := strings.Fields(o.means); means[0] == command && !slices.ContainsFunc(means, func(m string) bool { return strings.HasPrefix(m, "-") }) {
			aliases = append(aliases, o.word)
		}
	}
	return aliases
}

// flagError is the error of a flag that a command does not have, or that has no such value.
func flagError(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) && wanted[invalid.GetFlag().Value.Type()] != "" {
		return usageError{badValue(invalid)}
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || len(unknown.GetSpecifiedName()) < 2 {
		return usageError{err}
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
	if near := naming.Nearest(unknown.GetSpecifiedName(), known); near != "" {
		return usageError{fmt.Errorf("%w; did you mean --%s?", err, near)}
	}
	return usageError{err}
}

// wanted says, by the type of a flag, which values it takes. Of types of our own the error of a
// value says so itself.
var wanted = map[string]string{
	"bool": "true or false", "duration": "a time such as 500ms, 30s or 2m", "float64": "a number",
	"uintSlice": "a list of whole numbers from 0 on", "int": "a whole number", "int64": "a whole number", "uint64": "a whole number from 0 on",
}

// badValue says of a flag what was given and what is wanted, without the words of Go's parsers.
func badValue(e *pflag.InvalidValueError) error {
	if errors.Is(e, strconv.ErrRange) {
		return fmt.Errorf("--%s is %.40q, which is more than can be counted", e.GetFlag().Name, e.GetValue())
	}
	return fmt.Errorf("--%s is %.40q; %s is wanted", e.GetFlag().Name, e.GetValue(), wanted[e.GetFlag().Value.Type()])
}

// setHelp makes the help of all commands: those of the root by use, and the flags of a
// connection once, there.
func setHelp(root *cobra.Command) {
	var r reach
	connection := &cobra.Command{}
	r.register(connection)
	shared := connection.Flags()
	cobra.AddTemplateFunc("ownFlags", func(cmd *cobra.Command) string { return ownFlags(cmd, shared) })
	cobra.AddTemplateFunc("connectionFlags", func() string { return strings.TrimRight(shared.FlagUsages(), "\n") })
	cobra.AddTemplateFunc("otherWords", func() string {
		var said []string
		for _, o := range otherWords {
			said = append(said, o.word+" = "+o.means)
		}
		return strings.Join(said, ", ")
	})
	template := root.UsageTemplate()
	flags := "{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}"
	if !strings.Contains(template, flags) {
		panic("the template of cobra is another one")
	}
	template = strings.Replace(template, flags, "{{ownFlags .}}", 1)
	more := "{{if not .HasParent}}\n\nFlags of the commands that talk to a hub:\n{{connectionFlags}}\n\nOther words: {{otherWords}}{{end}}"
	root.SetUsageTemplate(strings.Replace(template, "{{if .HasAvailableInheritedFlags}}", more+"{{if .HasAvailableInheritedFlags}}", 1))
	show := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		var text bytes.Buffer
		out := cmd.OutOrStdout()
		cmd.SetOut(&text)
		show(cmd, args)
		cmd.SetOut(out)
		_, _ = text.WriteTo(out) // as after | head: who has seen enough is not told of it
	})
}

// ownFlags describes the flags of a command. Those of a connection are named.
func ownFlags(cmd *cobra.Command, shared *pflag.FlagSet) string {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	var connection []string
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if other := shared.Lookup(f.Name); other != nil && other.Usage == f.Usage {
			connection = append(connection, "--"+f.Name)
		} else {
			own.AddFlag(f)
		}
	})
	text := strings.TrimRight(own.FlagUsages(), " \n")
	if connection != nil {
		text += "\n  and those of a connection: " + strings.Join(connection, ", ") + " (eventhub --help)"
	}
	return text
}
