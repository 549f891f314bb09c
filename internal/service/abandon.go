package service

import (
	"context"
	"errors"
	"fmt"

	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// JobAbandon seals those chains of an organization that nobody asks for any more, and
// is then queued again for the next round. Body: the id of the chain where the round
// goes on, "" at its beginning.
const JobAbandon = "chain.abandon"

// A job does so much at a time that it keeps nobody waiting; a round may take several.
const (
	abandonPage  = 100                  // chains that are read together
	mostLooked   = 2000                 // chains that one job looks at
	mostSealed   = 100                  // chains that one job seals
	abandonEvery = ledger.Time(900_000) // milliseconds between the rounds of an organization, at most
	abandonSoon  = ledger.Time(120_000) // as long where chains are abandoned within hours
	abandonLeast = ledger.Time(5_000)   // at least
	abandonSlow  = abandonEvery * 16    // from when on chains take so long that abandonEvery is soon enough
	abandonLease = ledger.Time(300_000) // at least as long as a job is leased to a worker
)

// abandonPause is the time between two rounds. It is never near abandonLease: see
// nextAbandonment.
func abandonPause(settings *ledger.Settings) ledger.Time {
	after := settings.AbandonAfter()
	if after >= abandonSlow {
		return abandonEvery
	}
	return max(abandonLeast, min(abandonSoon, after/16))
}

func abandonJob(org ledger.OrgID, place string, runAt ledger.Time) *store.Job {
	return &store.Job{Org: org, Kind: JobAbandon, RunAt: runAt, Body: []byte(place)}
}

// QueueAbandonment sees to it that each organization's chains are looked over, again
// and again, as QueueChecks does for its ledger.
func (s *Service) QueueAbandonment(ctx context.Context) error {
	return s.queueMissing(ctx, JobAbandon, abandonEvery, func(org ledger.OrgID, runAt ledger.Time) *store.Job {
		return abandonJob(org, "", runAt)
	})
}

// Abandon seals what is abandoned, as much as one job may, and queues the next.
func (j *Jobs) Abandon(ctx context.Context, job *store.Job) error {
	org, err := j.service.organization(ctx, job.Org)
	if err != nil {
		return err
	}
	round := &abandonment{service: j.service, org: org, now: j.service.now()}
	if err := round.begin(string(job.Body)); err != nil {
		return err
	}
	if err := round.run(ctx); err != nil {
		return visible(err)
	}
	if !round.done {
		return j.FinishWith(ctx, job, []*store.Job{abandonJob(org.ID, round.before.String(), j.service.now())})
	}
	follow, err := j.nextAbandonment(ctx, org)
	if err != nil {
		return visible(err)
	}
	return j.FinishWith(ctx, job, follow)
}

// nextAbandonment is none where another job than the one that ends here is there for
// the next round: of two, for whatever reason, one remains. The job that ends here is
// counted when its lease runs out before the next round, and not otherwise.
func (j *Jobs) nextAbandonment(ctx context.Context, org *ledger.Organization) ([]*store.Job, error) {
	now, pause := j.service.now(), abandonPause(&org.Settings)
	coming, err := j.service.store.JobsDue(ctx, JobAbandon, now, now+pause)
	if err != nil {
		return nil, err
	}
	own := int64(0)
	if pause > abandonLease {
		own = 1
	}
	if coming[org.ID] > own {
		return nil, nil
	}
	return []*store.Job{abandonJob(org.ID, "", now+pause)}, nil
}

// abandonment is a round over an organization's chains, from the newest that is old
// enough to the oldest. A chain that was opened later than an abandoned one was last
// asked for cannot be abandoned, and its id tells when it was opened: so only chains
// that have been open for long are read.
type abandonment struct {
	service *Service
	org     *ledger.Organization
	now     ledger.Time
	before  ledger.ChainID // chains with smaller ids are left to look at
	looked  int
	sealed  int
	done    bool
}

func (a *abandonment) begin(place string) error {
	if place == "" {
		opened := a.now - a.org.Settings.AbandonAfter()
		a.before = ledger.ChainID{UUID: ledger.NewTimedID(max(opened, 0), [10]byte{})}
		return nil
	}
	id, err := ledger.ParseID(place)
	if err != nil {
		return fmt.Errorf("a round of abandonment without a place: %w", err)
	}
	a.before = ledger.ChainID{UUID: id}
	return nil
}

func (a *abandonment) run(ctx context.Context) error {
	for a.looked < mostLooked && a.sealed < mostSealed {
		query := store.ChainQuery{Org: a.org.ID, Status: ledger.ChainActive, Before: &a.before, Limit: abandonPage}
		records, err := a.service.store.Chains(ctx, query)
		if err != nil {
			return err
		}
		if err := a.page(ctx, records); err != nil {
			return err
		}
		if len(records) < abandonPage {
			a.done = true
			break
		}
	}
	if a.sealed > 0 {
		a.service.log.Info("chains were sealed as abandoned", "chains", a.sealed)
	}
	return nil
}

func (a *abandonment) page(ctx context.Context, records []*store.ChainRecord) error {
	ids := make([]ledger.ChainID, 0, len(records))
	for _, record := range records {
		ids = append(ids, record.ID)
	}
	polled, err := a.service.store.Polled(ctx, ids)
	if err != nil {
		return err
	}
	for _, record := range records {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("seal abandoned chains: %w", err)
		}
		if err := a.look(ctx, record, polled[record.ID]); err != nil {
			return err
		}
		a.looked++
		a.before = record.ID
		if a.sealed >= mostSealed {
			break
		}
	}
	return nil
}

