-- +goose Up

-- The number of the act that changed a record last. Rows from before name none, and are
-- refused until an operator takes them over.
alter table api_keys     add column act bigint not null default 0;
alter table tokens       add column act bigint not null default 0;
alter table signing_keys add column act bigint not null default 0;
alter table webhooks     add column act bigint not null default 0;
alter table policies     add column act bigint not null default 0;
-- Nobody misses these: people sign in again.
delete from sign_ins;
alter table sign_ins
    add column act    bigint not null default 0,
    add column org_id uuid   not null default '00000000-0000-0000-0000-000000000000';
