-- +goose Up

-- What actions have taken of a budget in one window: one row for each budget, member of
-- its scope and window, rewritten by every action that counts. Room in its page keeps the
-- update from touching the indexes. budget, window_start and value are copies of what body
-- says, to list counters by.
create table budget_counters (
    id           uuid   primary key,
    org_id       uuid   not null references organizations,
    window_start bigint not null,
    budget       text   collate "C" not null,
    value        text   collate "C" not null,
    body         bytea  not null,
    mac          bytea  not null
) with (fillfactor = 50);
create index budget_counters_of_budget on budget_counters (org_id, budget, window_start, value, id);
create index budget_counters_of_organization on budget_counters (org_id, id);
