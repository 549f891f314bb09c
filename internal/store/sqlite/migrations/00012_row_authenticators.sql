-- +goose Up

-- Rows from before have no authenticator, and are refused until an operator takes them
-- over.
ALTER TABLE webhooks ADD COLUMN mac BLOB NOT NULL DEFAULT x'';
ALTER TABLE policies ADD COLUMN mac BLOB NOT NULL DEFAULT x'';
-- Theirs covered a part of the columns.
UPDATE tokens       SET mac = x'';
UPDATE signing_keys SET mac = x'';
UPDATE anchors      SET mac = x'';

-- When a job was first to run, which a retry leaves as it is.
ALTER TABLE jobs ADD COLUMN due_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN mac    BLOB    NOT NULL DEFAULT x'';
