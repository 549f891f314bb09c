package sqlite

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// insertJob stores a job behind the first of its stream, or in front of it when that
// one is due later and was never claimed. So the first of a stream is the job that was
// claimed, or else the next that is due.
func (tx *transaction) insertJob(job *store.Job) error {
	if first, err := tx.takeName(job); err != nil || !first {
		return err
	}
	place, err := tx.place(job)
	if err != nil {
		return err
	}
	return tx.exec("INSERT INTO jobs (org_id, kind, stream, place, run_at, body, due_at, mac) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
		job.Org.UUID[:], job.Kind, orNull(job.Stream), place, int64(job.RunAt), orEmpty(job.Body), int64(job.DueAt), orEmpty(job.MAC))
}

// takeName reports whether the job is the first under its name (Job.Once), and stores
// the name.
func (tx *transaction) takeName(job *store.Job) (first bool, err error) {
	if job.Once == "" {
		return true, nil
	}
	err = tx.query("INSERT INTO job_names (org_id, name) VALUES (?, ?) ON CONFLICT DO NOTHING RETURNING 1",
		[]any{job.Org.UUID[:], job.Once}, func(row) error {
			first = true
			return nil
		})
	return first, err
}

// place returns the place of a new job in its stream, and moves the first of the stream
// back where the new one precedes it.
func (tx *transaction) place(job *store.Job) (string, error) {
	if job.Stream == "" {
		return "first", nil
	}
	var no, runAt, attempts int64
	query := "SELECT no, run_at, attempts FROM jobs WHERE stream = ? AND place = 'first'"
	err := tx.query(query, []any{job.Stream}, func(rows row) error { return rows.Scan(&no, &runAt, &attempts) })
	switch {
	case err != nil:
		return "", err
	case no == 0:
		return "first", nil
	case attempts > 0 || runAt <= int64(job.RunAt):
		return "behind", nil
	}
	return "first", tx.change("UPDATE jobs SET place = 'behind' WHERE no = ?", no)
}

// promote makes the next job of a stream the first when there is no first.
func (tx *transaction) promote(stream string) error {
	if stream == "" {
		return nil
	}
	return tx.exec(`UPDATE jobs SET place = 'first'
		WHERE no = (SELECT no FROM jobs WHERE stream = ? AND place = 'behind' ORDER BY run_at, no LIMIT 1)
			AND NOT EXISTS (SELECT 1 FROM jobs WHERE stream = ? AND place = 'first')`, stream, stream)
}

