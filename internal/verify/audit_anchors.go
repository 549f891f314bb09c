package verify

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/google/uuid"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// madeAnchor is an anchor that the audit log says was made. It is kept small because there is one
// for each decision.
type madeAnchor struct {
	subject uuid.UUID
	head    bool              // the subject is a receipt, not an approval
	detail  [sha256.Size]byte // hash of the act's detail
}

func (m *madeAnchor) kind() string {
	if m.head {
		return ledger.SubjectHead
	}
	return ledger.SubjectApproval
}

func readMadeAnchor(act *ledger.Act) (madeAnchor, error) {
	detail, err := canon.Parse(act.Detail)
	if err != nil {
		return madeAnchor{}, fmt.Errorf("act %d says of an anchor what cannot be read", act.Sequence)
	}
	subject, err := ledger.ParseID(act.Target)
	if err != nil {
		return madeAnchor{}, fmt.Errorf("act %d names no subject of an anchor", act.Sequence)
	}
	kind, _ := detail.Get("kind")
	return madeAnchor{subject: subject, head: kind.Str() == ledger.SubjectHead, detail: sha256.Sum256(act.Detail)}, nil
}

// missingAnchors requires every anchor that was made, unchanged. It starts with the newest, so that
// a bounded check covers at least those.
func (a *audit) missingAnchors(ctx context.Context, missing *collection) error {
	made := a.anchors
	if a.maxAnchors > 0 && len(made) > a.maxAnchors {
		made = made[len(made)-a.maxAnchors:]
	}
	for i := len(made) - 1; i >= 0 && !missing.full(); i-- {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read anchors: %w", err)
		}
		subject := store.AnchorSubject{Kind: made[i].kind(), ID: made[i].subject}
		records, err := a.store.Anchors(ctx, a.org.ID, subject)
		if err != nil {
			return err
		}
		if a.containsAnchor(records, &made[i]) {
			continue
		}
		err = missing.add(&ledger.Break{
			Check:  ledger.CheckAnchors,
			Detail: fmt.Sprintf("an anchor of the %s %s was made, and is missing or was changed", subjectName(subject.Kind), subject.ID),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// containsAnchor reports whether one of a subject's anchors is the one that was made.
func (a *audit) containsAnchor(records []*store.AnchorRecord, made *madeAnchor) bool {
	for _, record := range records {
		anchor := anchorOf(record)
		if anchor.Standing == ledger.AnchorVerified && sha256.Sum256(anchor.MadeDetail()) == made.detail && !record.Tampered {
			return true
		}
	}
	return false
}

func subjectName(kind string) string {
	if kind == ledger.SubjectHead {
		return ledger.ArtifactReceipt
	}
	return ledger.ArtifactApproval
}
