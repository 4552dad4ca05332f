package main

import (
	"bufio"
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
)

func groupCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "group", Short: "List, describe, move, pause and remove consumer groups"}
	cmd.AddCommand(groupListCommand(), groupInfoCommand(), groupPatternsCommand(), groupSeekCommand(), groupPauseCommand(), groupResumeCommand(), groupRemoveCommand())
	return cmd
}

func groupListCommand() *cobra.Command {
	var r reach
	var p paging
	var q admin.GroupQuery
	var after string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List groups by topic and name, with their lag and what blocks them",
		Args:    words(),
	}
	format := formatFlag(cmd, listFormats)
	cmd.Flags().StringVar(&q.Topic, "topic", "", "only those in this topic")
	cmd.Flags().StringVar(&q.Group, "group", "", "only those with this name")
	cmd.Flags().StringVar(&after, "after", "", "only those after this place, TOPIC/GROUP")
	p.register(cmd)
	r.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := p.check(); err != nil {
			return err
		}
		if after != "" {
			var ok bool
			if q.AfterTopic, q.AfterGroup, ok = strings.Cut(after, "/"); !ok {
				return usageError{fmt.Errorf("--after %q is not TOPIC/GROUP", after)}
			}
		}
		return paged[admin.GroupInfo]{&p,
			func(last admin.GroupInfo) string {
				return fmt.Sprintf("There are more groups: --all shows all, --after %s/%s the next.", last.Topic, last.Group)
			},
			func(ctx context.Context, adm *client.Admin, last *admin.GroupInfo, limit int) ([]admin.GroupInfo, error) {
				if last != nil {
					q.AfterTopic, q.AfterGroup = last.Topic, last.Group
				}
				q.Limit = limit
				return adm.Groups(ctx, q)
			},
		}.list(cmd, &r, format, groupColumns)
	}
	return cmd
}

func groupColumns(now time.Time) []output.Column[admin.GroupInfo] {
	return []output.Column[admin.GroupInfo]{
		{Name: "TOPIC", Cell: func(g admin.GroupInfo) string { return g.Topic }},
		{Name: "GROUP", Cell: func(g admin.GroupInfo) string { return g.Group }},
		{Name: "CURSOR", Right: true, Cell: func(g admin.GroupInfo) string { return strconv.FormatUint(g.Cursor, 10) }},
		{Name: "HEAD", Right: true, Cell: func(g admin.GroupInfo) string { return strconv.FormatUint(g.Head, 10) }},
		{Name: "LAG", Right: true, Cell: func(g admin.GroupInfo) string { return output.Count(g.Lag) }},
		{Name: "IN FLIGHT", Right: true, Cell: func(g admin.GroupInfo) string { return output.Count(g.InFlight) }},
		{Name: "WAITING", Right: true, Cell: func(g admin.GroupInfo) string { return output.Count(g.Waiting) }},
		{Name: "MEMBERS", Right: true, Cell: func(g admin.GroupInfo) string { return strconv.Itoa(len(g.Members)) }},
		{Name: "BLOCKED BY", Cell: func(g admin.GroupInfo) string {
			if g.BlockedBy == nil {
				return "-"
			}
			return strings.ReplaceAll(g.BlockedBy.Kind, "_", " ")
		}},
		{Name: "OLDEST NOT DONE", Dim: true, Cell: func(g admin.GroupInfo) string { return output.Ago(now, g.OldestTS) }},
	}
}

// groupDocument is what `group info` prints as JSON.
type groupDocument struct {
	admin.GroupInfo
	Events []admin.InFlight `json:"in_flight_events"`
}

func groupInfoCommand() *cobra.Command {
	var r reach
	var limit int
	cmd := &cobra.Command{
		Use:   "info TOPIC GROUP",
		Short: "Describe a group: settings, lag, members, events in flight",
		Args:  words("TOPIC", "GROUP"),
	}
	format := formatFlag(cmd, listFormats)
	cmd.Flags().IntVar(&limit, "limit", 20, fmt.Sprintf("show at most so many events in flight, 1 to %d", admin.MaxPage))
	r.register(cmd)
	cmd.ValidArgsFunction = completeNames(&r, false, true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if limit < 1 || limit > admin.MaxPage {
			return usageError{fmt.Errorf("--limit is %d; 1 to %d are allowed", limit, admin.MaxPage)}
		}
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		var doc groupDocument
		ctx := cmd.Context()
		doc.GroupInfo, err = ask(ctx, &r, func(ctx context.Context) (admin.GroupInfo, error) { return adm.Group(ctx, args[0], args[1]) })
		if err == nil {
			doc.Events, err = ask(ctx, &r, func(ctx context.Context) ([]admin.InFlight, error) {
				return adm.InFlight(ctx, args[0], args[1], limit)
			})
		}
		if err != nil {
			return err
		}
		out := results(cmd)
		return output.Document(out, format.Format, doc, func(w io.Writer) error { return describeGroup(w, out.Color, &doc, limit) })
	}
	return cmd
}

