-- +goose Up

-- The last full check of each chain that is too large to be checked while somebody waits.
create table full_checks (
    org_id       uuid   not null references organizations,
    receipt_id   uuid   not null,
    checked_at   bigint not null,
    receipt_hash bytea  not null check (octet_length(receipt_hash) = 32),
    failed       text   collate "C" not null,
    mac          bytea  not null,
    primary key (org_id, receipt_id)
);
