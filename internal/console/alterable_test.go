package console_test

import (
	"bytes"
	"context"
	"sync/atomic"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// alterable is a store whose records somebody may have changed, and which may
// stop answering.
type alterable struct {
	store.Store
	alter  atomic.Pointer[func(*ledger.StoredReceipt)]
	forged atomic.Bool // the chains' states and the approvals
	down   atomic.Bool
}

func (a *alterable) altered(receipts ...*ledger.StoredReceipt) {
	if alter := a.alter.Load(); alter != nil {
		for _, receipt := range receipts {
			(*alter)(receipt)
		}
	}
}

// rewrite makes the store answer with other bytes for one receipt.
func (a *alterable) rewrite(id ledger.ReceiptID, from, to string) {
	alter := func(r *ledger.StoredReceipt) {
		if r.ID == id {
			r.Body = bytes.Replace(r.Body, []byte(from), []byte(to), 1)
		}
	}
	a.alter.Store(&alter)
}

func (a *alterable) Receipt(ctx context.Context, id ledger.ReceiptID) (*ledger.StoredReceipt, error) {
	receipt, err := a.Store.Receipt(ctx, id)
	if err == nil {
		a.altered(receipt)
	}
	return receipt, err
}

func (a *alterable) NamedReceipt(ctx context.Context, id ledger.ReceiptID) (*store.NamedReceipt, error) {
	receipt, err := a.Store.NamedReceipt(ctx, id)
	if err != nil {
		return nil, err
	}
	own := *receipt.StoredReceipt // what the store returns is shared
	a.altered(&own)
	return &store.NamedReceipt{StoredReceipt: &own, Slug: receipt.Slug}, nil
}

func (a *alterable) PlacedReceipt(ctx context.Context, id ledger.ReceiptID) (*store.PlacedReceipt, error) {
	receipt, err := a.Store.PlacedReceipt(ctx, id)
	if err != nil {
		return nil, err
	}
	placed := *receipt // what the store returns is shared
	for _, shared := range []**ledger.StoredReceipt{&placed.StoredReceipt, &placed.Previous, &placed.Next} {
		if *shared != nil {
			own := **shared
			a.altered(&own)
			*shared = &own
		}
	}
	return &placed, nil
}

func (a *alterable) ReceiptOfChain(ctx context.Context, id ledger.ChainID) (*ledger.StoredReceipt, error) {
	receipt, err := a.Store.ReceiptOfChain(ctx, id)
	if err == nil {
		a.altered(receipt)
	}
	return receipt, err
}

func (a *alterable) Receipts(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*ledger.StoredReceipt, error) {
	receipts, err := a.Store.Receipts(ctx, org, before, limit)
	a.altered(receipts...)
	return receipts, err
}

func (a *alterable) Chains(ctx context.Context, query store.ChainQuery) ([]*store.ChainRecord, error) {
	chains, err := a.Store.Chains(ctx, query)
	for _, chain := range chains {
		if a.forged.Load() {
			chain.MAC = make([]byte, len(chain.MAC))
		}
	}
	return chains, err
}

func (a *alterable) Approvals(ctx context.Context, query store.ApprovalQuery) ([]*store.ApprovalRecord, error) {
	approvals, err := a.Store.Approvals(ctx, query)
	for _, approval := range approvals {
		if a.forged.Load() {
			approval.MAC = make([]byte, len(approval.MAC))
		}
	}
	return approvals, err
}

func (a *alterable) Session(ctx context.Context, session [32]byte, now ledger.Time) (*store.SignIn, error) {
	if a.down.Load() {
		return nil, store.ErrUnavailable
	}
	return a.Store.Session(ctx, session, now)
}
