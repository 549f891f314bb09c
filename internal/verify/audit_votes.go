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
func (a *audit) lackingVotes(ctx context.Context, lacking *collection) error {
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
			return err
		}
		approval, err := a.store.ReadApproval(record)
		if err != nil || !approval.Lacks(a.votes[name]) {
			continue
		}
		err = lacking.add(&ledger.Break{
			Check:  ledger.CheckApprovals,
			Detail: fmt.Sprintf("the approval %s lacks a yes that the audit log names: it was put back to an earlier state", id),
		})
		if err != nil {
			return err
		}
	}
	return nil
}
