-- +goose Up

-- How often routes that are kept for compatibility were used, by the organization whose
-- artifact was asked for, or zeros where it is not known, and the beginning of the day. It
-- refers to no other table, and names nothing that was asked for.
CREATE TABLE legacy_uses (
  org_id   BLOB    NOT NULL CHECK (length(org_id) = 16),
  day      INTEGER NOT NULL,
  route    TEXT    NOT NULL,
  requests INTEGER NOT NULL CHECK (requests >= 0),
  PRIMARY KEY (org_id, day, route)
) STRICT, WITHOUT ROWID;
