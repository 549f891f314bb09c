-- +goose Up
CREATE TABLE sign_ins (
  hash       BLOB    NOT NULL PRIMARY KEY CHECK (length(hash) = 32),
  kind       TEXT    NOT NULL CHECK (kind IN ('link', 'session')),
  key_id     BLOB    NOT NULL REFERENCES api_keys (id) ON DELETE RESTRICT,
  expires_at INTEGER NOT NULL
);
CREATE INDEX sign_ins_expiry ON sign_ins (expires_at);
