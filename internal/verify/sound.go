package verify

import (
	"bytes"

	"countersign/internal/cache"
	"countersign/internal/ledger"
)

// soundReceipts remembers receipts that were found sound, down to the last byte.
// The very same bytes are sound again, whatever has been done to the store in the
// meantime, so a receipt that many people ask about is read each time and hashed
// once. What differs in anything is inspected anew.
type soundReceipts struct {
	receipts *cache.Cache[ledger.ReceiptID, *soundReceipt]
}

// soundInUse is how many bytes of receipts are remembered.
const soundInUse = 16 << 20

func newSoundReceipts() soundReceipts {
	return soundReceipts{cache.New[ledger.ReceiptID, *soundReceipt](soundInUse)}
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

// inspect is ledger.Inspect. It may keep the receipt, which must not be changed.
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
