-- +goose Up

-- One-time links and the sessions that they became, by the hash of their token.
create table sign_ins (
    hash       bytea   primary key check (octet_length(hash) = 32),
    key_id     uuid    not null references api_keys,
    expires_at bigint  not null,
    session    boolean not null
);
create index sign_ins_expired on sign_ins (expires_at);
