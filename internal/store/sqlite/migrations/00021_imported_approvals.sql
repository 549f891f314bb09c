-- +goose Up

-- Approvals that were decided and signed elsewhere: the record that was signed, and the key
-- of the registry that did.
CREATE TABLE imported_approvals (
  id          BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
  org_id      BLOB    NOT NULL REFERENCES organizations (id) ON DELETE RESTRICT,
  import_id   BLOB    NOT NULL CHECK (length(import_id) = 16),
  key_id      BLOB    NOT NULL CHECK (length(key_id) = 16),
  record      BLOB    NOT NULL,
  signature   BLOB    NOT NULL,
  imported_at INTEGER NOT NULL,
  act         INTEGER NOT NULL,
  mac         BLOB    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX imported_approvals_of_organization ON imported_approvals (org_id, id);
