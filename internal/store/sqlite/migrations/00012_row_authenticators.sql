-- +goose Up

-- Rows from before have no authenticator, and are refused until an operator takes them
-- over.
ALTER TABLE webhooks ADD COLUMN mac BLOB NOT NULL DEFAULT x'';
