package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/cmd/eventhub/internal/output"
	"eventhub/outbox"
	"eventhub/outbox/outboxurl"
)

// outboxRow is what is printed of a row in a list.
type outboxRow struct {
	ID         string        `json:"id"`
	Topic      string        `json:"topic"`
	Key        string        `json:"key,omitempty"`
	TS         int64         `json:"ts"`
	Status     outbox.Status `json:"status"`
	Attempts   int           `json:"attempts"`
	ClaimedBy  string        `json:"claimed_by,omitempty"`
	LeaseUntil int64         `json:"lease_until,omitempty"`
	RetryAt    int64         `json:"retry_at,omitempty"`
	LastError  string        `json:"last_err,omitempty"`
	SentAt     int64         `json:"sent_at,omitempty"`
	Offset     uint64        `json:"event_offset,omitempty"`
	Broken     string        `json:"broken,omitempty"` // what of it is no event
}

// wholeOutboxRow is all of a row.
type wholeOutboxRow struct {
	outboxRow
	SID      string            `json:"sid,omitempty"`
	Headers  map[string]string `json:"headers,omitempty"`
	Tags     []string          `json:"tags,omitempty"`
	CausedBy []string          `json:"caused_by,omitempty"`
	Payload  json.RawMessage   `json:"payload,omitempty"`
	// PayloadText is there in place of Payload where that is not JSON.
	PayloadText string `json:"payload_text,omitempty"`
}

func newOutboxRow(r *outbox.Row) outboxRow {
	row := outboxRow{
		ID: r.Event.ID, Topic: r.Event.Topic, Key: r.Event.Key, TS: r.Event.TS, Status: r.Status, Attempts: r.Attempts,
		ClaimedBy: r.ClaimedBy, LeaseUntil: eventhub.Millis(r.LeaseUntil), RetryAt: eventhub.Millis(r.RetryAt),
		LastError: r.LastError, SentAt: eventhub.Millis(r.SentAt), Offset: r.Offset,
	}
	if r.Broken != nil {
		row.Broken = eventhub.AsError(r.Broken).Message
	}
	return row
}

func newWholeOutboxRow(r *outbox.Row) wholeOutboxRow {
	e := &r.Event
	row := wholeOutboxRow{outboxRow: newOutboxRow(r), SID: e.SID, Headers: e.Headers, Tags: e.Tags, CausedBy: e.CausedBy}
	if json.Valid(e.Payload) {
		row.Payload = e.Payload
	} else {
		row.PayloadText = string(e.Payload)
	}
	return row
}

func outboxListCommand() *cobra.Command {
	var place outboxPlace
	var p paging
	var given []string
	var after string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List rows of an outbox, the oldest first",
		Long: `Lists the rows of an outbox in the order of the table, those that are not sent yet unless
--status asks for others:

  pending  nobody has it; the error, if there is one, is that of the last attempt
  claimed  a drainer has it, until its lease runs out
  sent     the hub has it
  error    parked: the hub refuses it for good, and the error says why

'eventhub outbox show' has the rest of a row.`,
		Example: `  eventhub outbox ls --from sqlite:service.db
  eventhub outbox ls --from sqlite:service.db --status error -o ndjson
  EVENTHUB_OUTBOX=sqlite:service.db eventhub outbox ls --status sent --all`,
		Args: words(),
	}
	format := formatFlag(cmd, listFormats)
	statusFlag(cmd, &given, []string{string(outbox.Pending), string(outbox.Claimed), string(outbox.Parked)},
		"only those with these of "+joined(outbox.Statuses)+"; split at commas or repeat", outbox.Statuses)
	cmd.Flags().StringVar(&after, "after", "", "only those after the row with this id")
	p.register(cmd)
	place.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := p.check(); err != nil {
			return err
		}
		statuses, err := readStatuses(given, outbox.Statuses)
		if err != nil {
			return err
		}
		store, end, err := place.open(cmd.Context(), cmd)
		if err != nil {
			return err
		}
		defer end()
		out := results(cmd)
		return output.List(out, format.Format, out.Color, outboxColumns(time.Now()), listOutbox(cmd, store, &p, statuses, after))
	}
	return cmd
}

func listOutbox(cmd *cobra.Command, store outbox.Keeper, p *paging, statuses []outbox.Status, after string) iter.Seq2[outboxRow, error] {
	more := func(last outboxRow) {
		fmt.Fprintf(cmd.ErrOrStderr(), "There are more rows: --all shows all, --after %s the next.\n", quoteArg(last.ID))
	}
	return pages(p, more, func(last *outboxRow, limit int) ([]outboxRow, error) {
		if last != nil {
			after = last.ID
		}
		rows, err := store.List(cmd.Context(), statuses, after, limit)
		page := make([]outboxRow, len(rows))
		for i := range rows {
			page[i] = newOutboxRow(&rows[i])
		}
		return page, err
	})
}

