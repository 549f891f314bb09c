-- +goose Up

-- Keys from before may record for any agent, belong to nobody by name, and never
-- expire.
alter table api_keys
    add column agents              text collate "C" not null default '[]',
    add column owner               text collate "C" not null default '',
    add column expires_at          bigint,
    add column expiry_logged       boolean not null default false,
    add column last_used_at        bigint,
    add column previous_hash       bytea check (octet_length(previous_hash) = 32),
    add column previous_expires_at bigint;

-- A key is found by its secret and by the one before it, each in one step.
alter table api_keys add constraint api_keys_previous_hash unique (previous_hash);

-- The idempotency keys of rotations: a retry must not replace the secret again.
create table key_rotations (
    org_id          uuid   not null references organizations,
    key_id          uuid   not null references api_keys,
    overlap         bigint not null,
    rotated_at      bigint not null,
    idempotency_key text   collate "C" not null,
    primary key (org_id, idempotency_key)
);
