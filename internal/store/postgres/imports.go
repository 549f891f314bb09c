package postgres

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	importedColumns   = `id, org_id, import_id, key_id, record, signature, imported_at, act, mac`
	selectImported    = `select ` + importedColumns + ` from imported_approvals `
	loadImportedSQL   = selectImported + `where id = any($1::uuid[])`
	insertImportedSQL = `insert into imported_approvals (` + importedColumns + `)
		select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::bytea[], $6::bytea[], $7::bigint[], $8::bigint[], $9::bytea[])`
)

func readImported(r *row) *store.ImportedApproval {
	return &store.ImportedApproval{
		ID: ledger.ApprovalID{UUID: r.id()}, Org: ledger.OrgID{UUID: r.id()}, Import: r.id(), Key: ledger.SigningKeyID{UUID: r.id()},
		Record: r.bytes(), Signature: r.bytes(), ImportedAt: r.time(), Act: r.int(), MAC: r.bytes(),
	}
}

// ImportedApproval implements store.Imports.
func (s *Store) ImportedApproval(ctx context.Context, id ledger.ApprovalID) (*store.ImportedApproval, error) {
	return one(ctx, s, "imported approval", selectImported+`where id = $1`, []any{bytesOf(id.UUID)}, readImported)
}

// ImportedApprovals implements store.Imports.
func (s *Store) ImportedApprovals(ctx context.Context, org ledger.OrgID, after ledger.ApprovalID, limit int) ([]*store.ImportedApproval, error) {
	return list(ctx, s, "imported approvals", selectImported+`where org_id = $1 and id > $2 order by id limit $3`,
		[]any{bytesOf(org.UUID), bytesOf(after.UUID), limit}, readImported)
}

func askImported(x *exchange, needs *store.Needs, loaded *store.Loaded) {
	loaded.Imported = make(map[ledger.ApprovalID]*store.ImportedApproval)
	askAll(x, loadImportedSQL, sorted(needs.Imported, approvalUUID), readImported, func(a *store.ImportedApproval) { loaded.Imported[a.ID] = a })
}

// sendImported writes in order of id, so that two writers do not wait for each other.
func sendImported(x *exchange, imported []*store.ImportedApproval) {
	if len(imported) == 0 {
		return
	}
	imported = slices.SortedFunc(slices.Values(imported), func(a, b *store.ImportedApproval) int { return slices.Compare(a.ID.UUID[:], b.ID.UUID[:]) })
	x.send(insertImportedSQL,
		ids(imported, func(a *store.ImportedApproval) uuid.UUID { return a.ID.UUID }),
		ids(imported, func(a *store.ImportedApproval) uuid.UUID { return a.Org.UUID }),
		ids(imported, func(a *store.ImportedApproval) uuid.UUID { return a.Import }),
		ids(imported, func(a *store.ImportedApproval) uuid.UUID { return a.Key.UUID }),
		blobs(imported, func(a *store.ImportedApproval) []byte { return filled(a.Record) }),
		blobs(imported, func(a *store.ImportedApproval) []byte { return filled(a.Signature) }),
		ints(imported, func(a *store.ImportedApproval) int64 { return int64(a.ImportedAt) }),
		ints(imported, func(a *store.ImportedApproval) int64 { return a.Act }),
		blobs(imported, func(a *store.ImportedApproval) []byte { return filled(a.MAC) }))
}
