package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
	"eventhub/internal/when"
)

// isDiff reports whether the difference of two states is asked for.
func (s *stating) isDiff(cmd *cobra.Command) bool {
	return cmd.Flags().Changed("from") || cmd.Flags().Changed("to")
}

func (s *stating) diffQuery(cmd *cobra.Command, args []string) (q admin.StateDiffQuery, err error) {
	given := cmd.Flags().Changed
	switch {
	case len(args) > 1:
		return q, errors.New("--from is for all keys, or those with a --prefix, and a KEY is given")
	case given("at"):
		return q, errors.New("--at is one moment, and --from and --to are two")
	case !given("from"):
		return q, errors.New("--from is missing: --to is the later one of two moments")
	case s.format.Format == output.Payload:
		return q, errors.New("-o payload is for events, and --from prints changes")
	}
	q = admin.StateDiffQuery{Topic: args[0], Prefix: s.prefix}
	now := time.Now()
	if q.From.Offset, q.From.TS, err = when.ParsePlace(s.from, now); err != nil {
		return q, fmt.Errorf("--from %w", err)
	}
	if given("to") {
		if q.To.Offset, q.To.TS, err = when.ParsePlace(s.to, now); err != nil {
			return q, fmt.Errorf("--to %w", err)
		}
	}
	return q, s.paging.check()
}

// changeRow is a change as it is printed.
type changeRow struct {
	Change string          `json:"change"`
	Key    string          `json:"key"`
	From   json.RawMessage `json:"from,omitempty"`
	To     json.RawMessage `json:"to,omitempty"`

	change  *admin.StateChange
	payload []byte // of the later event
}

func changeRows(format output.Format, color bool) *output.Rows[*changeRow] {
	offset := func(e *eventhub.Item) string {
		if e.Record == nil {
			return "-"
		}
		return strconv.FormatUint(e.Offset, 10)
	}
	return &output.Rows[*changeRow]{Format: format, Color: color, Columns: []output.Column[*changeRow]{
		{Name: "CHANGE", Width: len(admin.StateRemoved), Cell: func(r *changeRow) string { return r.Change }},
		{Name: "FROM", Width: 8, Right: true, Cell: func(r *changeRow) string { return offset(&r.change.From) }},
		{Name: "TO", Width: 8, Right: true, Cell: func(r *changeRow) string { return offset(&r.change.To) }},
		{Name: "KEY", Width: 12, Cell: func(r *changeRow) string { return output.Safe(r.Key) }},
		{Name: "PAYLOAD", Cell: func(r *changeRow) string { return output.Safe(string(r.payload)) }},
	}}
}

// rowOf makes a row of a change, with its events as they are stored.
func rowOf(c *admin.StateChange) (*changeRow, error) {
	r := &changeRow{Change: c.Kind(), Key: c.Key, change: c}
	newest := c.To
	if c.From.Record != nil {
		r.From = c.From.Record.AppendJSON(nil, c.From.Offset)
	}
	if c.To.Record != nil {
		r.To = c.To.Record.AppendJSON(nil, c.To.Offset)
	} else {
		newest = c.From
	}
	e, err := newest.Record.Event(newest.Offset)
	r.payload = e.Payload
	return r, err
}

// printDiff prints what has changed, a page at a time.
func (s *stating) printDiff(cmd *cobra.Command, adm *client.Admin, q admin.StateDiffQuery) error {
	var page admin.StateDiffPage
	_, _, err := printRows(cmd, s, changeRows, "changes", func(limit int) (_ int, _ bool, err error) {
		q.Limit = limit
		page, err = askState(cmd, &s.reach, adm, q.Topic, func(ctx context.Context) (admin.StateDiffPage, error) { return adm.StateDiff(ctx, q) })
		q.Page, q.From, q.To = page.Next, admin.Moment{}, admin.Moment{}
		return len(page.Changes), page.Next != "", err
	}, func(i int) (*changeRow, error) { return rowOf(&page.Changes[i]) })
	return err
}
