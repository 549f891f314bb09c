-- +goose Up

-- Which ledger this is: one row, made when a server first serves the database, and
-- replaced when a backup is restored. parent_id is zero where there is no parent.
create table ledger_identity (
    no         integer not null primary key check (no = 1),
    id         uuid    not null,
    parent_id  uuid    not null,
    created_at bigint  not null,
    mac        bytea   not null
);
