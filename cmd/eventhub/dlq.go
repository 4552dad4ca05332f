package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/input"
	"eventhub/cmd/eventhub/internal/output"
)

func dlqCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "dlq", Short: "Look at dead letters, and give them back"}
	cmd.AddCommand(dlqListCommand(), dlqShowCommand(), dlqRedriveCommand(), dlqRequeueCommand())
	return cmd
}

// choosing says which dead letters are meant.
type choosing struct {
	group, from, to, filter, key string
	ids                          []string
	offsets                      []uint
	all                          bool
	after                        uint64
}

func (c *choosing) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&c.group, "group", "", "only those of this group")
	flags.StringSliceVar(&c.ids, "id", nil, "only the dead letters with these ids; split at commas or repeat")
	flags.UintSliceVar(&c.offsets, "offset", nil, "only the dead letters at these offsets; split at commas or repeat")
	fromFlag(cmd, &c.from, "", "; of a time: when they were given up")
	toFlag(cmd, &c.to)
	flags.StringVar(&c.filter, "filter", "", "only those for which this CEL expression is true; the original is event.payload.event")
	flags.StringVar(&c.key, "filter-key", "", "only those with this key")
	flags.BoolVar(&c.all, "all", false, "also those that were redriven or requeued already")
	flags.Uint64Var(&c.after, "after", 0, "only those after this offset")
}

// query makes a query of it; its errors are of usage.
func (c *choosing) query(cmd *cobra.Command, topic string) (q admin.DeadLetterQuery, err error) {
	q = admin.DeadLetterQuery{Topic: topic, Group: c.group, IDs: c.ids, All: c.all, After: c.after}
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return q, errors.New(eventhub.AsError(err).Message)
	}
	given := cmd.Flags().Changed
	if given("group") {
		if err := eventhub.ValidateGroup(c.group); err != nil {
			return q, fmt.Errorf("--group: %s", eventhub.AsError(err).Message)
		}
	}
	if max(len(c.ids), len(c.offsets)) > admin.MaxPage {
		return q, fmt.Errorf("%d times --id and %d times --offset; at most %d of each are allowed", len(c.ids), len(c.offsets), admin.MaxPage)
	}
	// A list that came out empty must not mean all.
	for name, n := range map[string]int{"id": len(c.ids), "offset": len(c.offsets), "filter": len(c.filter), "filter-key": len(c.key)} {
		if given(name) && n == 0 {
			return q, fmt.Errorf("--%s is empty", name)
		}
	}
	for _, id := range c.ids {
		if err := eventhub.ValidateID(id); err != nil {
			return q, fmt.Errorf("--id: %s", eventhub.AsError(err).Message)
		}
	}
	for _, offset := range c.offsets {
		if offset == 0 || offset > eventhub.MaxOffset {
			return q, fmt.Errorf("--offset is %d; 1 to %d are allowed", offset, uint64(eventhub.MaxOffset))
		}
		q.Offsets = append(q.Offsets, uint64(offset))
	}
	if c.after > eventhub.MaxOffset {
		return q, fmt.Errorf("--after is %d; at most %d is allowed", c.after, uint64(eventhub.MaxOffset))
	}
	if err := c.begin(&q, given("from")); err != nil {
		return q, err
	}
	if q.ToTS, err = readTo(c.to, given("to")); err != nil {
		return q, err
	}
	if q.ToTS != 0 && q.FromTS >= q.ToTS {
		return q, fmt.Errorf("--from %s is not before --to %s", c.from, c.to)
	}
	if f := (eventhub.Filter{CEL: c.filter, Key: c.key}); !f.IsZero() {
		q.Filter = &f
	}
	if err := q.Filter.Validate(); err != nil {
		return q, errors.New("--" + eventhub.AsError(err).Message)
	}
	return q, nil
}

