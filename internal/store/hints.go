package store

import (
	"cmp"
	"context"
	"slices"

	"countersign/internal/ledger"
)

// This file holds records without authenticators. They are hints: no decision about an
// action rests on them.

// Polls keeps when chains were last requested without recording anything. It decides
// when an abandoned chain is sealed, and nothing else.
type Polls interface {
	// TouchChains stores when chains were last polled. A moment before the stored one is
	// ignored, and so is a chain that does not exist. It may run concurrently with
	// Transact, which never writes that moment.
	TouchChains(ctx context.Context, polled map[ledger.ChainID]ledger.Time) error
	// Polled returns what TouchChains stored of these chains.
	Polled(ctx context.Context, chains []ledger.ChainID) (map[ledger.ChainID]ledger.Time, error)
}

// LegacyUses counts the use of routes that exist for compatibility alone, so that
// customers can be warned before such a route is removed.
type LegacyUses interface {
	// AddLegacyUses adds to counters and creates those that do not exist. A counter
	// stops at 2^53. It may run concurrently with Transact, which neither reads nor
	// writes these counters.
	AddLegacyUses(ctx context.Context, uses map[LegacyUseRef]int64) error
	// LegacyUses lists counters by organization, day and route.
	LegacyUses(ctx context.Context, query LegacyUseQuery) ([]*LegacyUse, error)
}

// LegacyUseRef identifies a counter. It does not say what was requested.
type LegacyUseRef struct {
	Org   ledger.OrgID // the owner of the requested artifact; zero where it is not known
	Day   ledger.Time  // its beginning, UTC
	Route string       // its pattern
}

// LegacyUse is how often a route was used on one day.
type LegacyUse struct {
	LegacyUseRef
	Requests int64
}

// LegacyUseQuery selects counters.
type LegacyUseQuery struct {
	Org   *ledger.OrgID // nil: all, those without an organization included
	Since ledger.Time   // days that begin then or later
	After *LegacyUseRef // those after this one in the list; nil: from the first
	Limit int
}

// Search is the index behind searched lists. It proposes candidates: the caller
// authenticates each record and matches it against the search itself.
type Search interface {
	// Postings lists postings of a term by Place, descending: those with a place
	// smaller than Before (nil: all) and not smaller than From.
	Postings(ctx context.Context, query PostingQuery) ([]Posting, error)
	// AddPostings stores those that do not exist and returns how many it stored. It may
	// run concurrently with Transact.
	AddPostings(ctx context.Context, postings []Posting) (added int64, err error)
	// ReceiptPostings lists postings of a term by Block, descending.
	ReceiptPostings(ctx context.Context, query ReceiptPostingQuery) ([]ReceiptPosting, error)
	// AddReceiptPostings adds receipts to stored postings, or stores new ones, and returns
	// how many it changed. It may run concurrently with Transact.
	AddReceiptPostings(ctx context.Context, postings []ReceiptPosting) (changed int64, err error)
}

// Posting says that a term occurs in a chain or an approval.
type Posting struct {
	Term ledger.Term
	// Place is the record's position in its list: bytes that sort as the list does.
	Place []byte
	// Sequence is that of the event which contains the term; 0 when it is not from an
	// event.
	Sequence int64
}

// PostingQuery selects postings.
type PostingQuery struct {
	Term         ledger.Term
	Before, From []byte
	Limit        int
}

// ReceiptPosting says that a term occurs in receipts of a block.
type ReceiptPosting struct {
	Term  ledger.Term
	Block int64
	// Receipts are those of the block's BlockSize receipts that have the term: bit i is the
	// one with the sequence BlockSize*Block + i.
	Receipts uint64
}

// BlockSize is how many receipts a ReceiptPosting is about.
const BlockSize = 64

// ReceiptPostingQuery selects postings of receipts.
type ReceiptPostingQuery struct {
	Term     ledger.Term
	From, To int64 // blocks, both included
	Limit    int
}

// MergeReceiptPostings returns one posting for each term and block, sorted by them.
// Transactions that write in this order do not deadlock.
func MergeReceiptPostings(postings []ReceiptPosting) []ReceiptPosting {
	type row struct {
		term  ledger.Term
		block int64
	}
	var merged []ReceiptPosting
	places := make(map[row]int) // in merged; most postings of a transaction share a row with others
	for _, p := range postings {
		place, known := places[row{p.Term, p.Block}]
		if known {
			merged[place].Receipts |= p.Receipts
			continue
		}
		places[row{p.Term, p.Block}] = len(merged)
		merged = append(merged, p)
	}
	slices.SortFunc(merged, func(a, b ReceiptPosting) int {
		return cmp.Or(cmp.Compare(a.Term, b.Term), cmp.Compare(a.Block, b.Block))
	})
	return merged
}
