// Package projector keeps tables of a service's own database as what the events of topics
// make of them: a table of the latest value of each key, a count, an index. The tables can
// be queried as any others, joined with them, and thrown away and made again.
//
// # What holds
//
//   - Each event is applied once, in the order of its topic: what it changes and the place
//     up to which the projection has come are in one transaction.
//   - The table is what a fold of the events gives that were in the topic when they were
//     read. Where events were removed before they were read, which the hub says as a gap,
//     the projection is made again from what the topic has, or OnGap puts it right.
//   - It is made again too where the log does not have what was seen, as after the hub was
//     restored from a backup. That is one transaction, so that nobody sees a half table.
//   - One program at a time keeps a projection: one that begins takes it over, and the
//     transactions of the one before fail with [ErrTakenOver].
//
// A projection that is made again drops what the topic does not have any more. One that
// goes on keeps what it has applied, also when retention or the deletion of the topic
// removes the event later.
//
// The statements are understood by SQLite and PostgreSQL, both through package
// database/sql.
package projector

import (
	"context"
	"database/sql"
	_ "embed" // the schema
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"eventhub"
	"eventhub/admin"
)

// Version is the version of the tables that have the places.
const Version = 1

// Schema makes these tables in SQLite and PostgreSQL, for migration tools. Every statement
// in it is idempotent.
//
//go:embed schema.sql
var Schema string

// ErrTakenOver ends Run when another program keeps the projection now.
var ErrTakenOver error = eventhub.Errorf(eventhub.CodeConflict, "another program has taken the projection over")

// Past reads what topics have: a *client.Admin.
type Past interface {
	Replay(ctx context.Context, q admin.ReplayQuery, visit func(topic string, item eventhub.Item) error) error
}

// Bounds and defaults.
const (
	DefaultBatch = 500
	MaxBatch     = 10_000

	maxNameBytes = 128
	minBackoff   = 250 * time.Millisecond
	maxBackoff   = 30 * time.Second
	lagEvery     = 10 * time.Second
)

// Projection says what is kept of which topics.
type Projection struct {
	// Name is that of the projection in the table of places: 1 to 128 bytes.
	Name string
	// Topics are topics or patterns, at most eventhub.MaxPatterns.
	Topics []string
	// Apply changes tables in the transaction tx as an event says. An error rolls the
	// transaction back, and the event is tried again, unless it is [eventhub.Terminal],
	// which ends Run.
	Apply func(ctx context.Context, tx *sql.Tx, e *eventhub.Event) error
	// Reset empties the tables before the projection is made again, in the transaction
	// that does so.
	Reset func(ctx context.Context, tx *sql.Tx) error
	// OnGap, where not nil, puts right what is wrong, as the events after g.After and before
	// g.First were removed before they were read. It may be called again with the same gap.
	// Where it is nil, or the gap is of another
	// kind, the projection is made again.
	OnGap func(ctx context.Context, tx *sql.Tx, g eventhub.Gap) error
}

// Options are how a Projector works. The zero value is the default of each.
type Options struct {
	Batch int // events in one transaction, at most: 1 to MaxBatch, DefaultBatch
	// Rebuild makes the projection again when Run begins.
	Rebuild bool
	// Log takes what an operator wants to know; nil discards it.
	Log *slog.Logger
	// Registerer gets the metrics; nil for none. They have the name of the projection as a
	// label.
	Registerer prometheus.Registerer
	// Applied is called after each transaction with the places that it has moved; nil for
	// nobody.
	Applied func(places []eventhub.Place)
}

// A Projector keeps one projection.
type Projector struct {
	db   *sql.DB
	hub  eventhub.Subscriber
	past Past
	p    Projection
	o    Options
	m    *metrics

	epoch   int64
	places  map[string]eventhub.Place // up to where it is, by topic, as the database has it
	rebuild bool
	backoff time.Duration
}

