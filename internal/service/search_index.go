package service

import (
	"context"
	"encoding/binary"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// The search index is written in the transaction that writes the indexed records. A chain has
// one posting for each of its terms, written when the term first occurs: an action like an
// earlier one writes nothing.

// Places sort like the lists. The place of a chain is its id. A receipt's posting is shared with
// the other receipts of its block.

func receiptPlace(sequence int64) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(sequence)) //nolint:gosec // a sequence is positive
}

func approvalPlace(at ledger.Time, id ledger.ApprovalID) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(at)), id.UUID[:]...) //nolint:gosec // no recorded time is before 1970
}

func (b *batch) post(place []byte, sequence int64, terms ...ledger.Term) {
	for _, term := range terms {
		b.changes.NewPostings = append(b.changes.NewPostings, store.Posting{Term: term, Place: place, Sequence: sequence})
	}
}

func (b *batch) postChain(chain *ledger.Chain) {
	b.post(chain.ID.UUID[:], 0, ledger.ListChains.ChainTerms(chain)...)
}

// countEvent adds an event to the chain's summary, if there is one, and posts the new terms.
// Without a summary it may post terms that are stored already.
func (b *batch) countEvent(live *liveChain, recorded *ledger.Recorded) {
	summary := live.summary
	if summary != nil {
		live.rows = recorded.Stored.Extend(live.rows)
	} else {
		if live.seen == nil {
			live.seen = &ledger.Summary{}
		}
		summary = live.seen
	}
	b.post(live.chain.ID.UUID[:], recorded.Event.Sequence, summary.CountTerms(live.chain.Org, recorded.Event)...)
}

func (b *batch) postReceipt(chain *ledger.Chain, summary *ledger.Summary, sequence int64) {
	b.changes.ReceiptPostings = appendReceipt(b.changes.ReceiptPostings, sequence, ledger.ReceiptTerms(chain, summary.SearchedActions()))
}

func appendReceipt(to []store.ReceiptPosting, sequence int64, terms []ledger.Term) []store.ReceiptPosting {
	for _, term := range terms {
		to = append(to, store.ReceiptPosting{Term: term, Block: sequence / store.BlockSize, Receipts: 1 << (sequence % store.BlockSize)})
	}
	return to
}

func (b *batch) postApproval(chain *ledger.Chain, approval *ledger.Approval) {
	b.post(approvalPlace(approval.RequestedAt, approval.ID), 0, approvalTerms(chain, approval)...)
}

func approvalTerms(chain *ledger.Chain, approval *ledger.Approval) []ledger.Term {
	return append(ledger.ListApprovals.ChainTerms(chain), ledger.ListApprovals.ActionTerms(chain.Org, actedOf(approval))...)
}

func actedOf(a *ledger.Approval) ledger.SearchedAction {
	return ledger.SearchedAction{Agent: a.AgentName, Type: a.ActionType, Name: a.ActionName, Decision: ledger.RequireApproval}
}

// reindexPage is how many postings are written at a time.
const reindexPage = 2000

// Reindex adds the missing postings of an organization's records to the search index, and
// returns their number. It skips records that fail authentication; an audit reports them. It
// may run while a server is running.
func (s *searchService) Reindex(ctx context.Context, org ledger.OrgID) (added int64, err error) {
	r := &reindexing{service: s, ctx: ctx}
	owner, err := s.store.Organization(ctx, org)
	if err != nil {
		return 0, visible(err)
	}
	for _, walk := range []func() error{
		func() error { return r.chains(org) },
		func() error { return r.receipts(owner) },
		func() error { return r.approvals(org) },
		r.flush,
	} {
		if err := walk(); err != nil {
			return r.added, visible(err)
		}
	}
	return r.added, nil
}

type reindexing struct {
	service  *searchService
	ctx      context.Context //nolint:containedctx // of the single call that uses it
	postings []store.Posting
	sealed   []store.ReceiptPosting
	added    int64
}

