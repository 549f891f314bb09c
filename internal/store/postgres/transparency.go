package postgres

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	transparencyColumns = `id, org_id, origin, opened_at, closed_at, mac`
	selectTransparency  = `select ` + transparencyColumns + ` from transparency_logs `
	putTransparencySQL  = `insert into transparency_logs (` + transparencyColumns + `)
		select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[], $6::bytea[])
		on conflict (id) do update set closed_at = excluded.closed_at, mac = excluded.mac`

	lockLogSQL    = `select from transparency_logs where id = $1 and closed_at is null for update`
	beginLogSQL   = `insert into log_checkpoints (log_id, kind, size, root, note, cosignatures) values ($1, 'newest', $2, $3, $4, $5) on conflict do nothing`
	publishLogSQL = `update log_checkpoints set size = $2, root = $3, note = $4, cosignatures = $5 where log_id = $1 and kind = 'newest' and size = $6`
	putTilesSQL   = `insert into log_tiles (log_id, level, number, hashes) select $1::uuid, * from unnest($2::bigint[], $3::bigint[], $4::bytea[])
		on conflict (log_id, level, number) do update set hashes = excluded.hashes`
	putWitnessedSQL = `insert into log_checkpoints as c (log_id, kind, size, root, note, cosignatures) values ($1, 'witnessed', $2, $3, $4, $5)
		on conflict (log_id, kind) do update set size = excluded.size, root = excluded.root, note = excluded.note, cosignatures = excluded.cosignatures
		where c.size <= excluded.size or c.size > (select n.size from log_checkpoints n where n.log_id = excluded.log_id and n.kind = 'newest')`
	wantedTilesSQL = `select w.level, w.number, t.hashes from unnest($2::bigint[], $3::bigint[]) with ordinality w(level, number, place)
		left join log_tiles t on t.log_id = $1 and t.level = w.level and t.number = w.number order by w.place`
	unsignedLogsSQL = `select h.org_id from heads h
		left join transparency_logs l on l.org_id = h.org_id and l.closed_at is null
		left join log_checkpoints c on c.log_id = l.id and c.kind = 'newest'
		where h.org_id > $1 and (c.size is null or c.size < h.count) order by h.org_id limit $2`
	leaseSignerSQL = `insert into log_signer as s (no, holder, until) values (1, $1, $2)
		on conflict (no) do update set holder = excluded.holder, until = excluded.until where s.holder = $1 or s.until <= $3`
)

func readTransparencyLog(r *row) *store.TransparencyLog {
	return &store.TransparencyLog{
		ID: r.id(), Org: ledger.OrgID{UUID: r.id()}, Origin: r.text(), OpenedAt: r.time(), ClosedAt: r.timeOrNil(), MAC: r.bytes(),
	}
}

// TransparencyLog implements store.Transparency.
func (s *Store) TransparencyLog(ctx context.Context, id uuid.UUID) (*store.TransparencyLog, error) {
	return one(ctx, s, "transparency log", selectTransparency+`where id = $1`, []any{bytesOf(id)}, readTransparencyLog)
}

// TransparencyLogs implements store.Transparency.
func (s *Store) TransparencyLogs(ctx context.Context, org ledger.OrgID) ([]*store.TransparencyLog, error) {
	return list(ctx, s, "transparency logs", selectTransparency+`where org_id = $1 order by opened_at, id`, []any{bytesOf(org.UUID)}, readTransparencyLog)
}

// OpenTransparencyLog implements store.Transparency.
func (s *Store) OpenTransparencyLog(ctx context.Context, log *store.TransparencyLog) error {
	return s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `insert into transparency_logs (`+transparencyColumns+`) values ($1, $2, $3, $4, $5, $6)`,
			bytesOf(log.ID), bytesOf(log.Org.UUID), log.Origin, int64(log.OpenedAt), (*int64)(log.ClosedAt), notNil(log.MAC))
		return explain("open a transparency log", err)
	})
}

// sendTransparencyLogs writes the logs in order: one is closed before the next is opened.
func sendTransparencyLogs(rt *roundTrip, logs []*store.TransparencyLog) {
	for i := range logs {
		log := logs[i : i+1]
		rt.send(putTransparencySQL,
			ids(log, func(l *store.TransparencyLog) uuid.UUID { return l.ID }),
			ids(log, func(l *store.TransparencyLog) uuid.UUID { return l.Org.UUID }),
			texts(log, func(l *store.TransparencyLog) string { return l.Origin }),
			ints(log, func(l *store.TransparencyLog) int64 { return int64(l.OpenedAt) }),
			intsOrNull(log, func(l *store.TransparencyLog) *ledger.Time { return l.ClosedAt }),
			blobs(log, func(l *store.TransparencyLog) []byte { return notNil(l.MAC) }))
	}
}

