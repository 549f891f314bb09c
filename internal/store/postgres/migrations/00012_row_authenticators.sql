-- +goose Up

-- Rows from before have no authenticator, and are refused until an operator takes them
-- over.
alter table webhooks add column mac bytea not null default '';
alter table policies add column mac bytea not null default '';
-- Theirs covered a part of the columns.
update tokens       set mac = '';
update signing_keys set mac = '';
update anchors      set mac = '';

-- When a job was first to run, which a retry leaves as it is.
alter table jobs
    add column due_at bigint not null default 0,
    add column mac    bytea  not null default '';
