package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
	"eventhub/internal/when"
	"eventhub/outbox"
)

// keepForever is the value of --keep with which no sent row is removed.
const keepForever = "forever"

// draining is what `outbox drain` was asked to do.
type draining struct {
	reach
	outboxPlace
	o      outbox.Options
	order  string
	keep   string
	format *output.Choice
}

func outboxDrainCommand() *cobra.Command {
	var d draining
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Publish the rows of an outbox, until SIGTERM or until it is empty",
		Long: `Publishes the rows of an outbox in their order, new ones as they come, until SIGINT or
SIGTERM; with --until-empty until none is pending or claimed. Any number of these can run
at a time, here and on other machines: each claims rows, and the others leave them alone
until they are published or the lease has run out. A row is published under its own id, so
a drainer that dies between publish and mark costs nothing: the hub knows the event.

A row that the hub refuses for good is parked with the reason, and the rest continues;
'eventhub outbox ls --status error' lists such rows and 'eventhub outbox retry' gives them
another try. Where the hub or, once it has begun, the database is away, or the hub has no
room or does not take the token any more, the command waits and tries again, at least
every 30 s. All drainers of a table need the same --order.

With --until-empty it ends with 1 if it has parked a row.`,
		Example: `  eventhub outbox drain --from sqlite:service.db
  eventhub outbox drain --from sqlite:service.db --until-empty -o json
  EVENTHUB_OUTBOX=sqlite:service.db eventhub outbox drain --url wss://hub.example:8090 --keep 7d`,
		Args: words(),
	}
	d.format = formatFlag(cmd, listFormats)
	flags := cmd.Flags()
	flags.IntVar(&d.o.Batch, "batch", outbox.DefaultBatch, "claim at most so many rows at a time")
	flags.DurationVar(&d.o.Lease, "lease", outbox.DefaultLease, "how long a claim lasts; others publish the rows when it has run out")
	flags.DurationVar(&d.o.Interval, "interval", outbox.DefaultInterval, "how often to look for rows when there are none; up to four times as long when there are none for a while")
	flags.StringVar(&d.o.Worker, "worker", "", "name of this drainer in the table, one of its own (default: made of host and process)")
	flags.StringVar(&d.order, "order", string(outbox.ByKey), "what is published one after another: key (rows of one key of one topic) or topic")
	flags.StringVar(&d.keep, "keep", when.Format(outbox.DefaultKeep), "how long sent rows stay, such as 12h or 7d, or "+keepForever)
	flags.BoolVar(&d.o.UntilEmpty, "until-empty", false, "end when no row is pending or claimed")
	d.outboxPlace.register(cmd)
	d.reach.register(cmd)
	d.registerName(cmd)
	orders := []string{string(outbox.ByKey), string(outbox.ByTopic)}
	if err := cmd.RegisterFlagCompletionFunc("order", cobra.FixedCompletions(orders, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag is not there, or has a completion
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return d.run(cmd) }
	return cmd
}

// complete reads the flags that are no options yet, and checks those that are zero: they would
// mean the defaults.
func (d *draining) complete() error {
	switch {
	case d.o.Batch == 0, d.o.Lease == 0, d.o.Interval == 0:
		return errors.New("--batch, --lease and --interval have to be positive")
	case d.keep == keepForever:
		d.o.Keep = -1
	default:
		keep, err := when.Span(d.keep)
		if err != nil {
			return fmt.Errorf("--keep %w, or %s", err, keepForever)
		}
		d.o.Keep = max(keep, 1) // zero would be the default
	}
	d.o.Order = outbox.Order(d.order)
	return nil
}

func (d *draining) run(cmd *cobra.Command) error {
	if err := d.complete(); err != nil {
		return usageError{err}
	}
	if err := d.reach.resolve(cmd); err != nil {
		return err
	}
	store, end, err := d.open(cmd.Context(), cmd)
	if err != nil {
		return err
	}
	defer end()
	status := newDrainStatus(cmd.ErrOrStderr())
	d.o.Log, d.o.Settled = slog.New(&notices{w: status}), status.settled
	hub := &redialing{dial: func() (*client.Client, error) {
		return d.dial(cmd, client.WithoutReconnect(), client.WithRateLimitErrors(), client.WithLogger(slog.New(&notices{w: status})))
	}}
	defer hub.close()
	drainer, err := outbox.NewDrainer(store, hub, d.o)
	if err != nil {
		return usageError{errors.New("--" + eventhub.AsError(err).Message)}
	}
	// A token that is not taken is found before anything is claimed; a hub that is away is waited for.
	if err := hub.connect(); err != nil && !errors.Is(err, client.ErrUnreachable) && !eventhub.ErrorCode(err).Passing() {
		return err
	}
	err = drainer.Run(cmd.Context())
	done := status.end(drainer.Worker())
	if err != nil {
		return err
	}
	out := results(cmd)
	if err := output.Document(out, d.format.Format, done, func(w io.Writer) error { return describeDrained(w, out.Color, &done) }); err != nil {
		return err
	}
	if d.o.UntilEmpty && done.Parked > 0 && cmd.Context().Err() == nil {
		return fmt.Errorf("%s parked; eventhub outbox ls --status error lists what is, with the reasons", areParked(done.Parked))
	}
	return nil
}

