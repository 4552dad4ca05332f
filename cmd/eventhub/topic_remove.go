package main

import (
	"context"
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
	"eventhub/internal/when"
)

// trimForms says what --before takes.
const trimForms = "an offset, id:ID, a time (2026-01-31T15:04:05Z) or a duration (7d, 1h30m)"

// trimPlace reads a place of --before.
func trimPlace(text string, now time.Time) (q admin.TrimQuery, err error) {
	if id, ok := strings.CutPrefix(text, "id:"); ok {
		if err := eventhub.ValidateID(id); err != nil {
			return q, fmt.Errorf("--before %q: %s", text, eventhub.AsError(err).Message)
		}
		return admin.TrimQuery{BeforeID: id}, nil
	}
	if n, err := strconv.ParseUint(strings.TrimPrefix(text, "offset:"), 10, 64); err == nil {
		if n == 0 || n > eventhub.MaxOffset {
			return q, fmt.Errorf("--before is offset %d; 1 to %d are allowed", n, uint64(eventhub.MaxOffset))
		}
		return admin.TrimQuery{Before: n}, nil
	}
	ms, err := when.Parse(text, now)
	if err != nil {
		return q, fmt.Errorf("--before is %.48q; %s is expected", text, trimForms)
	}
	return admin.TrimQuery{BeforeTS: ms}, nil
}

// yesAsApply takes --yes for --apply: it is what other commands that remove something have.
func yesAsApply(cmd *cobra.Command, apply *bool) {
	cmd.Flags().BoolVarP(apply, "yes", "y", false, "as --apply")
	_ = cmd.Flags().MarkHidden("yes") // the line above defines it
}

func topicTrimCommand() *cobra.Command {
	var r reach
	var before string
	var apply bool
	var q admin.TrimQuery
	cmd := &cobra.Command{
		Use:   "trim TOPIC {--before PLACE | --keep N}",
		Short: "Remove the events of a topic before a place",
		Long: `Says what removing the events before a place would mean, and with --apply removes them for
good. Which groups are not done with them is part of what it says: these never get them, and are
notified of what they miss. Offsets are not given again.

--before is the first event that is kept: ` + trimForms + `.`,
		Example: `  eventhub topic trim orders --before 7d
  eventhub topic trim orders --before 1200 --apply
  eventhub topic trim orders --keep 1000000 --apply`,
		Args: func(cmd *cobra.Command, args []string) (err error) {
			if err := words("TOPIC")(cmd, args); err != nil {
				return err
			}
			if cmd.Flags().Changed("keep") {
				if q.Keep == 0 {
					return errors.New("--keep is 0; at least 1 is needed; --before removes everything up to a place")
				}
				return nil
			}
			if before == "" {
				return errors.New("--before or --keep is missing: --before is " + trimForms)
			}
			q, err = trimPlace(before, time.Now())
			return err
		},
	}
	format := formatFlag(cmd, listFormats)
	cmd.Flags().StringVar(&before, "before", "", "the first event that is kept: an offset, id:ID, a time or a duration")
	cmd.Flags().Uint64Var(&q.Keep, "keep", 0, "how many of the newest events are kept")
	cmd.MarkFlagsMutuallyExclusive("before", "keep")
	applyFlag(cmd, &apply)
	yesAsApply(cmd, &apply)
	r.register(cmd)
	cmd.ValidArgsFunction = completeNames(&r, false, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		plan, err := ask(cmd.Context(), &r, func(ctx context.Context) (admin.TrimPlan, error) { return adm.Trim(ctx, args[0], q, apply) })
		if err != nil {
			return err
		}
		out := results(cmd)
		err = output.Document(out, format.Format, plan, func(w io.Writer) error { return describeTrim(w, out.Color, &plan) })
		if err == nil && !plan.Applied {
			fmt.Fprintln(cmd.ErrOrStderr(), "Nothing was changed. The same with --apply removes the events.")
		}
		return err
	}
	return cmd
}

func describeTrim(w io.Writer, color bool, p *admin.TrimPlan) error {
	removed, overtaken := "no", []string{}
	if p.Applied {
		removed = "yes"
	}
	for _, g := range p.Groups {
		overtaken = append(overtaken, fmt.Sprintf("%s (%s)", g.Group, output.Things(g.Events, "event")))
	}
	if len(overtaken) == 0 {
		overtaken = append(overtaken, "none")
	}
	return output.Fields(w, color, []output.Field{
		{Name: "Topic", Value: p.Topic},
		{Name: "First offset", Value: fmt.Sprintf("%d, to be %d", p.From, p.Horizon)},
		{Name: "Head", Value: strconv.FormatUint(p.Head, 10)},
		{Name: "Events", Value: fmt.Sprintf("%s, %s", output.Things(p.Events, "event"), byteSize(int64(p.Bytes)))},
		{Name: "Groups not done", Value: strings.Join(overtaken, ", ")},
		{Name: "Removed", Value: removed},
	})
}

