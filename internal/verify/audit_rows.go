package verify

import (
	"context"
	"fmt"
	"slices"

	"countersign/internal/evidence"
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
	for _, collect := range []func(context.Context, *collection) error{a.missingAnchors, a.brokenLogs, a.lackingVotes, a.recountBudgets} {
		inspections = append(inspections, a.oneByOne(collect)...)
	}
	for i := range maxFailing {
		inspections = append(inspections, func(ctx context.Context) (*ledger.Break, error) { return a.failingRow(ctx, i) })
	}
	return inspections
}

// maxCollected bounds how many breaks of one kind an audit names.
const maxCollected = 20

// collection is what an audit names of the breaks of one kind. Those that are known come last, so that
// however many there are, they keep no others out. Nothing is kept of the breaks that are not named.
type collection struct {
	known func(*Tampering) (bool, error) // nil if none are
	found []*ledger.Break                // those that are not known
	last  []*ledger.Break                // those that are
}

// full reports whether nothing that is added would be named.
func (c *collection) full() bool { return len(c.found) >= maxCollected }

// add adds a break, unless its text is there already: the same finding would come of it.
func (c *collection) add(found *ledger.Break) error {
	same := func(other *ledger.Break) bool { return other.Detail == found.Detail }
	if c.full() || slices.ContainsFunc(c.found, same) || slices.ContainsFunc(c.last, same) {
		return nil
	}
	known := false
	if c.known != nil {
		var err error
		if known, err = c.known(&Tampering{Check: found.Check, Place: found.Detail, Digest: found.Evidence}); err != nil {
			return err
		}
	}
	switch {
	case !known:
		c.found = append(c.found, found)
	case len(c.last) < maxCollected:
		c.last = append(c.last, found)
	}
	return nil
}

// named returns the breaks to name.
func (c *collection) named() []*ledger.Break {
	return slices.Concat(c.found, c.last[:min(len(c.last), maxCollected-len(c.found))])
}

// oneByOne returns inspections that return the breaks that collect adds, one each.
func (a *audit) oneByOne(collect func(context.Context, *collection) error) []func(context.Context) (*ledger.Break, error) {
	var found []*ledger.Break
	inspections := make([]func(context.Context) (*ledger.Break, error), maxCollected)
	for i := range inspections {
		inspections[i] = func(ctx context.Context) (*ledger.Break, error) {
			if i == 0 {
				c := &collection{known: a.known}
				if err := collect(ctx, c); err != nil {
					return nil, err
				}
				found = c.named()
			}
			if i >= len(found) {
				return nil, nil
			}
			return found[i], nil
		}
	}
	return inspections
}

// failingRow returns the i-th failing row, or nil if there are fewer.
func (a *audit) failingRow(ctx context.Context, i int) (*ledger.Break, error) {
	if i == 0 {
		var known func(*evidence.Failing) (bool, error)
		if a.known != nil {
			known = func(row *evidence.Failing) (bool, error) { return a.known(RowChanged(row)) }
		}
		failing, err := a.store.FailingRows(ctx, a.org.ID, maxFailing, known)
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
