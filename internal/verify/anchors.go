package verify

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"countersign/internal/cache"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Timestamps judges the proofs of anchors by what the operator believes today, and
// reaches no network. What it believes stays the same for as long as a process runs.
type Timestamps interface {
	// Judge says where an authentic anchor stands whose proof was found good when it
	// was made.
	Judge(anchor *ledger.Anchor) ledger.AnchorFinding
}

// anchorOf is the anchor that a record keeps, with the block that attests it.
func anchorOf(record *store.AnchorRecord) *ledger.Anchor {
	return &ledger.Anchor{
		Org: record.Org, Kind: record.Subject.Kind, Subject: record.Subject.ID, Sequence: record.Sequence, Method: record.Method,
		Digest: record.Digest, Standing: ledger.AnchorStanding(record.Status), Reason: record.Reason, Proof: record.Proof, Block: record.Block,
	}
}

// judgedAnchors remembers verdicts by everything that they depend on.
type judgedAnchors struct {
	verdicts *cache.Cache[[sha256.Size]byte, ledger.AnchorFinding]
}

const (
	judgedInUse = 1 << 20 // bytes
	judgedSize  = 128     // of one verdict
)

func newJudgedAnchors() judgedAnchors {
	return judgedAnchors{cache.New[[sha256.Size]byte, ledger.AnchorFinding](judgedInUse)}
}

// judge holds an authentic anchor against what is believed today. One that was not
// found good when it was made, or is not made yet, stands where the service left it.
func (j *Judge) judge(anchor *ledger.Anchor) ledger.AnchorFinding {
	if anchor.Standing != ledger.AnchorVerified {
		return ledger.AnchorFinding{Standing: anchor.Standing, Reason: anchor.Reason}
	}
	if j.timestamps == nil {
		return ledger.AnchorFinding{Standing: ledger.AnchorFailed, Reason: "not_configured"}
	}
	h := sha256.New()
	for _, part := range [][]byte{[]byte(anchor.Method), anchor.Digest[:], anchor.Proof, anchor.Block} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	key := [sha256.Size]byte(h.Sum(nil))
	if known, ok := j.judged.verdicts.Get(key); ok {
		return known
	}
	found := j.timestamps.Judge(anchor)
	j.judged.verdicts.Put(key, found, judgedSize)
	return found
}

// approvalAnchors fills in how an approval's decision is anchored in time.
func (j *Judge) approvalAnchors(ctx context.Context, v *ledger.Verification, approval *ledger.Approval) error {
	subject := store.AnchorSubject{Kind: ledger.SubjectApproval, ID: approval.ID.UUID}
	records, err := j.store.Anchors(ctx, approval.Org, subject)
	if err != nil {
		return err
	}
	for _, record := range records {
		j.place(v, record, approval.Hash())
	}
	return nil
}

// maxAnchorWalk bounds how many receipts may lie between one and the head whose
// anchor covers it.
const maxAnchorWalk = 5000

// headAnchors fills in how a receipt is anchored: by the first anchored head at or
// after it, to which its hash is linked.
func (j *Judge) headAnchors(ctx context.Context, v *ledger.Verification, receipt *ledger.StoredReceipt) error {
	records, err := j.store.HeadAnchors(ctx, receipt.Org, receipt.Sequence)
	if err != nil {
		return err
	}
	for _, record := range records {
		if record.Sequence-receipt.Sequence > maxAnchorWalk {
			continue
		}
		digest, err := j.hashAt(ctx, receipt, record.Sequence)
		if err != nil {
			return err
		}
		j.place(v, record, digest)
	}
	return nil
}

// hashAt follows the links from a receipt to a later one and returns that one's
// hash; the zero hash where the links are broken.
func (j *Judge) hashAt(ctx context.Context, receipt *ledger.StoredReceipt, sequence int64) ([32]byte, error) {
	hash := receipt.Hash()
	next := receipt.Sequence + 1
	broken := false
	err := j.store.ScanReceipts(ctx, receipt.Org, next, sequence, func(r *ledger.StoredReceipt) error {
		if r.Sequence != next || string(r.PreviousHash) != string(hash[:]) {
			broken = true
			return errBroken
		}
		hash, next = r.Hash(), next+1
		return nil
	})
	if err != nil && !errors.Is(err, errBroken) {
		return [32]byte{}, err
	}
	if broken || next != sequence+1 {
		return [32]byte{}, nil
	}
	return hash, nil
}

// unreadableAnchors says of an approval that cannot be read what is known of its
// anchors: those that there are cannot be held against anything.
func (j *Judge) unreadableAnchors(ctx context.Context, v *ledger.Verification, record *store.ApprovalRecord) error {
	records, err := j.store.Anchors(ctx, record.Org, store.AnchorSubject{Kind: ledger.SubjectApproval, ID: record.ID.UUID})
	if err != nil {
		return err
	}
	for _, anchor := range records {
		enter(v, anchor.Method, ledger.AnchorFinding{Standing: ledger.AnchorFailed, Reason: "record_failed"})
	}
	return nil
}

// place judges an anchor and puts the finding into a result. One that was changed, or
// that is about something else, has failed.
func (j *Judge) place(v *ledger.Verification, record *store.AnchorRecord, digest [32]byte) {
	anchor := anchorOf(record)
	var found ledger.AnchorFinding
	switch {
	case record.Tampered:
		found = ledger.AnchorFinding{Standing: ledger.AnchorFailed, Reason: "record_failed"}
	case record.Digest != digest:
		found = ledger.AnchorFinding{Standing: ledger.AnchorFailed, Reason: "wrong_digest"}
	default:
		found = j.judge(anchor)
	}
	enter(v, record.Method, found)
}

func enter(v *ledger.Verification, method string, found ledger.AnchorFinding) {
	if method == ledger.MethodTSA {
		v.TSA = found
	} else {
		v.OpenTimestamp = found
	}
}
