-- +goose Up

-- The log of attempts to deliver to webhooks. An attempt is kept for some weeks, and of
-- each webhook only the newest. It refers to no other table: an attempt may be written
-- after its webhook was deleted.
create table webhook_deliveries (
    id           uuid   primary key,
    org_id       uuid   not null,
    webhook_id   uuid   not null,
    attempt      bigint not null,
    code         bigint not null,
    attempted_at bigint not null,
    duration     bigint not null,
    message_id   text   not null,
    kind         text   not null,
    cause        text   not null,
    state        text   not null,
    error_class  text   not null,
    error        text   not null,
    notice       bytea  not null,
    mac          bytea  not null
);
create index webhook_deliveries_of_webhook on webhook_deliveries (webhook_id, id);
create index webhook_deliveries_of_organization on webhook_deliveries (org_id, id);
create index webhook_deliveries_by_time on webhook_deliveries (attempted_at);
