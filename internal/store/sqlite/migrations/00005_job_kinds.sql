-- +goose Up

-- Jobs are claimed by kind, so that those of one never wait behind another's.
DROP INDEX jobs_due;
CREATE INDEX jobs_due ON jobs (kind, run_at, no) WHERE place = 'first';

-- What was done once and must not be done again, long after its job is gone.
CREATE TABLE job_names (
  org_id BLOB NOT NULL,
  name   TEXT NOT NULL,
  PRIMARY KEY (org_id, name)
) STRICT, WITHOUT ROWID;
