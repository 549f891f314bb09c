-- +goose Up

-- When a chain was last asked for without anything being recorded. Few chains have a
-- row: those that are polled long after their last entry.
CREATE TABLE chain_polls (
  chain_no  INTEGER NOT NULL PRIMARY KEY REFERENCES chains (no) ON DELETE RESTRICT,
  polled_at INTEGER NOT NULL
) STRICT;
