package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"eventhub"
	"eventhub/admin"
	"eventhub/cmd/eventhub/internal/input"
	"eventhub/cmd/eventhub/internal/output"
)

// redriving is what `dlq redrive` is asked for.
type redriving struct {
	reach
	choosing
	limit, rate int
	apply       bool
	format      *output.Choice
}

func dlqRedriveCommand() *cobra.Command {
	var g redriving
	cmd := &cobra.Command{
		Use:   "redrive TOPIC",
		Short: "Give dead letters back to the groups that gave them up",
		Long: `Says which events would be given back, and with --apply gives them back: each to the group
that gave it up, and to no other. It is delivered there again from attempt 1, marked
as redriven. The dead letter stays where it is, marked with who and when; it is
passed over from then on, unless --all asks for it.

Skipped are those whose event waits there already after an earlier redrive, whose event
the group has anyway because it was moved back, whose group is gone, or whose event is
gone from the topic ('eventhub dlq requeue' publishes it again).

What was given back is on disk. An interrupt ends it and says how far it went; the same
command again continues from there.`,
		Example: `  eventhub dlq redrive orders
  eventhub dlq redrive orders --group billing --from 2h --apply
  eventhub dlq redrive orders --filter 'event.payload.event.payload.total < 100.0' --limit 10 --apply
  eventhub dlq redrive orders --offset 17,18 --all --apply`,
		Args: redriveArgs,
	}
	g.format = formatFlag(cmd, listFormats)
	g.choosing.register(cmd)
	flags := cmd.Flags()
	flags.IntVar(&g.limit, "limit", 0, "stop after so many dead letters")
	flags.IntVar(&g.rate, "rate", admin.DefaultRedriveRate, "give back at most so many events a second")
	applyFlag(cmd, &g.apply)
	g.reach.register(cmd)
	cmd.ValidArgsFunction = completeDeadLetters(&g.reach, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q, err := g.query(cmd, args[0])
		if err != nil {
			return usageError{err}
		}
		return g.run(cmd, q)
	}
	return cmd
}

// redriveArgs takes TOPIC. People who have just typed "dlq show TOPIC OFFSET" learn the flag.
func redriveArgs(cmd *cobra.Command, args []string) error {
	err := words("TOPIC")(cmd, args)
	if len(args) == 2 {
		if _, bad := strconv.ParseUint(args[1], 10, 64); bad == nil {
			return fmt.Errorf("%w; a single dead letter is --offset %s", err, args[1])
		}
	}
	return err
}

func (g *redriving) query(cmd *cobra.Command, topic string) (q admin.RedriveQuery, err error) {
	q = admin.RedriveQuery{Apply: g.apply, Rate: g.rate}
	if q.DeadLetterQuery, err = g.choosing.query(cmd, topic); err != nil {
		return q, err
	}
	if q.Limit = g.limit; g.limit < 0 || g.limit == 0 && cmd.Flags().Changed("limit") {
		return q, fmt.Errorf("--limit is %d; at least 1 is needed", g.limit)
	}
	if g.rate < 1 || g.rate > admin.MaxRedriveRate {
		return q, fmt.Errorf("--rate is %d; 1 to %d are allowed", g.rate, admin.MaxRedriveRate)
	}
	return q, nil
}

func (g *redriving) run(cmd *cobra.Command, q admin.RedriveQuery) error {
	adm, err := g.admin(cmd)
	if err != nil {
		return err
	}
	defer adm.Close()
	ctx, reached, cancel := g.untilReached(cmd.Context())
	defer cancel()
	m := newRedriveMeter(cmd.ErrOrStderr(), q.Apply)
	q.Progress = func(r admin.RedriveResult) {
		reached()
		m.show(&r)
	}
	result, err := adm.Redrive(ctx, q)
	m.end()
	if err != nil {
		return redriveError(cmd, &q, &result, err)
	}
	out := results(cmd)
	err = output.Document(out, g.format.Format, result, func(w io.Writer) error { return describeRedrive(w, out.Color, &result) })
	switch {
	case err != nil || result.Applied:
	case result.Redriven == 0:
		fmt.Fprintln(cmd.ErrOrStderr(), "Nothing was changed, and there is nothing to redrive.")
	default:
		fmt.Fprintf(cmd.ErrOrStderr(), "Nothing was changed. To redrive: %s\n", commandAgain(cmd, &q, q.After))
	}
	return err
}

