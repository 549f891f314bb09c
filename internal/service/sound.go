package service

import (
	"bytes"
	"sync"

	"countersign/internal/ledger"
)

// soundReceipts remembers receipts that were found sound, down to the last byte.
// The very same bytes are sound again, whatever has been done to the store in the
// meantime, so a receipt that many people ask about is read each time and hashed
// once. What differs in anything is inspected anew.
type soundReceipts struct {
	mu           sync.Mutex
	newer, older map[ledger.ReceiptID]*soundReceipt
	used         int // bytes in newer
}

// soundRoom is how many bytes of receipts are remembered, at most twice over.
const soundRoom = 8 << 20

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
	if known := s.find(r.ID); known != nil && known.same(r, slug) {
		return known.inspection
	}
	in := ledger.Inspect(r, slug, keys)
	if in.Fault == "" {
		s.keep(&soundReceipt{receipt: r, slug: slug, inspection: in})
	}
	return in
}

func (s *soundReceipts) find(id ledger.ReceiptID) *soundReceipt {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.newer[id]; ok {
		return known
	}
	return s.older[id]
}

func (s *soundReceipts) keep(sound *soundReceipt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newer == nil || s.used > soundRoom {
		s.newer, s.older, s.used = make(map[ledger.ReceiptID]*soundReceipt), s.newer, 0
	}
	s.newer[sound.receipt.ID] = sound
	s.used += len(sound.receipt.Body)
}