func outboxColumns(now time.Time) []output.Column[outboxRow] {
	return []output.Column[outboxRow]{
		{Name: "ID", Cell: func(r outboxRow) string { return orDash(r.ID) }},
		{Name: "TOPIC", Cell: func(r outboxRow) string { return orDash(r.Topic) }},
		{Name: "KEY", Cell: func(r outboxRow) string { return orDash(shortened(r.Key)) }},
		{Name: "STATUS", Cell: func(r outboxRow) string { return string(r.Status) }},
		{Name: "ATTEMPTS", Right: true, Cell: func(r outboxRow) string { return strconv.Itoa(r.Attempts) }},
		{Name: "AGE", Dim: true, Cell: func(r outboxRow) string { return output.Ago(now, r.TS) }},
		{Name: "ERROR", Cell: func(r outboxRow) string { return orDash(r.LastError) }},
	}
}

func outboxShowCommand() *cobra.Command {
	var place outboxPlace
	cmd := &cobra.Command{
		Use:     "show ID",
		Short:   "Show a row of an outbox with all that it has",
		Example: `  eventhub outbox show --from sqlite:service.db 0197f2b1c86f7bd58a94f1f2d1d3a5b0`,
		Args:    words("ID"),
	}
	format := formatFlag(cmd, listFormats)
	place.register(cmd)
	cmd.ValidArgsFunction = completeOutbox(&place, nil, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		store, end, err := place.open(cmd.Context(), cmd)
		if err != nil {
			return err
		}
		defer end()
		row, err := store.Show(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		out := results(cmd)
		whole := newWholeOutboxRow(&row)
		return output.Document(out, format.Format, whole, func(w io.Writer) error { return describeOutboxRow(w, out.Color, &whole) })
	}
	return cmd
}

func describeOutboxRow(w io.Writer, color bool, r *wholeOutboxRow) error {
	now := time.Now()
	fields := []output.Field{
		{Name: "ID", Value: orDash(r.ID)}, {Name: "Topic", Value: orDash(r.Topic)},
		{Name: "Status", Value: string(r.Status)}, {Name: "Added", Value: moment(now, r.TS)}, {Name: "Attempts", Value: strconv.Itoa(r.Attempts)},
	}
	add := func(name, value string) {
		if value != "" {
			fields = append(fields, output.Field{Name: name, Value: output.Safe(value)})
		}
	}
	at := func(name string, ms int64) {
		if ms != 0 {
			add(name, output.Time(ms))
		}
	}
	add("Claimed by", r.ClaimedBy)
	at("Lease until", r.LeaseUntil)
	at("Not before", r.RetryAt)
	add("Error", r.LastError)
	add("No event, as", r.Broken)
	at("Sent", r.SentAt)
	if r.Status == outbox.Sent {
		add("Offset", strconv.FormatUint(r.Offset, 10))
	}
	add("Key", r.Key)
	add("Session", r.SID)
	add("Headers", output.Headers(r.Headers))
	add("Tags", strings.Join(r.Tags, ","))
	add("Caused by", strings.Join(r.CausedBy, ","))
	if r.Payload != nil {
		add("Payload", string(r.Payload))
	} else {
		add("Payload (no JSON)", r.PayloadText)
	}
	return output.Fields(w, color, fields)
}

// completeOutbox completes ID with the first rows that have one of the statuses.
func completeOutbox(p *outboxPlace, statuses []outbox.Status, many bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) (ids []string, _ cobra.ShellCompDirective) {
		if len(args) > 0 && !many || p.resolve(cmd) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(context.Background(), completionWait)
		defer cancel()
		store, closeStore, err := outboxurl.Open(ctx, p.from)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		defer func() { _ = closeStore() }() // nothing was written
		rows, _ := store.List(ctx, statuses, "", maxCompleted)
		for _, r := range rows {
			if strings.HasPrefix(r.Event.ID, typed) && !slices.Contains(args, r.Event.ID) {
				ids = append(ids, r.Event.ID)
			}
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}

// maxCompleted bounds the ids that are offered.
const maxCompleted = 1000

// mostOfKey is how many characters of a key stand in a table: one that is too long for the hub
// would make every line as long. show and -o json have all of it.
const mostOfKey = 48

func shortened(key string) string {
	for i, n := 0, 0; i < len(key); n++ {
		if n == mostOfKey {
			return key[:i] + "…"
		}
		_, size := utf8.DecodeRuneInString(key[i:])
		i += size
	}
	return key
}
