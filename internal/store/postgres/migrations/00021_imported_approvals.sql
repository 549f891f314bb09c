-- +goose Up

-- Approvals that were decided and signed elsewhere: the record that was signed, and the key
-- of the registry that did.
create table imported_approvals (
    id          uuid   primary key,
    org_id      uuid   not null references organizations,
    import_id   uuid   not null,
    key_id      uuid   not null,
    imported_at bigint not null,
    act         bigint not null,
    record      bytea  not null,
    signature   bytea  not null,
    mac         bytea  not null
);
create index imported_approvals_of_organization on imported_approvals (org_id, id);
