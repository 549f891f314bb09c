package verify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// lackingVotes requires each yes that the audit log names of approvals that still wait for a second
// one. An earlier state of an open approval is authentic, and its chain records only its end. What is
// wrong with an approval otherwise is reported by the check of its chain.
func (a *audit) lackingVotes(ctx context.Context) (found []*ledger.Break, err error) {
	for _, name := range slices.Sorted(maps.Keys(a.votes)) {
		id, err := ledger.ParseID(name)
		if err != nil {
			continue
		}
		record, err := a.store.Approval(ctx, ledger.ApprovalID{UUID: id})
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if approval, err := a.store.ReadApproval(record); err == nil && approval.Lacks(a.votes[name]) {
			found = append(found, &ledger.Break{
				Check:  ledger.CheckApprovals,
				Detail: fmt.Sprintf("the approval %s lacks a yes that the audit log names: it was put back to an earlier state", id),
			})
		}
	}
	return found, nil
}
