-- An outbox of eventhub, version 1, for SQLite 3.35 or newer. docs/databases.md describes
-- each column. A service inserts id, topic and payload, and what else the event has.
CREATE TABLE IF NOT EXISTS eventhub_outbox (
	seq          INTEGER PRIMARY KEY AUTOINCREMENT,
	id           TEXT    NOT NULL UNIQUE DEFAULT (lower(hex(randomblob(16)))),
	topic        TEXT    NOT NULL,
	key          TEXT,
	payload      TEXT    NOT NULL,
	headers      TEXT,
	tags         TEXT,
	caused_by    TEXT,
	sid          TEXT,
	ts           INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
	status       TEXT    NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'claimed', 'sent', 'error')),
	claimed_by   TEXT,
	lease_until  INTEGER,
	retry_at     INTEGER,
	attempts     INTEGER NOT NULL DEFAULT 0,
	last_err     TEXT,
	sent_at      INTEGER,
	event_offset INTEGER
);
CREATE INDEX IF NOT EXISTS eventhub_outbox_pending ON eventhub_outbox (seq) WHERE status = 'pending';
CREATE INDEX IF NOT EXISTS eventhub_outbox_waiting ON eventhub_outbox (topic, key, retry_at) WHERE retry_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS eventhub_outbox_claimed ON eventhub_outbox (topic, key, lease_until) WHERE status = 'claimed';
CREATE INDEX IF NOT EXISTS eventhub_outbox_parked ON eventhub_outbox (seq) WHERE status = 'error';
CREATE INDEX IF NOT EXISTS eventhub_outbox_sent ON eventhub_outbox (sent_at) WHERE status = 'sent';
CREATE TABLE IF NOT EXISTS eventhub_outbox_version (version INTEGER NOT NULL);
INSERT INTO eventhub_outbox_version (version) SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM eventhub_outbox_version);
