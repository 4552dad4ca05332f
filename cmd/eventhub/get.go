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
	cmd := &cobra.Command{
		Use:     "get TOPIC ID",
		Short:   "Print one event",
		Long:    "Prints the event with that id. -o json, ndjson and payload give it as it is stored.",
		Example: "  eventhub get orders 0199a1f9-731b-7d16-b8f6-fb271d31714f -o payload",
		Args:    words("TOPIC", "ID"),
	}
	format := formatFlag(cmd, append(listFormats, output.Payload))
	r.register(cmd)
	cmd.ValidArgsFunction = completeNames(&r, false, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
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
		if format.Format != output.Table {
			b, err := output.Events(format.Format, false, nil, false)(nil, &eventhub.Delivery{Offset: item.Offset, Record: item.Record})
			if err != nil {
				return err
			}
			_, err = out.Write(b)
			return err
		}
		return describeEvent(out, item)
	}
	return cmd
}

func describeEvent(out *output.Results, item eventhub.Item) error {
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
	_ = output.Fields(&b, out.Color, append(fields, inline)) // a buffer takes all
	for _, line := range lines {
		fmt.Fprintln(&b, line)
	}
	_, err = out.Write(b.Bytes())
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