// begin reads --from.
func (c *choosing) begin(q *admin.DeadLetterQuery, given bool) error {
	if !given {
		return nil
	}
	start, err := input.Start(c.from, time.Now())
	switch {
	case err != nil:
		return fmt.Errorf("--from %w", err)
	case start.Kind == eventhub.StartTime:
		q.FromTS = start.TS
	case start.Kind == eventhub.StartOffset && c.after != 0:
		return fmt.Errorf("--from %s and --after are both places; one of them is expected", c.from)
	case start.Kind == eventhub.StartOffset:
		q.After = max(start.Offset, 1) - 1
	case start.Kind != eventhub.StartEarliest:
		return fmt.Errorf("--from %s: dead letters begin at earliest, at a time, some time ago or at offset:N", c.from)
	}
	return nil
}

func dlqListCommand() *cobra.Command {
	var r reach
	var c choosing
	var limit int
	cmd := &cobra.Command{
		Use:     "ls [TOPIC]",
		Aliases: []string{"list"},
		Short:   "List topics that have dead letters, or the dead letters of one",
		Long: `Lists the topics that have dead letters, with how many of them are open (nothing was
done), redriven (given back to their group, which is not done with them), done (their
redrive is over) and requeued (published again as other events).

With a TOPIC it lists its dead letters that are open, the oldest first: which group gave
up which event, and why. --all lists the others too, with their state and what was done.

TOPIC is the one whose events were given up, or its dead-letter topic.`,
		Example: `  eventhub dlq ls
  eventhub dlq ls orders --group billing --from 1h
  eventhub dlq ls orders --filter 'event.payload.reason.contains("timeout")' -o ndjson`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("%q is too much; wanted: [TOPIC]", args[1])
			}
			if limit < 1 {
				return fmt.Errorf("--limit is %d; at least 1 is needed", limit)
			}
			if len(args) == 1 {
				return nil
			}
			for _, name := range []string{"group", "id", "offset", "from", "to", "filter", "filter-key", "all", "after"} {
				if cmd.Flags().Changed(name) {
					return fmt.Errorf("--%s goes with a TOPIC", name)
				}
			}
			return nil
		},
	}
	format := formatFlag(cmd, listFormats)
	c.register(cmd)
	cmd.Flags().IntVar(&limit, "limit", defaultLimit, "show at most so many")
	r.register(cmd)
	cmd.ValidArgsFunction = completeDeadLetters(&r, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var q admin.DeadLetterQuery
		if len(args) == 1 {
			var err error
			if q, err = c.query(cmd, args[0]); err != nil {
				return usageError{err}
			}
		}
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		p := &paging{limit: limit}
		out := results(cmd)
		if len(args) == 0 {
			return output.List(out, format.Format, out.Color, deadLetterTopicColumns(time.Now()), listDeadLetterTopics(cmd, &r, adm, p))
		}
		return output.List(out, format.Format, out.Color, deadLetterColumns(time.Now(), c.all), listDeadLetters(cmd, &r, adm, p, q))
	}
	return cmd
}

// listed is a listing that may end in an error.
type listed[T any] = func(yield func(T, error) bool)

func listDeadLetterTopics(cmd *cobra.Command, r *reach, adm *client.Admin, p *paging) listed[client.DeadLetterTopic] {
	more := func(client.DeadLetterTopic) {
		fmt.Fprintln(cmd.ErrOrStderr(), "There are more topics: a higher --limit shows them.")
	}
	return listed[client.DeadLetterTopic](pages(p, more, func(last *client.DeadLetterTopic, limit int) ([]client.DeadLetterTopic, error) {
		after := ""
		if last != nil {
			after = last.DLQ
		}
		return ask(cmd.Context(), r, func(ctx context.Context) ([]client.DeadLetterTopic, error) {
			return adm.DeadLetterTopics(ctx, after, limit)
		})
	}))
}

func listDeadLetters(cmd *cobra.Command, r *reach, adm *client.Admin, p *paging, q admin.DeadLetterQuery) listed[admin.DeadLetter] {
	more := func(last admin.DeadLetter) {
		fmt.Fprintf(cmd.ErrOrStderr(), "There are more dead letters: a higher --limit shows them, --after %d the next.\n", last.Offset)
	}
	return listed[admin.DeadLetter](pages(p, more, func(last *admin.DeadLetter, limit int) ([]admin.DeadLetter, error) {
		if last != nil {
			q.After = last.Offset
		}
		q.Limit = limit
		return ask(cmd.Context(), r, func(ctx context.Context) (page []admin.DeadLetter, err error) {
			err = adm.DeadLetters(ctx, q, func(d *admin.DeadLetter) error {
				page = append(page, *d)
				return nil
			})
			return page, err
		})
	}))
}

