-- +goose Up

-- A token's last use is written again and again: room in its page keeps the
-- update from touching the indexes.
create table tokens (
    id                uuid   primary key,
    org_id            uuid   not null references organizations,
    artifact_id       uuid   not null,
    created_at        bigint not null,
    expires_at        bigint,
    revoked_at        bigint,
    last_used_at      bigint,
    artifact          text   collate "C" not null,
    idempotency_key   text   collate "C",
    revocation_reason text   collate "C" not null,
    hash              bytea  not null check (octet_length(hash) = 32),
    mac               bytea  not null,
    constraint tokens_hash unique (hash)
) with (fillfactor = 80);
create unique index tokens_idempotency_key on tokens (org_id, idempotency_key) where idempotency_key is not null;
create index tokens_newest on tokens (org_id, id desc);

create table signing_keys (
    org_id     uuid   not null references organizations,
    id         uuid   not null,
    created_at bigint not null,
    retired_at bigint,
    revoked_at bigint,
    status     text   collate "C" not null,
    name       text   collate "C" not null,
    public     bytea  not null check (octet_length(public) = 32),
    mac        bytea  not null,
    private    bytea,
    primary key (org_id, id)
);

create table anchors (
    org_id     uuid   not null references organizations,
    kind       text   collate "C" not null check (kind in ('approval', 'head')),
    subject_id uuid   not null,
    method     text   collate "C" not null,
    sequence   bigint not null,
    updated_at bigint not null,
    status     text   collate "C" not null,
    reason     text   collate "C" not null,
    digest     bytea  not null check (octet_length(digest) = 32),
    mac        bytea  not null,
    proof      bytea,
    primary key (org_id, kind, subject_id, method)
) with (fillfactor = 80);
alter table anchors alter column proof set storage external;
create index anchors_of_heads on anchors (org_id, method, sequence) where kind = 'head';
