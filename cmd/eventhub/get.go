package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
)

// listFormats are the formats of everything that is no stream of events.
var listFormats = []output.Format{output.Table, output.JSON, output.NDJSON}

func formatFlag(cmd *cobra.Command, allowed []output.Format) *output.Choice {
	c := &output.Choice{Format: output.Table, Allowed: allowed}
	cmd.Flags().VarP(c, "output", "o", "how to print: "+c.Names())
	return c
}

// getting is what `get` is asked for.
type getting struct {
	reach
	paging
	history, trace bool
	depth          int
	correlation    string
	format         *output.Choice
}

func getCommand() *cobra.Command {
	var g getting
	cmd := &cobra.Command{
		Use:   "get [TOPIC] ID | get --correlation VALUE",
		Short: "Print an event, what came of it, and what led to it",
		Long: `Prints the event with that id, or, without a topic, the events of all topics that have
the id. -o json, ndjson and payload give it as it is stored.
--history adds what became of it in each group, and the attempts that came to nothing:
who held it, how it ended and why. JSON is then {"event":…,"groups":[…]}, one for each event.
--trace shows what caused the event and what it caused, across topics, as a tree: where
each event is, when it was published, how its payload begins, and what became of it in
each group.
--correlation lists the events with that value in the header x-correlation-id.`,
		Example: `  eventhub get orders 0199a1f9-731b-7d16-b8f6-fb271d31714f -o payload
  eventhub get orders 0199a1f9-731b-7d16-b8f6-fb271d31714f --history
  eventhub get 0199a1f9-731b-7d16-b8f6-fb271d31714f --trace
  eventhub get --correlation cart-17 -o ndjson`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case cmd.Flags().Changed("correlation"):
				return words()(cmd, args)
			case len(args) < 2:
				return words("ID")(cmd, args)
			}
			return words("TOPIC", "ID")(cmd, args)
		},
	}
	g.format = formatFlag(cmd, append(listFormats, output.Payload))
	flags := cmd.Flags()
	flags.BoolVar(&g.history, "history", false, "add what became of it in each group")
	flags.BoolVar(&g.trace, "trace", false, "show its causes and effects as a tree")
	flags.IntVar(&g.depth, "depth", admin.MaxTraceDepth, "with --trace: how many steps up and down")
	flags.StringVar(&g.correlation, "correlation", "", "list the events with that x-correlation-id")
	g.paging.register(cmd)
	g.reach.register(cmd)
	cmd.MarkFlagsMutuallyExclusive("history", "trace", "correlation")
	cmd.ValidArgsFunction = completeNames(&g.reach, false, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := g.check(cmd, args); err != nil {
			return usageError{err}
		}
		adm, err := g.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		switch {
		case cmd.Flags().Changed("correlation"):
			return g.printCorrelated(cmd, adm)
		case g.trace:
			return g.printTrace(cmd, adm, args)
		case len(args) == 1:
			return g.printFound(cmd, adm, args[0])
		}
		return g.printOne(cmd, adm, args[0], args[1])
	}
	return cmd
}

// check finds flags that do not go together.
func (g *getting) check(cmd *cobra.Command, args []string) error {
	lists := cmd.Flags().Changed("correlation")
	switch {
	case lists && g.correlation == "":
		return errors.New("--correlation is empty")
	case (g.history || g.trace) && g.format.Format == output.Payload:
		return errors.New("--history and --trace have no payload; say -o table, json or ndjson")
	case cmd.Flags().Changed("depth") && !g.trace:
		return errors.New("--depth goes with --trace")
	case g.all && !lists:
		return errors.New("--all goes with --correlation")
	case cmd.Flags().Changed("limit") && len(args) == 2 && !g.trace:
		return errors.New("--limit goes with --trace, with --correlation and with an ID without a topic")
	case !lists && g.limit > admin.MaxPage:
		return fmt.Errorf("--limit is %d; at most %d are shown", g.limit, admin.MaxPage)
	case g.depth < 0 || g.depth > admin.MaxTraceDepth:
		return fmt.Errorf("--depth is %d; 0 to %d are allowed", g.depth, admin.MaxTraceDepth)
	}
	return g.paging.check()
}

// printOne prints the event of one topic.
func (g *getting) printOne(cmd *cobra.Command, adm *client.Admin, topic, id string) error {
	item, err := ask(cmd.Context(), &g.reach, func(ctx context.Context) (eventhub.Item, error) { return adm.Event(ctx, topic, id) })
	if err != nil {
		return err
	}
	return g.printEvent(cmd, adm, results(cmd), topic, item)
}

// printEvent prints an event, with what became of it where that is asked for.
func (g *getting) printEvent(cmd *cobra.Command, adm *client.Admin, out *output.Results, topic string, item eventhub.Item) error {
	if !g.history {
		return printItem(out, g.format.Format, item)
	}
	groups, err := ask(cmd.Context(), &g.reach, func(ctx context.Context) ([]admin.EventGroup, error) {
		return adm.EventGroups(ctx, topic, string(item.Record.ID()))
	})
	if err != nil {
		return err
	}
	doc := becameDocument{item.Record.AppendJSON(nil, item.Offset), groups}
	return output.Document(out, g.format.Format, doc, func(w io.Writer) error {
		if err := describeEvent(w, out.Color, item); err != nil {
			return err
		}
		return describeHistory(w, out.Color, groups)
	})
}

