-- +goose Up

-- How often routes that are kept for compatibility were used, by the organization whose
-- artifact was asked for, or zeros where it is not known, and the beginning of the day. It
-- refers to no other table, and names nothing that was asked for.
create table legacy_uses (
    org_id   uuid   not null,
    day      bigint not null,
    requests bigint not null check (requests >= 0),
    route    text   collate "C" not null,
    primary key (org_id, day, route)
);
