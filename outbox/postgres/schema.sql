-- An outbox of eventhub, version 1, for PostgreSQL 13 or newer. docs/databases.md describes
-- each column. A service inserts id, topic and payload, and what else the event has.
-- Rows come and go all the time: dead ones are removed soon, so that claims stay fast.
CREATE TABLE IF NOT EXISTS eventhub_outbox (
	seq          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	id           text   NOT NULL UNIQUE DEFAULT gen_random_uuid()::text,
	topic        text   NOT NULL,
	key          text,
	payload      text   NOT NULL,
	headers      text,
	tags         text,
	caused_by    text,
	sid          text,
	ts           bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
	status       text   NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'claimed', 'sent', 'error')),
	claimed_by   text,
	lease_until  bigint,
	retry_at     bigint,
	attempts     integer NOT NULL DEFAULT 0,
	last_err     text,
	sent_at      bigint,
	event_offset bigint
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX IF NOT EXISTS eventhub_outbox_pending ON eventhub_outbox (seq) WHERE status = 'pending';
CREATE INDEX IF NOT EXISTS eventhub_outbox_waiting ON eventhub_outbox (topic, key, retry_at) WHERE retry_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS eventhub_outbox_claimed ON eventhub_outbox (topic, key, lease_until) WHERE status = 'claimed';
CREATE INDEX IF NOT EXISTS eventhub_outbox_parked ON eventhub_outbox (seq) WHERE status = 'error';
CREATE INDEX IF NOT EXISTS eventhub_outbox_sent ON eventhub_outbox (sent_at) WHERE status = 'sent';

-- Drainers are notified of new rows when the transaction of the service is committed.
CREATE OR REPLACE FUNCTION eventhub_outbox_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_notify('eventhub_outbox', TG_TABLE_SCHEMA);
	RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS eventhub_outbox_notify ON eventhub_outbox;
CREATE TRIGGER eventhub_outbox_notify AFTER INSERT ON eventhub_outbox FOR EACH STATEMENT EXECUTE FUNCTION eventhub_outbox_notify();

CREATE TABLE IF NOT EXISTS eventhub_outbox_version (version integer NOT NULL);
INSERT INTO eventhub_outbox_version (version) SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM eventhub_outbox_version);
