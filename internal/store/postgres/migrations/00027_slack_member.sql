-- +goose Up

-- The Slack member who decides with a key; keys from before have none.
alter table api_keys add column slack_member text collate "C" not null default '';
create index api_keys_slack_member on api_keys (org_id, slack_member, id) where slack_member <> '';
