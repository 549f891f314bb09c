package evidence

import (
	"context"
	"errors"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

func encodeFinding(f *store.FindingRecord) []byte {
	r := make(record, 0, 256)
	r.bytes(f.Org.UUID[:])
	r.text(f.Name)
	r.text(f.Check)
	r.text(f.Kind)
	r.text(f.Subject)
	r.bytes(f.Evidence)
	r.time(f.FoundAt)
	r.time(f.SeenAt)
	r.timeOrNone(f.AcknowledgedAt)
	r.text(f.AcknowledgedBy)
	r.text(f.Reason)
	return r
}

func (s *Store) sealFinding(f *store.FindingRecord) {
	f.MAC = s.seal(f.Org, ledger.PurposeFinding, encodeFinding(f))
}

// judged returns a finding as far as it can be believed: a row that fails is reduced to its name
// and marked as tampered. It is not refused, because then nobody would hear of the finding.
func (s *Store) judged(f *store.FindingRecord) (*store.FindingRecord, error) {
	err := s.check("a finding", f.Org, ledger.PurposeFinding, f.MAC, encodeFinding(f))
	if errors.Is(err, ledger.ErrStateTampered) {
		return &store.FindingRecord{Org: f.Org, Name: f.Name, Tampered: true}, nil
	}
	return f, err
}

// Finding implements store.Findings.
func (s *Store) Finding(ctx context.Context, ref store.FindingRef) (*store.FindingRecord, error) {
	f, err := s.port.Finding(ctx, ref)
	if err != nil {
		return nil, err
	}
	return s.judged(f)
}

// Findings implements store.Findings.
func (s *Store) Findings(ctx context.Context, after store.FindingRef, limit int) ([]*store.FindingRecord, error) {
	findings, err := s.port.Findings(ctx, after, limit)
	if err != nil {
		return nil, err
	}
	for i := range findings {
		if findings[i], err = s.judged(findings[i]); err != nil {
			return nil, err
		}
	}
	return findings, nil
}

// FindingEvidence returns the hex digest that an act about a finding names, or "" if there is none.
func FindingEvidence(detail []byte) string {
	v, err := canon.Parse(detail)
	if err != nil {
		return ""
	}
	digest, _ := v.Get("evidence")
	return digest.Str()
}