// redriveError adds to an error how far it went, and how to go on.
func redriveError(cmd *cobra.Command, q *admin.RedriveQuery, done *admin.RedriveResult, err error) error {
	if errors.Is(err, context.Canceled) && cmd.Context().Err() != nil {
		err = errors.New("interrupted")
		if q.Apply && done.Matched == 0 {
			return fmt.Errorf("%w before the hub, which does so each second, has said how far it is; what was given back stays, and the same command goes on", err)
		}
	}
	if !q.Apply || done.Matched == 0 {
		return err
	}
	after := q.After
	if q.All {
		after = done.After // nothing else says what was done already
	}
	return fmt.Errorf("%w; %s at least were redriven, up to dead letter %d. To go on: %s", err, output.Things(done.Redriven, "event"), done.After, commandAgain(cmd, q, after))
}

// commandAgain writes the command that does what was asked for, from a place on. A
// token is left out.
func commandAgain(cmd *cobra.Command, q *admin.RedriveQuery, after uint64) string {
	parts := append(strings.Fields(cmd.CommandPath()), quoteArg(q.Topic))
	cmd.Flags().Visit(func(f *pflag.Flag) {
		var values []string
		switch f.Name {
		case "token", "apply", "after", "output":
			return
		case "from":
			if q.FromTS == 0 {
				return // earliest, or a place that --after goes on from
			}
			values = []string{strconv.FormatInt(q.FromTS, 10)} // and not so long ago
		case "to":
			values = []string{strconv.FormatInt(q.ToTS, 10)}
		case "all":
			parts = append(parts, "--all="+f.Value.String())
			return
		default:
			values = []string{f.Value.String()}
			if list, ok := f.Value.(pflag.SliceValue); ok {
				values = list.GetSlice()
			}
		}
		for _, v := range values {
			parts = append(parts, "--"+f.Name, quoteArg(v))
		}
	})
	if after != 0 {
		parts = append(parts, "--after", strconv.FormatUint(after, 10))
	}
	return strings.Join(append(parts, "--apply"), " ")
}

