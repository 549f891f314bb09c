-- +goose Up

-- Tampering that was found. It refers to no other table: what it is about may be gone.
CREATE TABLE findings (
  org_id          BLOB    NOT NULL,
  name            TEXT    NOT NULL,
  failed_check    TEXT    NOT NULL,
  kind            TEXT    NOT NULL,
  subject         TEXT    NOT NULL,
  evidence        BLOB    NOT NULL,
  found_at        INTEGER NOT NULL,
  seen_at         INTEGER NOT NULL,
  acknowledged_at INTEGER,
  acknowledged_by TEXT    NOT NULL,
  reason          TEXT    NOT NULL,
  mac             BLOB    NOT NULL,
  PRIMARY KEY (org_id, name)
) STRICT, WITHOUT ROWID;
