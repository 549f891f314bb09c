package verify

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// sealedChain is what a receipt attests about its chain's events.
type sealedChain struct {
	receipt  ledger.ReceiptID
	chain    ledger.ChainID
	attested ledger.Attested
	sequence int64
	label    string
	hash     [32]byte // of the receipt
}

func (s *sealedChain) broken(check ledger.Check, detail string) *ledger.Break {
	return &ledger.Break{Sequence: s.sequence, ReceiptNumber: s.label, Check: check, Detail: detail}
}

// chainAudit checks chains of one organization, each with its entries and approvals.
type chainAudit struct {
	*reader
	org    *ledger.Organization
	events atomic.Int64 // events read
}

// inspectSealed checks a receipt's chain and events against what was signed.
func (a *chainAudit) inspectSealed(ctx context.Context, sealed *sealedChain) (*ledger.Break, error) {
	return a.inspectWithin(ctx, sealed, new(extent))
}

// inspectWithin is inspectSealed with a size limit. It fails with errLarge if the chain exceeds it.
// The result of a full check of a large chain is stored.
func (a *chainAudit) inspectWithin(ctx context.Context, sealed *sealedChain, size *extent) (*ledger.Break, error) {
	began := a.now()
	found, err := a.inspectCounted(ctx, sealed, size)
	// A failed check may end before the size is known, so it is always stored.
	if err != nil || size.bounded || a.keep == nil || found == nil && !size.large() {
		return found, err
	}
	check := &store.FullCheckRecord{Org: a.org.ID, Receipt: sealed.receipt, Hash: sealed.hash, CheckedAt: began}
	if found != nil {
		check.Failed = string(found.Check)
	}
	a.keep(ctx, check)
	return found, nil
}

func (a *chainAudit) inspectCounted(ctx context.Context, sealed *sealedChain, size *extent) (*ledger.Break, error) {
	rows, err := a.store.ReadChain(ctx, a.org.ID, sealed.chain)
	if errors.Is(err, store.ErrNotFound) {
		return sealed.broken(ledger.CheckChain, "the chain's record is missing"), nil
	}
	if err != nil {
		return nil, err
	}
	record := rows.Chain
	if record.Org != a.org.ID {
		return sealed.broken(ledger.CheckChain, "the chain's record is another organization's"), nil
	}
	size.rows.chain(record)
	state, detail := a.readState(record)
	if detail == "" && (!state.Status.Sealed() || state.Receipt == nil || *state.Receipt != sealed.receipt) {
		detail = "the chain's state is not the sealed one"
	}
	if detail != "" {
		return sealed.broken(ledger.CheckChain, detail), nil
	}
	if err := size.claim(state.Entries); err != nil {
		return nil, err
	}
	replay, err := a.replayChain(ctx, rows, size)
	if err == nil {
		err = replay.Supports(&sealed.attested)
	}
	if err == nil {
		found, readErr := a.inspectApprovals(ctx, replay, rows, size)
		if readErr != nil {
			return nil, readErr
		}
		if found != nil {
			return sealed.broken(ledger.CheckApprovals, found.Error()), nil
		}
	}
	var fault *evidenceFault
	switch {
	case errors.As(err, &fault), err != nil && replay != nil:
		return sealed.broken(ledger.CheckEventsDigest, err.Error()), nil
	case err != nil:
		return nil, err
	}
	return nil, nil
}

// inspectApprovals checks a chain's stored approvals against its replayed entries.
func (a *chainAudit) inspectApprovals(ctx context.Context, replay *ledger.Replay, rows *evidence.ChainRows, size *extent) (found, err error) {
	records, err := rows.Approvals(ctx)
	if err != nil {
		return nil, err
	}
	size.rows.approvals(records)
	approvals := make([]*ledger.Approval, 0, len(records))
	for _, record := range records {
		approval, err := a.store.ReadApproval(record)
		if err != nil {
			return err, nil
		}
		approvals = append(approvals, approval)
	}
	size.export.approvals(approvals)
	return replay.Approvals(approvals), nil
}

func (a *chainAudit) approvalRecords(ctx context.Context, chain ledger.ChainID) ([]*store.ApprovalRecord, error) {
	return a.store.Approvals(ctx, store.ApprovalQuery{Org: a.org.ID, Chain: &chain, Limit: math.MaxInt32})
}

// evidenceFault distinguishes wrong entries from a failure to read them.
type evidenceFault struct{ error }