func topicEraseCommand() *cobra.Command {
	var r reach
	var q admin.EraseQuery
	cmd := &cobra.Command{
		Use:   "erase TOPIC {--id ID | --offset N | --key KEY}",
		Short: "Remove an event, or all events of a key, for good",
		Long: `Says how many events would go, and with --apply removes them for good before their time:
the event of an id or at an offset, or all events of a key, with the dead letters that hold
them and what is scheduled. The offsets stay empty. The topic system.audit has who did it.

Copies elsewhere, as in backups and exports, are not touched. An interrupt ends it; the
same command again goes on.`,
		Example: `  eventhub topic erase orders --id 0199a1f9-731b-7d16-b8f6-fb271d31714f
  eventhub topic erase orders --offset 17 --apply
  eventhub topic erase customers --key customer-7 --apply`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := words("TOPIC")(cmd, args); err != nil {
				return err
			}
			if err := q.Validate(); err != nil {
				return errors.New(eventhub.AsError(err).Message)
			}
			return nil
		},
	}
	format := formatFlag(cmd, listFormats)
	flags := cmd.Flags()
	flags.StringVar(&q.ID, "id", "", "the event of this id")
	flags.Uint64Var(&q.Offset, "offset", 0, "the event at this offset")
	flags.StringVar(&q.Key, "key", "", "all events of this key")
	cmd.MarkFlagsMutuallyExclusive("id", "offset", "key")
	cmd.MarkFlagsOneRequired("id", "offset", "key")
	applyFlag(cmd, &q.Apply)
	yesAsApply(cmd, &q.Apply)
	r.register(cmd)
	cmd.ValidArgsFunction = completeNames(&r, false, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		result, err := eraseAll(cmd, &r, adm, args[0], q)
		if err != nil {
			return err
		}
		out := results(cmd)
		err = output.Document(out, format.Format, result, func(w io.Writer) error { return describeErasure(w, out.Color, &result) })
		if err == nil && !result.Applied {
			fmt.Fprintln(cmd.ErrOrStderr(), "Nothing was changed. The same with --apply erases them.")
		}
		return err
	}
	return cmd
}

// eraseAll erases in as many calls as it takes, and shows on a terminal how far it is.
func eraseAll(cmd *cobra.Command, r *reach, adm *client.Admin, topic string, q admin.EraseQuery) (all admin.EraseResult, err error) {
	shows := output.IsTerminal(cmd.ErrOrStderr())
	for {
		part, err := ask(cmd.Context(), r, func(ctx context.Context) (admin.EraseResult, error) { return adm.Erase(ctx, topic, q) })
		switch {
		case err != nil && all.Total() > 0 && eventhub.ErrorCode(err) == eventhub.CodeUnknownID:
			all.More = false // the call before has erased the last ones
			return all, nil
		case err != nil && all.Total() > 0:
			return all, fmt.Errorf("%w; %d were erased. The same command again goes on", err, all.Total())
		case err != nil:
			return all, err
		}
		all.Add(part)
		if !q.Apply || !part.More {
			return all, nil
		}
		if shows {
			fmt.Fprintf(cmd.ErrOrStderr(), "\rerased %s", output.Count(all.Total()))
		}
	}
}

func describeErasure(w io.Writer, color bool, e *admin.EraseResult) error {
	erased := "no"
	if e.Applied {
		erased = "yes"
	}
	more := ""
	if e.More {
		more = " at least"
	}
	return output.Fields(w, color, []output.Field{
		{Name: "Topic", Value: e.Topic},
		{Name: "Events", Value: output.Count(e.Events) + more},
		{Name: "Dead letters", Value: output.Count(e.DeadLetters) + more},
		{Name: "Scheduled", Value: output.Count(e.Scheduled) + more},
		{Name: "Snapshots", Value: output.Count(e.Snapshots)},
		{Name: "Erased", Value: erased},
	})
}

