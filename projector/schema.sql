-- Where projections of eventhub are, version 1, for SQLite 3.35 and PostgreSQL 13 or newer.
-- docs/databases.md describes each column.
CREATE TABLE IF NOT EXISTS eventhub_projection (
	name       text   NOT NULL PRIMARY KEY,
	epoch      bigint NOT NULL,
	updated_at bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS eventhub_projection_place (
	name         text   NOT NULL,
	topic        text   NOT NULL,
	event_offset bigint NOT NULL,
	committed_ts bigint NOT NULL,
	PRIMARY KEY (name, topic)
);
CREATE TABLE IF NOT EXISTS eventhub_projection_version (version integer NOT NULL);
INSERT INTO eventhub_projection_version (version) SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM eventhub_projection_version);
