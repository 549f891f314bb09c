package evidence

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"slices"
	"strings"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// JobRules say which authentic jobs are not run any more, and who hears of those that
// were refused.
type JobRules struct {
	// Horizons are how long after DueAt a job of a kind may still begin, in
	// milliseconds. Whoever keeps a copy of an authentic row cannot have it run after
	// that. A kind that is not here has none: running such a job again changes nothing,
	// for it only does what its cause, which is authenticated, says is due.
	Horizons map[string]ledger.Time
	// Refused hears of jobs that fail their authenticators. It may be nil.
	Refused func(ctx context.Context, job *store.Job)
}

// The faults under which jobs are buried here.
const (
	faultForged = "the job fails its authenticator: it was changed or put into the database outside the service, and was not run"
	faultLate   = "the job is older than its last retry could be, and was not run"
)

const (
	// claimRounds bounds how often a claim goes on to the jobs behind those that it
	// refused.
	claimRounds = 50
	// mostSwept bounds how many jobs one sweep refuses. The next goes on.
	mostSwept = 1000
	// mostNames bounds how many forged names are stepped over.
	mostNames = 1000
)

// encodeJob covers what a job says. When it runs again, who has leased it, how often it
// was tried and what went wrong are the store's own: by changing those somebody can delay
// a job or have it given up, and no more.
func encodeJob(j *store.Job) []byte {
	r := make(record, 0, 512)
	r.bytes(j.Org.UUID[:])
	r.text(j.Kind)
	r.text(j.Stream)
	r.bytes(j.Body)
	r.time(j.DueAt)
	return r
}

// sealJobs returns sealed copies: who made a job may have to store it again.
func (s *Store) sealJobs(jobs []*store.Job) ([]*store.Job, error) {
	if len(jobs) > 0 && s.keys == nil {
		return nil, errNoKeys
	}
	sealed := make([]*store.Job, len(jobs))
	for i, job := range jobs {
		copied := *job
		copied.DueAt = copied.RunAt
		s.sealJob(&copied)
		if copied.Once != "" {
			copied.Once = s.sealName(copied.Org, copied.Once)
		}
		sealed[i] = &copied
	}
	return sealed, nil
}

func (s *Store) sealJob(j *store.Job) { j.MAC = s.seal(j.Org, ledger.PurposeJob, encodeJob(j)) }

// A name under which a job is stored once carries its own authenticator. One that somebody
// puts into the database is thus another name, and suppresses nothing; one that he takes
// out is stored once more.
const nameMark = "#"

func (s *Store) sealName(org ledger.OrgID, name string) string {
	return name + nameMark + base64.RawURLEncoding.EncodeToString(s.seal(org, ledger.PurposeJobName, []byte(name)))
}

// openName is a name as it was given, "" where the service did not store it.
func (s *Store) openName(org ledger.OrgID, sealed string) (string, error) {
	at := strings.LastIndex(sealed, nameMark)
	if at < 0 {
		return "", nil
	}
	mac, err := base64.RawURLEncoding.DecodeString(sealed[at+len(nameMark):])
	if err != nil {
		return "", nil //nolint:nilerr // then nobody here has written it
	}
	err = s.check("the name of a job", org, ledger.PurposeJobName, mac, []byte(sealed[:at]))
	if errors.Is(err, ledger.ErrStateTampered) {
		return "", nil
	}
	return sealed[:at], err
}

// LastJobName implements store.Jobs. Names that the service did not store are stepped
// over; where there are too many of them there is none, so that what was done once is
// done again rather than never.
func (s *Store) LastJobName(ctx context.Context, org ledger.OrgID, prefix, before string) (string, error) {
	for range mostNames {
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

// fault is why a job must not run, "" where it may.
func (s *Store) fault(j *store.Job, now ledger.Time) (string, error) {
	err := s.check("a job", j.Org, ledger.PurposeJob, j.MAC, encodeJob(j))
	if errors.Is(err, ledger.ErrStateTampered) {
		return faultForged, nil
	}
	if horizon, ends := s.Jobs.Horizons[j.Kind]; err == nil && ends && now-j.DueAt > horizon {
		return faultLate, nil
	}
	return "", err
}

func (s *Store) refused(ctx context.Context, job *store.Job, fault string) {
	if fault == faultForged && s.Jobs.Refused != nil {
		s.Jobs.Refused(ctx, job)
	}
}

// ClaimJobs implements store.Jobs. A job that must not run is buried, which frees its
// stream, and the claim goes on to those behind it.
func (s *Store) ClaimJobs(ctx context.Context, now, until ledger.Time, room map[string]int) ([]*store.Job, error) {
	if s.keys == nil {
		return nil, errNoKeys
	}
	var sound []*store.Job
	room = maps.Clone(room)
	for range claimRounds {
		jobs, err := s.port.ClaimJobs(ctx, now, until, room)
		if err != nil {
			if len(sound) > 0 {
				break // they are leased already, and would wait for their leases to run out
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
				room[job.Kind]--
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

// ScanJobs implements store.Jobs. Jobs that fail their authenticators are left out.
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

// JobsDue counts, by organization, the jobs of a kind that can be claimed at a moment
// unless they are done by then: of those that wait, leased ones included, the ones whose
// RunAt and lease end at or before it. Jobs that must not run are not counted.
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

// SweepJobs buries jobs that must not run, also those that no claim comes to: of a kind
// that nobody knows, leased for ever, or put off for ever. In a stream they would hold up
// the service's own. It returns how many there were.
func (s *Store) SweepJobs(ctx context.Context, now ledger.Time) (int, error) {
	faults := make(map[string][]*store.Job)
	swept := 0
	err := s.port.ScanJobs(ctx, "", func(job *store.Job) error {
		fault, err := s.fault(job, now)
		if err != nil || fault == "" {
			return err
		}
		if swept++; swept > mostSwept {
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
	return min(swept, mostSwept), nil
}

var errSwept = errors.New("enough for one sweep")