func describeGroup(w io.Writer, color bool, doc *groupDocument, limit int) error {
	g, now := &doc.GroupInfo, time.Now()
	lag := output.Things(g.Lag, "event")
	if ms, ok := g.LagMS(); ok && g.Lag > 0 {
		lag += ", " + output.Span(time.Duration(ms)*time.Millisecond) + " of commit time"
	}
	cursor := strconv.FormatUint(g.Cursor, 10)
	if g.LastID != "" {
		cursor += fmt.Sprintf(", %s, id %s", moment(now, g.LastTS), g.LastID)
	}
	fields := []output.Field{
		{Name: "Group", Value: g.Group},
		{Name: "Topic", Value: g.Topic},
		{Name: "Cursor", Value: cursor},
		{Name: "Head", Value: strconv.FormatUint(g.Head, 10)},
		{Name: "Lag", Value: lag},
		{Name: "Oldest not done", Value: moment(now, g.OldestTS)},
		{Name: "Blocked by", Value: blocked(now, g)},
		{Name: "In flight", Value: inFlight(g)},
		{Name: "Epoch", Value: strconv.FormatUint(g.Epoch, 10)},
		{Name: "Ordering", Value: g.Ordering},
		{Name: "Attempts", Value: fmt.Sprintf("at most %d, then the dead-letter topic", g.MaxAttempts)},
		{Name: "Backoff", Value: backoff(g.MinBackoffMS, g.MaxBackoffMS)},
		{Name: "Filter", Value: filterText(g.Filter)},
	}
	if g.Idle != nil {
		fields = append(fields, output.Field{Name: "Idle", Value: idleText(now, g.Idle)})
	}
	err := output.Fields(w, color, fields)
	if err == nil && len(g.Members) > 0 {
		err = section(w, color, output.Things(len(g.Members), "member"), memberColumns(now), g.Members)
	}
	if err == nil && len(doc.Events) > 0 {
		title := "Events in flight"
		if all := g.InFlight + g.Waiting + g.Held; len(doc.Events) == limit && all > limit {
			title += fmt.Sprintf(" (the first %d of %s; --limit shows more)", limit, output.Count(all))
		}
		err = section(w, color, title, inFlightColumns(now), doc.Events)
	}
	return err
}

// idleText says for how long nobody has used a group, and when it ends.
func idleText(now time.Time, idle *admin.GroupIdle) string {
	text := fmt.Sprintf("no; it ends after %s in which nobody uses it", idle.Expiry)
	switch {
	case idle.EndsTS != 0:
		text = fmt.Sprintf("for %s of %s; it ends %s at the earliest", output.Span(time.Duration(idle.IdleMS)*time.Millisecond), idle.Expiry, moment(now, idle.EndsTS))
	case idle.IdleMS != 0:
		text = fmt.Sprintf("for %s of %s; the hub ends nothing now", output.Span(time.Duration(idle.IdleMS)*time.Millisecond), idle.Expiry)
	}
	if len(idle.Patterns) > 0 {
		text += ", with its pattern " + strings.Join(idle.Patterns, " or ")
	}
	return text
}

// blocked says what keeps events of a group back, and what is in the way.
func blocked(now time.Time, g *admin.GroupInfo) string {
	b := g.BlockedBy
	if b == nil {
		return "-"
	}
	switch b.Kind {
	case "paused":
		return "paused: nothing is delivered until 'eventhub group resume " + g.Topic + " " + g.Group + "'"
	case "filter":
		return "the hub does not accept the filter of the group any more (" + output.Safe(b.Reason) + "): remove the group and make it anew"
	case "no_members":
		return "nobody is subscribed"
	case "members_paused":
		return "all members have paused"
	case "members_full":
		return "every member holds as many events as it takes"
	case "window":
		return fmt.Sprintf("as far ahead of the cursor as it may be, which waits for offset %d, %s", b.Offset, holding(now, b))
	case "key":
		return fmt.Sprintf("waits for offset %d of key %s, %s", b.Offset, output.Safe(b.Key), holding(now, b))
	}
	return output.Safe(b.Kind)
}

// holding says who or what has the event that is in the way.
func holding(now time.Time, b *admin.Blocked) string {
	switch {
	case b.Member != nil && b.SinceTS != 0:
		return "held by " + peer(b.Member) + " for " + output.Span(max(0, now.Sub(time.UnixMilli(b.SinceTS))))
	case b.Member != nil:
		return "held by " + peer(b.Member)
	case b.State == "waiting":
		return "which waits for another attempt"
	}
	return strings.ReplaceAll(b.State, "_", " ")
}

