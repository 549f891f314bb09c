-- +goose Up

-- The digests of what was redacted or cut from the payload, erased with it. NULL where
-- nothing was.
ALTER TABLE events ADD COLUMN redactions BLOB;
