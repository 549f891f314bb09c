-- +goose Up

-- The idempotency keys under which chains are opened are each API key's own. The index
-- begins as before, so that replicas of the previous version use it too.
drop index chains_idempotency_key;
create unique index chains_idempotency_key on chains (org_id, idempotency_key, opened_by) where idempotency_key is not null;
