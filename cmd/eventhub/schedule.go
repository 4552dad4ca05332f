package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
)

func scheduleCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "schedule", Short: "List and take back events that are published later"}
	cmd.AddCommand(scheduleListCommand(), scheduleCancelCommand())
	return cmd
}

func scheduleListCommand() *cobra.Command {
	var r reach
	var p paging
	var q admin.ScheduleQuery
	var after string
	cmd := &cobra.Command{
		Use:     "ls [TOPIC]",
		Aliases: []string{"list"},
		Short:   "List events that are published later, the next one first",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("%q is too much; wanted: [TOPIC]", args[1])
			}
			if len(args) == 0 {
				return nil
			}
			q.Topic = args[0]
			if err := eventhub.ValidateStoredTopic(q.Topic); err != nil {
				return errors.New(eventhub.AsError(err).Message)
			}
			return nil
		},
	}
	format := formatFlag(cmd, listFormats)
	cmd.Flags().StringVar(&after, "after", "", "only those after this place, DELIVER_AT/SEQ")
	p.register(cmd)
	r.register(cmd)
	cmd.ValidArgsFunction = completeNames(&r, false, false)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		err := p.check()
		if err == nil && after != "" {
			q.AfterAt, q.AfterSeq, err = schedulePlace(after)
		}
		if err != nil {
			return err
		}
		return paged[admin.Scheduled]{&p,
			func(last admin.Scheduled) string {
				return fmt.Sprintf("There are more events: --all shows all, --after %d/%d the next.", last.DeliverAt, last.Seq)
			},
			func(ctx context.Context, adm *client.Admin, last *admin.Scheduled, limit int) ([]admin.Scheduled, error) {
				if last != nil {
					q.AfterAt, q.AfterSeq = last.DeliverAt, last.Seq
				}
				q.Limit = limit
				return adm.Scheduled(ctx, q)
			},
		}.list(cmd, &r, format, scheduleColumns)
	}
	return cmd
}

// schedulePlace reads the place of a scheduled event among the others.
func schedulePlace(s string) (at int64, seq uint64, err error) {
	first, second, ok := strings.Cut(s, "/")
	if ok {
		at, err = strconv.ParseInt(first, 10, 64)
	}
	if ok && err == nil {
		seq, err = strconv.ParseUint(second, 10, 64)
	}
	if !ok || err != nil || at < 0 {
		return 0, 0, usageError{fmt.Errorf("--after %q is not DELIVER_AT/SEQ, as in 1723140000000/17", s)}
	}
	return at, seq, nil
}

func scheduleColumns(now time.Time) []output.Column[admin.Scheduled] {
	return []output.Column[admin.Scheduled]{
		{Name: "DUE", Cell: func(e admin.Scheduled) string { return moment(now, e.DeliverAt) }},
		{Name: "TOPIC", Cell: func(e admin.Scheduled) string { return e.Topic }},
		{Name: "ID", Cell: func(e admin.Scheduled) string { return e.ID }},
		{Name: "KEY", Cell: func(e admin.Scheduled) string {
			if e.Key == "" {
				return "-"
			}
			return output.Safe(e.Key)
		}},
	}
}

func scheduleCancelCommand() *cobra.Command {
	var r reach
	cmd := &cobra.Command{
		Use:   "cancel TOPIC ID",
		Short: "Take back an event that is published later",
		Long: `Takes back an event that was published with --delay or --deliver-at: it will never be
in the topic. One that is there already can not be taken back.`,
		Args: words("TOPIC", "ID"),
	}
	r.register(cmd)
	cmd.ValidArgsFunction = completeScheduled(&r)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		_, err = ask(cmd.Context(), &r, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, adm.Cancel(ctx, args[0], args[1])
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(results(cmd), "cancelled %s of %s\n", args[1], args[0])
		return err
	}
	return cmd
}
