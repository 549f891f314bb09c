-- +goose Up

-- When the client of an approval last asked about it. It stands apart from the
-- approvals: it is written while they are decided, and it is no evidence.
CREATE TABLE approval_polls (
  approval_id BLOB    PRIMARY KEY,
  polled_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
