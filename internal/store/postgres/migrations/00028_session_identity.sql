-- +goose Up

-- The identity that opened a session by single sign-on; links have none, and neither have sessions from before.
alter table sign_ins add column sign_in_as text collate "C" not null default '';
