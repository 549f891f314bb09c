-- +goose Up

-- The last full check of each chain that is too large to be checked while somebody waits.
CREATE TABLE full_checks (
  org_id       BLOB    NOT NULL REFERENCES organizations (id) ON DELETE RESTRICT,
  receipt_id   BLOB    NOT NULL CHECK (length(receipt_id) = 16),
  receipt_hash BLOB    NOT NULL CHECK (length(receipt_hash) = 32),
  failed       TEXT    NOT NULL,
  checked_at   INTEGER NOT NULL,
  mac          BLOB    NOT NULL,
  PRIMARY KEY (org_id, receipt_id)
) STRICT, WITHOUT ROWID;
