-- +goose Up

-- When a chain was last asked for without anything being recorded. Few chains have a
-- row: those that are polled long after their last entry. The table is apart from
-- chain_states, whose rows are locked by whoever records.
create table chain_polls (
    chain_id  uuid   primary key references chains,
    polled_at bigint not null
) with (fillfactor = 70);
