-- +goose Up

-- Which ledger this is: one row, made when a server first serves the database, and
-- replaced when a backup is restored. parent_id is zero where there is no parent.
CREATE TABLE ledger_identity (
  no         INTEGER NOT NULL PRIMARY KEY CHECK (no = 1),
  id         BLOB    NOT NULL CHECK (length(id) = 16),
  parent_id  BLOB    NOT NULL CHECK (length(parent_id) = 16),
  created_at INTEGER NOT NULL,
  mac        BLOB    NOT NULL
) STRICT;
