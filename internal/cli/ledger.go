package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"countersign/internal/fault"
	"countersign/internal/service"
)

// LedgerAnswer identifies the ledger of a store, as commands print it.
type LedgerAnswer struct {
	ID        uuid.UUID  `json:"id"`
	Parent    *uuid.UUID `json:"parent_id"` // null if the ledger was not restored
	CreatedAt string     `json:"created_at"`
}

func newLedgerAnswer(l *service.LedgerIdentity) *LedgerAnswer {
	answer := &LedgerAnswer{ID: l.ID, CreatedAt: l.CreatedAt.String()}
	if l.Parent != uuid.Nil {
		answer.Parent = &l.Parent
	}
	return answer
}

func (a *LedgerAnswer) String() string {
	if a.Parent == nil {
		return fmt.Sprintf("%s, created %s", a.ID, a.CreatedAt)
	}
	return fmt.Sprintf("%s, restored from %s on %s", a.ID, a.Parent, a.CreatedAt)
}

// ErrForgedLedger is returned if the stored id of the ledger does not verify.
var ErrForgedLedger = errors.New("the id of the ledger was changed outside the service: run countersign rollback accept to write it again")

// Ledger returns the identity of the store's ledger, or nil if it has no id yet.
func (o *Opened) Ledger(ctx context.Context) (*LedgerAnswer, error) {
	var own *fault.Error
	switch stored, err := o.Service.Ledger(ctx); {
	case err == nil:
		return newLedgerAnswer(stored), nil
	case errors.Is(err, fault.ErrNotFound):
		return nil, nil
	case errors.As(err, &own) && own.Code == fault.CodeEvidenceTampered:
		return nil, ErrForgedLedger
	default:
		return nil, fmt.Errorf("could not read: %w", err)
	}
}
