package service

import (
	"context"
	"fmt"

	"countersign/internal/ledger"
)

// inspectPast holds the ledger against what this server remembers to have
// acknowledged.
func (a *audit) inspectPast(ctx context.Context) (*ledger.Break, error) {
	rollback, err := a.service.rollback(ctx, a.org)
	if err != nil || rollback == nil {
		return nil, err
	}
	return &ledger.Break{Check: ledger.CheckRollback, Detail: fmt.Sprintf(
		"%d receipts were acknowledged, and the ledger of %d is not that one: the database was put back", rollback.Acknowledged, rollback.Stored)}, nil
}