// replayChain replays a chain's entries in order. Addenda carry their positions, and events fill
// the positions in between.
func (a *chainAudit) replayChain(ctx context.Context, rows *evidence.ChainRows, size *extent) (*ledger.Replay, error) {
	addenda, err := rows.Addenda(ctx)
	if err != nil {
		return nil, err
	}
	size.rows.addenda(addenda)
	replay := ledger.NewReplay(rows.Chain.ID)
	feedAddenda := func() error {
		for len(addenda) > 0 && addenda[0].Position == replay.Entries()+1 {
			if err := replay.Addendum(addenda[0]); err != nil {
				return &evidenceFault{err}
			}
			if err := size.add(len(addenda[0].Body)); err != nil {
				return err
			}
			size.export.entry(&ledger.StoredEvent{Body: addenda[0].Body})
			addenda = addenda[1:]
		}
		return nil
	}
	err = rows.EachPage(ctx, func(events []*ledger.StoredEvent) error {
		for _, event := range events {
			size.rows.event(event)
			if err := feedAddenda(); err != nil {
				return err
			}
			if err := replay.Event(event); err != nil {
				return &evidenceFault{err}
			}
			if !event.Authentic(a.keys, a.org.ID) {
				return &evidenceFault{fmt.Errorf("event %d fails its authenticator", event.Sequence)}
			}
			if err := size.add(len(event.Body) + len(event.Payload) + len(event.Redactions)); err != nil {
				return err
			}
			size.export.entry(event)
		}
		a.events.Add(int64(len(events)))
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := feedAddenda(); err != nil {
		return nil, err
	}
	if len(addenda) > 0 {
		return nil, &evidenceFault{fmt.Errorf("an entry at position %d is out of place", addenda[0].Position)}
	}
	return replay, nil
}

// inspectChains checks every chain's record against its authenticator, its receipt and, if it is
// still open, its events.
func (a *audit) inspectChains(ctx context.Context, walk *ledger.Walk) (*ledger.Break, error) {
	var found *ledger.Break
	err := a.store.ScanChains(ctx, a.org.ID, func(record *store.ChainRecord) error {
		a.chains.Add(1)
		detail, err := a.inspectChain(ctx, record)
		if err != nil {
			return err
		}
		if detail != "" {
			// Every stored receipt has been checked against its chain, so the break comes after the
			// last of them.
			next := walk.Checked + 1
			found = &ledger.Break{
				Sequence: next, ReceiptNumber: walk.Label(next),
				Check: ledger.CheckChain, Detail: fmt.Sprintf("chain %s: %s", record.ID, detail),
			}
			return errBroken
		}
		return nil
	})
	if err != nil && !errors.Is(err, errBroken) {
		return nil, err
	}
	return found, nil
}

func (a *audit) inspectChain(ctx context.Context, record *store.ChainRecord) (string, error) {
	chain, state, detail := a.readChain(record)
	if detail != "" {
		return detail, nil
	}
	if detail, err := a.inspectLineage(ctx, chain); detail != "" || err != nil {
		return detail, err
	}
	if state.Status.Sealed() {
		receipt, err := a.store.ReceiptOfChain(ctx, record.ID)
		if errors.Is(err, store.ErrNotFound) || (err == nil && receipt.ID != *state.Receipt) {
			return "it is sealed, but its receipt is not there", nil
		}
		return "", err
	}
	return a.inspectOpen(ctx, record.ID, state)
}

// inspectLineage requires that the chain which another one continues names it as its successor: both
// are written together. A chain that was put back to before it had one would get a second.
func (a *audit) inspectLineage(ctx context.Context, chain *ledger.Chain) (string, error) {
	if len(chain.Continues) == 0 {
		return "", nil
	}
	id := chain.Continues[len(chain.Continues)-1]
	record, err := a.store.Chain(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return fmt.Sprintf("it continues the chain %s, which is gone", id), nil
	}
	if err != nil {
		return "", err
	}
	before, detail := a.readState(record)
	switch {
	case detail != "":
		return fmt.Sprintf("it continues the chain %s: %s", id, detail), nil
	case before.ContinuedBy == nil || *before.ContinuedBy != chain.ID:
		return fmt.Sprintf("it continues the chain %s, which was put back to before that", id), nil
	}
	return "", nil
}

// inspectOpen replays a chain that is still open. Events may arrive between the two reads, so a
// difference counts only if the chain has not grown.
func (a *audit) inspectOpen(ctx context.Context, id ledger.ChainID, state *ledger.ChainState) (string, error) {
	rows, err := a.store.ReadChain(ctx, a.org.ID, id)
	if err != nil {
		return "", err
	}
	replay, err := a.replayChain(ctx, rows, new(extent))
	if err == nil {
		err = replay.Matches(state.Digest, state.Actions)
	}
	if err == nil {
		found, readErr := a.inspectApprovals(ctx, replay, rows, new(extent))
		if readErr != nil {
			return "", readErr
		}
		err = found
	}
	if err == nil {
		return "", nil
	}
	var fault *evidenceFault
	if replay == nil && !errors.As(err, &fault) {
		return "", err
	}
	again, readErr := a.store.Chain(ctx, id)
	if readErr != nil {
		return "", readErr
	}
	now, changed := a.readState(again)
	if changed == "" && now.Entries != state.Entries {
		return "", nil
	}
	return err.Error(), nil
}