// look seals a chain that is abandoned as it was read. One that cannot be sealed, most
// likely because it was tampered with, must not keep the others open: only what concerns
// them all ends the job.
func (a *abandonment) look(ctx context.Context, record *store.ChainRecord, polled ledger.Time) error {
	view, err := a.service.view(record)
	if err == nil {
		if at, ok := view.State.AbandonedAt(&a.org.Settings, polled, pollLag); !ok || at > a.now {
			return nil
		}
		var sealed bool
		if sealed, err = a.service.abandon(ctx, a.org.ID, record.ID); sealed {
			a.sealed++
		}
	}
	for _, common := range []error{store.ErrUnavailable, store.ErrOutcomeUnknown, evidence.ErrRolledBack, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, common) {
			return err
		}
	}
	if err != nil {
		a.service.log.Error("an abandoned chain could not be sealed: run countersign audit")
	}
	return nil
}

// abandon seals a chain if it is abandoned, and reports whether it did.
func (s *Service) abandon(ctx context.Context, org ledger.OrgID, chain ledger.ChainID) (bool, error) {
	op := &abandonChain{org: org, chain: chain, summary: folded{chain, &ledger.Summary{}}}
	if !s.states.summarised(chain) {
		if err := s.fold(ctx, org, chain, op.summary.Summary); err != nil {
			return false, err
		}
	}
	if err := s.commitWhole(ctx, op); err != nil {
		return false, err
	}
	return op.sealed, nil
}

type abandonChain struct {
	org     ledger.OrgID
	chain   ledger.ChainID
	summary folded
	sealed  bool

	counters counting // of approvals that are cancelled
}

func (o *abandonChain) tenant() ledger.OrgID { return o.org }

func (o *abandonChain) size() int { return smallOperation }

func (o *abandonChain) need(needs *store.Needs) {
	needs.Orgs = append(needs.Orgs, o.org)
	needs.Chains = append(needs.Chains, o.chain)
	needs.Polls = append(needs.Polls, o.chain)
	needs.Heads = append(needs.Heads, o.org)
	needs.ApprovalsOf = append(needs.ApprovalsOf, o.chain)
	o.counters.need(needs)
}

// plan looks again, under the chain's lock: what another replica has sealed, what
// somebody has recorded or asked for since, and what is paused or waits for a person is
// left alone. The chain's own moments are authenticated. When it was polled is not: who
// writes to the database can have a chain that is only polled sealed too early, or keep
// one open, and neither loses or changes anything that was recorded.
func (o *abandonChain) plan(b *batch) error {
	o.sealed = false
	live, err := b.chainOf(o.org, o.chain)
	if err != nil {
		return err
	}
	org, err := b.org(o.org)
	if err != nil {
		return err
	}
	if at, ok := live.state.AbandonedAt(&org.Settings, b.loaded.Polls[o.chain], pollLag); !ok || at > b.now {
		return nil
	}
	if _, err := b.seal(live, org, &o.counters, o.summary, ledger.Abandonment(&org.Settings)); err != nil {
		return err
	}
	o.sealed = true
	return nil
}
