-- +goose Up

-- The number of the act that changed a record last. Rows from before name none, and are
-- refused until an operator takes them over.
ALTER TABLE api_keys     ADD COLUMN act INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tokens       ADD COLUMN act INTEGER NOT NULL DEFAULT 0;
ALTER TABLE signing_keys ADD COLUMN act INTEGER NOT NULL DEFAULT 0;
ALTER TABLE webhooks     ADD COLUMN act INTEGER NOT NULL DEFAULT 0;
ALTER TABLE policies     ADD COLUMN act INTEGER NOT NULL DEFAULT 0;
-- Nobody misses these: people sign in again.
DELETE FROM sign_ins;
ALTER TABLE sign_ins     ADD COLUMN act    INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sign_ins     ADD COLUMN org_id BLOB    NOT NULL DEFAULT x'';
