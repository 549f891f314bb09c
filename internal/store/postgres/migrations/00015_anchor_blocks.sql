-- +goose Up

-- The block that attests a proof, as it was found among the block headers. Anchors from
-- before have none.
alter table anchors add column block bytea;
