package evidence

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// JobRules say which authentic jobs are too late to run, and who is notified of refused jobs.
type JobRules struct {
	// Horizons says how long after DueAt a job of each kind may still start. A
	// replayed copy of an authentic row cannot run after that. A kind without a horizon may start
	// at any time: such a job only does what its authenticated cause says is due, so running it
	// again changes nothing.
	Horizons map[string]time.Duration
	// Refused is called for each job that fails its authenticator. It may be nil.
	Refused func(ctx context.Context, job *store.Job)
}

// Faults of jobs that this package buries.
const (
	faultForged = "the job fails its authenticator: it was changed or put into the database outside the service, and was not run"
	faultLate   = "the job is older than its last retry could be, and was not run"
)

const (
	// claimRounds bounds how often a claim continues past jobs that it refused.
	claimRounds = 50
	// maxSwept bounds how many jobs one sweep refuses. The next sweep continues.
	maxSwept = 1000
	// maxForgedNames bounds how many forged names are skipped.
	maxForgedNames = 1000
)

// encodeJob covers the content of a job. The next run, the lease, the number of attempts and the
// last error belong to the store: by changing them an attacker can only delay a job or have it
// given up.
func encodeJob(j *store.Job) []byte {
	r := make(record, 0, 512)
	r.bytes(j.Org.UUID[:])
	r.text(j.Kind)
	r.text(j.Stream)
	r.bytes(j.Body)
	r.time(j.DueAt)
	return r
}

// sealJobs returns sealed copies, because the caller may have to store the same job again.
func (s *Store) sealJobs(jobs []*store.Job) ([]*store.Job, error) {
	if len(jobs) > 0 && s.keys == nil {
		return nil, errNoKeys
	}
	sealed := make([]*store.Job, len(jobs))
	for i, job := range jobs {
		copied := *job
		if copied.DueAt == 0 {
			copied.DueAt = copied.RunAt
		}
		s.sealJob(&copied)
		if copied.Once != "" {
			copied.Once = s.sealName(copied.Org, copied.Once)
		}
		sealed[i] = &copied
	}
	return sealed, nil
}

func (s *Store) sealJob(j *store.Job) { j.MAC = s.seal(j.Org, ledger.PurposeJob, encodeJob(j)) }

// A unique job name carries its own authenticator. A name that an attacker inserts is a different
// name and suppresses nothing. A name that an attacker deletes is stored again.
const nameMark = "#"

func (s *Store) sealName(org ledger.OrgID, name string) string {
	return name + nameMark + base64.RawURLEncoding.EncodeToString(s.seal(org, ledger.PurposeJobName, []byte(name)))
}

// openName returns the name as it was given, or "" if the service did not store it.
func (s *Store) openName(org ledger.OrgID, sealed string) (string, error) {
	at := strings.LastIndex(sealed, nameMark)
	if at < 0 {
		return "", nil
	}
	mac, err := base64.RawURLEncoding.DecodeString(sealed[at+len(nameMark):])
	if err != nil {
		return "", nil //nolint:nilerr // the service did not write it
	}
	err = s.check("the name of a job", org, ledger.PurposeJobName, mac, []byte(sealed[:at]))
	if errors.Is(err, ledger.ErrStateTampered) {
		return "", nil
	}
	return sealed[:at], err
}

// LastJobName implements store.Jobs. Names that the service did not store are skipped. If there are
// too many of them the result is empty, so that the job is done again rather than never.
func (s *Store) LastJobName(ctx context.Context, org ledger.OrgID, prefix, before string) (string, error) {
	for range maxForgedNames {
		sealed, err := s.port.LastJobName(ctx, org, prefix, before)
		if err != nil || sealed == "" {
			return "", err
		}
		if name, err := s.openName(org, sealed); err != nil || name != "" {
			return name, err
		}
		before = sealed
	}
	return "", nil
}

// fault says why a job must not run, or returns "" if it may.
func (s *Store) fault(j *store.Job, now ledger.Time) (string, error) {
	err := s.check("a job", j.Org, ledger.PurposeJob, j.MAC, encodeJob(j))
	if errors.Is(err, ledger.ErrStateTampered) {
		return faultForged, nil
	}
	if horizon, ends := s.Jobs.Horizons[j.Kind]; err == nil && ends && now > j.DueAt.Add(horizon) {
		return faultLate, nil
	}
	return "", err
}

