package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/input"
	"eventhub/cmd/eventhub/internal/output"
)

// window is the part of the past that a command reads.
type window struct {
	filterFlags
	from, to string
	limit    int
}

func (w *window) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	fromFlag(cmd, &w.from, "earliest", "")
	toFlag(cmd, &w.to)
	olderFlag(cmd, "to-ts", &w.to, "to")
	flags.IntVar(&w.limit, "limit", 0, "stop after so many events")
	w.filterFlags.register(cmd)
}

// query makes a query of it.
func (w *window) query(cmd *cobra.Command, topic string) (admin.ReplayQuery, error) {
	q := admin.ReplayQuery{Topic: topic, Limit: w.limit}
	_, err := eventhub.ParsePattern(topic)
	if err != nil {
		return q, usageError{errors.New(eventhub.AsError(err).Message)}
	}
	if w.limit < 0 || w.limit == 0 && cmd.Flags().Changed("limit") {
		return q, usageError{fmt.Errorf("--limit is %d; at least 1 is needed", w.limit)}
	}
	if q.Start, err = input.Start(w.from, time.Now()); err != nil {
		return q, usageError{fmt.Errorf("--from %w", err)}
	}
	switch kind := q.Start.Kind; {
	case kind == eventhub.StartLatest:
		return q, usageError{errors.New("--from latest: after the latest event there is nothing to read; 'eventhub sub' waits for what comes")}
	case eventhub.IsPattern(topic) && (kind == eventhub.StartOffset || kind == eventhub.StartAfterID):
		return q, usageError{fmt.Errorf("--from %s is a place in one topic, and %q is a pattern", w.from, topic)}
	}
	if err := w.read(cmd); err != nil {
		return q, usageError{err}
	}
	if w.filters(cmd) {
		if err := w.filter.Validate(); err != nil {
			return q, usageError{errors.New(eventhub.AsError(err).Message)}
		}
		q.Filter = &w.filter
	}
	given := cmd.Flags().Changed
	if q.ToTS, err = readTo(w.to, given("to") || given("to-ts")); err != nil {
		return q, usageError{err}
	}
	return q, nil
}

// untilReached returns a context that ends when a hub has said nothing for the
// timeout; reached says that it has.
func (r *reach) untilReached(ctx context.Context) (_ context.Context, reached func(), cancel context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	timer := time.AfterFunc(r.timeout, func() { end(fmt.Errorf("no answer within %s", r.timeout)) })
	return ctx, func() { timer.Stop() }, func() { timer.Stop(); end(nil) }
}

// missing returns an error if a name of which nothing has come is that of no topic. Of a pattern there need not be any, nor dead
// letters of a topic.
func (r *reach) missing(ctx context.Context, name string, adm *client.Admin) error {
	if eventhub.IsPattern(name) || eventhub.IsDeadLetterTopic(name) {
		return nil
	}
	_, err := ask(ctx, r, func(ctx context.Context) (admin.TopicInfo, error) { return adm.Topic(ctx, name) })
	if eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		return nil // the hub has shown what there is
	}
	return eventhub.Errorf(eventhub.CodeUnknownID, "there is no topic %q%s", name, r.nearTopic(ctx, name, adm))
}

func replayCommand() *cobra.Command {
	var r reach
	var w window
	format := &output.Choice{Format: output.Table, Allowed: []output.Format{output.Table, output.JSON, output.NDJSON, output.Payload}}
	cmd := &cobra.Command{
		Use:   "replay TOPIC|PATTERN",
		Short: "Print the past of a topic",
		Long: `Prints the events that a topic has, from --from on, up to the newest one that there was
when it began; of a PATTERN one topic after the other, by name. It is no member of a
group and changes nothing. The filters are those of sub, and the hub applies them; what does
not pass does not count for --limit.

A topic that does not exist is an error. Where --from is below the horizon of a topic, or
events are removed before they are read, the command fails too; the error says at which
offset the topic begins. --from earliest begins there. Where compaction may have removed
some, a line on standard error says up to which offset.`,
		Example: `  eventhub replay orders --from 2h
  eventhub replay orders --from after:0199a1f9-731b-7d16-b8f6-fb271d31714f --limit 10 -o payload
  eventhub replay orders --from 1d --filter 'event.payload.total > 100.0' --filter-key 'customer-7'
  eventhub replay '**.dlq' -o ndjson`,
		Args: words("TOPIC"),
	}
	w.register(cmd)
	cmd.Flags().VarP(format, "output", "o", "how to print events: "+format.Names())
	r.register(cmd)
	cmd.ValidArgsFunction = completeNames(&r, false, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q, err := w.query(cmd, args[0])
		if err != nil {
			return err
		}
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		ctx, reached, cancel := r.untilReached(cmd.Context())
		defer cancel()
		if q.Filter != nil { // the first event that passes may be far away
			reached()
		}
		out := results(cmd)
		buffered := bufio.NewWriterSize(out, 64<<10)
		render := output.Events(format.Format, out.Color, args, false)
		q.OnGap = compactedTo(cmd.ErrOrStderr())
		var line []byte
		none := true
		err = adm.Replay(ctx, q, func(_ string, item eventhub.Item) error {
			reached()
			none = false
			var err error
			if line, err = render(line[:0], &eventhub.Delivery{Offset: item.Offset, Record: item.Record}); err != nil {
				return err
			}
			_, err = buffered.Write(line)
			return err
		})
		if err == nil && none {
			err = r.missing(cmd.Context(), args[0], adm)
		}
		return errors.Join(err, buffered.Flush())
	}
	return cmd
}
