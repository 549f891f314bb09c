-- +goose Up

-- Rows from before have no authenticator, and are refused until an operator takes them
-- over.
ALTER TABLE api_keys      ADD COLUMN mac BLOB NOT NULL DEFAULT x'';
ALTER TABLE key_rotations ADD COLUMN mac BLOB NOT NULL DEFAULT x'';
-- Nobody misses these: a retry rotates once more, and people sign in again.
DELETE FROM key_rotations;
DELETE FROM sign_ins;
ALTER TABLE sign_ins      ADD COLUMN mac BLOB NOT NULL DEFAULT x'';
