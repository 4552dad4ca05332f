package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/input"
	"eventhub/cmd/eventhub/internal/output"
)

// following is what `eventhub sub` was asked to do.
type following struct {
	reach
	group, from string
	ordering    string
	maxAttempts int
	count       int
	caughtUp    bool
	noCreate    bool
	template    string
	maxInFlight int
	ackTimeout  time.Duration
	conflate    time.Duration
	filterFlags
	format    output.Choice
	execution execution // of --exec
	nack      bool
	reason    string
	terminal  bool

	topics   []string // or patterns
	patterns []eventhub.Pattern
	start    eventhub.Start
	render   output.AppendEvent // of template
}

func subCommand() *cobra.Command {
	f := &following{format: output.Choice{Format: output.Table,
		Allowed: []output.Format{output.Table, output.JSON, output.NDJSON, output.Payload}}}
	cmd := &cobra.Command{
		Use:   "sub TOPIC|PATTERN...",
		Short: "Print the events of topics as they come",
		Long: `Prints the events of one or more topics. With --group it is a member of that group:
the group's members share the events, each is acked when it has been written, and the
next run continues after the last; a group that does not exist is created where --from
says. Without a group it is a live tail that nobody remembers. Lines on standard
error say what is followed and from where, which topic and group are new (a name may be
misspelt), and when the connection is lost and back. With --no-create nothing is created:
what does not exist is an error.

--from snapshot begins with the state of one topic, the newest event of each key, and goes
on with every event after it. A line on standard error says when the state is complete;
where it comes again, as after an erasure, one more says so.

A PATTERN means many topics, those that are created later too: * is one segment of a
name, ** any number of them. Quote it, or the shell reads it. The hub's own topics,
such as dead letters, are those of a pattern only where it spells them out, as '**.dlq'
does. A group keeps its patterns: topics that are created while nobody is there wait for
it, from their first event on.

--filter-key, --filter-header, --filter-tag and --filter say which events are wanted;
all of them have to hold. A text that ends in * is the beginning of what is wanted.
--filter is an expression in CEL over event, such as 'event.payload.total > 100.0'. For
a group what is not wanted counts as done, and the filter is fixed when it is created.

--exec runs a command with /bin/sh for each event, instead of printing it: the payload and
a newline are on its standard input, the rest is in its environment, and what it writes
passes through. Exit status 0 acks the event. Any other, and a signal, refuses it: it comes
again after the group's backoff, and is a dead letter after the last attempt, with the
status and the last line of standard error as the reason. 65 (EX_DATAERR, or what
--exec-terminal says) makes it a dead letter at once. 126 and 127, which the shell says of a
command that it cannot run, end sub instead: the event goes back, and the attempt does not
count. The lease is extended while the command runs, up to an hour. Ctrl-C lets commands
that run come to their end; a second one ends them (SIGTERM), and their events come again.
The environment has EVENTHUB_TOPIC, _GROUP, _ID, _OFFSET, _KEY, _TS and _COMMITTED_TS (epoch
ms), _SID, _TAGS and _CAUSED_BY (joined by commas), _HEADERS (a JSON object), a variable for
each header (x-tenant is EVENTHUB_HEADER_X_TENANT), _ATTEMPT, _MAX_ATTEMPTS and _REDRIVEN,
and where events were removed before this one, _GAP_AFTER and _GAP_FIRST: those between these offsets, or
_GAP_COMPACTED and _GAP_TOMBSTONES, up to which compaction may have taken some;
a variable is empty if the event has nothing for it. EVENTHUB_URL is the hub's.

--nack refuses what is printed, with --reason; with --terminal each event is a dead letter
at once.

It runs until Ctrl-C, until --count events are printed, with --until-caught-up until
the newest event that each topic had at the beginning is done (a topic that is
deleted meanwhile is not waited for; nor are those of a pattern that the token may not
read, and none to be read is an error), or until whoever reads its output goes away.
Whatever the reason, events that were not written are
not acked, and the group has them back at once. What a pipe had taken counts as
written: to take a number of events off a group say --count, not | head.

-f prints each event after a pattern, with nothing added: %t topic, %o offset, %k key,
%s payload, %T time in epoch ms, %h headers as name=value, %i id, %g tags, %% a
percent sign, \n \t \r \\ as usual.`,
		Example: `  eventhub sub orders
  eventhub sub orders --group billing --from earliest -o payload | ./bill
  eventhub sub orders --from 1h --until-caught-up -o ndjson > orders.ndjson
  eventhub sub orders refunds -f '%t %o %k %s\n'
  eventhub sub 'process.**' --group audit --filter-key 'host-7:*'
  eventhub sub orders --filter 'event.payload.total > 100.0' --filter-header region=eu
  eventhub sub prices --conflate 1s
  eventhub sub stock --from snapshot
  eventhub sub orders --group billing --parallel 4 --exec './bill --order "$EVENTHUB_KEY"'
  eventhub sub orders --group billing -c 1 --nack --terminal --reason 'by hand'`,
		Args: f.args,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.registerFlags(cmd)
	cmd.ValidArgsFunction = completeNames(&f.reach, true, false)
	return cmd
}

func (f *following) registerFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.group, "group", "g", "", "be a member of this group")
	fromFlag(cmd, &f.from, "latest", "; of a group that exists its cursor counts; without --group also snapshot: the state by key first")
	flags.BoolVar(&f.noCreate, "no-create", false, "create nothing: fail if the topic or the group does not exist")
	flags.IntVarP(&f.count, "count", "c", 0, "stop after so many events")
	flags.BoolVar(&f.caughtUp, "until-caught-up", false, "stop when all that was there at the beginning is done")
	flags.VarP(&f.format, "output", "o", "how to print events: "+f.format.Names())
	flags.StringVarP(&f.template, "format", "f", "", `pattern for each event, such as '%o %s\n'`)
	f.filterFlags.register(cmd)
	flags.DurationVar(&f.conflate, "conflate", 0, "without --group: the newest event of each topic and key once in this time, not those before it")
	flags.StringVar(&f.ordering, "ordering", "", "of a group that is created: none, or key, which delivers the events of a key one by one")
	flags.IntVar(&f.maxAttempts, "max-attempts", 0, "of a group that is created: attempts before an event becomes a dead letter (default 5)")
	flags.IntVar(&f.maxInFlight, "max-in-flight", eventhub.DefaultMaxInFlight, "most leases held at once")
	flags.DurationVar(&f.ackTimeout, "ack-timeout", eventhub.DefaultAckTimeout, "how soon others get the events of this member when it is lost")
	flags.StringVar(&f.execution.command, "exec", "", "with --group: run this shell command for each event; its exit status acks or refuses it")
	flags.IntVar(&f.execution.parallel, "parallel", 1, "with --exec: commands that run at once")
	flags.IntVar(&f.execution.terminal, "exec-terminal", exitDataErr, "with --exec: exit status that makes an event a dead letter at once; 0: none does")
	flags.BoolVar(&f.nack, "nack", false, "with --group: refuse what is printed instead of acking it")
	flags.StringVar(&f.reason, "reason", "", "with --nack: why, kept with the dead letter")
	flags.BoolVar(&f.terminal, "terminal", false, "with --nack: make a dead letter at once, whatever the attempt")
	for _, other := range []string{"output", "format", "nack"} {
		cmd.MarkFlagsMutuallyExclusive("exec", other)
	}
	cmd.MarkFlagsMutuallyExclusive("output", "format")
	f.reach.register(cmd)
	f.registerName(cmd)
}

