package projector

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"

	"eventhub"
)

// Table is the ready-made projection: a table with the newest event of each key of each
// topic. Events without a key are passed over, and so are those whose key has the character U+0000, which no text of
// PostgreSQL can hold. An event whose payload is null removes its key.
type Table struct{ name string }

var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// NewTable returns the table with a name: a letter or _, then up to 62 letters, digits and
// _. The error has eventhub.CodeBadRequest.
func NewTable(name string) (Table, error) {
	if !tableName.MatchString(name) {
		return Table{}, eventhub.Errorf(eventhub.CodeBadRequest, "%q is no name of a table: a letter or _, then letters, digits and _", name)
	}
	return Table{name}, nil
}

// Create makes the table where it is not there.
func (t Table) Create(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS `+t.name+` (topic text NOT NULL, key text NOT NULL, payload text NOT NULL,
		event_id text NOT NULL, event_offset bigint NOT NULL, ts bigint NOT NULL, PRIMARY KEY (topic, key))`)
	if err != nil {
		return fmt.Errorf("projector: making table %s: %w", t.name, err)
	}
	return nil
}

// Projection returns the projection that keeps the table.
func (t Table) Projection(name string, topics ...string) Projection {
	return Projection{Name: name, Topics: topics, Apply: t.apply, Reset: t.reset, OnGap: t.onGap}
}

func (t Table) apply(ctx context.Context, tx *sql.Tx, e *eventhub.Event) error {
	if e.Key == "" || strings.ContainsRune(e.Key, 0) {
		return nil
	}
	if string(e.Payload) == "null" {
		_, err := tx.ExecContext(ctx, `DELETE FROM `+t.name+` WHERE topic = $1 AND key = $2`, e.Topic, e.Key)
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO `+t.name+` (topic, key, payload, event_id, event_offset, ts) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (topic, key) DO UPDATE SET payload = excluded.payload, event_id = excluded.event_id,
			event_offset = excluded.event_offset, ts = excluded.ts`, e.Topic, e.Key, string(e.Payload), e.ID, int64(e.Offset), e.TS)
	return err
}

func (t Table) reset(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM `+t.name)
	return err
}

// onGap drops what may be old: of a key whose newest event the topic does not have any more
// the state says nothing.
func (t Table) onGap(ctx context.Context, tx *sql.Tx, g eventhub.Gap) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM `+t.name+` WHERE topic = $1 AND event_offset < $2`, g.Topic, int64(g.First))
	return err
}
