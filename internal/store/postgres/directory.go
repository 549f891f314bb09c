package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	selectOrganizations = `select ` + organizationColumns + ` from organizations `
	selectKeys          = `select ` + keyColumns + ` from api_keys `
)

// CreateOrganization implements store.Directory.
func (s *Store) CreateOrganization(ctx context.Context, org *ledger.Organization, head *ledger.Head, with *store.Changes) error {
	return s.inTransaction(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		x := new(exchange)
		x.send(beginSQL)
		if err := sendNewOrganization(x, org, head); err != nil {
			return err
		}
		if err := sendChanges(x, with); err != nil {
			return err
		}
		x.send(patientCommitSQL)
		return explain("create organization", x.run(ctx, conn))
	})
}

// Organization implements store.Directory.
func (s *Store) Organization(ctx context.Context, id ledger.OrgID) (*ledger.Organization, error) {
	return one(ctx, s, "organization", selectOrganizations+`where id = $1`, []any{bytesOf(id.UUID)}, readOrganization)
}

// OrganizationBySlug implements store.Directory.
func (s *Store) OrganizationBySlug(ctx context.Context, slug string) (*ledger.Organization, error) {
	return one(ctx, s, "organization", selectOrganizations+`where slug = $1`, []any{slug}, readOrganization)
}

// Organizations implements store.Directory.
func (s *Store) Organizations(ctx context.Context) ([]*ledger.Organization, error) {
	return list(ctx, s, "organizations", selectOrganizations+`order by slug`, nil, readOrganization)
}

// Key implements store.Directory.
func (s *Store) Key(ctx context.Context, id ledger.KeyID) (*ledger.KeyRecord, error) {
	return one(ctx, s, "key", selectKeys+`where id = $1`, []any{bytesOf(id.UUID)}, readKey)
}

// KeyByHash implements store.Directory.
func (s *Store) KeyByHash(ctx context.Context, hash [32]byte) (*ledger.KeyRecord, error) {
	return one(ctx, s, "key", selectKeys+`where hash = $1 or previous_hash = $1`, []any{hash[:]}, readKey)
}

// Keys implements store.Directory.
func (s *Store) Keys(ctx context.Context, org ledger.OrgID, after ledger.KeyID, limit int) ([]*ledger.KeyRecord, error) {
	return list(ctx, s, "keys", selectKeys+`where org_id = $1 and id > $2 order by id limit $3`,
		[]any{bytesOf(org.UUID), bytesOf(after.UUID), limit}, readKey)
}
