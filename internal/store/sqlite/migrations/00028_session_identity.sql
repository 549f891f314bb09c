-- +goose Up

-- The identity that opened a session by single sign-on; links have none, and neither have sessions from before.
ALTER TABLE sign_ins ADD COLUMN sign_in_as TEXT NOT NULL DEFAULT '';
