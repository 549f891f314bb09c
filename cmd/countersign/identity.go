package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

// ledgerAnswer is which ledger a store holds, as commands print it.
type ledgerAnswer struct {
	ID        uuid.UUID  `json:"id"`
	Parent    *uuid.UUID `json:"parent_id"` // null where it was not restored
	CreatedAt string     `json:"created_at"`
}

func answeredLedger(l *service.LedgerIdentity) *ledgerAnswer {
	answer := &ledgerAnswer{ID: l.ID, CreatedAt: l.CreatedAt.String()}
	if l.Parent != uuid.Nil {
		answer.Parent = &l.Parent
	}
	return answer
}

func (a *ledgerAnswer) String() string {
	if a.Parent == nil {
		return fmt.Sprintf("%s, begun %s", a.ID, a.CreatedAt)
	}
	return fmt.Sprintf("%s, restored from %s on %s", a.ID, a.Parent, a.CreatedAt)
}

// errForgedLedger says that the ledger's id is one that somebody wrote.
var errForgedLedger = errors.New("the id of the ledger was changed outside the service: run countersign rollback accept to have it written anew")

// ledger is which ledger the store holds, nil where none was named yet.
func (o *opened) ledger(ctx context.Context) (*ledgerAnswer, error) {
	var own *ledger.Error
	switch stored, err := o.service.Ledger(ctx); {
	case err == nil:
		return answeredLedger(stored), nil
	case errors.Is(err, ledger.ErrNotFound):
		return nil, nil
	case errors.As(err, &own) && own.Code == ledger.CodeEvidenceTampered:
		return nil, errForgedLedger
	default:
		return nil, fmt.Errorf("could not read: %w", err)
	}
}
