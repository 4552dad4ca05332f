package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/input"
	"eventhub/cmd/eventhub/internal/output"
)

// following is what `eventhub sub` was told.
type following struct {
	reach
	group, from string
	ordering    string
	maxAttempts int
	count       int
	caughtUp    bool
	template    string
	maxInFlight int
	ackTimeout  time.Duration
	format      output.Choice

	topics []string
	start  eventhub.Start
	render output.AppendEvent // of template
}

func subCommand() *cobra.Command {
	f := &following{format: output.Choice{Format: output.Table,
		Allowed: []output.Format{output.Table, output.JSON, output.NDJSON, output.Payload}}}
	cmd := &cobra.Command{
		Use:   "sub TOPIC...",
		Short: "Print the events of topics as they come",
		Long: `Prints the events of one or more topics. With --group it is a member of that group:
the group's members share the events, each is acked when it has been written, and the
next run goes on behind the last; a group that does not exist is created where --from
says. Without a group it is a live tail that nobody remembers.

It runs until Ctrl-C, until --count events are printed, with --until-caught-up until
the newest event that stood in each topic at the beginning is done, or until whoever
reads its output goes away. Whatever the reason, events that were not written are
not acked, and the group has them back at once. What a pipe had taken counts as
written: to take a number of events off a group say --count, not | head.

-f prints each event after a pattern, with nothing added: %t topic, %o offset, %k key,
%s payload, %T time in epoch ms, %h headers as name=value, %i id, %g tags, %% a
percent sign, \n \t \r \\ as usual.`,
		Example: `  eventhub sub orders
  eventhub sub orders --group billing --from earliest -o payload | ./bill
  eventhub sub orders --from 1h --until-caught-up -o ndjson > orders.ndjson
  eventhub sub orders refunds -f '%t %o %k %s\n'`,
		Args: f.args,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.group, "group", "g", "", "be a member of this group")
	flags.StringVar(&f.from, "from", "latest", "where to begin: "+input.StartForms+"; of a group that exists its cursor counts")
	flags.IntVarP(&f.count, "count", "c", 0, "stop after so many events")
	flags.BoolVar(&f.caughtUp, "until-caught-up", false, "stop when all that was there at the beginning is done")
	flags.VarP(&f.format, "output", "o", "how to print events: "+f.format.Names())
	flags.StringVarP(&f.template, "format", "f", "", `pattern for each event, such as '%o %s\n'`)
	flags.StringVar(&f.ordering, "ordering", "", "of a group that is created: none, or key, which delivers the events of a key one by one")
	flags.IntVar(&f.maxAttempts, "max-attempts", 0, "of a group that is created: attempts before an event becomes a dead letter (default 5)")
	flags.IntVar(&f.maxInFlight, "max-in-flight", eventhub.DefaultMaxInFlight, "most leases held at once")
	flags.DurationVar(&f.ackTimeout, "ack-timeout", eventhub.DefaultAckTimeout, "how soon others get the events of this member when it is lost")
	cmd.MarkFlagsMutuallyExclusive("output", "format")
	f.register(cmd)
	cmd.ValidArgsFunction = completeNames(&f.reach, true, false)
	return cmd
}

// args checks everything that needs no hub.
func (f *following) args(cmd *cobra.Command, args []string) error {
	flags := cmd.Flags()
	f.topics = args
	switch {
	case len(args) == 0:
		return errors.New("TOPIC is missing")
	case flags.Changed("count") && f.count < 1:
		return fmt.Errorf("--count is %d; at least 1 is needed", f.count)
	case flags.Changed("group") && f.group == "":
		return errors.New("--group is empty")
	case f.group == "" && (flags.Changed("ordering") || flags.Changed("max-attempts")):
		return errors.New("--ordering and --max-attempts are settings of a --group")
	case f.group == "" && (flags.Changed("ack-timeout") || flags.Changed("max-in-flight")):
		return errors.New("--ack-timeout and --max-in-flight are about leases, which only the members of a --group hold")
	case f.group == "" && f.caughtUp && !flags.Changed("from"):
		return errors.New("--until-caught-up without --group begins at the end, where there is nothing to catch up with; add --from, as in --from earliest")
	}
	for i, topic := range args {
		if slices.Contains(args[:i], topic) {
			return fmt.Errorf("topic %q is given twice", topic)
		}
	}
	var err error
	if f.start, err = input.Start(f.from, time.Now()); err != nil {
		return fmt.Errorf("--from %w", err)
	}
	if len(args) > 1 && (f.start.Kind == eventhub.StartAfterID || f.start.Kind == eventhub.StartOffset) {
		return fmt.Errorf("--from %s means a place in one topic; %d are given", f.from, len(args))
	}
	if flags.Changed("format") {
		if f.render, err = output.Template(f.template); err != nil {
			return err
		}
	}
	return f.validate()
}