// fromSnapshot is --from of the state.
const fromSnapshot = "snapshot"

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
	case f.group != "" && f.from == fromSnapshot:
		return errors.New("--from snapshot is the state and what follows it; a --group gets events alone")
	case f.group != "" && flags.Changed("conflate"):
		return errors.New("--conflate is given; a --group gets every event")
	case f.group == "" && f.caughtUp && f.filters(cmd):
		return errors.New("--until-caught-up without --group ends at the newest event, which a filter may keep back; add --group, or 'eventhub replay' prints the past through a filter")
	case f.group == "" && f.caughtUp && !flags.Changed("from"):
		return errors.New("--until-caught-up without --group begins at the end, where there is nothing to catch up with; add --from, as in --from earliest")
	}
	if err := f.checkVerdicts(cmd); err != nil {
		return err
	}
	for i, topic := range args {
		if slices.Contains(args[:i], topic) {
			return fmt.Errorf("topic %q is given twice", topic)
		}
	}
	var err error
	if f.from == fromSnapshot {
		f.start = eventhub.Snapshot
	} else if f.start, err = input.Start(f.from, time.Now()); err != nil {
		return fmt.Errorf("--from %w", err)
	}
	if f.many() && (f.start.Kind == eventhub.StartAfterID || f.start.Kind == eventhub.StartOffset) {
		return fmt.Errorf("--from %s means a place in one topic; more are asked for", f.from)
	}
	if err := f.read(cmd); err != nil {
		return err
	}
	if flags.Changed("format") {
		if f.render, err = output.Template(f.template); err != nil {
			return err
		}
	}
	return f.validate()
}

