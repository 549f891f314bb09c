-- +goose Up
CREATE TABLE organizations (
  id         BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
  slug       TEXT    NOT NULL UNIQUE,
  name       TEXT    NOT NULL,
  settings   BLOB    NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE api_keys (
  id         BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
  org_id     BLOB    NOT NULL REFERENCES organizations (id) ON DELETE RESTRICT,
  name       TEXT    NOT NULL,
  role       TEXT    NOT NULL,
  hash       BLOB    NOT NULL UNIQUE CHECK (length(hash) = 32),
  hint       TEXT    NOT NULL,
  created_at INTEGER NOT NULL,
  revoked_at INTEGER
) STRICT;
CREATE INDEX api_keys_org ON api_keys (org_id, id);

CREATE TABLE heads (
  org_id    BLOB    NOT NULL PRIMARY KEY REFERENCES organizations (id) ON DELETE RESTRICT,
  count     INTEGER NOT NULL,
  last_hash BLOB    NOT NULL,
  key_id    TEXT    NOT NULL,
  mac       BLOB    NOT NULL
) STRICT;

-- A chain's small number stands for its id in every table below, which keeps
-- the indexes that each recorded action touches narrow.
CREATE TABLE chains (
  no              INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  id              BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  org_id          BLOB    NOT NULL REFERENCES organizations (id) ON DELETE RESTRICT,
  opened_by       BLOB    NOT NULL,
  external_id     TEXT,
  environment     TEXT    NOT NULL,
  idempotency_key TEXT,
  body            BLOB    NOT NULL
) STRICT;
CREATE INDEX chains_org ON chains (org_id, id);
CREATE INDEX chains_environment ON chains (org_id, environment, id);
CREATE INDEX chains_external ON chains (org_id, external_id, id) WHERE external_id IS NOT NULL;
CREATE UNIQUE INDEX chains_idempotency ON chains (org_id, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- What moves is kept apart from what is fixed, so that a recorded action
-- rewrites a short row.
CREATE TABLE chain_states (
  chain_no INTEGER NOT NULL PRIMARY KEY REFERENCES chains (no) ON DELETE RESTRICT,
  org_id   BLOB    NOT NULL,
  status   TEXT    NOT NULL,
  state    BLOB    NOT NULL,
  mac      BLOB    NOT NULL
) STRICT;
-- Most chains are completed, and a list of those needs no index to find some.
CREATE INDEX chain_states_status ON chain_states (org_id, status, chain_no) WHERE status <> 'completed';

-- Rows are appended in the order of their commits; clustering them by chain
-- instead would dirty a page per chain in every batch. A foreign key would cost
-- every action a look-up of the chain that the same transaction has just read.
CREATE TABLE events (
  no              INTEGER NOT NULL PRIMARY KEY,
  chain_no        INTEGER NOT NULL,
  sequence        INTEGER NOT NULL,
  idempotency_key TEXT,
  body            BLOB    NOT NULL,
  payload         BLOB
) STRICT;
CREATE UNIQUE INDEX events_sequence ON events (chain_no, sequence);
CREATE UNIQUE INDEX events_idempotency ON events (chain_no, idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE addenda (
  chain_no INTEGER NOT NULL,
  position INTEGER NOT NULL,
  sequence INTEGER NOT NULL,
  body     BLOB    NOT NULL,
  PRIMARY KEY (chain_no, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX addenda_sequence ON addenda (chain_no, sequence);

CREATE TABLE receipts (
  no            INTEGER NOT NULL PRIMARY KEY,
  id            BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  org_id        BLOB    NOT NULL REFERENCES organizations (id) ON DELETE RESTRICT,
  sequence      INTEGER NOT NULL,
  chain_id      BLOB    NOT NULL UNIQUE REFERENCES chains (id) ON DELETE RESTRICT,
  previous_hash BLOB    NOT NULL,
  body          BLOB    NOT NULL,
  UNIQUE (org_id, sequence),
  UNIQUE (org_id, previous_hash)
) STRICT;

CREATE TABLE master_keys (
  key_id      TEXT NOT NULL PRIMARY KEY,
  fingerprint BLOB NOT NULL CHECK (length(fingerprint) = 32)
) STRICT;