func (r *reindexing) post(place []byte, sequence int64, terms ...ledger.Term) error {
	for _, term := range terms {
		r.postings = append(r.postings, store.Posting{Term: term, Place: place, Sequence: sequence})
	}
	return r.flushFull()
}

func (r *reindexing) flushFull() error {
	if len(r.postings)+len(r.sealed) < reindexPage {
		return nil
	}
	return r.flush()
}

func (r *reindexing) flush() error {
	added, err := r.service.store.AddPostings(r.ctx, r.postings)
	r.added, r.postings = r.added+added, r.postings[:0]
	if err != nil {
		return err
	}
	added, err = r.service.store.AddReceiptPostings(r.ctx, r.sealed)
	r.added, r.sealed = r.added+added, r.sealed[:0]
	return err
}

func (r *reindexing) chains(org ledger.OrgID) error {
	const page = 200
	query := store.ChainQuery{Org: org, Limit: page}
	for {
		records, err := r.service.store.Chains(r.ctx, query)
		if err != nil {
			return err
		}
		for _, record := range records {
			if view, err := r.service.chains.view(record); err == nil && view.Org == org {
				if err := r.chain(view.Chain); err != nil {
					return err
				}
			}
		}
		if len(records) < page {
			return nil
		}
		query.Before = &records[len(records)-1].ID
	}
}

func (r *reindexing) chain(chain *ledger.Chain) error {
	if err := r.post(chain.ID.UUID[:], 0, ledger.ListChains.ChainTerms(chain)...); err != nil {
		return err
	}
	var summary ledger.Summary
	return r.service.store.EachPage(r.ctx, chain.ID, 0, func(events []*ledger.StoredEvent) error {
		for _, stored := range events {
			event, err := r.service.store.ReadEvent(chain.Org, stored)
			if err != nil {
				continue
			}
			if err := r.post(chain.ID.UUID[:], event.Sequence, summary.CountTerms(chain.Org, &event.Event)...); err != nil {
				return err
			}
		}
		return nil
	})
}

func (r *reindexing) receipts(org *ledger.Organization) error {
	const page = 200
	for before := int64(0); ; {
		receipts, err := r.service.store.Receipts(r.ctx, org.ID, before, page)
		if err != nil {
			return err
		}
		for _, receipt := range receipts {
			if err := r.receipt(org, receipt); err != nil {
				return err
			}
		}
		if len(receipts) < page {
			return nil
		}
		before = receipts[len(receipts)-1].Sequence
	}
}

func (r *reindexing) receipt(org *ledger.Organization, stored *ledger.StoredReceipt) error {
	receipt := r.service.receipts.shownReceipt(stored, org.Slug)
	if receipt.Tampered {
		return nil
	}
	_, actions, err := ledger.ReceiptContent(receipt.Body)
	chain, chainErr := r.service.chains.readChain(r.ctx, org.ID, receipt.Chain)
	if err != nil || chainErr != nil {
		return nil //nolint:nilerr // an audit reports it
	}
	r.sealed = appendReceipt(r.sealed, receipt.Sequence, ledger.ReceiptTerms(chain.Chain, actions))
	return r.flushFull()
}

func (r *reindexing) approvals(org ledger.OrgID) error {
	const page = 200
	query := store.ApprovalQuery{Org: org, Limit: page}
	for {
		records, err := r.service.store.Approvals(r.ctx, query)
		if err != nil {
			return err
		}
		for _, record := range records {
			approval, err := r.service.store.ReadApproval(record)
			if err != nil {
				continue
			}
			chain, err := r.service.chains.readChain(r.ctx, org, approval.Chain)
			if err != nil {
				continue
			}
			if err := r.post(approvalPlace(approval.RequestedAt, approval.ID), 0, approvalTerms(chain.Chain, approval)...); err != nil {
				return err
			}
		}
		if len(records) < page {
			return nil
		}
		last := records[len(records)-1]
		query.Before = &store.ApprovalAt{RequestedAt: last.RequestedAt, ID: last.ID}
	}
}