// checkVerdicts checks what says how events are acked and refused.
func (f *following) checkVerdicts(cmd *cobra.Command) error {
	flags := cmd.Flags()
	e := &f.execution
	executes := flags.Changed("exec")
	switch {
	case executes && f.group == "":
		return errors.New("--exec acks and refuses events, which only a member of a --group can")
	case f.nack && f.group == "":
		return errors.New("--nack refuses events, which only a member of a --group can")
	case executes && strings.TrimSpace(e.command) == "":
		return errors.New("--exec is empty")
	case !executes && (flags.Changed("parallel") || flags.Changed("exec-terminal")):
		return errors.New("--parallel and --exec-terminal are about --exec, which is not given")
	case !f.nack && (flags.Changed("reason") || flags.Changed("terminal")):
		return errors.New("--reason and --terminal are about --nack, which is not given")
	case e.parallel < 1 || e.parallel > maxParallel:
		return fmt.Errorf("--parallel is %d; 1 to %d are allowed", e.parallel, maxParallel)
	case e.terminal < 0 || e.terminal >= exitNotExecutable:
		return fmt.Errorf("--exec-terminal is %d; 1 to %d are allowed, and 0 for none", e.terminal, exitNotExecutable-1)
	}
	if executes && !flags.Changed("max-in-flight") {
		f.maxInFlight = 2 * e.parallel // other members have the rest
	}
	if executes && f.maxInFlight < e.parallel {
		return fmt.Errorf("--parallel is %d, and --max-in-flight %d: not so many events are held at once", e.parallel, f.maxInFlight)
	}
	verdict := f.verdict()
	return asUsage(verdict.Validate())
}

// verdict is what is said of each event that was printed.
func (f *following) verdict() eventhub.Settlement {
	if !f.nack {
		return eventhub.Settlement{Verdict: eventhub.Ack}
	}
	return eventhub.Settlement{Verdict: eventhub.Nack, Reason: f.reason, Terminal: f.terminal}
}

// asUsage is an error without its code.
func asUsage(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(eventhub.AsError(err).Message)
}

// many reports whether more than one topic may be meant.
func (f *following) many() bool {
	return len(f.topics) > 1 || len(f.topics) == 1 && eventhub.IsPattern(f.topics[0])
}

// validate checks what would be sent as the hub will.
func (f *following) validate() error {
	tail := f.tail().WithDefaults()
	err := tail.Validate()
	if err == nil && f.group != "" {
		member := f.member().WithDefaults()
		err = member.Validate()
	}
	if err == nil {
		f.patterns, err = tail.Patterns()
	}
	return asUsage(err)
}

// tail returns the options of a live tail.
func (f *following) tail() eventhub.TailOptions {
	opts := eventhub.TailOptions{Topic: f.topics[0], Topics: f.topics[1:], Start: f.start, Conflate: f.conflate, NoCreate: f.noCreate}
	if !f.filter.IsZero() {
		opts.Filter = &f.filter
	}
	return opts
}

// member returns the options of a member of the group.
func (f *following) member() eventhub.GroupOptions {
	opts := eventhub.GroupOptions{Topic: f.topics[0], Topics: f.topics[1:], Group: f.group, Start: f.start,
		MaxInFlight: f.maxInFlight, AckTimeout: f.ackTimeout, Ordering: f.ordering, MaxAttempts: f.maxAttempts, NoCreate: f.noCreate}
	if !f.filter.IsZero() {
		opts.Filter = &f.filter
	}
	if f.count > 0 { // the others of the group get the rest
		opts.MaxInFlight = min(opts.MaxInFlight, f.count)
	}
	return opts
}

// subscribe joins the group, or opens a live tail where there is none. stderr learns that the group
// had ended.
func (f *following) subscribe(ctx context.Context, c *client.Client, r eventhub.Receiver, stderr io.Writer) (eventhub.Subscription, error) {
	if f.group == "" {
		return c.Tail(ctx, f.tail(), r)
	}
	opts := f.member()
	opts.OnEnded = endedTo(stderr, f.group)
	return c.Subscribe(ctx, opts, r)
}

func (f *following) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	c, err := f.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	adm, err := f.admin(cmd)
	if err != nil {
		return err
	}
	defer adm.Close()
	f.announce(ctx, cmd.ErrOrStderr(), cmd.Flags().Changed("from"), adm)
	if f.execution.command != "" {
		return f.runExec(cmd, c, adm)
	}
	out := results(cmd)
	render := f.render
	if render == nil {
		render = output.Events(f.format.Format, out.Color, f.topics, f.group != "")
	}
	p := newPrinter(out, render, f.group != "", f.count)
	p.verdict = f.verdict()
	p.onGap, p.onState = gapTo(cmd.ErrOrStderr()), stateTo(cmd.ErrOrStderr())
	p.sub, err = f.subscribe(ctx, c, p, cmd.ErrOrStderr())
	if err == nil && f.caughtUp {
		p.untilHeads = true
		err = f.findHeads(ctx, adm, &p.ends)
	}
	if err != nil {
		late, done := lingering(ctx)
		defer done()
		return errors.Join(err, p.leave(late))
	}
	out.OnHangup(func() { p.end(output.ErrClosed) })
	return p.run(ctx, f.ackTimeout)
}
