-- +goose Up

-- Transparency logs: trees over an organization's receipts. Their checkpoints and tiles are
-- written by the signer, never by whoever completes a chain.
create table transparency_logs (
    id        uuid   primary key,
    org_id    uuid   not null references organizations,
    opened_at bigint not null,
    closed_at bigint,
    origin    text   collate "C" not null,
    mac       bytea  not null
);
create unique index transparency_logs_open on transparency_logs (org_id) where closed_at is null;
create index transparency_logs_of_organization on transparency_logs (org_id, opened_at, id);

-- The newest checkpoint of each log, and the newest that witnesses have cosigned.
create table log_checkpoints (
    log_id       uuid   not null references transparency_logs,
    size         bigint not null check (size >= 0),
    kind         text   collate "C" not null check (kind in ('newest', 'witnessed')),
    root         bytea  not null check (octet_length(root) = 32),
    note         bytea  not null,
    cosignatures bytea  not null,
    primary key (log_id, kind)
);

create table log_tiles (
    log_id uuid    not null references transparency_logs,
    number bigint  not null,
    level  bigint  not null,
    hashes bytea   not null,
    primary key (log_id, level, number)
);
-- Hashes cannot be compressed: it would be tried with each write.
alter table log_tiles alter column hashes set storage external;

-- Which replica signs: one row at most.
create table log_signer (
    no     integer not null primary key check (no = 1),
    until  bigint  not null,
    holder uuid    not null
);
