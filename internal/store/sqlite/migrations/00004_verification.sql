-- +goose Up
CREATE TABLE tokens (
  id                BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
  org_id            BLOB    NOT NULL REFERENCES organizations (id) ON DELETE RESTRICT,
  hash              BLOB    NOT NULL UNIQUE CHECK (length(hash) = 32),
  artifact          TEXT    NOT NULL,
  artifact_id       BLOB    NOT NULL CHECK (length(artifact_id) = 16),
  idempotency_key   TEXT,
  created_at        INTEGER NOT NULL,
  expires_at        INTEGER,
  revoked_at        INTEGER,
  revocation_reason TEXT    NOT NULL,
  last_used_at      INTEGER,
  mac               BLOB    NOT NULL
) STRICT;
CREATE INDEX tokens_newest ON tokens (org_id, id DESC);
CREATE UNIQUE INDEX tokens_idempotency ON tokens (org_id, idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE signing_keys (
  org_id     BLOB    NOT NULL REFERENCES organizations (id) ON DELETE RESTRICT,
  id         BLOB    NOT NULL CHECK (length(id) = 16),
  public     BLOB    NOT NULL CHECK (length(public) = 32),
  private    BLOB,
  status     TEXT    NOT NULL,
  name       TEXT    NOT NULL,
  created_at INTEGER NOT NULL,
  retired_at INTEGER,
  revoked_at INTEGER,
  mac        BLOB    NOT NULL,
  PRIMARY KEY (org_id, id)
) STRICT;

CREATE TABLE anchors (
  no         INTEGER NOT NULL PRIMARY KEY,
  org_id     BLOB    NOT NULL REFERENCES organizations (id) ON DELETE RESTRICT,
  kind       TEXT    NOT NULL CHECK (kind IN ('approval', 'head')),
  subject_id BLOB    NOT NULL CHECK (length(subject_id) = 16),
  sequence   INTEGER NOT NULL,
  method     TEXT    NOT NULL,
  digest     BLOB    NOT NULL CHECK (length(digest) = 32),
  status     TEXT    NOT NULL,
  reason     TEXT    NOT NULL,
  updated_at INTEGER NOT NULL,
  mac        BLOB    NOT NULL,
  proof      BLOB,
  UNIQUE (org_id, kind, subject_id, method)
) STRICT;
CREATE INDEX anchors_head ON anchors (org_id, method, sequence) WHERE kind = 'head';

-- An agent lists the approvals of its own chains, which may be few among many.
CREATE INDEX approvals_opener ON approvals (org_id, opened_by, requested_at, id);
