-- +goose Up

-- Tampering that was found. It refers to no other table: what it is about may be gone.
create table findings (
    org_id          uuid   not null,
    name            text   collate "C" not null,
    failed_check    text   not null,
    kind            text   not null,
    subject         text   not null,
    evidence        bytea  not null,
    found_at        bigint not null,
    seen_at         bigint not null,
    acknowledged_at bigint,
    acknowledged_by text   not null,
    reason          text   not null,
    mac             bytea  not null,
    primary key (org_id, name)
);
