package evidence

import (
	"context"
	"crypto/sha256"
	"hash"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

func encodeImported(a *store.ImportedApproval) []byte {
	r := make(record, 0, 256+len(a.Record))
	r.bytes(a.ID.UUID[:])
	r.bytes(a.Org.UUID[:])
	r.bytes(a.Import[:])
	r.bytes(a.Key.UUID[:])
	r.bytes(a.Record)
	r.bytes(a.Signature)
	r.time(a.ImportedAt)
	r.act(a.Act)
	return r
}

func (s *Store) sealImported(a *store.ImportedApproval) {
	a.MAC = s.seal(a.Org, ledger.PurposeImported, encodeImported(a))
}

func (s *Store) checkImported(a *store.ImportedApproval) error {
	return s.check("an imported approval", a.Org, ledger.PurposeImported, a.MAC, encodeImported(a))
}

// importedRef names an approval by its import, because the audit log has one entry for the whole
// import.
func importedRef(a *store.ImportedApproval) recordRef {
	return recordRef{a.Org, ledger.RecordImport, a.Import.String(), a.Act}
}

// tamperedImported is what callers see of an approval that fails. Leaving it out would hide that it
// existed.
func tamperedImported(a *store.ImportedApproval, _ error) (*store.ImportedApproval, error) {
	return &store.ImportedApproval{ID: a.ID, Org: a.Org, Tampered: true}, nil
}

// ImportedApproval implements store.Imports. A row that fails is reduced to its id and marked as
// tampered.
func (s *Store) ImportedApproval(ctx context.Context, id ledger.ApprovalID) (*store.ImportedApproval, error) {
	read := func() (*store.ImportedApproval, error) { return s.port.ImportedApproval(ctx, id) }
	return readOneCurrent(ctx, s, read, s.checkImported, importedRef, tamperedImported)
}

// ImportedApprovals implements store.Imports. A row that fails keeps its place in the list.
func (s *Store) ImportedApprovals(ctx context.Context, org ledger.OrgID, after ledger.ApprovalID, limit int) ([]*store.ImportedApproval, error) {
	read := func() ([]*store.ImportedApproval, error) { return s.port.ImportedApprovals(ctx, org, after, limit) }
	return readCurrent(ctx, s, read, s.checkImported, importedRef, tamperedImported)
}

// DigestImported returns a digest of an imported approval as stored, authentic or not.
func (s *Store) DigestImported(ctx context.Context, id ledger.ApprovalID) ([32]byte, error) {
	a, err := s.port.ImportedApproval(ctx, id)
	if err != nil {
		return [32]byte{}, err
	}
	r := record(encodeImported(a))
	r.bytes(a.MAC)
	return sha256.Sum256(r), nil
}

// ImportDigest hashes the approvals of one import in order of their ids. The audit log records the
// sum, so that a missing approval is noticed.
type ImportDigest struct {
	hash  hash.Hash
	Count int64
}

// NewImportDigest returns the digest of no approvals.
func NewImportDigest() *ImportDigest { return &ImportDigest{hash: sha256.New()} }

// Add appends the next approval to the digest.
func (d *ImportDigest) Add(a *store.ImportedApproval) {
	r := make(record, 0, 256+len(a.Record))
	r.bytes(a.ID.UUID[:])
	r.bytes(a.Key.UUID[:])
	r.bytes(a.Record)
	r.bytes(a.Signature)
	d.hash.Write(r)
	d.Count++
}

// Sum returns the digest so far, formatted as a hash.
func (d *ImportDigest) Sum() string { return ledger.FormatHash([32]byte(d.hash.Sum(nil))) }