func areParked(n int) string {
	if n == 1 {
		return "1 row is"
	}
	return output.Count(n) + " rows are"
}

// drained is what a drainer has done.
type drained struct {
	Worker   string  `json:"worker"`
	Sent     int     `json:"sent"`
	Parked   int     `json:"parked"`
	Returned int     `json:"returned"` // given back, to be tried again
	Seconds  float64 `json:"seconds"`
}

func describeDrained(w io.Writer, color bool, d *drained) error {
	return output.Fields(w, color, []output.Field{
		{Name: "Worker", Value: output.Safe(d.Worker)},
		{Name: "Sent", Value: output.Things(d.Sent, "row")},
		{Name: "Parked", Value: output.Things(d.Parked, "row")},
		{Name: "Given back", Value: output.Things(d.Returned, "time")},
		{Name: "Took", Value: fmt.Sprintf("%.1f s", d.Seconds)},
	})
}

// drainStatus counts what becomes of rows, and shows it in one line of a terminal. What is logged
// through it stands above that line. It is safe for concurrent use.
type drainStatus struct {
	w     io.Writer
	shows bool

	mu           sync.Mutex
	done         drained
	began, shown time.Time
}

func newDrainStatus(w io.Writer) *drainStatus {
	return &drainStatus{w: w, shows: output.IsTerminal(w), began: time.Now()}
}

// Write writes a line of the log.
func (s *drainStatus) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	return s.w.Write(p)
}

func (s *drainStatus) settled(rows []outbox.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range rows {
		switch o.Status {
		case outbox.Sent:
			s.done.Sent++
		case outbox.Parked:
			s.done.Parked++
		default:
			s.done.Returned++
		}
	}
	now := time.Now()
	if !s.shows || now.Sub(s.shown) < meterEvery {
		return
	}
	s.shown = now
	rate := float64(s.done.Sent) / max(now.Sub(s.began).Seconds(), 1e-3)
	// A terminal that is gone shows elsewhere.
	_, _ = fmt.Fprintf(s.w, "\r\x1b[Ksent %s, %.0f/s; parked %s; given back %s",
		output.Things(s.done.Sent, "row"), rate, output.Count(s.done.Parked), output.Things(s.done.Returned, "time"))
}

// clear takes the line away. s.mu is held.
func (s *drainStatus) clear() {
	if s.shows && !s.shown.IsZero() {
		_, _ = io.WriteString(s.w, "\r\x1b[K") // as above
	}
	s.shown = time.Time{}
}

// end takes the line away and returns what was done.
func (s *drainStatus) end(worker string) drained {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	s.done.Worker, s.done.Seconds = worker, time.Since(s.began).Seconds()
	return s.done
}

// redialing publishes over a connection that is made when it is needed, and again after it was
// lost. A hub that is away is therefore an error at once, and the rows go back to the table. One
// goroutine uses it.
type redialing struct {
	dial   func() (*client.Client, error)
	client *client.Client // nil: not connected
}

var _ eventhub.Publisher = (*redialing)(nil)

func (r *redialing) connect() (err error) {
	if r.client == nil {
		r.client, err = r.dial()
	}
	return err
}

func (r *redialing) close() {
	if r.client != nil {
		r.client.Close()
		r.client = nil
	}
}

// Publish implements [eventhub.Publisher].
func (r *redialing) Publish(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	if err := r.connect(); err != nil {
		return nil, errors.New(oneLine(err.Error())) // without its code, which is not about the events
	}
	receipts, err := r.client.Publish(ctx, events...)
	if err != nil && isOpen(err) {
		r.close()
	}
	return receipts, err
}

// Enqueue implements [eventhub.Publisher].
func (r *redialing) Enqueue(ctx context.Context, pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	if err := r.connect(); err != nil {
		for i := range pubs {
			pubs[i].Err = errors.New(oneLine(err.Error()))
		}
		done(pubs)
		return
	}
	r.client.Enqueue(ctx, pubs, done)
}
