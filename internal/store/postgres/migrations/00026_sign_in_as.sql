-- +goose Up

-- The identity that signs in as a key by single sign-on; keys from before have none.
alter table api_keys add column sign_in_as text collate "C" not null default '';
create index api_keys_sign_in_as on api_keys (sign_in_as, id) where sign_in_as <> '';
