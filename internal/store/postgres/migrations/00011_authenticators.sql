-- +goose Up

-- Rows from before have no authenticator, and are refused until an operator takes them
-- over.
alter table api_keys      add column mac bytea not null default '';
alter table key_rotations add column mac bytea not null default '';
-- Nobody misses these: a retry rotates once more, and people sign in again.
delete from key_rotations;
delete from sign_ins;
alter table sign_ins      add column mac bytea not null default '';