// planSettings prints what settings would remove.
func planSettings(cmd *cobra.Command, r *reach, adm *client.Admin, format output.Format, name string, settings admin.TopicSettings) error {
	plan, err := ask(cmd.Context(), r, func(ctx context.Context) (admin.SettingsPlan, error) {
		return adm.PlanSettings(ctx, name, settings)
	})
	if err != nil {
		return err
	}
	out := results(cmd)
	err = output.Document(out, format, plan, func(w io.Writer) error {
		fields := []output.Field{
			{Name: "Name", Value: plan.Name},
			{Name: "Topics", Value: output.Things(plan.Matched, "topic") + " now"},
			{Name: "Would remove", Value: fmt.Sprintf("%s, %s", output.Things(plan.Events, "event"), byteSize(int64(plan.Bytes)))},
		}
		if settings.Compaction != nil {
			fields = append(fields, output.Field{Name: "Compaction", Value: "removes more, which is not counted"})
		}
		for _, t := range plan.Topics {
			fields = append(fields, output.Field{Name: "  of " + t.Topic, Value: fmt.Sprintf("%s, %s; the first offset would be %d",
				output.Things(t.Events, "event"), byteSize(int64(t.Bytes)), t.Horizon)})
		}
		if settings.GroupIdleExpiry != 0 {
			fields = append(fields, output.Field{Name: "Would end", Value: output.Things(plan.Ends, "group")})
		}
		for _, g := range plan.Groups {
			text := fmt.Sprintf("of %s, idle for %s, cursor %d", g.Topic, output.Span(time.Duration(g.IdleMS)*time.Millisecond), g.Cursor)
			if g.Pattern != "" {
				text += ", with its pattern " + g.Pattern
			}
			fields = append(fields, output.Field{Name: "  " + g.Group, Value: text})
		}
		return output.Fields(w, out.Color, fields)
	})
	if err == nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "Nothing was changed. The same without --dry-run sets it.")
	}
	return err
}

// keptText says how much a topic keeps.
func keptText(t *admin.TopicInfo) string {
	least := ""
	if t.Kept.AtLeast {
		least = "at least "
	}
	ids := "are forgotten with them"
	if t.Kept.IDsKeptMS > 0 {
		ids = "are remembered for " + output.Span(time.Duration(t.Kept.IDsKeptMS)*time.Millisecond)
	}
	return fmt.Sprintf("%s%s, %s, from offset %d on; ids of removed events %s", least, output.Things(t.Kept.Events, "event"),
		byteSize(int64(t.Kept.Bytes)), t.Horizon, ids)
}

// removalText says what the settings of a topic have removed.
func removalText(now time.Time, r *admin.TopicRemoval) string {
	what := fmt.Sprintf("%s, %s, since the hub started", output.Things(r.Events, "event"), byteSize(int64(r.Bytes)))
	switch r.State {
	case "counting":
		return what + "; the topic is being counted"
	case "off":
		return what + "; maintenance is off"
	}
	if r.LastTS == 0 {
		return what
	}
	return what + "; last pass " + output.Ago(now, r.LastTS)
}

// indexText says how far the index by key of a topic is.
func indexText(i *admin.TopicIndex) string {
	switch {
	case i.State == admin.IndexNone:
		return "none; the first question about the state begins it"
	case i.State == admin.IndexBuilding && i.Total > 0:
		return fmt.Sprintf("building: %d %% of %d offsets", i.Done*100/i.Total, i.Total)
	}
	return i.State
}

// compactionFields say how far a topic is compacted, what that has removed, and what holds the rest.
func compactionFields(now time.Time, c *admin.TopicCompaction) []output.Field {
	what := fmt.Sprintf("up to offset %d; %s, %s, removed since the hub started", c.Compacted, output.Things(c.Events, "event"), byteSize(int64(c.Bytes)))
	switch {
	case c.State == "off":
		what += "; compaction is off"
	case c.State == "running":
		what += "; a pass is under way"
	case c.LastTS != 0:
		what += "; last pass " + output.Ago(now, c.LastTS)
	}
	fields := []output.Field{{Name: "Compacted", Value: what}}
	switch c.HeldBy {
	case "min_age":
		fields = append(fields, output.Field{Name: "Held", Value: fmt.Sprintf("from offset %d on, which is too young until %s", c.HeldFrom, output.Time(c.HeldUntilTS))})
	case "group":
		fields = append(fields, output.Field{Name: "Held", Value: fmt.Sprintf("from offset %d on, with which group %s is not done; until %s at most", c.HeldFrom, c.HeldGroup, output.Time(c.HeldUntilTS))})
	}
	return fields
}
