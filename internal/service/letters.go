package service

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"countersign/internal/ledger"
	"countersign/internal/notify"
	"countersign/internal/store"
)

// letter is an e-mail to be sent.
type letter struct {
	to     []string
	notice []byte // encoded
}

// letter is what a notice tells people by e-mail: those whom the rule names when a
// decision is wanted, the fallback approvers when nobody has decided in half the time,
// and the same when there was tampering.
func (j *Jobs) letter(ctx context.Context, job *store.Job, notice *notify.Notice) (letter, error) {
	switch {
	case !mailed[notice.Kind]:
		return letter{}, nil
	case notice.Kind == notify.LedgerTamperFound:
		org, err := j.service.store.Organization(ctx, job.Org)
		if err != nil {
			return letter{}, err
		}
		return letter{j.service.guardians(org), job.Body}, nil
	}
	approval, err := j.approvalOf(ctx, notice)
	switch {
	case err != nil || approval == nil:
		return letter{}, err
	case notice.Kind == notify.ApprovalRequested:
		return letter{ledger.Addresses(approval.Approvers), job.Body}, nil
	case len(approval.Fallback) > 0:
		return letter{approval.Escalate, job.Body}, nil
	}
	return j.strangersLetter(approval, *notice)
}

// approvalOf is the approval that a notice is about, nil where it is gone.
func (j *Jobs) approvalOf(ctx context.Context, notice *notify.Notice) (*ledger.Approval, error) {
	id, err := ledger.ParseID(notice.ApprovalID)
	if err != nil {
		return nil, fmt.Errorf("a notice of no approval: %w", err)
	}
	record, err := j.service.store.Approval(ctx, ledger.ApprovalID{UUID: id})
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return j.service.store.ReadApproval(record)
}

// strangersLetter is for addresses that an agent chose. It carries none of the agent's
// own text, and there are few of them: otherwise anyone with an agent's key could have
// the service write what they like to whom they like.
func (j *Jobs) strangersLetter(approval *ledger.Approval, notice notify.Notice) (letter, error) {
	notice.Chain, notice.Agent, notice.Action = "", "", ""
	body, err := notice.Encode()
	if err != nil {
		return letter{}, err
	}
	few := j.service.strangers.take(approval, j.service.now())
	if left := len(approval.Escalate) - few; left > 0 {
		j.service.log.Warn("mails to a chain's own fallback approvers were left out: too many in an hour", "mails", left, "chain_id", approval.Chain.String())
	}
	return letter{approval.Escalate[:few], body}, nil
}

// strangersMail counts the mails of an hour to addresses that agents chose. Each server
// counts its own.
type strangersMail struct {
	mu     sync.Mutex
	hour   ledger.Time
	chains map[ledger.ChainID]int
	keys   map[ledger.KeyID]int
}

// The most mails an hour to addresses that agents chose.
const (
	mostMailsOfChain = 5
	mostMailsOfKey   = 20
)

// take counts the mails of an approval and returns how many of them may be sent.
func (m *strangersMail) take(approval *ledger.Approval, now ledger.Time) int {
	const hour = ledger.Time(60 * 60 * 1000)
	m.mu.Lock()
	defer m.mu.Unlock()
	if begun := now / hour; m.chains == nil || begun != m.hour {
		m.hour, m.chains, m.keys = begun, make(map[ledger.ChainID]int), make(map[ledger.KeyID]int)
	}
	few := max(min(len(approval.Escalate), mostMailsOfChain-m.chains[approval.Chain], mostMailsOfKey-m.keys[approval.OpenedBy]), 0)
	if few > 0 { // an hour has no more entries than mails
		m.chains[approval.Chain] += few
		m.keys[approval.OpenedBy] += few
	}
	return few
}
