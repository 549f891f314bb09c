-- +goose Up

-- Jobs are claimed by kind, so that those of one never wait behind another's.
drop index jobs_ready;
create index jobs_ready on jobs (kind, run_at, no) where not held and not buried;

-- What was done once and must not be done again, long after its job is gone.
create table job_names (
    org_id uuid not null,
    name   text collate "C" not null,
    primary key (org_id, name)
);
