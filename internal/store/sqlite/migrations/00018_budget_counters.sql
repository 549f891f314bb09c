-- +goose Up

-- What actions have taken of a budget in one window: one row for each budget, member of
-- its scope and window, rewritten by every action that counts. budget, window_start and
-- value are copies of what body says, to list counters by.
CREATE TABLE budget_counters (
  id           BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
  org_id       BLOB    NOT NULL REFERENCES organizations (id) ON DELETE RESTRICT,
  budget       TEXT    NOT NULL,
  window_start INTEGER NOT NULL,
  value        TEXT    NOT NULL,
  body         BLOB    NOT NULL,
  mac          BLOB    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX budget_counters_of_budget ON budget_counters (org_id, budget, window_start, value, id);
CREATE INDEX budget_counters_of_organization ON budget_counters (org_id, id);