// LogCheckpoint implements store.Transparency.
func (s *Store) LogCheckpoint(ctx context.Context, log uuid.UUID, witnessed bool) (*store.LogCheckpoint, error) {
	kind := "newest"
	if witnessed {
		kind = "witnessed"
	}
	return one(ctx, s, "checkpoint", `select log_id, size, root, note, cosignatures from log_checkpoints where log_id = $1 and kind = $2`,
		[]any{bytesOf(log), kind}, func(r *row) *store.LogCheckpoint {
			return &store.LogCheckpoint{Log: r.id(), Size: r.int(), Root: r.hash(), Note: r.bytes(), Cosignatures: r.bytes()}
		})
}

// PublishLogs implements store.Transparency.
func (s *Store) PublishLogs(ctx context.Context, publications []*store.LogPublication) error {
	return s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		for _, p := range publications {
			if err := publishLog(ctx, conn, p); err != nil {
				return err
			}
		}
		return nil
	})
}

func publishLog(ctx context.Context, conn *pgx.Conn, p *store.LogPublication) error {
	locked, err := conn.Exec(ctx, lockLogSQL, bytesOf(p.Log))
	if err != nil {
		return explain("lock a transparency log", err)
	}
	log, root := bytesOf(p.Log), p.Root[:]
	query, args := beginLogSQL, []any{log, p.Size, root, notNil(p.Note), notNil(p.Cosignatures)}
	if p.Before >= 0 {
		query, args = publishLogSQL, append(args, p.Before)
	}
	stored, err := conn.Exec(ctx, query, args...)
	if err != nil {
		return explain("publish a checkpoint", err)
	}
	if locked.RowsAffected() == 0 || stored.RowsAffected() == 0 {
		return fmt.Errorf("publish a checkpoint: %w", store.ErrNotFound)
	}
	if len(p.Tiles) == 0 {
		return nil
	}
	levels, numbers, hashes := make([]int64, len(p.Tiles)), make([]int64, len(p.Tiles)), make([][]byte, len(p.Tiles))
	for i, tile := range p.Tiles {
		levels[i], numbers[i], hashes[i] = int64(tile.Level), tile.Number, notNil(tile.Hashes)
	}
	_, err = conn.Exec(ctx, putTilesSQL, log, levels, numbers, hashes)
	return explain("put tiles", err)
}

// PutWitnessed implements store.Transparency.
func (s *Store) PutWitnessed(ctx context.Context, c *store.LogCheckpoint) error {
	return s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, putWitnessedSQL, bytesOf(c.Log), c.Size, c.Root[:], notNil(c.Note), notNil(c.Cosignatures))
		return explain("put a witnessed checkpoint", err)
	})
}

func readTile(r *row) *store.LogTile {
	return &store.LogTile{LogTileAt: store.LogTileAt{Level: int(r.int()), Number: r.int()}, Hashes: r.bytes()}
}

// LogTiles implements store.Transparency.
func (s *Store) LogTiles(ctx context.Context, log uuid.UUID, wanted []store.LogTileAt) ([]*store.LogTile, error) {
	levels, numbers := make([]int64, len(wanted)), make([]int64, len(wanted))
	for i, at := range wanted {
		levels[i], numbers[i] = int64(at.Level), at.Number
	}
	return list(ctx, s, "tiles", wantedTilesSQL, []any{bytesOf(log), levels, numbers}, readTile)
}

// LogTilesFrom implements store.Transparency.
func (s *Store) LogTilesFrom(ctx context.Context, log uuid.UUID, from store.LogTileAt, limit int) ([]*store.LogTile, error) {
	return list(ctx, s, "tiles", `select level, number, hashes from log_tiles where log_id = $1 and (level, number) >= ($2, $3) order by level, number limit $4`,
		[]any{bytesOf(log), int64(from.Level), from.Number, limit}, readTile)
}

// UnsignedLogs implements store.Transparency.
func (s *Store) UnsignedLogs(ctx context.Context, after ledger.OrgID, limit int) ([]ledger.OrgID, error) {
	return list(ctx, s, "unsigned logs", unsignedLogsSQL, []any{bytesOf(after.UUID), limit}, func(r *row) ledger.OrgID { return ledger.OrgID{UUID: r.id()} })
}

// LeaseSigner implements store.Transparency.
func (s *Store) LeaseSigner(ctx context.Context, holder uuid.UUID, now, until ledger.Time) (held bool, err error) {
	err = s.change(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		leased, err := conn.Exec(ctx, leaseSignerSQL, bytesOf(holder), int64(until), int64(now))
		held = leased.RowsAffected() > 0
		return explain("lease the signer", err)
	})
	return held && err == nil, err
}
