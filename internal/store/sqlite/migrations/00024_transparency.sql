-- +goose Up

-- Transparency logs: trees over an organization's receipts. Their checkpoints and tiles are
-- written by the signer, never by whoever completes a chain.
CREATE TABLE transparency_logs (
  id        BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
  org_id    BLOB    NOT NULL REFERENCES organizations (id) ON DELETE RESTRICT,
  origin    TEXT    NOT NULL,
  opened_at INTEGER NOT NULL,
  closed_at INTEGER,
  mac       BLOB    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX transparency_logs_open ON transparency_logs (org_id) WHERE closed_at IS NULL;
CREATE INDEX transparency_logs_of_organization ON transparency_logs (org_id, opened_at, id);

-- The newest checkpoint of each log, and the newest that witnesses have cosigned.
CREATE TABLE log_checkpoints (
  log_id       BLOB    NOT NULL REFERENCES transparency_logs (id) ON DELETE RESTRICT,
  kind         TEXT    NOT NULL CHECK (kind IN ('newest', 'witnessed')),
  size         INTEGER NOT NULL CHECK (size >= 0),
  root         BLOB    NOT NULL CHECK (length(root) = 32),
  note         BLOB    NOT NULL,
  cosignatures BLOB    NOT NULL,
  PRIMARY KEY (log_id, kind)
) STRICT, WITHOUT ROWID;

CREATE TABLE log_tiles (
  log_id BLOB    NOT NULL REFERENCES transparency_logs (id) ON DELETE RESTRICT,
  level  INTEGER NOT NULL,
  number INTEGER NOT NULL,
  hashes BLOB    NOT NULL,
  PRIMARY KEY (log_id, level, number)
) STRICT;

-- Which replica signs: one row at most.
CREATE TABLE log_signer (
  no     INTEGER NOT NULL PRIMARY KEY CHECK (no = 1),
  holder BLOB    NOT NULL CHECK (length(holder) = 16),
  until  INTEGER NOT NULL
) STRICT;
