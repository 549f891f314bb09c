package verify

import (
	"bytes"

	"countersign/internal/cache"
	"countersign/internal/ledger"
)

// soundReceipts caches receipts and heads that were found sound, byte for byte. Identical bytes are
// sound again, so a popular receipt is read each time but hashed only once. A receipt or head that
// differs in any way is inspected again.
type soundReceipts struct {
	receipts *cache.Cache[ledger.ReceiptID, *soundReceipt]
	heads    *cache.Cache[ledger.OrgID, *ledger.Head]
}

// Sizes of the caches, in bytes.
const (
	maxSoundReceipts = 16 << 20
	maxSoundHeads    = 1 << 20
	soundHeadBytes   = 150
)

func newSoundReceipts() soundReceipts {
	return soundReceipts{
		cache.New[ledger.ReceiptID, *soundReceipt](maxSoundReceipts), cache.New[ledger.OrgID, *ledger.Head](maxSoundHeads),
	}
}

type soundReceipt struct {
	receipt    *ledger.StoredReceipt
	slug       string
	inspection ledger.Inspection
}

func (s *soundReceipt) same(r *ledger.StoredReceipt, slug string) bool {
	known := s.receipt
	return known.Org == r.Org && known.Sequence == r.Sequence && known.Chain == r.Chain && s.slug == slug &&
		bytes.Equal(known.PreviousHash, r.PreviousHash) && bytes.Equal(known.Body, r.Body)
}

// inspect is ledger.Inspect with a cache. It may keep the receipt, which must not be modified.
func (s *soundReceipts) inspect(r *ledger.StoredReceipt, slug string, keys ledger.Keys) ledger.Inspection {
	if known, ok := s.receipts.Get(r.ID); ok && known.same(r, slug) {
		return known.inspection
	}
	in := ledger.Inspect(r, slug, keys)
	if in.Fault == "" {
		s.receipts.Put(r.ID, &soundReceipt{receipt: r, slug: slug, inspection: in}, len(r.Body))
	}
	return in
}

// authentic is head.Authentic with a cache. It may keep the head, which must not be modified.
func (s *soundReceipts) authentic(head *ledger.Head, keys ledger.Keys) bool {
	if known, ok := s.heads.Get(head.Org); ok && known.Equal(head) {
		return true
	}
	if !head.Authentic(keys) {
		return false
	}
	s.heads.Put(head.Org, head, soundHeadBytes)
	return true
}