// printFound prints the events of an id, whatever their topics.
func (g *getting) printFound(cmd *cobra.Command, adm *client.Admin, id string) error {
	events, err := ask(cmd.Context(), &g.reach, func(ctx context.Context) ([]admin.Found, error) { return adm.Find(ctx, id, g.limit) })
	if err != nil {
		return err
	}
	out := results(cmd)
	for i, e := range events {
		if i > 0 && g.format.Format == output.Table {
			if _, err := io.WriteString(out, "\n"); err != nil {
				return err
			}
		}
		if err := g.printEvent(cmd, adm, out, e.Topic, e.Item); err != nil {
			return err
		}
	}
	return nil
}

// printCorrelated lists the events of a correlation.
func (g *getting) printCorrelated(cmd *cobra.Command, adm *client.Admin) error {
	more := func(admin.Found) {
		fmt.Fprintln(cmd.ErrOrStderr(), "There are more events: --all shows all.")
	}
	list := pages(&g.paging, more, func(last *admin.Found, limit int) ([]admin.Found, error) {
		var after eventhub.Place
		if last != nil {
			after = eventhub.Place{Topic: last.Topic, Offset: last.Offset}
		}
		return ask(cmd.Context(), &g.reach, func(ctx context.Context) ([]admin.Found, error) {
			return adm.Correlated(ctx, g.correlation, after, limit)
		})
	})
	out := results(cmd)
	event := output.Events(g.format.Format, out.Color, []string{"**"}, false)
	var line []byte
	for e, err := range list {
		if err == nil {
			line, err = event(line[:0], &eventhub.Delivery{Topic: e.Topic, Offset: e.Offset, Record: e.Record})
		}
		if err == nil {
			_, err = out.Write(line)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// printItem prints an event alone.
func printItem(out *output.Results, format output.Format, item eventhub.Item) error {
	if format == output.Table {
		return describeEvent(out, out.Color, item)
	}
	b, err := output.Events(format, false, nil, false)(nil, &eventhub.Delivery{Offset: item.Offset, Record: item.Record})
	if err != nil {
		return err
	}
	_, err = out.Write(b)
	return err
}

func describeEvent(w io.Writer, color bool, item eventhub.Item) error {
	e, err := item.Event()
	if err != nil {
		return err
	}
	now := time.Now()
	fields := []output.Field{
		{Name: "Topic", Value: e.Topic},
		{Name: "Offset", Value: strconv.FormatUint(e.Offset, 10)},
		{Name: "ID", Value: e.ID},
		{Name: "Time", Value: moment(now, e.TS)},
	}
	add := func(name, value string) {
		if value != "" {
			fields = append(fields, output.Field{Name: name, Value: output.Safe(value)})
		}
	}
	if e.CommittedTS != 0 {
		add("Committed", moment(now, e.CommittedTS))
	}
	add("Key", e.Key)
	if e.Partition != nil {
		add("Partition", strconv.Itoa(*e.Partition))
	}
	add("Session", e.SID)
	add("Headers", output.Headers(e.Headers))
	add("Tags", strings.Join(e.Tags, ","))
	add("Caused by", strings.Join(e.CausedBy, ","))
	var payload bytes.Buffer
	if err := json.Indent(&payload, e.Payload, "", "  "); err != nil {
		return fmt.Errorf("the payload at offset %d: %w", e.Offset, err)
	}
	lines := strings.Split(payload.String(), "\n")
	for i := range lines {
		lines[i] = output.Safe(lines[i])
	}
	inline := output.Field{Name: "Payload"}
	if len(lines) == 1 {
		inline.Value, lines = lines[0], nil
	}
	var b bytes.Buffer
	_ = output.Fields(&b, color, append(fields, inline)) // a buffer takes all
	for _, line := range lines {
		fmt.Fprintln(&b, line)
	}
	_, err = w.Write(b.Bytes())
	return err
}

// moment writes a time exactly and as people say it.
func moment(now time.Time, ms int64) string {
	if ms == 0 {
		return "-"
	}
	return fmt.Sprintf("%s (%s)", output.Time(ms), output.Ago(now, ms))
}

// words checks that there is one argument for each name, and that a topic and a group can be so called.
func words(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return errors.New(names[len(args)] + " is missing")
		case len(names) == 0 && len(args) > 0:
			return noArgument(cmd, args[0])
		case len(args) > len(names):
			return fmt.Errorf("%q is too much; wanted: %s", args[len(names)], strings.Join(names, " "))
		}
		for i, name := range names {
			if err := checkName(name, args[i]); err != nil {
				return errors.New(eventhub.AsError(err).Message)
			}
		}
		return nil
	}
}

// noArgument is the error of an argument where none is wanted. People who mean a topic learn the flag.
func noArgument(cmd *cobra.Command, arg string) error {
	hint := ""
	if cmd.Flags().Lookup("topic") != nil && eventhub.ValidateStoredTopic(arg) == nil {
		hint = "; did you mean --topic " + arg + "?"
	}
	return fmt.Errorf("%q is too much; no argument is wanted%s", arg, hint)
}

// checkName judges an argument by what it is called. Of patterns the command knows whether it takes them.
func checkName(what, arg string) error {
	switch {
	case what == "TOPIC" && !eventhub.IsPattern(arg):
		return eventhub.ValidateStoredTopic(arg)
	case what == "GROUP":
		return eventhub.ValidateGroup(arg)
	}
	return nil
}

// section writes a table below a description.
func section[T any](w io.Writer, color bool, title string, columns []output.Column[T], values []T) error {
	if _, err := fmt.Fprintf(w, "\n%s\n", title); err != nil {
		return err
	}
	return output.List(w, output.Table, color, columns, each(values))
}

// each makes a sequence that does not fail.
func each[T any](values []T) func(yield func(T, error) bool) {
	return func(yield func(T, error) bool) {
		for _, v := range values {
			if !yield(v, nil) {
				return
			}
		}
	}
}
