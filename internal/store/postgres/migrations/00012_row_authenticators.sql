-- +goose Up

-- Rows from before have no authenticator, and are refused until an operator takes them
-- over.
alter table webhooks add column mac bytea not null default '';

-- When a job was first to run, which a retry leaves as it is.
alter table jobs
    add column due_at bigint not null default 0,
    add column mac    bytea  not null default '';
