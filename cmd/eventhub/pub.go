package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/input"
	"eventhub/cmd/eventhub/internal/output"
)

// publishing is what `eventhub pub` was told.
type publishing struct {
	reach
	key, id, sid, ts        string
	headers, tags, causedBy []string
	asString, events        bool
	strict                  bool
	format                  output.Choice

	topic   string // of every event, where not empty
	payload string
	lines   bool           // events come from standard input
	event   eventhub.Event // all that is the same for every event
}

func pubCommand() *cobra.Command {
	p := &publishing{format: output.Choice{Allowed: []output.Format{output.Table, output.JSON, output.NDJSON}}}
	cmd := &cobra.Command{
		Use:   "pub TOPIC [PAYLOAD | -]",
		Short: "Publish an event, or every line of standard input",
		Long: `Publishes PAYLOAD, which is JSON, as one event. With - or without PAYLOAD each line
of standard input is the payload of an event of its own; with --events each line is
a whole event, an object with payload and, as wanted, id, ts, key, headers, tags,
caused_by, sid and topic. TOPIC, where given, is the topic of every event; with
--events it may be left out, and every line then has its own.

The command is done when every event is on the hub's disk. Lines are sent in order,
many at a time. A line that is bad or that the hub refuses is told with its number,
and the rest goes on; with --strict the first one is the end, and each line is
answered before the next is sent. Ctrl-C stops reading, waits for what is under way
and tells what was published. Empty lines are passed over, save with --string.

What was published is printed as -o says; without -o, lines of standard input are
answered by the summary on standard error alone.`,
		Example: `  eventhub pub orders '{"item":"lamp"}' --key customer-1
  eventhub pub notes 'it rains' --string
  tail -f app.ndjson | eventhub pub app.log -
  eventhub sub orders --from earliest --until-caught-up -o ndjson | eventhub pub orders.copy --events`,
		Args: p.args,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&p.key, "key", "k", "", "key of the event")
	flags.StringArrayVarP(&p.headers, "header", "H", nil, "header as name=value; repeat for more")
	flags.StringArrayVar(&p.tags, "tag", nil, "tag; repeat for more")
	flags.StringVar(&p.id, "id", "", "id of the event: published twice, it is stored once")
	flags.StringVar(&p.ts, "ts", "", "the event's own time: epoch ms or like 2026-01-31T15:04:05Z")
	flags.StringVar(&p.sid, "sid", "", "session id")
	flags.StringArrayVar(&p.causedBy, "caused-by", nil, "id of an event that caused it; repeat for more")
	flags.BoolVar(&p.asString, "string", false, "send PAYLOAD, or each line, as a JSON string")
	flags.BoolVar(&p.events, "events", false, "lines of standard input are whole events")
	flags.BoolVar(&p.strict, "strict", false, "stop at the first line that is not published")
	flags.VarP(&p.format, "output", "o", "how to print what was published: "+p.format.Names())
	p.register(cmd)
	cmd.ValidArgsFunction = completeNames(&p.reach, false, false)
	for _, own := range []string{"key", "header", "tag", "id", "ts", "sid", "caused-by", "string"} {
		cmd.MarkFlagsMutuallyExclusive("events", own)
	}
	return cmd
}

// args decides where the events come from.
func (p *publishing) args(cmd *cobra.Command, args []string) error {
	if p.events && len(args) > 0 && args[len(args)-1] == "-" {
		args = args[:len(args)-1]
	}
	switch {
	case p.events && len(args) > 1:
		return fmt.Errorf("with --events the payloads come from standard input; %q is too much", args[1])
	case p.events:
		p.lines = true
	case len(args) == 0:
		return errors.New("TOPIC is missing")
	case len(args) > 2:
		return fmt.Errorf("%q is too much; TOPIC and PAYLOAD are wanted, and quotes around a PAYLOAD with spaces", args[2])
	case len(args) == 2 && args[1] != "-":
		p.payload = args[1]
	case len(args) == 1 && output.IsTerminal(cmd.InOrStdin()):
		return errors.New("PAYLOAD is missing; - reads lines from standard input")
	default:
		p.lines = true
	}
	if len(args) > 0 {
		p.topic = args[0]
	}
	if p.lines && p.id != "" {
		return errors.New("--id names one event; lines of standard input are many (--events takes an id in each)")
	}
	if !p.lines && p.strict {
		return errors.New("--strict is about lines of standard input, and PAYLOAD is given")
	}
	return p.makeEvent()
}

