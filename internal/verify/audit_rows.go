package verify

import (
	"context"
	"fmt"
	"slices"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// inspectRollback compares the ledger with what this server has acknowledged.
func (a *audit) inspectRollback(ctx context.Context) (*ledger.Break, error) {
	rollback, err := a.judge.Heads.rollback(ctx, a.org)
	if err != nil || rollback == nil {
		return nil, err
	}
	if rollback.OnlyActs() {
		return &ledger.Break{Check: ledger.CheckRollback, Detail: fmt.Sprintf(
			"%d acts were acknowledged, and the audit log of %d is not that one: the database was put back", rollback.ActsAcknowledged, rollback.ActsStored)}, nil
	}
	return &ledger.Break{Check: ledger.CheckRollback, Detail: fmt.Sprintf(
		"%d receipts were acknowledged, and the ledger of %d is not that one: the database was put back", rollback.Acknowledged, rollback.Stored)}, nil
}

// maxFailing bounds how many failing rows an audit names.
const maxFailing = 100

// rows returns the inspections of everything that belongs to an organization but not to a receipt
// or act. Each failing row has its own inspection, so that none hides behind another.
func (a *audit) rows() []func(context.Context) (*ledger.Break, error) {
	inspections := []func(context.Context) (*ledger.Break, error){a.inspectRegistry, a.inspectQueue, a.inspectRecords, a.inspectImports}
	for _, collect := range []func(context.Context) ([]*ledger.Break, error){a.missingAnchors, a.brokenLogs, a.lackingVotes, a.recountBudgets} {
		inspections = append(inspections, oneByOne(collect)...)
	}
	for i := range maxFailing {
		inspections = append(inspections, func(ctx context.Context) (*ledger.Break, error) { return a.failingRow(ctx, i) })
	}
	return inspections
}

// maxCollected bounds how many breaks of one kind an audit names.
const maxCollected = 20

// oneByOne returns inspections that return the breaks that collect finds, one each.
func oneByOne(collect func(context.Context) ([]*ledger.Break, error)) []func(context.Context) (*ledger.Break, error) {
	var found []*ledger.Break
	inspections := make([]func(context.Context) (*ledger.Break, error), maxCollected)
	for i := range inspections {
		inspections[i] = func(ctx context.Context) (_ *ledger.Break, err error) {
			if i == 0 {
				found, err = collect(ctx)
			}
			if err != nil || i >= len(found) {
				return nil, err
			}
			return found[i], nil
		}
	}
	return inspections
}

// failingRow returns the i-th failing row, or nil if there are fewer.
func (a *audit) failingRow(ctx context.Context, i int) (*ledger.Break, error) {
	if i == 0 {
		failing, err := a.store.FailingRows(ctx, a.org.ID, maxFailing, a.knownRow)
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

// inspectRegistry requires an active signing key: the service always leaves one.
func (a *audit) inspectRegistry(ctx context.Context) (*ledger.Break, error) {
	keys, err := a.store.SigningKeys(ctx, a.org.ID)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(keys, func(key *store.SigningKeyRecord) bool { return key.Status == ledger.SigningActive || key.Tampered }) {
		return nil, nil
	}
	return &ledger.Break{Check: ledger.CheckRegistry, Detail: "no signing key is active, and the service always leaves one: the registry was changed"}, nil
}
