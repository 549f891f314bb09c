package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// maxExport bounds the evidence of one chain in an export, in bytes. It is held in memory.
const maxExport = 24 << 20

// ErrTooLargeToExport says that a chain has more evidence than one file may hold.
var ErrTooLargeToExport = fault.Errorf(fault.CodeTooLarge, "the chain has more than %d MiB of evidence, too much for one bundle: a share of its receipt has no such bound", maxExport>>20)

// Export is the evidence behind a receipt. All of it was verified.
type Export struct {
	// Entries are the events and what was recorded about them, in the order of the digest. An entry
	// that is not an event has only a body.
	Entries   []*ledger.StoredEvent
	Approvals []*ledger.Approval // by the sequence of their events
	Anchors   []*ledger.Anchor   // completed anchors of the receipt and its approvals
}

func (e *Export) entry(entry *ledger.StoredEvent) {
	if e != nil {
		kept := *entry
		e.Entries = append(e.Entries, &kept)
	}
}

func (e *Export) approvals(approvals []*ledger.Approval) {
	if e != nil {
		e.Approvals = slices.SortedFunc(slices.Values(approvals), func(a, b *ledger.Approval) int { return cmp.Compare(a.Sequence, b.Sequence) })
	}
}

// Export reads the evidence behind a receipt, or only the receipt's anchors if full is false. If
// anything fails, it returns ledger.ErrStateTampered and no evidence.
func (r *Receipts) Export(ctx context.Context, receipt *store.PlacedReceipt, full bool) (*Export, error) {
	check, err := r.Check(ctx, receipt, Bounded)
	if err != nil {
		return nil, err
	}
	if !check.Valid {
		return nil, fmt.Errorf("the receipt fails its %s check: %w", check.Failed, ledger.ErrStateTampered)
	}
	export := &Export{}
	if full {
		if err := r.exportChain(ctx, receipt, export); err != nil {
			return nil, err
		}
	}
	return export, r.exportAnchors(ctx, receipt, export)
}

func (r *Receipts) exportChain(ctx context.Context, receipt *store.PlacedReceipt, export *Export) error {
	in := r.Inspect(&receipt.NamedReceipt)
	a := &chainAudit{reader: r.reader, org: &ledger.Organization{ID: receipt.Org, Slug: receipt.Slug}}
	sealed := &sealedChain{receipt: receipt.ID, chain: receipt.Chain, attested: in.Attested, sequence: receipt.Sequence, hash: in.Hash}
	found, err := a.inspectCounted(ctx, sealed, &extent{export: export})
	switch {
	case errors.Is(err, errLarge):
		return ErrTooLargeToExport
	case err != nil:
		return err
	case found != nil:
		return fmt.Errorf("the chain fails its %s check: %w", found.Check, ledger.ErrStateTampered)
	}
	return nil
}

// exportAnchors collects the completed proofs. A pending or failed anchor proves nothing.
func (r *Receipts) exportAnchors(ctx context.Context, receipt *store.PlacedReceipt, export *Export) error {
	subjects := []store.AnchorSubject{{Kind: ledger.SubjectHead, ID: receipt.ID.UUID}}
	for _, approval := range export.Approvals {
		subjects = append(subjects, store.AnchorSubject{Kind: ledger.SubjectApproval, ID: approval.ID.UUID})
	}
	for _, subject := range subjects {
		records, err := r.store.Anchors(ctx, receipt.Org, subject)
		if err != nil {
			return err
		}
		for _, record := range records {
			if record.Tampered {
				return fmt.Errorf("an anchor fails its authenticator: %w", ledger.ErrStateTampered)
			}
			if anchor := anchorOf(record); anchor.Standing == ledger.AnchorVerified {
				export.Anchors = append(export.Anchors, anchor)
			}
		}
	}
	return nil
}