// validate checks what would be sent as the hub will.
func (f *following) validate() error {
	for _, topic := range f.topics {
		opts := f.options(topic).WithDefaults()
		if err := opts.Validate(); err != nil {
			return errors.New(eventhub.AsError(err).Message)
		}
	}
	return nil
}

func (f *following) options(topic string) eventhub.SubscribeOptions {
	opts := eventhub.SubscribeOptions{Topic: topic, Group: f.group, Start: f.start}
	if f.group != "" {
		opts.MaxInFlight, opts.AckTimeout = f.maxInFlight, f.ackTimeout
		opts.Ordering, opts.MaxAttempts = f.ordering, f.maxAttempts
		if f.count > 0 { // the others of the group get the rest
			opts.MaxInFlight = min(opts.MaxInFlight, f.count)
		}
	}
	return opts
}

func (f *following) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	c, err := f.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	api, err := f.api(cmd)
	if err != nil {
		return err
	}
	defer api.Close()
	f.mentionCursors(ctx, cmd.ErrOrStderr(), cmd.Flags().Changed("from"), api)
	out := results(cmd)
	render := f.render
	if render == nil {
		render = output.Events(f.format.Format, out.Color, f.topics, f.group != "")
	}
	p := newPrinter(out, render, f.count)
	err = f.subscribe(ctx, c, p)
	if err == nil && f.caughtUp {
		err = f.findHeads(ctx, api, p)
	}
	if err != nil {
		late, done := lingering(ctx)
		defer done()
		return errors.Join(err, p.leave(late))
	}
	out.OnHangup(func() { p.end(output.ErrClosed) })
	return p.run(ctx, f.ackTimeout)
}

// mentionCursors tells of groups for which --from means nothing. It is a
// courtesy: where the hub does not answer, the subscription will tell.
func (f *following) mentionCursors(ctx context.Context, w io.Writer, given bool, api *client.API) {
	if f.group == "" || !given {
		return
	}
	for _, topic := range f.topics {
		g, err := ask(ctx, &f.reach, func(ctx context.Context) (eventhub.GroupInfo, error) { return api.Group(ctx, topic, f.group) })
		if err == nil {
			fmt.Fprintf(w, "eventhub: group %s of %s exists and goes on behind offset %d; --from counts only when a group is created\n", g.Group, g.Topic, g.Cursor)
		}
	}
}

// subscribe joins every topic.
func (f *following) subscribe(ctx context.Context, c *client.Client, p *printer) error {
	for _, topic := range f.topics {
		tap := p.newTap(topic, f.group)
		sub, err := c.Subscribe(ctx, f.options(topic), tap)
		if err != nil {
			return err
		}
		tap.sub = sub
	}
	return nil
}

// findHeads notes what each topic has to be read up to, and how to know that it
// was.
func (f *following) findHeads(ctx context.Context, api *client.API, p *printer) error {
	for _, tap := range p.taps {
		topic, err := ask(ctx, &f.reach, func(ctx context.Context) (eventhub.TopicInfo, error) { return api.Topic(ctx, tap.topic) })
		if err != nil && eventhub.ErrorCode(err) != eventhub.CodeUnknownID { // a tail creates no topic
			return fmt.Errorf("the newest event of %s: %w", tap.topic, err)
		}
		tap.head = topic.Head
		if f.group == "" && f.beginsBehind(&topic) {
			tap.head = 0
		}
	}
	p.untilHeads = true
	if f.group == "" {
		return nil
	}
	p.cursor = func(ctx context.Context, topic string) (uint64, error) {
		g, err := ask(ctx, &f.reach, func(ctx context.Context) (eventhub.GroupInfo, error) { return api.Group(ctx, topic, f.group) })
		return g.Cursor, err
	}
	return nil
}

// beginsBehind reports whether a tail begins where the topic ends.
func (f *following) beginsBehind(topic *eventhub.TopicInfo) bool {
	switch f.start.Kind {
	case eventhub.StartLatest:
		return true
	case eventhub.StartTime:
		return topic.HeadTS < f.start.TS
	case eventhub.StartAfterID:
		return topic.HeadID == f.start.AfterID
	case eventhub.StartOffset:
		return topic.Head < f.start.Offset
	}
	return false
}
