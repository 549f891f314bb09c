package service

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"countersign/internal/canon"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// HeadWatch remembers outside the database which receipts were acknowledged.
type HeadWatch interface {
	Seen(org uuid.UUID) (keyring.Seen, bool)
	Note(org uuid.UUID, count int64, last [32]byte)
}

// behind reports whether a head is older than what was acknowledged. One that is
// as long but ends otherwise is another history, and as bad.
func (s *Service) behind(head *ledger.Head) bool {
	if s.watch == nil {
		return false
	}
	seen, ok := s.watch.Seen(head.Org.UUID)
	if !ok || seen.Count == 0 { // an empty ledger was accepted: nothing is behind it
		return false
	}
	return head.Count < seen.Count || (head.Count == seen.Count && (head.Last == nil || *head.Last != seen.Last))
}

var errRolledBack = ledger.Errorf(ledger.CodeRolledBack, "the database is older than the receipts that this server has given out: no new ones are made until an operator has looked at it; see countersign doctor")

// noteHeads remembers what a batch has acknowledged.
func (s *Service) noteHeads(heads []*ledger.Head) {
	if s.watch == nil {
		return
	}
	for _, head := range heads {
		if head.Last != nil {
			s.watch.Note(head.Org.UUID, head.Count, *head.Last)
		}
	}
}

// Rollback says that an organization's ledger has gone back behind what was
// acknowledged.
type Rollback struct {
	Organization string `json:"organization"`
	Acknowledged int64  `json:"receipts_acknowledged"`
	Stored       int64  `json:"receipts_stored"`
}

// Rollbacks finds the organizations whose ledger is not the one that this server
// has given receipts of.
func (s *Service) Rollbacks(ctx context.Context) ([]Rollback, error) {
	if s.watch == nil {
		return nil, nil
	}
	orgs, err := s.store.Organizations(ctx)
	if err != nil {
		return nil, visible(err)
	}
	var found []Rollback
	for _, org := range orgs {
		rollback, err := s.rollback(ctx, org)
		if err != nil {
			return nil, visible(err)
		}
		if rollback != nil {
			found = append(found, *rollback)
		}
	}
	return found, nil
}

func (s *Service) rollback(ctx context.Context, org *ledger.Organization) (*Rollback, error) {
	if s.watch == nil {
		return nil, nil
	}
	seen, ok := s.watch.Seen(org.ID.UUID)
	if !ok || seen.Count == 0 {
		return nil, nil
	}
	head, err := s.store.Head(ctx, org.ID)
	if errors.Is(err, store.ErrNotFound) {
		head, err = &ledger.Head{Org: org.ID}, nil
	}
	if err != nil {
		return nil, err
	}
	rollback := &Rollback{Organization: org.Slug, Acknowledged: seen.Count, Stored: head.Count}
	if s.behind(head) {
		return rollback, nil
	}
	same := false
	err = s.store.ScanReceipts(ctx, org.ID, seen.Count, seen.Count, func(r *ledger.StoredReceipt) error {
		same = r.Hash() == seen.Last
		return nil
	})
	if err != nil || same {
		return nil, err
	}
	return rollback, nil
}

// AcceptRollback takes the database as it is for the truth, as an operator who has
// put it back on purpose, and enters that into the audit log.
func (o *Operator) AcceptRollback(ctx context.Context, slug string, accept func(org uuid.UUID, now keyring.Seen) error) (*Rollback, error) {
	org, err := o.organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	rollback, err := o.service.rollback(ctx, org)
	if err != nil {
		return nil, visible(err)
	}
	if rollback == nil {
		return nil, ledger.Errorf(ledger.CodeInvalid, "the ledger of %s is the one that was acknowledged: there is nothing to accept", org.Slug)
	}
	head, err := o.service.store.Head(ctx, org.ID)
	if errors.Is(err, store.ErrNotFound) {
		head, err = &ledger.Head{Org: org.ID}, nil
	}
	if err != nil {
		return nil, visible(err)
	}
	err = o.service.committer.commit(ctx, &act{org: org.ID, actor: ledger.ActorOperator, change: func(*batch, *ledger.Organization) (*deed, error) {
		return &deed{action: "rollback.accept", target: org.Slug, detail: details(func(w *canon.ObjectWriter) {
			w.Int("receipts_acknowledged", rollback.Acknowledged)
			w.Int("receipts_stored", rollback.Stored)
		})}, nil
	}})
	if err != nil {
		return nil, err
	}
	now := keyring.Seen{Count: head.Count}
	if head.Last != nil {
		now.Last = *head.Last
	}
	if err := accept(org.ID.UUID, now); err != nil {
		return nil, fmt.Errorf("accept a rollback: %w", err)
	}
	return rollback, nil
}
