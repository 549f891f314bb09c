-- +goose Up

-- The Slack member who decides with a key; keys from before have none.
ALTER TABLE api_keys ADD COLUMN slack_member TEXT NOT NULL DEFAULT '';
CREATE INDEX api_keys_slack_member ON api_keys (org_id, slack_member, id) WHERE slack_member <> '';
