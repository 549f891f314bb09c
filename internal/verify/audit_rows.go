package verify

import (
	"context"
	"fmt"
	"slices"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// inspectPast holds the ledger against what this server remembers to have
// acknowledged.
func (a *audit) inspectPast(ctx context.Context) (*ledger.Break, error) {
	rollback, err := a.judge.rollback(ctx, a.org)
	if err != nil || rollback == nil {
		return nil, err
	}
	if rollback.OfActsAlone() {
		return &ledger.Break{Check: ledger.CheckRollback, Detail: fmt.Sprintf(
			"%d acts were acknowledged, and the audit log of %d is not that one: the database was put back", rollback.ActsAcknowledged, rollback.ActsStored)}, nil
	}
	return &ledger.Break{Check: ledger.CheckRollback, Detail: fmt.Sprintf(
		"%d receipts were acknowledged, and the ledger of %d is not that one: the database was put back", rollback.Acknowledged, rollback.Stored)}, nil
}

// mostFailing is how many rows that fail a look names one by one.
const mostFailing = 100

// rows are the inspections of what belongs to an organization as a whole, and to no
// receipt or act. Each row that fails has an inspection of its own, so that none hides
// behind another.
func (a *audit) rows() []func(context.Context) (*ledger.Break, error) {
	inspections := []func(context.Context) (*ledger.Break, error){a.inspectRegistry, a.inspectQueue, a.inspectRecords, a.inspectImports, a.inspectTransparency}
	for i := range mostMiscounted {
		inspections = append(inspections, func(ctx context.Context) (*ledger.Break, error) { return a.miscounted(ctx, i) })
	}
	for i := range mostFailing {
		inspections = append(inspections, func(ctx context.Context) (*ledger.Break, error) { return a.failingRow(ctx, i) })
	}
	return inspections
}

// failingRow is the i-th row that fails, nil where there are fewer.
func (a *audit) failingRow(ctx context.Context, i int) (*ledger.Break, error) {
	if i == 0 {
		failing, err := a.judge.store.FailingRows(ctx, a.org.ID, mostFailing)
		if err != nil {
			return nil, err
		}
		a.failing = failing
	}
	if i >= len(a.failing) {
		return nil, nil
	}
	t := RowChanged(&a.failing[i])
	return &ledger.Break{Check: t.Check, Detail: t.Place, Evidence: t.Digest}, nil
}

// inspectRegistry wants a key that signs decisions: the service always leaves one.
func (a *audit) inspectRegistry(ctx context.Context) (*ledger.Break, error) {
	keys, err := a.judge.store.SigningKeys(ctx, a.org.ID)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(keys, func(key *store.SigningKeyRecord) bool { return key.Status == ledger.SigningActive || key.Tampered }) {
		return nil, nil
	}
	return &ledger.Break{Check: ledger.CheckRegistry, Detail: "no signing key is active, and the service always leaves one: the registry was changed"}, nil
}