func deadLetterTopicColumns(now time.Time) []output.Column[client.DeadLetterTopic] {
	return []output.Column[client.DeadLetterTopic]{
		{Name: "TOPIC", Cell: func(t client.DeadLetterTopic) string { return t.Topic }},
		{Name: "OPEN", Right: true, Cell: func(t client.DeadLetterTopic) string { return output.Count(t.Open) }},
		{Name: "REDRIVEN", Right: true, Cell: func(t client.DeadLetterTopic) string { return output.Count(t.Redriven) }},
		{Name: "DONE", Right: true, Cell: func(t client.DeadLetterTopic) string { return output.Count(t.Done) }},
		{Name: "REQUEUED", Right: true, Cell: func(t client.DeadLetterTopic) string { return output.Count(t.Requeued) }},
		{Name: "OLDEST", Dim: true, Cell: func(t client.DeadLetterTopic) string { return output.Ago(now, t.FirstTS) }},
		{Name: "NEWEST", Cell: func(t client.DeadLetterTopic) string { return output.Ago(now, t.HeadTS) }},
	}
}

func deadLetterColumns(now time.Time, marks bool) []output.Column[admin.DeadLetter] {
	columns := []output.Column[admin.DeadLetter]{
		{Name: "OFFSET", Right: true, Cell: func(d admin.DeadLetter) string { return strconv.FormatUint(d.Offset, 10) }},
		{Name: "GROUP", Cell: func(d admin.DeadLetter) string { return d.Group }},
		{Name: "EVENT", Right: true, Cell: func(d admin.DeadLetter) string { return strconv.FormatUint(d.Event, 10) }},
		{Name: "KEY", Cell: func(d admin.DeadLetter) string { return orDash(d.Key) }},
		{Name: "ATTEMPTS", Right: true, Cell: func(d admin.DeadLetter) string { return strconv.Itoa(d.Attempts) }},
		{Name: "REDRIVEN", Right: true, Cell: func(d admin.DeadLetter) string { return strconv.Itoa(d.Redriven) }},
		{Name: "WHEN", Dim: true, Cell: func(d admin.DeadLetter) string { return output.Ago(now, d.TS) }},
	}
	if marks {
		columns = append(columns, output.Column[admin.DeadLetter]{Name: "STATE", Cell: func(d admin.DeadLetter) string { return d.State }})
		columns = append(columns, output.Column[admin.DeadLetter]{Name: "LAST MARK", Cell: func(d admin.DeadLetter) string {
			if len(d.Marks) == 0 {
				return "-"
			}
			last := &d.Marks[len(d.Marks)-1]
			return markText(last) + " " + output.Ago(now, last.TS)
		}})
	}
	return append(columns, output.Column[admin.DeadLetter]{Name: "REASON", Cell: func(d admin.DeadLetter) string { return orDash(d.Reason) }})
}

// orDash writes what an event says, "-" where that is nothing.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return output.Safe(text)
}

// markText says what was done about a dead letter.
func markText(m *admin.RedriveMark) string {
	if m.RequeuedAs != "" {
		return "requeued as " + m.RequeuedAs
	}
	return "redriven"
}

// stateMeanings say what a state means.
var stateMeanings = map[string]string{
	admin.LetterOpen:     " (nothing was done about it)",
	admin.LetterRedriven: " (its group has the event again and is not done with it)",
	admin.LetterDone:     " (its last redrive is over)",
	admin.LetterRequeued: " (published again as another event)",
}

