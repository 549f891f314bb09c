package postgres

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"countersign/internal/store"
)

const (
	ledgerColumns = `id, parent_id, created_at, mac`
	putLedgerSQL  = `insert into ledger_identity as l (no, ` + ledgerColumns + `) values (1, $1, $2, $3, $4)
		on conflict (no) do update set id = excluded.id, parent_id = excluded.parent_id, created_at = excluded.created_at, mac = excluded.mac
		where l.id = $5`
)

// Ledger implements store.Identity.
func (s *Store) Ledger(ctx context.Context) (*store.LedgerRecord, error) {
	return one(ctx, s, "ledger", `select `+ledgerColumns+` from ledger_identity`, nil, func(r *row) *store.LedgerRecord {
		return &store.LedgerRecord{ID: r.id(), Parent: r.id(), CreatedAt: r.time(), MAC: r.bytes()}
	})
}

// PutLedger implements store.Identity.
func (s *Store) PutLedger(ctx context.Context, l *store.LedgerRecord, replaces uuid.UUID) error {
	return s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		put, err := conn.Exec(ctx, putLedgerSQL, bytesOf(l.ID), bytesOf(l.Parent), int64(l.CreatedAt), notNil(l.MAC), bytesOf(replaces))
		if err == nil && put.RowsAffected() == 0 {
			return fmt.Errorf("ledger: %w", store.ErrExists)
		}
		return explain("put ledger", err)
	})
}
