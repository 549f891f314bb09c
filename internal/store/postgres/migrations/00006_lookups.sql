-- +goose Up

-- That no two receipts follow the same one is what their numbers say already: an
-- organization's receipt N follows N - 1. An index of the hashes said it once
-- more, and cost each completion a page at a random place.
alter table receipts drop constraint receipts_previous_hash;

-- Whoever tries a token must not learn from the time it takes whether there ever
-- was such a one: one step in this index leads past what is revoked and past what
-- has expired, as it does past what never was. The number stands for never.
create index tokens_live on tokens (hash, coalesce(expires_at, 9223372036854775807)) where revoked_at is null;
