package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
)

func groupPatternsCommand() *cobra.Command {
	var r reach
	cmd := &cobra.Command{
		Use:   "patterns [GROUP]",
		Short: "List the patterns of groups",
		Long: `Lists the patterns of groups. Topics that are created later and match one get the group,
with the settings that the pattern has. LIMITED is yes where the rights of those who
subscribed leave some topics out. 'eventhub group rm PATTERN GROUP' removes one.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("%q is too much; wanted: [GROUP]", args[1])
			}
			return nil
		},
	}
	format := formatFlag(cmd, listFormats)
	r.register(cmd)
	cmd.ValidArgsFunction = completePatternedGroups(&r)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		group := ""
		if len(args) == 1 {
			group = args[0]
			if err := eventhub.ValidateGroup(group); err != nil {
				return usageError{fmt.Errorf("GROUP: %s", eventhub.AsError(err).Message)}
			}
		}
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		found, err := patternsOf(cmd.Context(), &r, adm, group)
		if err != nil {
			return err
		}
		out := results(cmd)
		return output.List(out, format.Format, out.Color, patternColumns(), each(found))
	}
	return cmd
}

// patternsOf asks for the patterns of a group, or of all where it has no name.
func patternsOf(ctx context.Context, r *reach, adm *client.Admin, group string) ([]admin.GroupPattern, error) {
	return ask(ctx, r, func(ctx context.Context) ([]admin.GroupPattern, error) { return adm.Patterns(ctx, group) })
}

func patternColumns() []output.Column[admin.GroupPattern] {
	return []output.Column[admin.GroupPattern]{
		{Name: "GROUP", Cell: func(p admin.GroupPattern) string { return p.Group }},
		{Name: "PATTERN", Cell: func(p admin.GroupPattern) string { return p.Pattern }},
		{Name: "TOPICS", Right: true, Cell: func(p admin.GroupPattern) string { return output.Count(p.Topics) }},
		{Name: "LIMITED", Cell: func(p admin.GroupPattern) string {
			if p.Limited {
				return "yes"
			}
			return "-"
		}},
		{Name: "ORDERING", Cell: func(p admin.GroupPattern) string { return p.Ordering }},
		{Name: "ATTEMPTS", Right: true, Cell: func(p admin.GroupPattern) string { return strconv.Itoa(p.MaxAttempts) }},
		{Name: "BACKOFF", Cell: func(p admin.GroupPattern) string { return backoff(p.MinBackoffMS, p.MaxBackoffMS) }},
		{Name: "FILTER", Cell: func(p admin.GroupPattern) string { return filterText(p.Filter) }},
	}
}

func backoff(minMS, maxMS int64) string {
	return fmt.Sprintf("%s to %s", time.Duration(minMS)*time.Millisecond, time.Duration(maxMS)*time.Millisecond)
}

// filterText shows a filter as JSON.
func filterText(f *eventhub.Filter) string {
	if f.IsZero() {
		return "-"
	}
	return output.Safe(f.String())
}

// describeRemoval says what removing a group means, in the words of a question.
func describeRemoval(ctx context.Context, r *reach, adm *client.Admin, topic, group string) (string, error) {
	if !eventhub.IsPattern(topic) {
		g, err := ask(ctx, r, func(ctx context.Context) (admin.GroupInfo, error) { return adm.Group(ctx, topic, group) })
		return fmt.Sprintf("Group %s of %s is at offset %d, %s behind, with %s. Remove it for good?",
			g.Group, g.Topic, g.Cursor, output.Things(g.Lag, "event"), output.Things(len(g.Members), "member")), err
	}
	found, err := patternsOf(ctx, r, adm, group)
	if err != nil {
		return "", err
	}
	for _, p := range found {
		if p.Pattern == topic {
			return fmt.Sprintf("Group %s has the pattern %s, with %s. Remove it there for good?",
				p.Group, p.Pattern, output.Things(p.Topics, "topic")), nil
		}
	}
	return "", eventhub.Errorf(eventhub.CodeNotSubscribed, "group %q has no pattern %q", group, topic)
}
