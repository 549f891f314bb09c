package evidence

import (
	"context"
	"fmt"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/policy"
	"countersign/internal/store"
)

// ActPutPolicy is the audit log's name for storing a policy set.
const ActPutPolicy = "policy.put"

// PolicyDetail is the audit log's detail about a stored set. It binds every byte of the document.
func PolicyDetail(record *store.PolicyRecord) []byte {
	w := canon.BeginObject(nil)
	w.String("format", record.Format)
	w.String("sha256", ledger.PayloadHash(record.Document))
	return w.End()
}

// ReadPolicy compiles a stored set. It refuses a set whose bytes do not match its version.
func ReadPolicy(record *store.PolicyRecord) (*policy.Set, error) {
	return readPolicy(record, policy.ParseStored)
}

// OutlinePolicy is ReadPolicy without compiling the conditions, for display.
func OutlinePolicy(record *store.PolicyRecord) (*policy.Outline, error) {
	return readPolicy(record, policy.ReadStored)
}

func readPolicy[T interface{ Canonical() []byte }](record *store.PolicyRecord, parse func([]byte, policy.Format) (T, error)) (read T, err error) {
	format := policy.JSON
	if record.Format == "yaml" {
		format = policy.YAML
	}
	if read, err = parse(record.Document, format); err != nil {
		return read, fmt.Errorf("stored policy set %s: %w: %w", record.Version, ledger.ErrStateTampered, err)
	}
	if ledger.PolicyVersion(record.Number, read.Canonical()) != record.Version {
		return read, fmt.Errorf("stored policy set %s: %w", record.Version, ledger.ErrStateTampered)
	}
	return read, nil
}

func encodePolicy(p *store.PolicyRecord) []byte {
	r := make(record, 0, 256+len(p.Document))
	r.bytes(p.Org.UUID[:])
	r.int(p.Number)
	r.text(p.Version)
	r.text(p.Format)
	r.bytes(p.Document)
	r.time(p.CreatedAt)
	r.text(p.CreatedBy)
	r.act(p.Act)
	return r
}

func (s *Store) sealPolicy(p *store.PolicyRecord) {
	p.MAC = s.seal(p.Org, ledger.PurposePolicy, encodePolicy(p))
}

func (s *Store) checkPolicy(p *store.PolicyRecord) error {
	return s.check("a policy set", p.Org, ledger.PurposePolicy, p.MAC, encodePolicy(p))
}

// Policy implements store.Governance.
func (s *Store) Policy(ctx context.Context, org ledger.OrgID, number int64) (*store.PolicyRecord, error) {
	return readOneCurrent(ctx, s, func() (*store.PolicyRecord, error) { return s.port.Policy(ctx, org, number) }, s.checkPolicy, policyRef, refuse)
}

// Policies implements store.Governance. A row that fails is reduced to its number and marked as
// tampered.
func (s *Store) Policies(ctx context.Context, org ledger.OrgID, before int64, limit int) ([]*store.PolicyRecord, error) {
	read := func() ([]*store.PolicyRecord, error) { return s.port.Policies(ctx, org, before, limit) }
	return readCurrent(ctx, s, read, s.checkPolicy, policyRef, func(policy *store.PolicyRecord, _ error) (*store.PolicyRecord, error) {
		return &store.PolicyRecord{Org: org, Number: policy.Number, Tampered: true}, nil
	})
}
