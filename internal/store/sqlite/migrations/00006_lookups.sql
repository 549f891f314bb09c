-- +goose Up

-- That no two receipts follow the same one is what their numbers say already: an
-- organization's receipt N follows N - 1. An index of the hashes said it once
-- more, and cost each completion a page at a random place.
CREATE TABLE receipts_new (
  no            INTEGER NOT NULL PRIMARY KEY,
  id            BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  org_id        BLOB    NOT NULL REFERENCES organizations (id) ON DELETE RESTRICT,
  sequence      INTEGER NOT NULL,
  chain_id      BLOB    NOT NULL UNIQUE REFERENCES chains (id) ON DELETE RESTRICT,
  previous_hash BLOB    NOT NULL,
  body          BLOB    NOT NULL,
  UNIQUE (org_id, sequence)
) STRICT;
INSERT INTO receipts_new SELECT no, id, org_id, sequence, chain_id, previous_hash, body FROM receipts ORDER BY no;
DROP TABLE receipts;
ALTER TABLE receipts_new RENAME TO receipts;

-- Whoever tries a token must not learn from the time it takes whether there ever
-- was such a one: one step in this index leads past what is revoked and past what
-- has expired, as it does past what never was. The number stands for never.
CREATE INDEX tokens_live ON tokens (hash, coalesce(expires_at, 9223372036854775807)) WHERE revoked_at IS NULL;
