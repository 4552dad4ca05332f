package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/input"
	"eventhub/cmd/eventhub/internal/output"
	"eventhub/internal/when"
)

// publishing is what `eventhub pub` was asked to do.
type publishing struct {
	reach
	key, id, sid, ts        string
	headers, tags, causedBy []string
	asString, events        bool
	strict, atomic          bool
	delay, deliverAt        string
	waitFor                 []string
	wait                    time.Duration
	keyOffset, topicOffset  uint64
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
caused_by, sid, topic, delay_ms, deliver_at and expect. TOPIC, where given, is the topic of
every event; with --events it may be left out, and every line then has its own.

The command is done when every event is on the hub's disk. Lines are sent in order,
many at a time. A line that is bad or that the hub refuses is reported with its number,
and the rest continues; with --strict the first one is the end, and each line is
answered before the next is sent; with --atomic all lines are one batch, which is
published as a whole or not at all. Ctrl-C stops reading, waits for what is under way
and reports what was published. Empty lines are skipped, except with --string.

With --delay or --deliver-at the hub keeps the event, on its disk, and puts it into the
topic when it is due, at most a year from now; 'eventhub schedule' lists what is kept
and takes it back. With --wait-for the command is done when these groups have acked as
well; if they do not in time it says who has not and ends with 1, and the events stay
published.

With --expect-key-offset the event is published only if the newest event of its key is at
this offset, 0 for a key without one; with --expect-topic-offset if the topic's last offset
is this one. Otherwise nothing is published, and the error says which offset it is. So a value
that was read can be changed without the loss of what others wrote meanwhile.

What was published is printed as -o says; without -o, lines of standard input are
answered by the summary on standard error alone.`,
		Example: `  eventhub pub orders '{"item":"lamp"}' --key customer-1
  eventhub pub notes 'it rains' --string
  eventhub pub reminders '{"order":7}' --delay 2d
  eventhub pub orders '{"order":7}' --wait-for billing,stock --wait 30s
  eventhub pub stock '{"left":4}' --key lamp --expect-key-offset 17
  tail -f app.ndjson | eventhub pub app.log -
  eventhub pub --events --atomic < transfer.ndjson
  eventhub sub orders --from earliest --until-caught-up -o ndjson | eventhub pub orders.copy --events`,
		Args: p.args,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&p.key, "key", "k", "", "key of the event")
	flags.StringArrayVarP(&p.headers, "header", "H", nil, "header as name=value; repeat for more")
	flags.StringArrayVar(&p.tags, "tag", nil, "tag; repeat for more")
	flags.StringVar(&p.id, "id", "", "id of the event: published twice, it is stored once")
	flags.StringVar(&p.ts, "ts", "", "the event's own time: "+when.Forms)
	flags.StringVar(&p.sid, "sid", "", "session id")
	flags.StringArrayVar(&p.causedBy, "caused-by", nil, "id of an event that caused it; repeat for more")
	flags.BoolVar(&p.asString, "string", false, "send PAYLOAD, or each line, as a JSON string")
	flags.BoolVar(&p.events, "events", false, "lines of standard input are whole events")
	flags.BoolVar(&p.strict, "strict", false, "stop at the first line that is not published")
	flags.BoolVar(&p.atomic, "atomic", false, "publish all lines together, or none of them")
	flags.StringVar(&p.delay, "delay", "", "publish it so much later, such as 30s, 5m or 2d")
	flags.StringVar(&p.deliverAt, "deliver-at", "", "publish it at this time: 2026-01-31T15:04:05Z, epoch ms, or a duration from now on")
	flags.StringSliceVar(&p.waitFor, "wait-for", nil, "wait until these groups have acked it; split at commas or repeat")
	flags.DurationVar(&p.wait, "wait", eventhub.DefaultWait, "how long to wait for them")
	flags.Uint64Var(&p.keyOffset, "expect-key-offset", 0, "publish it only if the newest event of its key is at this offset; 0: if there is none")
	flags.Uint64Var(&p.topicOffset, "expect-topic-offset", 0, "publish it only if this is the topic's last offset; 0: if it never had an event")
	flags.VarP(&p.format, "output", "o", "how to print what was published: "+p.format.Names())
	p.register(cmd)
	p.registerName(cmd)
	cmd.ValidArgsFunction = completeNames(&p.reach, false, false)
	for _, own := range []string{"key", "header", "tag", "id", "ts", "sid", "caused-by", "string", "delay", "deliver-at", "expect-key-offset", "expect-topic-offset"} {
		cmd.MarkFlagsMutuallyExclusive("events", own)
	}
	cmd.MarkFlagsMutuallyExclusive("strict", "atomic")
	cmd.MarkFlagsMutuallyExclusive("delay", "deliver-at", "wait-for")
	cmd.MarkFlagsMutuallyExclusive("delay", "deliver-at", "expect-key-offset", "expect-topic-offset")
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
	if !p.lines && (p.strict || p.atomic) {
		return errors.New("--strict and --atomic are about lines of standard input, and PAYLOAD is given")
	}
	if err := p.checkWait(cmd); err != nil {
		return err
	}
	if err := p.checkExpect(cmd); err != nil {
		return err
	}
	return p.makeEvent()
}

// checkWait checks whom to wait for, and how long.
func (p *publishing) checkWait(cmd *cobra.Command) error {
	if !cmd.Flags().Changed("wait-for") {
		if cmd.Flags().Changed("wait") {
			return errors.New("--wait is given and --wait-for is not; name the groups to wait for")
		}
		p.wait = 0
		return nil
	}
	switch n := len(p.waitFor); {
	case p.lines && !p.atomic:
		return errors.New("--wait-for with lines of standard input is for --atomic, where all of them are one")
	case n == 0:
		return errors.New("--wait-for is empty")
	case n > eventhub.MaxWaitFor:
		return fmt.Errorf("--wait-for has %d groups; at most %d are allowed", n, eventhub.MaxWaitFor)
	case p.wait < time.Millisecond || p.wait > eventhub.MaxWait:
		return fmt.Errorf("--wait is %s; 1ms to %s are allowed", p.wait, eventhub.MaxWait)
	}
	for _, group := range p.waitFor {
		if err := eventhub.ValidateGroup(group); err != nil {
			return fmt.Errorf("--wait-for: %s", eventhub.AsError(err).Message)
		}
	}
	return nil
}

// checkExpect makes the condition.
func (p *publishing) checkExpect(cmd *cobra.Command) error {
	switch {
	case cmd.Flags().Changed("expect-key-offset"):
		p.event.Expect = eventhub.IfKeyOffset(p.keyOffset)
		if p.key == "" {
			return errors.New("--expect-key-offset is given and --key is not; name the key")
		}
	case cmd.Flags().Changed("expect-topic-offset"):
		p.event.Expect = eventhub.IfTopicOffset(p.topicOffset)
	default:
		return nil
	}
	if p.lines && !p.atomic {
		return errors.New("--expect-key-offset and --expect-topic-offset with lines of standard input are for --atomic, where all of them are one")
	}
	return nil
}

// makeEvent makes what all events share, and checks it as the hub will.
func (p *publishing) makeEvent() error {
	headers, err := input.Headers(p.headers)
	if err != nil {
		return err
	}
	p.event = eventhub.Event{Topic: p.topic, Key: p.key, ID: p.id, SID: p.sid, Headers: headers, Tags: p.tags, CausedBy: p.causedBy, Expect: p.event.Expect}
	if p.ts != "" {
		if p.event.TS, err = when.Parse(p.ts, time.Now()); err != nil {
			return fmt.Errorf("--ts %w", err)
		}
	}
	if p.delay != "" {
		if p.event.Delay, err = when.Span(p.delay); err != nil {
			return fmt.Errorf("--delay %w", err)
		}
	}
	if p.deliverAt != "" {
		at, err := when.ParseAhead(p.deliverAt, time.Now())
		if err != nil {
			return fmt.Errorf("--deliver-at %w", err)
		}
		p.event.DeliverAt = time.UnixMilli(at)
	}
	p.event.Payload = []byte("null")
	if !p.lines {
		if p.event.Payload, err = input.Payload([]byte(p.payload), p.asString); err != nil && !p.asString {
			return fmt.Errorf("PAYLOAD is not JSON: %w; --string sends it as text%s", err, p.fileHint())
		} else if err != nil {
			return fmt.Errorf("PAYLOAD: %w", err)
		}
	}
	if p.topic == "" && p.events {
		return nil
	}
	if err := validate(&p.event); err != nil {
		return errors.New(eventhub.AsError(err).Message)
	}
	return nil
}

// fileHint says how the lines of a file are published, if PAYLOAD names a file, also as curl's @FILE.
func (p *publishing) fileHint() string {
	name := strings.TrimPrefix(p.payload, "@")
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return fmt.Sprintf("; for the lines of a file: eventhub pub %s - < %s", p.topic, output.Safe(name))
}

// validate checks an event as the hub will, except its times, which the hub's clock
// judges and not this machine's.
func validate(e *eventhub.Event) error {
	return e.Validate(time.UnixMilli(max(e.TS, eventhub.Millis(e.DeliverAt))))
}

func (p *publishing) run(cmd *cobra.Command) error {
	if p.atomic {
		return p.publishAtomic(cmd)
	}
	if p.lines {
		return p.publishLines(cmd)
	}
	// One event, one connection: a caller who knows the id can do the rest.
	c, err := p.dial(cmd, client.WithoutReconnect())
	if err != nil {
		return err
	}
	defer c.Close()
	receipts, err := p.publish(cmd.Context(), c, p.event)
	if err != nil && !isLate(err) {
		if len(receipts) == 1 && isOpen(err) {
			return fmt.Errorf("it is not known whether the event was published; again with --id %s it is published once: %w", receipts[0].ID, err)
		}
		return err
	}
	if err != nil {
		err = fmt.Errorf("the event is published, and not done: %w", err)
	}
	if len(receipts) == 0 {
		return err
	}
	return errors.Join(p.print(cmd, receipts[0]), err)
}

// print prints the receipt of a single event.
func (p *publishing) print(cmd *cobra.Command, r eventhub.Receipt) error {
	if p.format.Format == "" {
		p.format.Format = output.Table
	}
	out := results(cmd)
	done := newPublished(p.topic, r)
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

// publish publishes events together, and waits for groups where that was asked for.
func (p *publishing) publish(ctx context.Context, to eventhub.Publisher, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	answered := make(chan struct{})
	pubs := []eventhub.Publication{{Events: events, WaitFor: p.waitFor, WaitUpTo: p.wait}}
	to.Enqueue(ctx, pubs, func([]eventhub.Publication) { close(answered) })
	<-answered // which the end of ctx brings about too
	return pubs[0].Receipts, pubs[0].Err
}

// isLate reports whether an error says that all is published, and that groups have
// not acked it in time, or cannot any more since it was removed.
func isLate(err error) bool {
	code := eventhub.ErrorCode(err)
	return code == eventhub.CodeWaitTimeout || code == eventhub.CodeGone
}

// isOpen reports whether an error leaves open what became of a publish.
func isOpen(err error) bool {
	var e *eventhub.Error
	if !errors.As(err, &e) {
		return true
	}
	return e.Code == eventhub.CodeInternal || e.Code == eventhub.CodeShuttingDown
}

// published is one event that is in the log, or will be.
type published struct {
	Line      int    `json:"line,omitempty"` // of standard input
	Topic     string `json:"topic"`
	Offset    uint64 `json:"offset,omitempty"` // 0: later, or not known
	ID        string `json:"id"`
	DeliverAt int64  `json:"deliver_at,omitempty"`
	Duplicate bool   `json:"duplicate,omitempty"`
}

func newPublished(topic string, r eventhub.Receipt) published {
	return published{Topic: topic, Offset: r.Offset, ID: r.ID, DeliverAt: eventhub.Millis(r.DeliverAt), Duplicate: r.Duplicate}
}

// remarks says what is special about an event.
func (p *published) remarks() string {
	var remarks []string
	if p.Duplicate {
		remarks = append(remarks, "was there already")
	}
	if p.DeliverAt != 0 {
		remarks = append(remarks, "due "+output.Time(p.DeliverAt))
	}
	if len(remarks) == 0 {
		return ""
	}
	return "  (" + strings.Join(remarks, ", ") + ")"
}

func receiptRows(f output.Format, color bool) *output.Rows[published] {
	return &output.Rows[published]{Format: f, Color: color, Columns: []output.Column[published]{
		{Name: "TOPIC", Width: 12, Cell: func(p published) string { return p.Topic }},
		{Name: "OFFSET", Width: 8, Right: true, Cell: func(p published) string { return offsetCell(p.Offset) }},
		{Name: "ID", Cell: func(p published) string { return p.ID + p.remarks() }},
	}}
}