// New returns a projector. db is a database of SQLite or PostgreSQL, hub brings what comes
// (a *client.Client: it has no other tail of these topics), and past what is there (a
// *client.Admin). The error has eventhub.CodeBadRequest or CodeBadTopic.
func New(db *sql.DB, hub eventhub.Subscriber, past Past, p Projection, o Options) (*Projector, error) {
	if o.Batch == 0 {
		o.Batch = DefaultBatch
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	bad := func(format string, args ...any) error {
		return eventhub.Errorf(eventhub.CodeBadRequest, format, args...)
	}
	switch {
	case p.Name == "" || len(p.Name) > maxNameBytes:
		return nil, bad("the name of the projection has %d bytes; 1 to %d are allowed", len(p.Name), maxNameBytes)
	case len(p.Topics) == 0 || len(p.Topics) > eventhub.MaxPatterns:
		return nil, bad("the projection has %d topics; 1 to %d are allowed", len(p.Topics), eventhub.MaxPatterns)
	case p.Apply == nil || p.Reset == nil:
		return nil, bad("a projection needs Apply and Reset")
	case o.Batch < 0 || o.Batch > MaxBatch:
		return nil, bad("batch is %d; 1 to %d are allowed", o.Batch, MaxBatch)
	}
	for _, topic := range p.Topics {
		if _, err := eventhub.ParsePattern(topic); err != nil {
			return nil, err
		}
	}
	m, err := newMetrics(o.Registerer, p.Name)
	if err != nil {
		return nil, err
	}
	return &Projector{db: db, hub: hub, past: past, p: p, o: o, m: m}, nil
}

// Migrate makes the tables of places where they are not there.
func Migrate(ctx context.Context, db *sql.DB) error {
	if _, err := db.ExecContext(ctx, Schema); err != nil {
		return fmt.Errorf("projector: making the tables: %w", err)
	}
	return check(ctx, db)
}

func check(ctx context.Context, db *sql.DB) error {
	var version int
	if err := db.QueryRowContext(ctx, `SELECT coalesce(max(version), 0) FROM eventhub_projection_version`).Scan(&version); err != nil {
		return fmt.Errorf("projector: reading the version of the tables; Migrate makes them: %w", err)
	}
	if version != Version {
		return eventhub.Errorf(eventhub.CodeConflict, "the tables of projections are of version %d; this program needs %d", version, Version)
	}
	return nil
}

// Run takes the projection over and keeps it until ctx ends, and then returns nil. A
// database or a hub that is away for a while is waited for. It returns [ErrTakenOver] when
// another program does the same, an error of Apply that is terminal, and a refusal of the hub
// that is final. Run is called once.
func (p *Projector) Run(ctx context.Context) error {
	if err := check(ctx, p.db); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	stop := p.watchLag(ctx)
	defer stop()
	p.rebuild = p.o.Rebuild
	for ctx.Err() == nil {
		err := p.turn(ctx)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, errRebuild):
			p.rebuild = true
		case isFinal(err):
			return err
		default:
			p.wait(ctx, err)
		}
	}
	return nil
}

// turn is one attempt to keep the projection: it takes it over, makes it where it has to be
// made, and follows the topics until something fails.
func (p *Projector) turn(ctx context.Context) error {
	if p.epoch == 0 {
		if err := p.takeOver(ctx); err != nil {
			return err
		}
	}
	if err := p.readPlaces(ctx); err != nil {
		return err
	}
	if p.rebuild || len(p.places) == 0 {
		if err := p.load(ctx); err != nil {
			return err
		}
		p.rebuild = false
	}
	return p.follow(ctx)
}

// workError is an error of Apply, Reset or OnGap.
type workError struct {
	what string
	err  error
}

func (e *workError) Error() string { return "projector: " + e.what + ": " + e.err.Error() }
func (e *workError) Unwrap() error { return e.err }

// errRebuild says that the projection has to be made again.
var errRebuild = errors.New("projector: the projection has to be made again")

// isFinal reports whether it is of no use to try again.
func isFinal(err error) bool {
	if errors.Is(err, ErrTakenOver) || eventhub.NackOf(err).Terminal {
		return true
	}
	var own *workError
	if errors.As(err, &own) {
		return false // a code in it is of whatever the program has asked
	}
	var e *eventhub.Error
	return errors.As(err, &e) && (e.Code.Denied() || e.Code == eventhub.CodeBadTopic || e.Code == eventhub.CodeBadRequest)
}

// wait logs a failure that may pass, and waits.
func (p *Projector) wait(ctx context.Context, err error) {
	p.backoff = min(max(2*p.backoff, minBackoff), maxBackoff)
	p.m.failed()
	p.o.Log.Warn("projector: trying again", "projection", p.p.Name, "error", err, "wait", p.backoff)
	t := time.NewTimer(p.backoff)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
