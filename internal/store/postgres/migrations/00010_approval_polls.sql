-- +goose Up

-- When the client of an approval last asked about it. It stands apart from the
-- approvals: it is written while they are decided, and it is no evidence.
create table approval_polls (
    approval_id uuid   primary key,
    polled_at   bigint not null
);