// makeEvent makes what all events share, and checks it as the hub will.
func (p *publishing) makeEvent() error {
	headers, err := input.Headers(p.headers)
	if err != nil {
		return err
	}
	p.event = eventhub.Event{Topic: p.topic, Key: p.key, ID: p.id, SID: p.sid, Headers: headers, Tags: p.tags, CausedBy: p.causedBy}
	if p.ts != "" {
		if p.event.TS, err = input.Time(p.ts); err != nil {
			return fmt.Errorf("--ts %w", err)
		}
	}
	p.event.Payload = []byte("null")
	if !p.lines {
		if p.event.Payload, err = input.Payload([]byte(p.payload), p.asString); err != nil && !p.asString {
			return fmt.Errorf("PAYLOAD is not JSON: %w; --string sends it as text", err)
		} else if err != nil {
			return fmt.Errorf("PAYLOAD: %w", err)
		}
	}
	if p.topic == "" && p.events {
		return nil
	}
	// The hub's clock judges ts, not this machine's.
	if err := p.event.Validate(time.UnixMilli(p.event.TS)); err != nil {
		return errors.New(eventhub.AsError(err).Message)
	}
	return nil
}

func (p *publishing) run(cmd *cobra.Command) error {
	if p.lines {
		return p.publishLines(cmd)
	}
	// One event, one connection: a caller who knows the id can do the rest.
	c, err := p.dial(cmd, client.WithoutReconnect())
	if err != nil {
		return err
	}
	defer c.Close()
	receipts, err := c.Publish(cmd.Context(), p.event)
	if err != nil {
		if len(receipts) == 1 && isOpen(err) {
			return fmt.Errorf("it is not known whether the event was published; again with --id %s it is published once: %w", receipts[0].ID, err)
		}
		return err
	}
	if p.format.Format == "" {
		p.format.Format = output.Table
	}
	out := results(cmd)
	done := newPublished(p.topic, receipts[0])
	if p.format.Format != output.Table {
		return output.Document(out, p.format.Format, done, nil)
	}
	rows := receiptRows(p.format.Format, out.Color)
	line, err := rows.Append(nil, done)
	if err != nil {
		return err
	}
	_, err = out.Write(line)
	return err
}

// isOpen reports whether an error leaves open what became of a publish.
func isOpen(err error) bool {
	var e *eventhub.Error
	if !errors.As(err, &e) {
		return true
	}
	return e.Code == eventhub.CodeInternal || e.Code == eventhub.CodeShuttingDown
}

// published is one event that is in the log.
type published struct {
	Line      int    `json:"line,omitempty"` // of standard input
	Topic     string `json:"topic"`
	Offset    uint64 `json:"offset"`
	ID        string `json:"id"`
	Duplicate bool   `json:"duplicate,omitempty"`
}

func newPublished(topic string, r eventhub.Receipt) published {
	return published{Topic: topic, Offset: r.Offset, ID: r.ID, Duplicate: r.Duplicate}
}

func receiptRows(f output.Format, color bool) *output.Rows[published] {
	return &output.Rows[published]{Format: f, Color: color, Columns: []output.Column[published]{
		{Name: "TOPIC", Width: 12, Cell: func(p published) string { return p.Topic }},
		{Name: "OFFSET", Width: 8, Right: true, Cell: func(p published) string { return strconv.FormatUint(p.Offset, 10) }},
		{Name: "ID", Cell: func(p published) string {
			if p.Duplicate {
				return p.ID + "  (was there already)"
			}
			return p.ID
		}},
	}}
}
