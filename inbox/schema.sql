-- An inbox of eventhub, version 1, for SQLite 3.35 and PostgreSQL 13 or newer.
-- docs/databases.md describes each column.
CREATE TABLE IF NOT EXISTS eventhub_inbox (
	group_name text   NOT NULL,
	topic      text   NOT NULL,
	event_id   text   NOT NULL,
	seen_at    bigint NOT NULL,
	PRIMARY KEY (group_name, topic, event_id)
);
CREATE INDEX IF NOT EXISTS eventhub_inbox_seen ON eventhub_inbox (seen_at);
CREATE TABLE IF NOT EXISTS eventhub_inbox_version (version integer NOT NULL);
INSERT INTO eventhub_inbox_version (version) SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM eventhub_inbox_version);
