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
