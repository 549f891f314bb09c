-- +goose Up

-- Rows from before have no authenticator, and are refused until an operator takes them
-- over.
alter table webhooks add column mac bytea not null default '';
