package projector

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"eventhub"
	"eventhub/admin"
)

// takeOver makes this program the one that keeps the projection.
func (p *Projector) takeOver(ctx context.Context) error {
	const take = `INSERT INTO eventhub_projection (name, epoch, updated_at) VALUES ($1, 1, $2)
		ON CONFLICT (name) DO UPDATE SET epoch = eventhub_projection.epoch + 1, updated_at = excluded.updated_at RETURNING epoch`
	if err := p.db.QueryRowContext(ctx, take, p.p.Name, time.Now().UnixMilli()).Scan(&p.epoch); err != nil {
		return fmt.Errorf("projector: taking projection %s over: %w", p.p.Name, err)
	}
	p.o.Log.Info("projector: begins", "projection", p.p.Name, "epoch", p.epoch)
	return nil
}

// readPlaces reads where the projection is.
func (p *Projector) readPlaces(ctx context.Context) error {
	rows, err := p.db.QueryContext(ctx, `SELECT topic, event_offset, committed_ts FROM eventhub_projection_place WHERE name = $1`, p.p.Name)
	if err != nil {
		return fmt.Errorf("projector: reading places: %w", err)
	}
	defer rows.Close()
	places := make(map[string]eventhub.Place)
	for rows.Next() {
		var at eventhub.Place
		var offset int64
		if err := rows.Scan(&at.Topic, &offset, &at.TS); err != nil {
			return fmt.Errorf("projector: reading places: %w", err)
		}
		at.Offset = uint64(offset)
		places[at.Topic] = at
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("projector: reading places: %w", err)
	}
	p.places = places
	return nil
}

// change is one transaction of the projection, with the places that it moves.
type change struct {
	p     *Projector
	tx    *sql.Tx
	moved map[string]eventhub.Place
	n     int // events applied
}

// begin begins a transaction. It holds the row of the projection, so that nobody takes it
// over before the end.
func (p *Projector) begin(ctx context.Context) (*change, error) {
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("projector: beginning a transaction: %w", err)
	}
	c := &change{p: p, tx: tx, moved: make(map[string]eventhub.Place)}
	result, err := tx.ExecContext(ctx, `UPDATE eventhub_projection SET updated_at = $1 WHERE name = $2 AND epoch = $3`,
		time.Now().UnixMilli(), p.p.Name, p.epoch)
	if err != nil {
		return nil, c.giveUp(fmt.Errorf("projector: locking projection %s: %w", p.p.Name, err))
	}
	n, err := result.RowsAffected()
	if err == nil && n == 0 {
		err = ErrTakenOver
	}
	if err != nil {
		return nil, c.giveUp(err)
	}
	return c, nil
}

// giveUp rolls the transaction back.
func (c *change) giveUp(cause error) error {
	if err := c.tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return errors.Join(cause, err)
	}
	return cause
}

// place is up to where the topic is in this transaction.
func (c *change) place(topic string) eventhub.Place {
	if at, ok := c.moved[topic]; ok {
		return at
	}
	return c.p.places[topic]
}

// apply applies an event, unless it was before: a tail may bring some again.
func (c *change) apply(ctx context.Context, e *eventhub.Event) error {
	if e.Offset <= c.place(e.Topic).Offset {
		return nil
	}
	if err := c.p.p.Apply(ctx, c.tx, e); err != nil {
		return &workError{fmt.Sprintf("applying event %s at offset %d of %s", e.ID, e.Offset, e.Topic), err}
	}
	c.moved[e.Topic] = eventhub.Place{Topic: e.Topic, Offset: e.Offset, TS: e.CommitTime().UnixMilli()}
	c.n++
	return nil
}

// commit writes the places, and commits.
func (c *change) commit(ctx context.Context) error {
	const move = `INSERT INTO eventhub_projection_place (name, topic, event_offset, committed_ts) VALUES ($1, $2, $3, $4)
		ON CONFLICT (name, topic) DO UPDATE SET event_offset = excluded.event_offset, committed_ts = excluded.committed_ts`
	for _, at := range c.moved {
		if _, err := c.tx.ExecContext(ctx, move, c.p.p.Name, at.Topic, int64(at.Offset), at.TS); err != nil {
			return c.giveUp(fmt.Errorf("projector: writing the place in %s: %w", at.Topic, err))
		}
	}
	if err := c.tx.Commit(); err != nil {
		return c.giveUp(fmt.Errorf("projector: committing: %w", err))
	}
	places := make([]eventhub.Place, 0, len(c.moved))
	for topic, at := range c.moved {
		c.p.places[topic] = at
		places = append(places, at)
	}
	c.p.backoff = 0
	c.p.m.applied(c.n, places, time.Now())
	if c.p.o.Applied != nil && len(places) > 0 {
		c.p.o.Applied(places)
	}
	return nil
}

// load makes the projection from what the topics have, in one transaction.
func (p *Projector) load(ctx context.Context) error {
	p.o.Log.Info("projector: making the projection", "projection", p.p.Name)
	began := time.Now()
	c, err := p.begin(ctx)
	if err != nil {
		return err
	}
	if err := c.reset(ctx); err != nil {
		return c.giveUp(err)
	}
	for _, topic := range p.p.Topics {
		q := admin.ReplayQuery{Topic: topic, Start: eventhub.Earliest}
		err := p.past.Replay(ctx, q, func(topic string, item eventhub.Item) error {
			e, err := item.Event()
			if err != nil {
				return fmt.Errorf("projector: event at offset %d of %s: %w", item.Offset, topic, err)
			}
			return c.apply(ctx, &e) // again where two patterns match a topic
		})
		var own *workError
		if eventhub.ErrorCode(err) == eventhub.CodeUnknownID && !errors.As(err, &own) {
			continue // it has no event so far
		}
		if err != nil {
			return c.giveUp(fmt.Errorf("projector: reading %s: %w", topic, err))
		}
	}
	if err := c.commit(ctx); err != nil {
		return err
	}
	p.m.rebuilt()
	p.o.Log.Info("projector: made the projection", "projection", p.p.Name, "events", c.n, "took", time.Since(began))
	return nil
}

// reset empties the tables and forgets the places.
func (c *change) reset(ctx context.Context) error {
	if err := c.p.p.Reset(ctx, c.tx); err != nil {
		return &workError{"emptying the tables", err}
	}
	if _, err := c.tx.ExecContext(ctx, `DELETE FROM eventhub_projection_place WHERE name = $1`, c.p.p.Name); err != nil {
		return fmt.Errorf("projector: forgetting places: %w", err)
	}
	clear(c.p.places)
	return nil
}