// quoteArg writes a word as a shell takes it.
func quoteArg(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-/:@%+,=", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// counted is a number with its name.
type counted struct {
	name string
	n    int
}

// counts are numbers by name.
func counts(of map[string]int) (list []counted) {
	for _, name := range slices.Sorted(maps.Keys(of)) {
		list = append(list, counted{name, of[name]})
	}
	return list
}

// skippedBecause says in words why dead letters are skipped.
var skippedBecause = map[string]string{
	"waiting":  "an earlier redrive of the event is not done",
	"open":     "the group was moved back and has the event again",
	"no_group": "the group that gave the event up is not there any more",
	"gone":     "the topic does not have the event any more; requeue it",
	"filter":   "the hub does not accept the group's filter any more",
}

func describeRedrive(w io.Writer, color bool, r *admin.RedriveResult) error {
	verb, skipped := "To redrive", 0
	if r.Applied {
		verb = "Redriven"
	}
	for _, n := range r.Skipped {
		skipped += n
	}
	err := output.Fields(w, color, []output.Field{
		{Name: "Topic", Value: r.Topic},
		{Name: "Meant", Value: output.Things(r.Matched, "dead letter")},
		{Name: verb, Value: output.Things(r.Redriven, "event")},
		{Name: "Skipped", Value: output.Count(skipped)},
	})
	number := output.Column[counted]{Name: "EVENTS", Right: true, Cell: func(c counted) string { return output.Count(c.n) }}
	if err == nil && len(r.Groups) > 0 {
		err = section(w, color, "By group", []output.Column[counted]{{Name: "GROUP", Cell: func(c counted) string { return c.name }}, number}, counts(r.Groups))
	}
	if err == nil && skipped > 0 {
		err = section(w, color, "Skipped", []output.Column[counted]{
			{Name: "WHY", Cell: func(c counted) string { return c.name }}, number,
			{Name: "THAT IS", Cell: func(c counted) string { return orDash(skippedBecause[c.name]) }},
		}, counts(r.Skipped))
	}
	if err == nil && len(r.Samples) > 0 {
		err = section(w, color, "The first of them", deadLetterColumns(time.Now(), false), r.Samples)
	}
	return err
}

// redriveMeter shows how far a redrive is, on a terminal.
type redriveMeter struct {
	w     io.Writer // nil: nothing is shown
	began time.Time
	shown bool
}

func newRedriveMeter(w io.Writer, wanted bool) *redriveMeter {
	m := &redriveMeter{began: time.Now()}
	if wanted && output.IsTerminal(w) {
		m.w = w
	}
	return m
}

func (m *redriveMeter) show(r *admin.RedriveResult) {
	if m.w == nil {
		return
	}
	m.shown = true
	rate := float64(r.Redriven) / max(time.Since(m.began).Seconds(), 1e-3)
	// A terminal that is gone shows elsewhere.
	_, _ = fmt.Fprintf(m.w, "\r\x1b[Kredriven %s, %.0f/s, up to dead letter %d", output.Things(r.Redriven, "event"), rate, r.After)
}

// end takes the progress away.
func (m *redriveMeter) end() {
	if m.shown {
		_, _ = io.WriteString(m.w, "\r\x1b[K")
	}
}

func dlqRequeueCommand() *cobra.Command {
	var r reach
	cmd := &cobra.Command{
		Use:   "requeue TOPIC OFFSET [PAYLOAD | -]",
		Short: "Publish the event of a dead letter again, as another event",
		Long: `Publishes the event of the dead letter again, with PAYLOAD or, as -, what standard input
has; without either with the payload that it had. The new event has the key, headers and
tags of the original, and its id in caused_by. All groups of the topic get it. The dead
letter is marked. The same payload again publishes nothing; a dead letter that was
redriven or requeued already is refused, unless --if-marks says how many marks it has.`,
		Example: `  eventhub dlq requeue orders 17 '{"item":"lamp","total":12.5}'
  eventhub dlq show orders 17 -o json | jq '.event.payload | .total = 12.5' | eventhub dlq requeue orders 17 -`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 3:
				return fmt.Errorf("%q is too much; TOPIC, OFFSET and PAYLOAD are wanted, and quotes around a PAYLOAD with spaces", args[3])
			case len(args) == 3:
				return nil
			}
			return words("TOPIC", "OFFSET")(cmd, args)
		},
	}
	var marks int
	cmd.Flags().IntVar(&marks, "if-marks", 0, "only if the dead letter has no more marks than so many, which 'dlq show' has")
	format := formatFlag(cmd, listFormats)
	r.register(cmd)
	cmd.ValidArgsFunction = completeDeadLetters(&r, true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var payload []byte
		if len(args) == 3 {
			var err error
			if payload, err = payloadOf(cmd, args[2]); err != nil {
				return err
			}
		}
		d, err := fetchDeadLetter(cmd, &r, args)
		if err != nil {
			return err
		}
		if payload == nil {
			e, err := d.Original.Event()
			if err != nil {
				return err
			}
			payload = e.Payload
		}
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		receipt, err := ask(cmd.Context(), &r, func(ctx context.Context) (eventhub.Receipt, error) {
			return adm.RequeueIf(ctx, args[0], d.Offset, payload, marks, "")
		})
		if err != nil {
			return err
		}
		out := results(cmd)
		done := newPublished(d.Topic, receipt)
		return output.Document(out, format.Format, done, func(w io.Writer) error {
			line, err := receiptRows(output.Table, out.Color).Append(nil, done)
			if err == nil {
				_, err = w.Write(line)
			}
			return err
		})
	}
	return cmd
}

// payloadOf reads the payload that an argument is, or, as -, standard input has.
func payloadOf(cmd *cobra.Command, arg string) ([]byte, error) {
	text := []byte(arg)
	if arg == "-" {
		var err error
		if text, err = io.ReadAll(io.LimitReader(cmd.InOrStdin(), 2*eventhub.MaxPayloadBytes)); err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
	}
	payload, err := input.Payload(text, false)
	if err != nil {
		return nil, usageError{fmt.Errorf("PAYLOAD is not JSON: %w", err)}
	}
	if len(payload) > eventhub.MaxPayloadBytes {
		return nil, usageError{fmt.Errorf("PAYLOAD has %d bytes; at most %d are allowed", len(payload), eventhub.MaxPayloadBytes)}
	}
	return payload, nil
}
