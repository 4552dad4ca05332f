package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ear is the connection of a store that listens for new rows. It is made by the first wait,
// and again by the next one after it was lost. Between two waits notifications stay in it, so
// none is missed.
type ear struct {
	pool *pgxpool.Pool
	free chan struct{} // has a token while nobody uses what is below
	conn *pgx.Conn
	// deaf is until when no connection is tried, as the last one could not be made.
	deaf time.Time
}

// deafFor is how long a store only waits, after it could not listen.
const deafFor = time.Minute

func newEar(pool *pgxpool.Pool) *ear {
	e := &ear{pool: pool, free: make(chan struct{}, 1)}
	e.free <- struct{}{}
	return e
}

// Wait implements [outbox.Waiter]. Where the database does not let it listen, as through a
// proxy that shares connections, it waits for the whole time. It ends at once, without an error,
// where it loses its connection. One wait at a time notices new rows; others wait after it.
func (s *Store) Wait(ctx context.Context, atMost time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	err := s.ear.wait(ctx)
	if err != nil && ctx.Err() == nil {
		<-ctx.Done()
	}
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return nil
	}
	return err
}

func (e *ear) wait(ctx context.Context) error {
	select {
	case <-e.free:
		defer func() { e.free <- struct{}{} }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if e.conn == nil {
		// What came before it listens is not notified: the caller looks once more.
		return e.listen(ctx)
	}
	_, err := e.conn.WaitForNotification(ctx)
	if err != nil && !pgconn.Timeout(err) || e.conn.IsClosed() {
		e.drop()
		if ctx.Err() == nil {
			// What came since the connection was lost is not notified: the caller looks once more.
			return nil
		}
	}
	return err
}

func (e *ear) listen(ctx context.Context) error {
	if time.Now().Before(e.deaf) {
		<-ctx.Done()
		return ctx.Err()
	}
	conn, err := pgx.ConnectConfig(ctx, e.pool.Config().ConnConfig.Copy())
	if err == nil {
		if _, err = conn.Exec(ctx, `LISTEN eventhub_outbox`); err != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}
	if err != nil {
		e.deaf = time.Now().Add(deafFor)
		return fmt.Errorf("outbox: listening for new rows: %w", err)
	}
	e.conn = conn
	return nil
}

func (e *ear) drop() {
	if e.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = e.conn.Close(ctx)
		e.conn = nil
	}
}

func (e *ear) close() {
	<-e.free
	e.drop()
	e.free <- struct{}{}
}
