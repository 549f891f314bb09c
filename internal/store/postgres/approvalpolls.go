package postgres

import (
	"bytes"
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
)

const (
	putPollsSQL = `insert into approval_polls (approval_id, polled_at) select * from unnest($1::uuid[], $2::bigint[])
		on conflict (approval_id) do update set polled_at = excluded.polled_at where approval_polls.polled_at < excluded.polled_at`
	selectPollsSQL = `select approval_id, polled_at from approval_polls where approval_id = any($1::uuid[])`
)

// PutPolls implements store.Governance. Rows are written in order of id: in
// different orders two replicas would wait for each other.
func (s *Store) PutPolls(ctx context.Context, polls map[ledger.ApprovalID]ledger.Time) error {
	if len(polls) == 0 {
		return nil
	}
	asked := slices.SortedFunc(maps.Keys(polls), func(a, b ledger.ApprovalID) int { return bytes.Compare(a.UUID[:], b.UUID[:]) })
	return s.inTransaction(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		x := new(exchange)
		x.send(beginSQL)
		x.send(putPollsSQL, ids(asked, approvalUUID), ints(asked, func(id ledger.ApprovalID) int64 { return int64(polls[id]) }))
		x.send(patientCommitSQL)
		return explain("put polls", x.run(ctx, conn))
	})
}

// Polls implements store.Governance.
func (s *Store) Polls(ctx context.Context, approvals []ledger.ApprovalID) (map[ledger.ApprovalID]ledger.Time, error) {
	polls := make(map[ledger.ApprovalID]ledger.Time)
	if len(approvals) == 0 {
		return polls, nil
	}
	wanted := make([][16]byte, len(approvals))
	for i, id := range approvals {
		wanted[i] = id.UUID
	}
	err := s.query(ctx, "polls", selectPollsSQL, []any{wanted}, func(r *row) error {
		id := ledger.ApprovalID{UUID: r.id()}
		polls[id] = r.time()
		return r.end()
	})
	return polls, err
}