// ClaimJobs implements store.Jobs.
func (s *Store) ClaimJobs(ctx context.Context, now, until ledger.Time, room map[string]int) ([]*store.Job, error) {
	lease, err := uuid.NewRandom()
	if err != nil {
		return nil, fmt.Errorf("make a lease: %w", err)
	}
	var claimed []*store.Job
	err = s.writing(ctx, func(tx *transaction) error {
		for kind, limit := range room {
			jobs, err := tx.claim(lease, kind, now, until, limit)
			if err != nil {
				return err
			}
			claimed = append(claimed, jobs...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(claimed, func(a, b *store.Job) int { return cmp.Or(cmp.Compare(a.RunAt, b.RunAt), cmp.Compare(a.No, b.No)) })
	return claimed, nil
}

func (tx *transaction) claim(lease uuid.UUID, kind string, now, until ledger.Time, limit int) (claimed []*store.Job, err error) {
	query := `UPDATE jobs SET lease = ?, leased_until = ?, attempts = attempts + 1
		WHERE no IN (SELECT no FROM jobs WHERE place = 'first' AND kind = ? AND run_at <= ? AND leased_until <= ?
			ORDER BY run_at, no LIMIT ?)
		RETURNING ` + jobColumns
	args := []any{lease[:], int64(until), kind, int64(now), int64(now), int64(max(limit, 0))}
	err = tx.query(query, args, func(rows row) error {
		job, err := scanJob(rows)
		job.Lease = lease
		claimed = append(claimed, job)
		return err
	})
	return claimed, err
}

const jobColumns = "no, org_id, kind, stream, run_at, attempts, body, due_at, mac"

func scanJob(rows row) (*store.Job, error) {
	var stream *string
	var attempts int64
	job := new(store.Job)
	err := rows.Scan(&job.No, &job.Org.UUID, &job.Kind, &stream, (*int64)(&job.RunAt), &attempts, &job.Body, (*int64)(&job.DueAt), &job.MAC)
	job.Stream, job.Attempts = orEmptyText(stream), int(attempts)
	return job, err
}

// FinishJob implements store.Jobs.
func (s *Store) FinishJob(ctx context.Context, job *store.Job, follow []*store.Job) error {
	return s.writing(ctx, func(tx *transaction) error {
		if err := tx.change("DELETE FROM jobs WHERE no = ? AND lease = ?", job.No, job.Lease[:]); err != nil {
			return err
		}
		if err := tx.promote(job.Stream); err != nil {
			return err
		}
		return each(follow, tx.insertJob)
	})
}

// RetryJob implements store.Jobs. The job stays the first of its stream.
func (s *Store) RetryJob(ctx context.Context, job *store.Job, runAt ledger.Time, fault string) error {
	return s.writing(ctx, func(tx *transaction) error {
		return tx.change("UPDATE jobs SET run_at = ?, fault = ?, lease = NULL, leased_until = 0 WHERE no = ? AND lease = ?",
			int64(runAt), fault, job.No, job.Lease[:])
	})
}

// BuryJob implements store.Jobs.
func (s *Store) BuryJob(ctx context.Context, job *store.Job, fault string) error {
	return s.writing(ctx, func(tx *transaction) error {
		err := tx.change("UPDATE jobs SET place = 'buried', fault = ?, lease = NULL, leased_until = 0 WHERE no = ? AND lease = ?",
			fault, job.No, job.Lease[:])
		if err != nil {
			return err
		}
		return tx.promote(job.Stream)
	})
}

// CountJobs implements store.Jobs.
func (s *Store) CountJobs(ctx context.Context) (waiting, buried int64, err error) {
	query := `SELECT (SELECT count(*) FROM jobs WHERE place = 'first') + (SELECT count(*) FROM jobs WHERE place = 'behind'),
		(SELECT count(*) FROM jobs WHERE place = 'buried')`
	err = s.read(ctx, query, nil, func(rows row) error { return rows.Scan(&waiting, &buried) })
	return waiting, buried, err
}

// ScanJobs implements store.Jobs.
func (s *Store) ScanJobs(ctx context.Context, kind string, visit func(*store.Job) error) error {
	var last int64 // the number of the job visited last
	all := query{"SELECT " + jobColumns + ", leased_until FROM jobs WHERE place <> 'buried' ORDER BY no", nil}
	rest := func() query {
		return query{"SELECT " + jobColumns + ", leased_until FROM jobs WHERE no > ? AND place <> 'buried' ORDER BY no", []any{last}}
	}
	if kind != "" {
		// Only the first of each stream: few, and there is an index on their order.
		all, rest = query{"SELECT " + jobColumns + ", leased_until FROM jobs WHERE place = 'first' AND kind = ? ORDER BY run_at, no", []any{kind}}, nil
	}
	return s.scan(ctx, all, rest, func(rows row) error {
		job, err := scanJob(rows)
		if err != nil {
			return err
		}
		last = job.No
		if err := rows.skip(jobColumnCount).Scan((*int64)(&job.LeasedUntil)); err != nil {
			return err
		}
		return visit(job)
	})
}

var jobColumnCount = strings.Count(jobColumns, ",") + 1

// BuryJobs implements store.Jobs.
func (s *Store) BuryJobs(ctx context.Context, jobs []*store.Job, fault string) error {
	return s.writing(ctx, func(tx *transaction) error {
		return each(jobs, func(job *store.Job) error {
			err := tx.exec("UPDATE jobs SET place = 'buried', fault = ?, lease = NULL, leased_until = 0 WHERE no = ? AND place <> 'buried'", fault, job.No)
			if err != nil {
				return err
			}
			return tx.promote(job.Stream)
		})
	})
}

// LastJobName implements store.Jobs.
func (s *Store) LastJobName(ctx context.Context, org ledger.OrgID, prefix, before string) (name string, err error) {
	query := "SELECT coalesce(max(name), '') FROM job_names WHERE org_id = ? AND name >= ? AND name < ?"
	end := prefix + string(utf8.MaxRune)
	if before != "" {
		end = min(end, before)
	}
	err = s.read(ctx, query, []any{org.UUID[:], prefix, end}, func(rows row) error { return rows.Scan(&name) })
	return name, err
}