func dlqShowCommand() *cobra.Command {
	var r reach
	cmd := &cobra.Command{
		Use:   "show TOPIC OFFSET|ID",
		Short: "Show a dead letter, what was done about it, and the original event",
		Long: `Shows a dead letter, what was done about it, the attempts that failed, and the original
event. OFFSET is that of the dead letter, the first column of 'eventhub dlq ls TOPIC', and
not that of the event.`,
		Args: words("TOPIC", "OFFSET"),
	}
	format := formatFlag(cmd, listFormats)
	r.register(cmd)
	cmd.ValidArgsFunction = completeDeadLetters(&r, true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d, err := fetchDeadLetter(cmd, &r, args)
		if err != nil {
			return err
		}
		out := results(cmd)
		return output.Document(out, format.Format, d.JSON, func(w io.Writer) error { return describeDeadLetter(w, out.Color, d) })
	}
	return cmd
}

// fetchDeadLetter returns the dead letter that TOPIC and OFFSET name.
func fetchDeadLetter(cmd *cobra.Command, r *reach, args []string) (*client.WholeDeadLetter, error) {
	err := eventhub.ValidateStoredTopic(args[0])
	if err == nil {
		err = eventhub.ValidateID(args[1])
	}
	if err != nil {
		return nil, usageError{errors.New(eventhub.AsError(err).Message)}
	}
	adm, err := r.admin(cmd)
	if err != nil {
		return nil, err
	}
	defer adm.Close()
	return ask(cmd.Context(), r, func(ctx context.Context) (*client.WholeDeadLetter, error) {
		return adm.DeadLetter(ctx, args[0], args[1])
	})
}

func describeDeadLetter(w io.Writer, color bool, d *client.WholeDeadLetter) error {
	now := time.Now()
	fields := []output.Field{
		{Name: "Dead letter", Value: fmt.Sprintf("offset %d of %s, id %s", d.Offset, eventhub.DeadLetterTopic(d.Topic), d.ID)},
		{Name: "State", Value: d.State + stateMeanings[d.State]},
		{Name: "Given up", Value: moment(now, d.TS)},
		{Name: "Group", Value: d.Group},
		{Name: "Event", Value: fmt.Sprintf("offset %d of %s, id %s", d.Event, d.Topic, d.EventID)},
		{Name: "Attempts", Value: strconv.Itoa(d.Attempts)},
		{Name: "Redriven", Value: output.Things(d.Redriven, "time") + " before"},
		{Name: "Reason", Value: orDash(d.Reason)},
	}
	if err := output.Fields(w, color, fields); err != nil {
		return err
	}
	if len(d.Marks) > 0 {
		if err := section(w, color, "What was done about it", markColumns(now), d.Marks); err != nil {
			return err
		}
	}
	if len(d.History) > 0 {
		var attempts []ended
		for _, a := range d.History {
			attempts = append(attempts, ended{d.Group, a})
		}
		if err := section(w, color, "Attempts that came to nothing", attemptColumns(), attempts); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(w, "\nThe event\n"); err != nil {
		return err
	}
	return describeEvent(w, color, d.Original)
}

func markColumns(now time.Time) []output.Column[admin.RedriveMark] {
	return []output.Column[admin.RedriveMark]{
		{Name: "WHEN", Cell: func(m admin.RedriveMark) string { return moment(now, m.TS) }},
		{Name: "WHAT", Cell: func(m admin.RedriveMark) string { return markText(&m) }},
		{Name: "BY", Cell: func(m admin.RedriveMark) string { return orDash(m.By) }},
	}
}

// completeDeadLetters completes TOPIC with those that have dead letters, and, where a
// command takes one, OFFSET with those that are open.
func completeDeadLetters(r *reach, offsets bool) cobra.CompletionFunc {
	return complete(r, func(ctx context.Context, adm *client.Admin, args []string) (names []string) {
		switch {
		case len(args) == 0:
			found, _ := adm.DeadLetterTopics(ctx, "", admin.MaxPage) // what there is
			for _, t := range found {
				names = append(names, t.Topic)
			}
		case offsets && len(args) == 1:
			_ = adm.DeadLetters(ctx, admin.DeadLetterQuery{Topic: args[0], Limit: admin.MaxPage}, func(d *admin.DeadLetter) error {
				names = append(names, strconv.FormatUint(d.Offset, 10))
				return nil
			})
		}
		return names
	})
}
