package verify

import (
	"context"
	"crypto/sha256"
	"encoding/binary"

	"countersign/internal/cache"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Timestamps judges the proofs of anchors by the operator's current trust configuration, without
// network access. The configuration does not change while a process runs.
type Timestamps interface {
	// Judge returns the standing of an authentic anchor whose proof was valid when it was made.
	Judge(anchor *ledger.Anchor) ledger.AnchorFinding
}

// anchorOf returns the anchor stored in a record, with the block that attests it.
func anchorOf(record *store.AnchorRecord) *ledger.Anchor {
	return &ledger.Anchor{
		Org: record.Org, Kind: record.Subject.Kind, Subject: record.Subject.ID, Sequence: record.Sequence, Method: record.Method,
		Digest: record.Digest, Standing: ledger.AnchorStanding(record.Status), Reason: record.Reason, Proof: record.Proof, Block: record.Block,
	}
}

// anchors judges the anchors of receipts and approvals by the current trust configuration. Only an
// authentic anchor over the artifact's own digest counts.
type anchors struct {
	*reader
	timestamps Timestamps // may be nil
	judged     judgedAnchors
}

// judgedAnchors caches verdicts, keyed by everything that they depend on.
type judgedAnchors struct {
	verdicts *cache.Cache[[sha256.Size]byte, ledger.AnchorFinding]
}

const (
	maxJudged   = 1 << 20 // bytes
	judgedBytes = 128     // of one verdict
)

func newJudgedAnchors() judgedAnchors {
	return judgedAnchors{cache.New[[sha256.Size]byte, ledger.AnchorFinding](maxJudged)}
}

// judge checks an authentic anchor against the current trust configuration. An anchor that is
// pending or was not valid when it was made keeps its stored standing.
func (a *anchors) judge(anchor *ledger.Anchor) ledger.AnchorFinding {
	if anchor.Standing != ledger.AnchorVerified {
		return ledger.AnchorFinding{Standing: anchor.Standing, Reason: anchor.Reason}
	}
	if a.timestamps == nil {
		return ledger.AnchorFinding{Standing: ledger.AnchorFailed, Reason: "not_configured"}
	}
	h := sha256.New()
	for _, part := range [][]byte{[]byte(anchor.Method), anchor.Digest[:], anchor.Proof, anchor.Block} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	key := [sha256.Size]byte(h.Sum(nil))
	if known, ok := a.judged.verdicts.Get(key); ok {
		return known
	}
	found := a.timestamps.Judge(anchor)
	a.judged.verdicts.Put(key, found, judgedBytes)
	return found
}

// ofApproval fills in the anchors of an approval's decision.
func (a *anchors) ofApproval(ctx context.Context, v *ledger.Verification, approval *ledger.Approval) error {
	subject := store.AnchorSubject{Kind: ledger.SubjectApproval, ID: approval.ID.UUID}
	records, err := a.store.Anchors(ctx, approval.Org, subject)
	if err != nil {
		return err
	}
	for _, record := range records {
		a.add(v, record, approval.Hash())
	}
	return nil
}

// ofUnreadable marks the anchors of an unreadable approval as failed, because there is nothing
// to compare them with.
func (a *anchors) ofUnreadable(ctx context.Context, v *ledger.Verification, record *store.ApprovalRecord) error {
	records, err := a.store.Anchors(ctx, record.Org, store.AnchorSubject{Kind: ledger.SubjectApproval, ID: record.ID.UUID})
	if err != nil {
		return err
	}
	for _, anchor := range records {
		setAnchor(v, anchor.Method, ledger.AnchorFinding{Standing: ledger.AnchorFailed, Reason: "record_failed"})
	}
	return nil
}

// add judges an anchor and records the finding. An anchor that was changed or has another
// digest has failed.
func (a *anchors) add(v *ledger.Verification, record *store.AnchorRecord, digest [32]byte) {
	anchor := anchorOf(record)
	var found ledger.AnchorFinding
	switch {
	case record.Tampered:
		found = ledger.AnchorFinding{Standing: ledger.AnchorFailed, Reason: "record_failed"}
	case record.Digest != digest:
		found = ledger.AnchorFinding{Standing: ledger.AnchorFailed, Reason: "wrong_digest"}
	default:
		found = a.judge(anchor)
	}
	setAnchor(v, record.Method, found)
}

func setAnchor(v *ledger.Verification, method string, found ledger.AnchorFinding) {
	if method == ledger.MethodTSA {
		v.TSA = found
	} else {
		v.OpenTimestamp = found
	}
}
