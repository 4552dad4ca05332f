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
	"eventhub/cmd/eventhub/internal/output"
)

// listFormats are the formats of everything that is no stream of events.
var listFormats = []output.Format{output.Table, output.JSON, output.NDJSON}

func formatFlag(cmd *cobra.Command, allowed []output.Format) *output.Choice {
	c := &output.Choice{Format: output.Table, Allowed: allowed}
	cmd.Flags().VarP(c, "output", "o", "how to print: "+c.Names())
	return c
}

func getCommand() *cobra.Command {
	var r reach
	var history bool
	cmd := &cobra.Command{
		Use:   "get TOPIC ID",
		Short: "Print one event",
		Long: `Prints the event with that id. -o json, ndjson and payload give it as it is stored.
--history adds what became of it in each group, and the attempts that came to nothing:
who held it, how it ended and why. JSON is then {"event":…,"groups":[…]}.`,
		Example: `  eventhub get orders 0199a1f9-731b-7d16-b8f6-fb271d31714f -o payload
  eventhub get orders 0199a1f9-731b-7d16-b8f6-fb271d31714f --history`,
		Args: words("TOPIC", "ID"),
	}
	format := formatFlag(cmd, append(listFormats, output.Payload))
	cmd.Flags().BoolVar(&history, "history", false, "add what became of it in each group")
	r.register(cmd)
	cmd.ValidArgsFunction = completeNames(&r, false, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if history && format.Format == output.Payload {
			return usageError{errors.New("--history has no payload; say -o table, json or ndjson")}
		}
		api, err := r.api(cmd)
		if err != nil {
			return err
		}
		defer api.Close()
		item, err := ask(cmd.Context(), &r, func(ctx context.Context) (eventhub.Item, error) { return api.Event(ctx, args[0], args[1]) })
		if err != nil {
			return err
		}
		out := results(cmd)
		if !history {
			return printItem(out, format.Format, item)
		}
		groups, err := ask(cmd.Context(), &r, func(ctx context.Context) ([]eventhub.EventGroup, error) {
			return api.EventGroups(ctx, args[0], args[1])
		})
		if err != nil {
			return err
		}
		doc := becameDocument{item.Record.AppendJSON(nil, item.Offset), groups}
		return output.Document(out, format.Format, doc, func(w io.Writer) error {
			if err := describeEvent(w, out.Color, item); err != nil {
				return err
			}
			return describeHistory(w, out.Color, groups)
		})
	}
	return cmd
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

// words checks that there is one argument for each name.
func words(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return errors.New(names[len(args)] + " is missing")
		}
		if len(args) > len(names) {
			return fmt.Errorf("%q is too much; wanted: %s", args[len(names)], strings.Join(names, " "))
		}
		return nil
	}
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
