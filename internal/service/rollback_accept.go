package service

import (
	"cmp"
	"context"
	"fmt"

	"github.com/google/uuid"

	"countersign/internal/canon"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/verify"
)

// AcceptRollbacks takes the database as it is for the truth, as an operator who has
// put it back on purpose, and enters that into the audit log. accept makes the
// watch forget what it has seen.
func (o *Operator) AcceptRollbacks(ctx context.Context, found []verify.Rollback, accept func(org uuid.UUID, now keyring.Seen) error) error {
	var missing []verify.Rollback
	for _, rollback := range found {
		if rollback.OtherLedger {
			if err := o.acceptOther(ctx); err != nil {
				return fmt.Errorf("accept another ledger: %w", err)
			}
			continue
		}
		if rollback.Missing {
			missing = append(missing, rollback)
			continue
		}
		now, err := o.acceptOlder(ctx, &rollback)
		if err == nil {
			err = accept(rollback.ID, now)
		}
		if err == nil {
			err = o.acknowledgeRollback(ctx, rollback.Organization)
		}
		if err != nil {
			return fmt.Errorf("accept the ledger of %s: %w", rollback.Organization, err)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := o.acceptMissing(ctx, missing); err != nil {
		return fmt.Errorf("accept that organizations are missing: %w", err)
	}
	for _, rollback := range missing {
		if err := accept(rollback.ID, keyring.Seen{}); err != nil {
			return fmt.Errorf("accept that %s is missing: %w", rollback.Organization, err)
		}
	}
	return nil
}

// AcceptChains takes chains as they are for the truth, as an operator who has put them
// back on purpose, and enters that into the audit logs of their organizations. accept
// makes the watch forget what it has seen of an organization's chains.
func (o *Operator) AcceptChains(ctx context.Context, found []*verify.ChainRollback, accept func(org uuid.UUID) error) error {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return err
	}
	slugs := make(map[ledger.OrgID]string, len(orgs))
	for _, org := range orgs {
		slugs[org.ID] = org.Slug
	}
	chains := make(map[ledger.OrgID]int64)
	for _, back := range found {
		chains[back.Org]++
	}
	for org, count := range chains {
		slug, known := slugs[org]
		if known {
			err = o.enterAcceptance(ctx, org, slug, func(w *canon.ObjectWriter) { w.Int("chains", count) })
		}
		if err == nil {
			err = accept(org.UUID)
		}
		if err == nil && known {
			err = o.acknowledgeRollback(ctx, slug)
		}
		if err != nil {
			return fmt.Errorf("accept the chains of %s: %w", cmp.Or(slug, org.String()), err)
		}
	}
	return nil
}

// acknowledgeRollback closes what an audit has found of the rollback: whoever accepts it
// has looked at it.
func (o *Operator) acknowledgeRollback(ctx context.Context, slug string) error {
	findings, err := o.Findings(ctx, slug)
	if err != nil {
		return err
	}
	for _, finding := range findings {
		if finding.Check == string(ledger.CheckRollback) && finding.Open() {
			if err := o.Acknowledge(ctx, finding, "the database was accepted as it is"); err != nil {
				return err
			}
		}
	}
	return nil
}

// acceptOlder enters the acceptance of a ledger into its organization's log and
// returns where that ledger ends.
func (o *Operator) acceptOlder(ctx context.Context, rollback *verify.Rollback) (keyring.Seen, error) {
	org := ledger.OrgID{UUID: rollback.ID}
	head, err := o.service.judge.Head(ctx, org)
	if err != nil {
		return keyring.Seen{}, visible(err)
	}
	now := keyring.Seen{Count: head.Count}
	if head.Last != nil {
		now.Last = *head.Last
	}
	o.service.store.AcceptLog(org)
	err = o.enterAcceptance(ctx, org, rollback.Organization, func(w *canon.ObjectWriter) {
		w.Int("acts_acknowledged", rollback.ActsAcknowledged)
		w.Int("acts_stored", rollback.ActsStored)
		if !rollback.Unremembered {
			w.Int("receipts_acknowledged", rollback.Acknowledged)
		}
		w.Int("receipts_stored", head.Count)
		if rollback.Unremembered {
			w.Bool("unremembered", true)
		}
	})
	now.Acts = o.service.store.KnownEnd(org)
	return now, err
}

// acceptOther tells every organization that the ledger is not the one that was watched.
// The caller has the watch follow it.
func (o *Operator) acceptOther(ctx context.Context) error {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return err
	}
	for _, org := range orgs {
		err := o.enterAcceptance(ctx, org.ID, org.Slug, func(w *canon.ObjectWriter) { w.Bool("other_ledger", true) })
		if err != nil {
			return err
		}
	}
	return nil
}

// acceptMissing tells every organization that is left, for the receipts of all were
// held up. It names none of the missing ones: an audit log is for its own
// organization alone.
func (o *Operator) acceptMissing(ctx context.Context, missing []verify.Rollback) error {
	orgs, err := o.Organizations(ctx)
	if err != nil {
		return err
	}
	for _, org := range orgs {
		err := o.enterAcceptance(ctx, org.ID, org.Slug, func(w *canon.ObjectWriter) {
			w.Int("organizations_missing", int64(len(missing)))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *Operator) enterAcceptance(ctx context.Context, org ledger.OrgID, slug string, detail func(*canon.ObjectWriter)) error {
	return o.service.committer.commit(ctx, &act{org: org, actor: ledger.ActorOperator, change: func(*batch, *ledger.Organization) (*deed, error) {
		return &deed{action: ledger.ActRollbackAccept, target: slug, detail: details(detail)}, nil
	}})
}