// inFlight counts what is between the cursor and done.
func inFlight(g *admin.GroupInfo) string {
	text := fmt.Sprintf("%s, and %s for another attempt", output.Count(g.InFlight), waits(g.Waiting))
	if g.Held > 0 {
		text += ", " + output.Count(g.Held) + " held until an earlier one of their key is done"
	}
	if g.Redriven > 0 {
		text += "; " + output.Count(g.Redriven) + " of them redriven"
	}
	return text
}

func waits(n int) string {
	if n == 1 {
		return "1 waits"
	}
	return output.Count(n) + " wait"
}

func memberColumns(now time.Time) []output.Column[admin.MemberInfo] {
	return []output.Column[admin.MemberInfo]{
		{Name: "MEMBER", Cell: func(m admin.MemberInfo) string { return peer(&m.Peer) }},
		{Name: "IN FLIGHT", Right: true, Cell: func(m admin.MemberInfo) string { return output.Count(m.InFlight) }},
		{Name: "AT MOST", Right: true, Cell: func(m admin.MemberInfo) string { return output.Count(m.MaxInFlight) }},
		{Name: "SINCE", Dim: true, Cell: func(m admin.MemberInfo) string { return output.Ago(now, m.SinceTS) }},
	}
}

func inFlightColumns(now time.Time) []output.Column[admin.InFlight] {
	return []output.Column[admin.InFlight]{
		{Name: "OFFSET", Right: true, Cell: func(e admin.InFlight) string { return strconv.FormatUint(e.Offset, 10) }},
		{Name: "ID", Cell: func(e admin.InFlight) string { return e.ID }},
		{Name: "STATE", Cell: func(e admin.InFlight) string { return e.State }},
		{Name: "ATTEMPTS", Right: true, Cell: func(e admin.InFlight) string { return strconv.Itoa(e.Attempt) }},
		{Name: "WHEN", Cell: func(e admin.InFlight) string { return inFlightWhen(now, &e) }},
		{Name: "MEMBER", Cell: func(e admin.InFlight) string { return peer(e.Member) }},
		{Name: "LAST FAILURE", Cell: lastFailure},
	}
}

// inFlightWhen says when the state of an event changes by itself.
func inFlightWhen(now time.Time, e *admin.InFlight) string {
	switch {
	case e.Deadline != 0:
		return "lease ends " + output.Ago(now, e.Deadline)
	case e.DueTS != 0:
		return "due " + output.Ago(now, e.DueTS)
	}
	return "-"
}

// lastFailure says how the attempt before this one ended.
func lastFailure(e admin.InFlight) string {
	if len(e.History) == 0 {
		return "-"
	}
	last := &e.History[len(e.History)-1]
	if last.Reason == "" {
		return last.Why
	}
	return last.Why + ": " + output.Safe(last.Reason)
}

func peer(p *eventhub.Peer) string {
	if p == nil {
		return "-"
	}
	text := strings.TrimSpace(p.Transport + " " + p.Name)
	if text == "" {
		return "in process"
	}
	if p.Client != "" {
		text = p.Client + " (" + text + ")"
	}
	return output.Safe(text)
}

func groupRemoveCommand() *cobra.Command {
	var r reach
	var yes bool
	cmd := &cobra.Command{
		Use:   "rm TOPIC|PATTERN GROUP",
		Short: "Remove a group for good",
		Long: `Removes a group: its cursor is forgotten, its members are notified, and what they hold is
void. The events stay. On a terminal it asks before; elsewhere --yes is needed.

PATTERN is one that the group was subscribed by (quote it): the group loses it, and is
removed from every topic that no other pattern of it matches.`,
		Example: `  eventhub group rm orders billing
  eventhub group rm 'process.**' audit --yes`,
		Args: words("TOPIC", "GROUP"),
	}
	yesFlag(cmd, &yes)
	r.register(cmd)
	cmd.ValidArgsFunction = completeRemovable(&r)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		asks := output.IsTerminal(cmd.InOrStdin())
		if !yes && !asks {
			return usageError{errors.New("nobody can be asked here; --yes removes the group without asking")}
		}
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		if !yes {
			question, err := describeRemoval(cmd.Context(), &r, adm, args[0], args[1])
			if err != nil {
				return err
			}
			if !confirm(cmd, question) {
				return errors.New("nothing was removed")
			}
		}
		_, err = ask(cmd.Context(), &r, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, adm.DeleteGroup(ctx, args[0], args[1])
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(results(cmd), "removed group %s of %s\n", args[1], args[0])
		return err
	}
	return cmd
}

// confirm asks a question. Anything but a yes is a no, as is Ctrl-C.
func confirm(cmd *cobra.Command, question string) bool {
	fmt.Fprint(cmd.ErrOrStderr(), question, " [y/N] ")
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n') // what came before an error counts
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case said := <-answer:
		return said == "y" || said == "yes"
	case <-cmd.Context().Done():
		return false
	}
}
