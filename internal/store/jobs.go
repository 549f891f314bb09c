package store

import (
	"context"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// Jobs is the queue of work that follows from committed changes. A job runs at least
// once: when a worker dies, its lease expires and another worker claims the job.
type Jobs interface {
	// ClaimJobs leases jobs that are due at now until the moment until: at most
	// room[kind] of each kind, and none of a kind that room does not name, so that a
	// slow kind delays no other. Jobs of a kind are claimed by RunAt, then by number.
	// At most one job of a stream is claimed, and none while its stream is blocked: a
	// job that was claimed before and is neither finished nor buried blocks its stream.
	// A stream's name is shared by all organizations, and a stream holds jobs of one
	// kind.
	ClaimJobs(ctx context.Context, now, until ledger.Time, room map[string]int) ([]*Job, error)
	// FinishJob deletes a job and stores the jobs that follow from it. It returns
	// ErrNotFound when the job no longer has this lease.
	FinishJob(ctx context.Context, job *Job, follow []*Job) error
	// RetryJob releases the lease; the job is due again at runAt. It returns
	// ErrNotFound when the job no longer has this lease.
	RetryJob(ctx context.Context, job *Job, runAt ledger.Time, fault string) error
	// BuryJob gives up: the job stays for operators to see and is never claimed again.
	// It returns ErrNotFound when the job no longer has this lease.
	BuryJob(ctx context.Context, job *Job, fault string) error
	// CountJobs counts the waiting jobs, leased ones included, and the buried ones.
	CountJobs(ctx context.Context) (waiting, buried int64, err error)
	// ScanJobs visits the waiting jobs of a kind, leased ones included; "" means every
	// kind. With a kind, jobs behind another one in their stream may be left out;
	// without one, all are visited. The jobs are valid only during the visit.
	ScanJobs(ctx context.Context, kind string, visit func(*Job) error) error
	// BuryJobs buries waiting jobs by their numbers, leased or not. Jobs that are gone
	// or already buried are skipped.
	BuryJobs(ctx context.Context, jobs []*Job, fault string) error
	// LastJobName returns the greatest name, in the order of its bytes, under which an
	// organization has stored a job (Job.Once): of the names that have the prefix and
	// are smaller than before. With before "" no name is too great. It returns "" when
	// there is none.
	LastJobName(ctx context.Context, org ledger.OrgID, prefix, before string) (string, error)
}

// Job is work to be done after the change that causes it is committed. It is stored
// in the same transaction and leased to one worker at a time.
type Job struct {
	Org  ledger.OrgID
	Kind string
	// Stream orders jobs: a job that was claimed and is not finished blocks the later
	// jobs of its stream. "" orders nothing.
	Stream string
	RunAt  ledger.Time
	Body   []byte
	// Once is a name that deduplicates: of all jobs that an organization stores under
	// one name only the first is kept, even when that one finished long ago. The others
	// are skipped without an error. "" is no name. It is not set when a job is read.
	Once string
	// DueAt is when the job was first to run. A retry does not change it. For a new job that
	// carries on an older one it is the older one's; 0 stands for RunAt.
	DueAt ledger.Time
	MAC   []byte // authenticates Org, Kind, Stream, Body and DueAt

	// The fields below are set by the store when a job is claimed or scanned. RunAt
	// belongs to the store, too, once a job is stored.

	No          int64
	Lease       uuid.UUID
	LeasedUntil ledger.Time // of a scanned job; 0 while it is not leased
	Attempts    int         // the current one included
}

// Signals announces changed approvals, API keys and audit logs to other processes.
type Signals interface {
	// Watch calls changed with every id in the Changes.Signals of a committed
	// transaction, of any process, until ctx ends; then it returns nil. It calls missed
	// when signals may have been lost, for instance after the connection to the store
	// was, and once before the first signal can arrive: the caller then reads again
	// whatever it waits for. Both are called from one goroutine and must not block.
	Watch(ctx context.Context, changed func(uuid.UUID), missed func()) error
}
