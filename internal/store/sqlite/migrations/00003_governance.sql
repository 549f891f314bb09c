-- +goose Up
-- None stand for an organization whose controls nobody has touched yet.
ALTER TABLE organizations ADD COLUMN controls BLOB;

-- Events from before this version have none.
ALTER TABLE events ADD COLUMN mac BLOB;

CREATE TABLE approvals (
  id           BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
  org_id       BLOB    NOT NULL REFERENCES organizations (id) ON DELETE RESTRICT,
  chain_id     BLOB    NOT NULL REFERENCES chains (id) ON DELETE RESTRICT,
  sequence     INTEGER NOT NULL,
  opened_by    BLOB    NOT NULL,
  requested_at INTEGER NOT NULL,
  status       TEXT    NOT NULL,
  body         BLOB    NOT NULL,
  mac          BLOB    NOT NULL,
  UNIQUE (chain_id, sequence)
) STRICT;
CREATE INDEX approvals_org ON approvals (org_id, requested_at, id);
CREATE INDEX approvals_status ON approvals (org_id, status, requested_at, id);

CREATE TABLE policies (
  org_id     BLOB    NOT NULL REFERENCES organizations (id) ON DELETE RESTRICT,
  number     INTEGER NOT NULL,
  version    TEXT    NOT NULL,
  format     TEXT    NOT NULL,
  document   BLOB    NOT NULL,
  created_at INTEGER NOT NULL,
  created_by TEXT    NOT NULL,
  PRIMARY KEY (org_id, number)
) STRICT;

CREATE TABLE webhooks (
  id          BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
  org_id      BLOB    NOT NULL REFERENCES organizations (id) ON DELETE RESTRICT,
  url         TEXT    NOT NULL,
  events      BLOB    NOT NULL,
  description TEXT    NOT NULL,
  secret      BLOB    NOT NULL,
  created_at  INTEGER NOT NULL,
  disabled_at INTEGER,
  deleted_at  INTEGER
) STRICT;
CREATE INDEX webhooks_org ON webhooks (org_id, id);

CREATE TABLE acts (
  org_id   BLOB    NOT NULL REFERENCES organizations (id) ON DELETE RESTRICT,
  sequence INTEGER NOT NULL,
  body     BLOB    NOT NULL,
  PRIMARY KEY (org_id, sequence)
) STRICT, WITHOUT ROWID;

CREATE TABLE act_logs (
  org_id    BLOB    NOT NULL PRIMARY KEY REFERENCES organizations (id) ON DELETE RESTRICT,
  count     INTEGER NOT NULL,
  last_hash BLOB    NOT NULL,
  controls  BLOB    NOT NULL,
  mac       BLOB    NOT NULL
) STRICT;
-- Organizations from before there were logs are marked: theirs is yet to begin.
INSERT INTO act_logs (org_id, count, last_hash, controls, mac) SELECT id, 0, x'', zeroblob(32), x'' FROM organizations;

-- A job's place says whether it can be claimed: it is the first of its stream, or
-- waits behind the first, or is buried. Each place has its own index, so that
-- neither a long stream that is held up nor many streams make a claim dear.
CREATE TABLE jobs (
  no           INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  org_id       BLOB    NOT NULL,
  kind         TEXT    NOT NULL,
  stream       TEXT,
  place        TEXT    NOT NULL CHECK (place IN ('first', 'behind', 'buried')),
  run_at       INTEGER NOT NULL,
  attempts     INTEGER NOT NULL DEFAULT 0,
  lease        BLOB,
  leased_until INTEGER NOT NULL DEFAULT 0,
  fault        TEXT,
  body         BLOB    NOT NULL
) STRICT;
CREATE INDEX jobs_due ON jobs (run_at, no) WHERE place = 'first';
CREATE UNIQUE INDEX jobs_first ON jobs (stream) WHERE place = 'first' AND stream IS NOT NULL;
CREATE INDEX jobs_behind ON jobs (stream, run_at, no) WHERE place = 'behind';
CREATE INDEX jobs_buried ON jobs (no) WHERE place = 'buried';
