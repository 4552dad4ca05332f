package main

import (
	"context"
	"fmt"
	"io"
	"iter"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"eventhub/admin"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
	"eventhub/internal/listing"
)

// defaultLimit is how much a listing shows of what may be much more.
const defaultLimit = 100

func topicCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "topic", Short: "List and describe topics, set what they keep, remove events"}
	cmd.AddCommand(topicListCommand(), topicInfoCommand(), topicSetCommand(), topicShowCommand(), topicSettingsCommand(),
		topicUnsetCommand(), topicTrimCommand(), topicEraseCommand(), topicRemoveCommand())
	return cmd
}

// paging is how much of a listing is wanted.
type paging struct {
	limit int
	all   bool
}

func (p *paging) register(cmd *cobra.Command) {
	cmd.Flags().IntVar(&p.limit, "limit", defaultLimit, "show at most so many")
	cmd.Flags().BoolVar(&p.all, "all", false, "show all there are")
	cmd.MarkFlagsMutuallyExclusive("limit", "all")
}

func (p *paging) check() error {
	if p.limit < 1 {
		return usageError{fmt.Errorf("--limit is %d; at least 1 is needed", p.limit)}
	}
	return nil
}

// pages walks through a listing, page by page. more is called after the last
// value, when the limit has kept something back.
func pages[T any](p *paging, more func(last T), page func(after *T, limit int) ([]T, error)) iter.Seq2[T, error] {
	size := admin.MaxPage
	if !p.all {
		size = min(size, p.limit+1) // one more says whether there are more
	}
	return func(yield func(T, error) bool) {
		var last T
		shown := 0
		for value, err := range listing.All(size, func(after *T) ([]T, error) { return page(after, size) }) {
			if err == nil && !p.all && shown == p.limit {
				more(last)
				return
			}
			if !yield(value, err) {
				return
			}
			last = value
			shown++
		}
	}
}

// paged is what a command lists page by page.
type paged[T any] struct {
	p    *paging
	more func(last T) string // how to go on after the last that was shown
	page func(ctx context.Context, adm *client.Admin, last *T, limit int) ([]T, error)
}

// list prints what there is in these columns.
func (l paged[T]) list(cmd *cobra.Command, r *reach, format *output.Choice, columns func(now time.Time) []output.Column[T]) error {
	adm, err := r.admin(cmd)
	if err != nil {
		return err
	}
	defer adm.Close()
	more := func(last T) { fmt.Fprintln(cmd.ErrOrStderr(), l.more(last)) }
	entries := pages(l.p, more, func(last *T, limit int) ([]T, error) {
		return ask(cmd.Context(), r, func(ctx context.Context) ([]T, error) { return l.page(ctx, adm, last, limit) })
	})
	out := results(cmd)
	return output.List(out, format.Format, out.Color, columns(time.Now()), entries)
}

func topicListCommand() *cobra.Command {
	var r reach
	var p paging
	var after string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List topics by name",
		Args:    words(),
	}
	format := formatFlag(cmd, listFormats)
	cmd.Flags().StringVar(&after, "after", "", "only those with a name after this one")
	p.register(cmd)
	r.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := p.check(); err != nil {
			return err
		}
		return paged[admin.TopicInfo]{&p,
			func(last admin.TopicInfo) string {
				return fmt.Sprintf("There are more topics: --all shows all, --after %s the next.", last.Topic)
			},
			func(ctx context.Context, adm *client.Admin, last *admin.TopicInfo, limit int) ([]admin.TopicInfo, error) {
				if last != nil {
					after = last.Topic
				}
				return adm.Topics(ctx, after, limit)
			},
		}.list(cmd, &r, format, topicColumns)
	}
	return cmd
}

func topicColumns(now time.Time) []output.Column[admin.TopicInfo] {
	return []output.Column[admin.TopicInfo]{
		{Name: "TOPIC", Cell: func(t admin.TopicInfo) string { return t.Topic }},
		{Name: "FIRST", Right: true, Cell: func(t admin.TopicInfo) string { return offsetCell(t.FirstOffset) }},
		{Name: "HEAD", Right: true, Cell: func(t admin.TopicInfo) string { return offsetCell(t.Head) }},
		{Name: "GROUPS", Right: true, Cell: func(t admin.TopicInfo) string { return strconv.Itoa(t.Groups) }},
		{Name: "NEWEST EVENT", Dim: true, Cell: func(t admin.TopicInfo) string { return output.Ago(now, t.HeadTS) }},
	}
}

// offsetCell writes an offset; 0 is none.
func offsetCell(n uint64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatUint(n, 10)
}

func topicInfoCommand() *cobra.Command {
	var r reach
	cmd := &cobra.Command{
		Use:   "info TOPIC",
		Short: "Describe a topic",
		Args:  words("TOPIC"),
	}
	format := formatFlag(cmd, listFormats)
	r.register(cmd)
	cmd.ValidArgsFunction = completeNames(&r, false, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		t, err := ask(cmd.Context(), &r, func(ctx context.Context) (admin.TopicInfo, error) { return adm.Topic(ctx, args[0]) })
		if err != nil {
			return err
		}
		out := results(cmd)
		return output.Document(out, format.Format, t, func(w io.Writer) error {
			now := time.Now()
			event := func(offset uint64, ts int64, id string) string {
				if offset == 0 {
					return "none"
				}
				text := fmt.Sprintf("offset %d, %s", offset, moment(now, ts))
				if id != "" {
					text += ", id " + id
				}
				return text
			}
			fields := []output.Field{
				{Name: "Topic", Value: t.Topic},
				{Name: "Oldest event", Value: event(t.FirstOffset, t.FirstTS, "")},
				{Name: "Newest event", Value: event(t.Head, t.HeadTS, t.HeadID)},
				{Name: "Groups", Value: strconv.Itoa(t.Groups)},
			}
			if k := t.Kept; k != nil {
				fields = append(fields, output.Field{Name: "Kept", Value: keptText(&t)})
			}
			if t.Settings != nil && t.SettingsFrom != nil { // an older hub has none
				fields = append(fields, settingsFields(t.Settings)...)
				fields = append(fields, output.Field{Name: "From", Value: fromText(t.SettingsFrom)})
			}
			if t.Idle != nil {
				fields = append(fields, idleFields(now, t.Idle)...)
			}
			if t.Removal != nil {
				fields = append(fields, output.Field{Name: "Removed", Value: removalText(now, t.Removal)})
			}
			if t.Index != nil { // an older hub says nothing of it
				fields = append(fields, output.Field{Name: "Index by key", Value: indexText(t.Index)})
			}
			if t.Snapshots != nil {
				fields = append(fields, snapshotFields(now, t.Snapshots)...)
			}
			if t.Compaction != nil {
				fields = append(fields, compactionFields(now, t.Compaction)...)
			}
			return output.Fields(w, out.Color, fields)
		})
	}
	return cmd
}
