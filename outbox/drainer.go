package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"eventhub"
	"eventhub/internal/eventid"
)

// Defaults and bounds of Options.
const (
	DefaultBatch    = 100
	DefaultLease    = 30 * time.Second
	DefaultInterval = 250 * time.Millisecond
	DefaultKeep     = 24 * time.Hour

	MaxBatch    = 10_000
	MinLease    = time.Second
	MaxLease    = time.Hour
	MinInterval = 10 * time.Millisecond
	MaxInterval = time.Hour

	maxWorkerBytes = 128
	minBackoff     = 250 * time.Millisecond
	maxBackoff     = 30 * time.Second
	minIdle        = 50 * time.Millisecond // of a table with a Waiter, between two looks that find nothing
	forgetEvery    = time.Minute
	forgetAtOnce   = 1000 // rows
	countEvery     = 5 * time.Second
)

// Options are how a Drainer works. The zero value is the default of each.
type Options struct {
	Batch    int           // rows claimed at once: 1 to MaxBatch, DefaultBatch
	Lease    time.Duration // of a claim: MinLease to MaxLease, DefaultLease
	Worker   string        // its name in the table: up to 128 bytes; made of host and process
	Interval time.Duration // between looks at an empty table: MinInterval to MaxInterval, DefaultInterval
	Order    Order         // ByKey
	// Keep is how long a sent row stays: DefaultKeep; negative for ever.
	Keep time.Duration
	// Grace is how long Run goes on after its context has ended, to publish what is under
	// way and to settle it: 5 s.
	Grace time.Duration
	// UntilEmpty ends Run when nothing is pending or claimed any more.
	UntilEmpty bool
	// Log takes what an operator wants to know; nil discards it.
	Log *slog.Logger
	// Registerer gets the metrics of the drainer; nil for none.
	Registerer prometheus.Registerer
	// Settled is called after each batch with what has become of its rows; nil for nobody.
	Settled func([]Outcome)
}

// A Drainer publishes the rows of a table. Several may drain one, in any number of
// processes.
type Drainer struct {
	table     Table
	publisher eventhub.Publisher
	o         Options
	m         *metrics

	size    int // events in one publish: halved by a failure that may pass, doubled by success
	backoff time.Duration
	worry   string // the failure that was logged last
}

// NewDrainer returns a drainer of a table. The publisher is a hub in this process, or a
// *client.Client that was made with client.WithRateLimitErrors: one that waits for the limit
// of a topic holds up the rows of all others until the lease ends. The error has
// eventhub.CodeBadRequest and names the option.
func NewDrainer(table Table, publisher eventhub.Publisher, o Options) (*Drainer, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	return &Drainer{table: table, publisher: publisher, o: o, m: m, size: o.Batch}, nil
}

// complete puts in the defaults, and checks the rest.
func (o *Options) complete() error {
	if o.Batch == 0 {
		o.Batch = DefaultBatch
	}
	if o.Lease == 0 {
		o.Lease = DefaultLease
	}
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.Keep == 0 {
		o.Keep = DefaultKeep
	}
	if o.Order == "" {
		o.Order = ByKey
	}
	if o.Grace == 0 {
		o.Grace = 5 * time.Second
	}
	if o.Worker == "" {
		host, _ := os.Hostname() // without one the id alone is unique
		o.Worker = fmt.Sprintf("%s-%d-%s", host, os.Getpid(), eventid.New()[24:])
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	bad := func(format string, args ...any) error {
		return eventhub.Errorf(eventhub.CodeBadRequest, format, args...)
	}
	switch {
	case o.Batch < 0 || o.Batch > MaxBatch:
		return bad("batch is %d; 1 to %d are allowed", o.Batch, MaxBatch)
	case o.Lease < MinLease || o.Lease > MaxLease:
		return bad("lease is %s; %s to %s are allowed", o.Lease, MinLease, MaxLease)
	case o.Interval < MinInterval || o.Interval > MaxInterval:
		return bad("interval is %s; %s to %s are allowed", o.Interval, MinInterval, MaxInterval)
	case o.Order != ByKey && o.Order != ByTopic:
		return bad("order is %q; %s and %s are allowed", o.Order, ByKey, ByTopic)
	case o.Grace < 0:
		return bad("grace is %s; it cannot be negative", o.Grace)
	case len(o.Worker) > maxWorkerBytes:
		return bad("worker has %d bytes; at most %d are allowed", len(o.Worker), maxWorkerBytes)
	}
	return nil
}

// Worker is the name that the drainer has in the table.
func (d *Drainer) Worker() string { return d.o.Worker }

// Run publishes rows until ctx ends, and then settles what it has and returns nil. What
// the database or the hub cannot do for now is logged and tried again, with a wait that
// doubles up to 30 s. It returns an error where the table is not there or of another
// version, and never for a row. Run is called once, and again only after an error.
func (d *Drainer) Run(ctx context.Context) error {
	if err := d.table.Check(ctx); err != nil {
		return err
	}
	d.o.Log.Info("outbox: draining", "worker", d.o.Worker, "batch", d.o.Batch, "lease", d.o.Lease)
	housework, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); d.keepHouse(housework) }()
	defer func() { stop(); <-ended }()

	var settled []Outcome
	idle := d.o.Interval
	for ctx.Err() == nil {
		claimed := time.Now()
		rows, err := d.turn(ctx, settled, d.claim())
		if err != nil {
			if ctx.Err() == nil {
				d.worried(ctx, "the database", err)
			}
			continue // with the same outcomes
		}
		settled = nil
		if len(rows) == 0 {
			if d.o.UntilEmpty && d.isEmpty(ctx) {
				break
			}
			idle = d.rest(ctx, idle)
			continue
		}
		idle = d.o.Interval
		var pause error
		settled, pause = d.publishRows(ctx, rows, claimed.Add(d.o.Lease))
		if d.o.Settled != nil {
			d.o.Settled(settled)
		}
		switch {
		case ctx.Err() != nil:
		case errors.Is(pause, errLimited):
			sleep(ctx, d.o.Interval) // rows of other topics may stand after these
		case pause != nil:
			settled = d.settle(ctx, settled) // others may have the rows meanwhile
			d.worried(ctx, "the hub", pause)
		default:
			d.calm()
		}
	}
	return d.leave(ctx, settled)
}

