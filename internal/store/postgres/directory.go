package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const selectOrganizations = `select ` + organizationColumns + ` from organizations `

// CreateOrganization implements store.Directory.
func (s *Store) CreateOrganization(ctx context.Context, org *ledger.Organization, head *ledger.Head, key *ledger.KeyRecord) error {
	settings, err := org.Settings.Encode()
	if err != nil {
		return err
	}
	return s.change(ctx, func(conn *pgx.Conn) error {
		batch := new(pgx.Batch)
		batch.Queue(`insert into organizations (`+organizationColumns+`) values ($1, $2, $3, $4, $5)`,
			bytesOf(org.ID.UUID), org.Slug, org.Name, settings, int64(org.CreatedAt))
		batch.Queue(`insert into heads (`+headColumns+`) values ($1, $2, $3, $4, $5)`,
			bytesOf(head.Org.UUID), head.Count, lastHash(head), head.KeyID, head.MAC)
		if key != nil {
			batch.Queue(insertKeySQL, keyArguments(key)...)
		}
		return explain("create organization", conn.SendBatch(ctx, batch).Close())
	})
}

// Organization implements store.Directory.
func (s *Store) Organization(ctx context.Context, id ledger.OrgID) (*ledger.Organization, error) {
	return one(ctx, s, "organization", selectOrganizations+`where id = $1`, []any{bytesOf(id.UUID)}, scanOrganization)
}

// OrganizationBySlug implements store.Directory.
func (s *Store) OrganizationBySlug(ctx context.Context, slug string) (*ledger.Organization, error) {
	return one(ctx, s, "organization", selectOrganizations+`where slug = $1`, []any{slug}, scanOrganization)
}

// Organizations implements store.Directory.
func (s *Store) Organizations(ctx context.Context) ([]*ledger.Organization, error) {
	return list(ctx, s, "organizations", selectOrganizations+`order by slug`, nil, scanOrganization)
}

// UpdateOrganization implements store.Directory. The lock leaves room for those
// that chains and receipts take on the organization they refer to.
func (s *Store) UpdateOrganization(ctx context.Context, id ledger.OrgID, change func(*ledger.Organization) error) (*ledger.Organization, error) {
	const what = "update organization"
	var org *ledger.Organization
	err := s.change(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, selectOrganizations+`where id = $1 for no key update`, bytesOf(id.UUID))
		if err != nil {
			return explain(what, err)
		}
		found, err := collect(what, rows, scanOrganization)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return fmt.Errorf("%s: %w", what, store.ErrNotFound)
		}
		org = found[0]
		if err := change(org); err != nil {
			return err
		}
		return updateOrganization(ctx, conn, org)
	})
	if err != nil {
		return nil, err
	}
	return org, nil
}

func updateOrganization(ctx context.Context, conn *pgx.Conn, org *ledger.Organization) error {
	settings, err := org.Settings.Encode()
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `update organizations set name = $2, settings = $3 where id = $1`,
		bytesOf(org.ID.UUID), org.Name, settings)
	return explain("update organization", err)
}
