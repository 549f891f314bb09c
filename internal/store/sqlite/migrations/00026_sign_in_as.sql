-- +goose Up

-- The identity that signs in as a key by single sign-on; keys from before have none.
ALTER TABLE api_keys ADD COLUMN sign_in_as TEXT NOT NULL DEFAULT '';
CREATE INDEX api_keys_sign_in_as ON api_keys (sign_in_as, id) WHERE sign_in_as <> '';