// lasting returns a context that goes on for the grace after ctx has ended, so that what is
// under way then is not cut off with an outcome that nobody knows.
func (d *Drainer) lasting(ctx context.Context) (context.Context, func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { sleep(longer, d.o.Grace); cancel() })
	return longer, func() { stop(); cancel() }
}

func (d *Drainer) turn(ctx context.Context, settled []Outcome, c Claim) ([]Row, error) {
	ctx, end := d.lasting(ctx)
	defer end()
	return d.table.Turn(ctx, settled, c)
}

func (d *Drainer) claim() Claim {
	return Claim{Max: d.o.Batch, Lease: d.o.Lease, Worker: d.o.Worker, Order: d.o.Order}
}

// settle writes outcomes and claims nothing. It returns those that are not written.
func (d *Drainer) settle(ctx context.Context, settled []Outcome) []Outcome {
	c := d.claim()
	c.Max = 0
	if _, err := d.turn(ctx, settled, c); err != nil {
		return settled
	}
	return nil
}

// leave settles what is left when Run ends. What cannot be settled is claimed again when
// its lease has run out, and is a duplicate in the hub then.
func (d *Drainer) leave(ctx context.Context, settled []Outcome) error {
	if len(settled) == 0 {
		return nil
	}
	if left := d.settle(ctx, settled); len(left) > 0 {
		d.o.Log.Warn("outbox: rows are not marked; they are published again under their ids after their lease", "rows", len(left))
	}
	return nil
}

// isEmpty reports whether no row is pending or claimed, where the database answers.
func (d *Drainer) isEmpty(ctx context.Context) bool {
	n, err := d.table.Counts(ctx)
	return err == nil && n.Pending+n.Claimed == 0
}

// rest waits for rows after a look that found none. It returns how long to wait next time:
// an empty table is looked at less and less often, down to once in four intervals.
func (d *Drainer) rest(ctx context.Context, idle time.Duration) time.Duration {
	w, ok := d.table.(Waiter)
	if !ok {
		sleep(ctx, idle)
		return min(idle*5/4, 4*d.o.Interval)
	}
	began := time.Now()
	if err := w.Wait(ctx, idle); err != nil && ctx.Err() == nil {
		sleep(ctx, d.o.Interval)
	}
	// Rows that are held up wake nobody; and what wakes without end must not spin.
	if took := time.Since(began); took < minIdle {
		sleep(ctx, min(minIdle-took, d.o.Interval))
	}
	return min(idle*5/4, 4*d.o.Interval)
}

// worried logs a failure that may pass, once for each kind, and waits.
func (d *Drainer) worried(ctx context.Context, who string, err error) {
	d.backoff = min(max(2*d.backoff, minBackoff), maxBackoff)
	wait := d.backoff/2 + rand.N(d.backoff/2+1)
	var e *eventhub.Error
	if errors.As(err, &e) && e.RetryAfter > 0 {
		wait = max(wait, min(e.RetryAfter, maxBackoff))
	}
	if text := who + ": " + err.Error(); text != d.worry {
		d.worry = text
		d.o.Log.Warn("outbox: waiting for "+who, "error", err, "wait", wait)
	}
	sleep(ctx, wait)
}

// calm forgets failures after a success.
func (d *Drainer) calm() {
	if d.worry != "" {
		d.o.Log.Info("outbox: going on")
	}
	d.worry, d.backoff = "", 0
}

// keepHouse removes rows that were sent long ago, and counts rows for the metrics.
func (d *Drainer) keepHouse(ctx context.Context) {
	forget, count := time.NewTicker(forgetEvery), time.NewTicker(countEvery)
	defer forget.Stop()
	defer count.Stop()
	d.forget(ctx)
	d.count(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-forget.C:
			d.forget(ctx)
		case <-count.C:
			d.count(ctx)
		}
	}
}

func (d *Drainer) forget(ctx context.Context) {
	for d.o.Keep >= 0 && ctx.Err() == nil {
		n, err := d.table.Forget(ctx, time.Now().Add(-d.o.Keep), forgetAtOnce)
		if err != nil && ctx.Err() == nil {
			d.o.Log.Warn("outbox: cannot remove what was sent", "error", err)
		}
		if err != nil || n < forgetAtOnce {
			return
		}
	}
}

func (d *Drainer) count(ctx context.Context) {
	if d.o.Registerer == nil {
		return
	}
	n, err := d.table.Counts(ctx)
	if ctx.Err() == nil {
		d.m.counted(n, err, time.Now())
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
