-- +goose Up

-- Texts are collated "C": they are compared byte by byte, and an upgrade of the
-- operating system's locales cannot disorder an index. No foreign key cascades:
-- what others refer to cannot be deleted. Large bytes are stored uncompressed,
-- for they are read and hashed more often than disk is scarce.

create table organizations (
    id         uuid   primary key,
    created_at bigint not null,
    slug       text   collate "C" not null,
    name       text   collate "C" not null,
    settings   json   not null,
    constraint organizations_slug unique (slug)
);

create table api_keys (
    id         uuid   primary key,
    org_id     uuid   not null references organizations,
    created_at bigint not null,
    revoked_at bigint,
    name       text   collate "C" not null,
    role       text   collate "C" not null,
    hint       text   collate "C" not null,
    hash       bytea  not null check (octet_length(hash) = 32),
    constraint api_keys_hash unique (hash)
);
create index api_keys_of_organization on api_keys (org_id, id);

-- One row for each organization, rewritten by every completion: room in its page
-- keeps the update from touching the index.
create table heads (
    org_id    uuid   primary key references organizations,
    count     bigint not null check (count >= 0),
    last_hash bytea  check (octet_length(last_hash) = 32),
    key_id    text   collate "C" not null,
    mac       bytea  not null
) with (fillfactor = 50);

-- What is fixed when a chain is opened.
create table chains (
    id              uuid  primary key,
    org_id          uuid  not null references organizations,
    opened_by       uuid  not null references api_keys,
    environment     text  collate "C" not null,
    external_id     text  collate "C" not null,
    idempotency_key text  collate "C",
    body            bytea not null
) with (toast_tuple_target = 4080);
alter table chains alter column body set storage external;
create unique index chains_idempotency_key on chains (org_id, idempotency_key) where idempotency_key is not null;
create index chains_newest on chains (org_id, id desc);
create index chains_by_environment on chains (org_id, environment, id desc);
create index chains_by_external_id on chains (org_id, external_id, id desc) where external_id <> '';
create index chains_by_opener on chains (opened_by, id desc);

-- What moves while a chain runs: rewritten by every event. The status is indexed
-- and changes at most a few times; all other updates stay within their page. A
-- state is kept in its row for as long as it fits a page.
create table chain_states (
    chain_id uuid  primary key references chains,
    org_id   uuid  not null,
    status   text  collate "C" not null,
    state    bytea not null,
    mac      bytea not null
) with (fillfactor = 70, toast_tuple_target = 8160);
alter table chain_states alter column state set storage main;
create index chain_states_by_status on chain_states (org_id, status, chain_id desc);

-- A foreign key to chains would cost every action a look-up of the chain that
-- the same transaction holds locked.
create table events (
    chain_id        uuid   not null,
    sequence        bigint not null check (sequence > 0),
    idempotency_key text   collate "C",
    body            bytea  not null,
    payload         bytea,
    primary key (chain_id, sequence)
) with (toast_tuple_target = 4080);
alter table events alter column body set storage external;
alter table events alter column payload set storage external;
create unique index events_idempotency_key on events (chain_id, idempotency_key) where idempotency_key is not null;

create table addenda (
    chain_id uuid   not null,
    position bigint not null check (position > 0),
    sequence bigint not null,
    body     bytea  not null,
    primary key (chain_id, position),
    foreign key (chain_id, sequence) references events
);
alter table addenda alter column body set storage external;
create index addenda_of_event on addenda (chain_id, sequence, position);

-- The first receipt of an organization has an empty previous hash rather than
-- none, so that the constraint also refuses a second first.
create table receipts (
    id            uuid   primary key,
    org_id        uuid   not null references organizations,
    sequence      bigint not null check (sequence > 0),
    chain_id      uuid   not null references chains,
    previous_hash bytea  not null default '' check (octet_length(previous_hash) in (0, 32)),
    body          bytea  not null,
    constraint receipts_sequence unique (org_id, sequence),
    constraint receipts_previous_hash unique (org_id, previous_hash),
    constraint receipts_chain unique (chain_id)
) with (toast_tuple_target = 8160);
alter table receipts alter column body set storage external;

-- Fingerprints of the master keys that have signed here.
create table master_keys (
    key_id      text  collate "C" primary key,
    fingerprint bytea not null check (octet_length(fingerprint) = 32)
);
