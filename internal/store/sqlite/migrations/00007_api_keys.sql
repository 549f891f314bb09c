-- +goose Up

-- Keys from before may record for any agent, belong to nobody by name, and never
-- expire.
ALTER TABLE api_keys ADD COLUMN agents              TEXT    NOT NULL DEFAULT '[]';
ALTER TABLE api_keys ADD COLUMN owner               TEXT    NOT NULL DEFAULT '';
ALTER TABLE api_keys ADD COLUMN expires_at          INTEGER;
ALTER TABLE api_keys ADD COLUMN expiry_logged       INTEGER NOT NULL DEFAULT 0;
ALTER TABLE api_keys ADD COLUMN last_used_at        INTEGER;
ALTER TABLE api_keys ADD COLUMN previous_hash       BLOB    CHECK (length(previous_hash) = 32);
ALTER TABLE api_keys ADD COLUMN previous_expires_at INTEGER;

-- A key is found by its secret and by the one before it, each in one step.
CREATE UNIQUE INDEX api_keys_previous_hash ON api_keys (previous_hash);

-- The idempotency keys of rotations: a retry must not replace the secret again.
CREATE TABLE key_rotations (
  org_id          BLOB    NOT NULL REFERENCES organizations (id) ON DELETE RESTRICT,
  idempotency_key TEXT    NOT NULL,
  key_id          BLOB    NOT NULL REFERENCES api_keys (id) ON DELETE RESTRICT,
  overlap         INTEGER NOT NULL,
  rotated_at      INTEGER NOT NULL,
  PRIMARY KEY (org_id, idempotency_key)
) STRICT, WITHOUT ROWID;
