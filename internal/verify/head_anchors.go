package verify

import (
	"context"
	"errors"
	"slices"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	// maxAnchorWalk bounds the number of receipts between a receipt and the anchored head that
	// covers it.
	maxAnchorWalk = 5000
	// maxHeadLinks bounds the cache of links, in bytes.
	maxHeadLinks   = 1 << 20
	headLinksBytes = 250
)

// headLinks are the hashes of later receipts to which one receipt was linked when they were read.
// It is immutable.
type headLinks struct {
	receipt [32]byte           // hash of the receipt
	hashes  map[int64][32]byte // by sequence; the zero hash if the links are broken
	made    ledger.Time
}

func (l *headLinks) madeAt() ledger.Time { return l.made }

// headAnchors fills in the anchors of a receipt: those of the first anchored head at or after it,
// to which its hash is linked.
func (r *Receipts) headAnchors(ctx context.Context, v *ledger.Verification, receipt *ledger.StoredReceipt, effort Effort) error {
	records, err := r.store.HeadAnchors(ctx, receipt.Org, receipt.Sequence)
	if err != nil {
		return err
	}
	var heads []int64
	records = slices.DeleteFunc(records, func(a *store.AnchorRecord) bool { return a.Sequence-receipt.Sequence > maxAnchorWalk })
	for _, record := range records {
		heads = append(heads, record.Sequence)
	}
	if len(heads) == 0 {
		return nil
	}
	links, err := r.linksTo(ctx, receipt, heads, effort)
	if err != nil {
		return err
	}
	v.VerifiedAt = min(v.VerifiedAt, links.made)
	for _, record := range records {
		r.anchors.add(v, record, links.hashes[record.Sequence])
	}
	return nil
}

// linksTo returns the hashes of some later receipts to which a receipt is linked.
func (r *Receipts) linksTo(ctx context.Context, receipt *ledger.StoredReceipt, heads []int64, effort Effort) (*headLinks, error) {
	if effort == InFull {
		return r.readLinks(ctx, receipt, heads)
	}
	hash := receipt.Hash()
	links, _, err := recent(ctx, r, effort,
		func() *headLinks {
			known, ok := r.full.links.Get(receipt.ID)
			unread := func(head int64) bool { _, read := known.hashes[head]; return !read }
			if !ok || known.receipt != hash || slices.ContainsFunc(heads, unread) {
				return nil
			}
			return known
		},
		func() (*headLinks, error) {
			links, err := r.readLinks(ctx, receipt, heads)
			if err == nil {
				r.full.links.Put(receipt.ID, links, headLinksBytes)
			}
			return links, err
		})
	return links, err
}

// readLinks follows the links from a receipt to the last of some later ones.
func (r *Receipts) readLinks(ctx context.Context, receipt *ledger.StoredReceipt, heads []int64) (*headLinks, error) {
	hash := receipt.Hash()
	links := &headLinks{receipt: hash, hashes: make(map[int64][32]byte, len(heads)), made: r.now()}
	for _, head := range heads {
		links.hashes[head] = [32]byte{}
	}
	next := receipt.Sequence
	follow := func() {
		if _, wanted := links.hashes[next]; wanted {
			links.hashes[next] = hash
		}
		next++
	}
	follow()
	err := r.store.ScanReceipts(ctx, receipt.Org, next, slices.Max(heads), func(later *ledger.StoredReceipt) error {
		if later.Sequence != next || string(later.PreviousHash) != string(hash[:]) {
			return errBroken
		}
		hash = later.Hash()
		follow()
		return nil
	})
	if err != nil && !errors.Is(err, errBroken) {
		return nil, err
	}
	return links, nil
}
