-- +goose Up

-- The idempotency keys under which chains are opened are each API key's own.
DROP INDEX chains_idempotency;
CREATE UNIQUE INDEX chains_idempotency ON chains (org_id, idempotency_key, opened_by) WHERE idempotency_key IS NOT NULL;
