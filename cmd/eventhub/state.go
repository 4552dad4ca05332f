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
	"eventhub/cmd/eventhub/internal/output"
	"eventhub/internal/when"
)

// stating is what `state` is asked for.
type stating struct {
	reach
	paging
	prefix, at, from, to string
	history              bool

	format *output.Choice
}

func stateCommand() *cobra.Command {
	var s stating
	cmd := &cobra.Command{
		Use:   "state TOPIC [KEY]",
		Short: "Print the newest event of each key",
		Long: `Prints the state by key of a topic, now or --at an earlier offset or time: of each key the
newest event, in the order of keys, without the keys whose newest event has the payload null.
All of it is the state at one offset, however long it takes. With a KEY it prints that event;
there being none is an error.

With --from it prints what has changed between two moments instead: which keys were added and
removed, and which have another newest event, in the order of keys.

With a KEY and --history it prints the changes of the key instead, the newest first: when it
was changed, what its value was before, and what caused that: the events that the change names
as its causes, with their places as far as they are there and may be read, and its session
and correlation ids. It says up to where changes may be missing.

A moment of which retention or compaction has removed what its state would need is an error,
which names the first offset of which the state is known.`,
		Example: `  eventhub state process.state
  eventhub state process.state host:nginx:812 -o payload
  eventhub state process.state --prefix host: --at 2h
  eventhub state stock --at 1042 --all -o ndjson
  eventhub state stock --from 2h
  eventhub state process.state host:nginx:812 --history
  eventhub state stock --from 1042 --to 2026-01-31T15:04:05Z --all -o ndjson`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return words("TOPIC")(cmd, args)
			}
			return words("TOPIC", "KEY")(cmd, args)
		},
	}
	s.format = formatFlag(cmd, append(listFormats, output.Payload))
	cmd.Flags().StringVar(&s.prefix, "prefix", "", "only keys that begin with it")
	cmd.Flags().StringVar(&s.at, "at", "", "the state at an offset, or at a time: 1042, 2026-01-31T15:04:05Z, 1h30m (ago)")
	cmd.Flags().StringVar(&s.from, "from", "", "the first of two moments: what has changed since this offset or time, as for --at")
	cmd.Flags().StringVar(&s.to, "to", "", "the second of two moments: up to this offset or time; default now")
	cmd.Flags().BoolVar(&s.history, "history", false, "the changes of KEY, the newest first, each with its cause")
	s.paging.register(cmd)
	s.reach.register(cmd)
	cmd.ValidArgsFunction = completeNames(&s.reach, false, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var q admin.StateQuery
		var diff admin.StateDiffQuery
		var history admin.KeyHistoryQuery
		var err error
		switch {
		case s.history:
			history, err = s.historyQuery(cmd, args)
		case s.isDiff(cmd):
			diff, err = s.diffQuery(cmd, args)
		default:
			q, err = s.query(cmd, args)
		}
		if err != nil {
			return usageError{err}
		}
		adm, err := s.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		if s.history {
			return s.printHistory(cmd, adm, history)
		}
		if s.isDiff(cmd) {
			return s.printDiff(cmd, adm, diff)
		}
		if q.Keys != nil {
			return s.printValue(cmd, adm, q)
		}
		return s.printAll(cmd, adm, q)
	}
	return cmd
}

func (s *stating) query(cmd *cobra.Command, args []string) (q admin.StateQuery, err error) {
	q = admin.StateQuery{Topic: args[0], Prefix: s.prefix}
	given := cmd.Flags().Changed
	if given("at") {
		if q.At, q.AtTS, err = when.ParsePlace(s.at, time.Now()); err != nil {
			return q, fmt.Errorf("--at %w", err)
		}
	}
	if len(args) == 1 {
		return q, s.paging.check()
	}
	q.Keys, q.Limit = args[1:], 1
	switch {
	case args[1] == "":
		err = errors.New("KEY is empty")
	case given("prefix"):
		err = errors.New("--prefix is for a list, and a KEY is given")
	case given("limit"), given("all"):
		err = errors.New("--limit and --all are for a list, and a KEY is given")
	}
	return q, err
}

func (s *stating) page(cmd *cobra.Command, adm *client.Admin, q admin.StateQuery) (admin.StatePage, error) {
	return askState(cmd, &s.reach, adm, q.Topic, func(ctx context.Context) (admin.StatePage, error) { return adm.State(ctx, q) })
}

// printValue prints the event of one key.
func (s *stating) printValue(cmd *cobra.Command, adm *client.Admin, q admin.StateQuery) error {
	page, err := s.page(cmd, adm, q)
	if err != nil {
		return err
	}
	if len(page.Events) == 0 {
		return eventhub.Errorf(eventhub.CodeUnknownID, "key %.120q has no value in topic %q at offset %d", q.Keys[0], q.Topic, page.At)
	}
	return printItem(results(cmd), s.format.Format, page.Events[0])
}

// printAll prints the events of many keys, a page at a time.
func (s *stating) printAll(cmd *cobra.Command, adm *client.Admin, q admin.StateQuery) error {
	out := results(cmd)
	buffered := bufio.NewWriterSize(out, pageBuffer)
	event := output.Events(s.format.Format, out.Color, []string{q.Topic}, false)
	var page admin.StatePage
	_, _, err := s.printPages(cmd, buffered, "keys", func(limit int) (_ int, _ bool, err error) {
		q.Limit = limit
		page, err = s.page(cmd, adm, q)
		q.Page, q.At, q.AtTS = page.Next, 0, 0
		return len(page.Events), page.Next != "", err
	}, func(dst []byte, i int) ([]byte, error) {
		e := page.Events[i]
		return event(dst, &eventhub.Delivery{Topic: q.Topic, Offset: e.Offset, Record: e.Record})
	})
	return errors.Join(err, buffered.Flush())
}
