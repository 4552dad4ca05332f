package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
)

func (s *stating) historyQuery(cmd *cobra.Command, args []string) (q admin.KeyHistoryQuery, err error) {
	given := cmd.Flags().Changed
	switch {
	case len(args) == 1:
		return q, errors.New("--history is that of one key, and KEY is missing")
	case args[1] == "":
		return q, errors.New("KEY is empty")
	case given("at"), given("from"), given("to"), given("prefix"):
		return q, errors.New("--history is of all times of one key: --at, --from, --to and --prefix do not go with it")
	case s.format.Format == output.Payload:
		return q, errors.New("-o payload is for events, and --history prints changes")
	}
	return admin.KeyHistoryQuery{Topic: args[0], Key: args[1]}, s.paging.check()
}

// keyChangeRow is a change of a key as it is printed.
type keyChangeRow struct {
	Change string          `json:"change"`
	Event  json.RawMessage `json:"event"`
	Before json.RawMessage `json:"before,omitempty"`
	Gone   bool            `json:"before_gone,omitempty"`
	Causes []admin.Cause   `json:"causes,omitempty"`

	event eventhub.Event
	was   []byte // the payload before
}

func keyChangeRowOf(c *admin.KeyChange) (*keyChangeRow, error) {
	r := &keyChangeRow{Change: c.Kind(), Event: c.Event.Record.AppendJSON(nil, c.Event.Offset), Gone: c.BeforeGone, Causes: c.Causes}
	var err error
	if r.event, err = c.Event.Event(); err != nil || c.Before.Record == nil {
		return r, err
	}
	r.Before = c.Before.Record.AppendJSON(nil, c.Before.Offset)
	e, err := c.Before.Event()
	r.was = e.Payload
	return r, err
}

// causes says what has caused the change: the places of the events that it names, and whose
// session and correlation it is of.
func (r *keyChangeRow) causes() string {
	var parts []string
	for _, c := range r.Causes {
		switch {
		case c.Hidden:
			parts = append(parts, c.ID+" (hidden)")
		case c.Missing:
			parts = append(parts, c.ID+" (not found)")
		default:
			parts = append(parts, fmt.Sprintf("%s (%s/%d)", c.ID, c.Topic, c.Offset))
		}
	}
	if r.event.SID != "" {
		parts = append(parts, "sid "+r.event.SID)
	}
	if id := eventhub.Correlation(r.event.Headers); id != "" {
		parts = append(parts, "correlation "+id)
	}
	if len(parts) == 0 {
		return "-"
	}
	return output.Safe(strings.Join(parts, ", "))
}

func (r *keyChangeRow) payload() string {
	if r.was == nil {
		return output.Safe(string(r.event.Payload))
	}
	return output.Safe(fmt.Sprintf("%s  was %s", r.event.Payload, r.was))
}

func keyChangeRows(format output.Format, color bool) *output.Rows[*keyChangeRow] {
	return &output.Rows[*keyChangeRow]{Format: format, Color: color, Columns: []output.Column[*keyChangeRow]{
		{Name: "OFFSET", Width: 8, Right: true, Cell: func(r *keyChangeRow) string { return strconv.FormatUint(r.event.Offset, 10) }},
		{Name: "TIME", Width: 23, Cell: func(r *keyChangeRow) string { return output.Time(r.event.CommitTime().UnixMilli()) }},
		{Name: "CHANGE", Width: len(admin.StateRemoved), Cell: func(r *keyChangeRow) string { return r.Change }},
		{Name: "CAUSE", Width: 12, Cell: (*keyChangeRow).causes},
		{Name: "PAYLOAD", Cell: (*keyChangeRow).payload},
	}}
}

// printHistory prints the changes of a key, the newest first, a page at a time.
func (s *stating) printHistory(cmd *cobra.Command, adm *client.Admin, q admin.KeyHistoryQuery) error {
	var page admin.KeyHistoryPage
	printed, whole, err := printRows(cmd, s, keyChangeRows, "changes", func(limit int) (_ int, _ bool, err error) {
		q.Limit = limit
		page, err = askState(cmd, &s.reach, adm, q.Topic, func(ctx context.Context) (admin.KeyHistoryPage, error) { return adm.KeyHistory(ctx, q) })
		q.Before = page.Next
		return len(page.Changes), page.Next != 0, err
	}, func(i int) (*keyChangeRow, error) { return keyChangeRowOf(&page.Changes[i]) })
	if err != nil || !whole {
		return err
	}
	noteMissing(cmd.ErrOrStderr(), &page)
	if printed == 0 {
		return eventhub.Errorf(eventhub.CodeUnknownID, "key %.120q has no event in topic %q", q.Key, q.Topic)
	}
	return nil
}

// noteMissing says up to where changes may be missing.
func noteMissing(to io.Writer, page *admin.KeyHistoryPage) {
	if page.Horizon > 1 {
		fmt.Fprintf(to, "The topic begins at offset %d; changes before that are gone.\n", page.Horizon)
	}
	if page.Compacted > 0 {
		fmt.Fprintf(to, "The topic is compacted up to offset %d: up to there, changes that were replaced may be missing.\n", page.Compacted)
	}
	if page.Tombstones > 0 {
		fmt.Fprintf(to, "Removals up to offset %d may be missing too.\n", page.Tombstones)
	}
}
