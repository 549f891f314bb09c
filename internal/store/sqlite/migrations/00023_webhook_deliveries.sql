-- +goose Up

-- The log of attempts to deliver to webhooks. An attempt is kept for some weeks, and of
-- each webhook only the newest. It refers to no other table: an attempt may be written
-- after its webhook was deleted.
CREATE TABLE webhook_deliveries (
  id           BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
  org_id       BLOB    NOT NULL CHECK (length(org_id) = 16),
  webhook_id   BLOB    NOT NULL CHECK (length(webhook_id) = 16),
  message_id   TEXT    NOT NULL,
  kind         TEXT    NOT NULL,
  cause        TEXT    NOT NULL,
  attempt      INTEGER NOT NULL,
  state        TEXT    NOT NULL,
  code         INTEGER NOT NULL,
  error_class  TEXT    NOT NULL,
  error        TEXT    NOT NULL,
  attempted_at INTEGER NOT NULL,
  duration     INTEGER NOT NULL,
  notice       BLOB    NOT NULL,
  mac          BLOB    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX webhook_deliveries_of_webhook ON webhook_deliveries (webhook_id, id);
CREATE INDEX webhook_deliveries_of_organization ON webhook_deliveries (org_id, id);
CREATE INDEX webhook_deliveries_by_time ON webhook_deliveries (attempted_at);
