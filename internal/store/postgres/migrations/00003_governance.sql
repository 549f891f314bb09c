-- +goose Up

-- Kill switch, policy in force and the like; null stands for none of them.
alter table organizations add column controls json;

-- Authenticates an event by itself; null for events from before.
alter table events add column mac bytea;

-- The constraint on the event refuses a second approval of one action. Its own
-- index of each list's order keeps lists cheap however many approvals there are;
-- those that wait for a person are few, and are found among all by an index of
-- them alone.
create table approvals (
    id           uuid   primary key,
    org_id       uuid   not null references organizations,
    chain_id     uuid   not null,
    sequence     bigint not null,
    opened_by    uuid   not null references api_keys,
    requested_at bigint not null,
    status       text   collate "C" not null,
    body         bytea  not null,
    mac          bytea  not null,
    constraint approvals_event unique (chain_id, sequence),
    foreign key (chain_id, sequence) references events
) with (toast_tuple_target = 4080);
alter table approvals alter column body set storage external;
create index approvals_newest on approvals (org_id, requested_at desc, id desc);
create index approvals_of_chain on approvals (chain_id, requested_at desc, id desc);
create index approvals_by_opener on approvals (opened_by, requested_at desc, id desc);
create index approvals_open on approvals (org_id, status, requested_at desc, id desc) where status in ('pending', 'escalated');

create table policies (
    org_id     uuid   not null references organizations,
    number     bigint not null check (number > 0),
    created_at bigint not null,
    version    text   collate "C" not null,
    format     text   collate "C" not null,
    created_by text   collate "C" not null,
    document   bytea  not null,
    primary key (org_id, number)
);

create table webhooks (
    id          uuid   primary key,
    org_id      uuid   not null references organizations,
    created_at  bigint not null,
    disabled_at bigint,
    deleted_at  bigint,
    url         text   collate "C" not null,
    description text   collate "C" not null,
    events      json   not null,
    secret      bytea  not null
);
create index webhooks_of_organization on webhooks (org_id, id) where deleted_at is null;

create table acts (
    org_id   uuid   not null references organizations,
    sequence bigint not null check (sequence > 0),
    body     bytea  not null,
    primary key (org_id, sequence)
) with (toast_tuple_target = 4080);
alter table acts alter column body set storage external;

-- Rewritten by every act, as heads are by every completion.
create table act_logs (
    org_id    uuid   primary key references organizations,
    count     bigint not null check (count >= 0),
    last_hash bytea  check (octet_length(last_hash) = 32),
    controls  bytea  not null check (octet_length(controls) = 32),
    mac       bytea  not null
) with (fillfactor = 50);
-- Organizations from before there were logs are marked: theirs is yet to begin.
insert into act_logs (org_id, count, last_hash, controls, mac)
    select id, 0, null, decode(repeat('00', 32), 'hex'), '' from organizations;

-- A foreign key to organizations would have every job, and with it every action
-- that has one, mark the organization's row.
--
-- A job that waits behind an earlier one of its stream may be marked as held: it
-- then leaves the index from which jobs are claimed, so that a long stream that
-- does not move is not read over and over. Whoever ends the earlier job frees the
-- next.
create table jobs (
    no           bigint  generated always as identity primary key,
    org_id       uuid    not null,
    run_at       bigint  not null,
    leased_until bigint,
    attempts     int     not null default 0,
    held         boolean not null default false,
    buried       boolean not null default false,
    lease        uuid,
    kind         text    collate "C" not null,
    stream       text    collate "C" not null,
    fault        text    collate "C",
    body         bytea   not null
) with (fillfactor = 70);
create index jobs_ready on jobs (run_at, no) where not held and not buried;
create index jobs_ready_of_stream on jobs (stream, run_at, no) where stream <> '' and not held and not buried;
create index jobs_held on jobs (stream, run_at, no) where held;
create index jobs_begun on jobs (stream) where stream <> '' and attempts > 0 and not buried;
create index jobs_buried on jobs (no) where buried;