func (s *Store) refused(ctx context.Context, job *store.Job, fault string) {
	if fault == faultForged && s.Jobs.Refused != nil {
		s.Jobs.Refused(ctx, job)
	}
}

// ClaimJobs implements store.Jobs. A job that must not run is buried, which unblocks its stream,
// and the claim continues with the jobs behind it.
func (s *Store) ClaimJobs(ctx context.Context, now, until ledger.Time, capacity map[string]int) ([]*store.Job, error) {
	if s.keys == nil {
		return nil, errNoKeys
	}
	var sound []*store.Job
	capacity = maps.Clone(capacity)
	for range claimRounds {
		jobs, err := s.port.ClaimJobs(ctx, now, until, capacity)
		if err != nil {
			if len(sound) > 0 {
				break // these are leased already; dropping them would leave them until their leases expire
			}
			return nil, err
		}
		buried := false
		for _, job := range jobs {
			fault, err := s.fault(job, now)
			if err != nil {
				return nil, err
			}
			if fault == "" {
				sound = append(sound, job)
				capacity[job.Kind]--
				continue
			}
			buried = true
			s.refused(ctx, job, fault)
			if err := s.BuryJob(ctx, job, fault); err != nil && !errors.Is(err, store.ErrNotFound) && len(sound) == 0 {
				return nil, err
			}
		}
		if !buried {
			break
		}
	}
	slices.SortFunc(sound, func(a, b *store.Job) int { return cmp.Or(cmp.Compare(a.RunAt, b.RunAt), cmp.Compare(a.No, b.No)) })
	return sound, nil
}

// FinishJob implements store.Jobs.
func (s *Store) FinishJob(ctx context.Context, job *store.Job, follow []*store.Job) error {
	sealed, err := s.sealJobs(follow)
	if err != nil {
		return err
	}
	return s.port.FinishJob(ctx, job, sealed)
}

// ScanJobs implements store.Jobs. Jobs that fail their authenticators are skipped.
func (s *Store) ScanJobs(ctx context.Context, kind string, visit func(*store.Job) error) error {
	return s.port.ScanJobs(ctx, kind, func(job *store.Job) error {
		err := s.check("a job", job.Org, ledger.PurposeJob, job.MAC, encodeJob(job))
		if errors.Is(err, ledger.ErrStateTampered) {
			return nil
		}
		if err != nil {
			return err
		}
		return visit(job)
	})
}

// JobsDue counts, by organization, the waiting and leased jobs of a kind that can be claimed at the
// given time unless they finish before: RunAt and the lease end at or before it. Jobs that must not
// run are not counted.
func (s *Store) JobsDue(ctx context.Context, kind string, now, by ledger.Time) (map[ledger.OrgID]int64, error) {
	due := make(map[ledger.OrgID]int64)
	err := s.port.ScanJobs(ctx, kind, func(job *store.Job) error {
		fault, err := s.fault(job, now)
		if err == nil && fault == "" && job.RunAt <= by && job.LeasedUntil <= by {
			due[job.Org]++
		}
		return err
	})
	return due, err
}

// SweepJobs buries jobs that must not run, including those that no claim reaches: jobs of an
// unknown kind, leased forever or postponed forever. They would block the service's own jobs in the
// same stream. It returns the number of buried jobs.
func (s *Store) SweepJobs(ctx context.Context, now ledger.Time) (int, error) {
	faults := make(map[string][]*store.Job)
	swept := 0
	err := s.port.ScanJobs(ctx, "", func(job *store.Job) error {
		fault, err := s.fault(job, now)
		if err != nil || fault == "" {
			return err
		}
		if swept++; swept > maxSwept {
			return errSwept
		}
		faults[fault] = append(faults[fault], &store.Job{No: job.No, Org: job.Org, Kind: job.Kind, Stream: job.Stream})
		return nil
	})
	if err != nil && !errors.Is(err, errSwept) {
		return 0, err
	}
	for fault, jobs := range faults {
		if err := s.BuryJobs(ctx, jobs, fault); err != nil {
			return 0, err
		}
		for _, job := range jobs {
			s.refused(ctx, job, fault)
		}
	}
	return min(swept, maxSwept), nil
}

var errSwept = errors.New("enough for one sweep")
