package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

const (
	transparencyColumns = "id, org_id, origin, opened_at, closed_at, mac"
	selectTransparency  = "SELECT " + transparencyColumns + " FROM transparency_logs "
	checkpointColumns   = "log_id, size, root, note, cosignatures"
	tileColumns         = "level, number, hashes"

	newestCheckpoint    = "newest"
	witnessedCheckpoint = "witnessed"
)

func scanTransparencyLog(r row) (*store.TransparencyLog, error) {
	l := new(store.TransparencyLog)
	var closed *int64
	err := r.Scan(&l.ID, &l.Org.UUID, &l.Origin, (*int64)(&l.OpenedAt), &closed, &l.MAC)
	l.ClosedAt = (*ledger.Time)(closed)
	return l, err
}

// TransparencyLog implements store.Transparency.
func (s *Store) TransparencyLog(ctx context.Context, id uuid.UUID) (*store.TransparencyLog, error) {
	return readOne(ctx, s, selectTransparency+"WHERE id = ?", []any{id[:]}, scanTransparencyLog)
}

// TransparencyLogs implements store.Transparency.
func (s *Store) TransparencyLogs(ctx context.Context, org ledger.OrgID) ([]*store.TransparencyLog, error) {
	return readAll(ctx, s, selectTransparency+"WHERE org_id = ? ORDER BY opened_at, id", []any{org.UUID[:]}, scanTransparencyLog)
}

// OpenTransparencyLog implements store.Transparency.
func (s *Store) OpenTransparencyLog(ctx context.Context, log *store.TransparencyLog) error {
	return s.writing(ctx, func(tx *transaction) error {
		return tx.exec("INSERT INTO transparency_logs ("+transparencyColumns+") VALUES (?, ?, ?, ?, ?, ?)",
			log.ID[:], log.Org.UUID[:], log.Origin, int64(log.OpenedAt), momentOrNull(log.ClosedAt), orEmpty(log.MAC))
	})
}

func (tx *transaction) putTransparencyLog(log *store.TransparencyLog) error {
	return tx.exec("INSERT INTO transparency_logs ("+transparencyColumns+`) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET closed_at = excluded.closed_at, mac = excluded.mac`,
		log.ID[:], log.Org.UUID[:], log.Origin, int64(log.OpenedAt), momentOrNull(log.ClosedAt), orEmpty(log.MAC))
}

// LogCheckpoint implements store.Transparency.
func (s *Store) LogCheckpoint(ctx context.Context, log uuid.UUID, witnessed bool) (*store.LogCheckpoint, error) {
	kind := newestCheckpoint
	if witnessed {
		kind = witnessedCheckpoint
	}
	return readOne(ctx, s, "SELECT "+checkpointColumns+" FROM log_checkpoints WHERE log_id = ? AND kind = ?", []any{log[:], kind},
		func(r row) (*store.LogCheckpoint, error) {
			c := new(store.LogCheckpoint)
			return c, r.Scan(&c.Log, &c.Size, &c.Root, &c.Note, &c.Cosignatures)
		})
}

// PublishLogs implements store.Transparency.
func (s *Store) PublishLogs(ctx context.Context, publications []*store.LogPublication) error {
	return s.writing(ctx, func(tx *transaction) error { return each(publications, tx.publishLog) })
}

func (tx *transaction) publishLog(p *store.LogPublication) error {
	const open = "EXISTS (SELECT 1 FROM transparency_logs WHERE id = ?1 AND closed_at IS NULL)"
	var err error
	if p.Before < 0 {
		err = tx.change("INSERT INTO log_checkpoints (log_id, kind, size, root, note, cosignatures) SELECT ?1, 'newest', ?2, ?3, ?4, ?5 WHERE "+open+
			" ON CONFLICT DO NOTHING", p.Log[:], p.Size, p.Root[:], orEmpty(p.Note), orEmpty(p.Cosignatures))
	} else {
		err = tx.change("UPDATE log_checkpoints SET size = ?2, root = ?3, note = ?4, cosignatures = ?5 WHERE log_id = ?1 AND kind = 'newest' AND size = ?6 AND "+open,
			p.Log[:], p.Size, p.Root[:], orEmpty(p.Note), orEmpty(p.Cosignatures), p.Before)
	}
	if err != nil {
		return fmt.Errorf("publish a checkpoint: %w", err)
	}
	for _, tile := range p.Tiles {
		err := tx.exec("INSERT INTO log_tiles (log_id, "+tileColumns+") VALUES (?, ?, ?, ?) ON CONFLICT (log_id, level, number) DO UPDATE SET hashes = excluded.hashes",
			p.Log[:], int64(tile.Level), tile.Number, orEmpty(tile.Hashes))
		if err != nil {
			return err
		}
	}
	return nil
}

// PutWitnessed implements store.Transparency.
func (s *Store) PutWitnessed(ctx context.Context, c *store.LogCheckpoint) error {
	return s.writing(ctx, func(tx *transaction) error {
		return tx.exec(`INSERT INTO log_checkpoints (log_id, kind, size, root, note, cosignatures) VALUES (?, 'witnessed', ?, ?, ?, ?)
			ON CONFLICT (log_id, kind) DO UPDATE SET size = excluded.size, root = excluded.root, note = excluded.note, cosignatures = excluded.cosignatures
			WHERE size <= excluded.size OR size > (SELECT n.size FROM log_checkpoints n WHERE n.log_id = excluded.log_id AND n.kind = 'newest')`, c.Log[:], c.Size, c.Root[:], orEmpty(c.Note), orEmpty(c.Cosignatures))
	})
}

func scanTile(r row) (*store.LogTile, error) {
	t := new(store.LogTile)
	var level int64
	err := r.Scan(&level, &t.Number, &t.Hashes)
	t.Level = int(level)
	return t, err
}

// LogTiles implements store.Transparency.
func (s *Store) LogTiles(ctx context.Context, log uuid.UUID, wanted []store.LogTileAt) ([]*store.LogTile, error) {
	tiles := make([]*store.LogTile, len(wanted))
	for i, at := range wanted {
		found, err := readOne(ctx, s, "SELECT "+tileColumns+" FROM log_tiles WHERE log_id = ? AND level = ? AND number = ?",
			[]any{log[:], int64(at.Level), at.Number}, scanTile)
		switch {
		case errors.Is(err, store.ErrNotFound):
			found = &store.LogTile{LogTileAt: at}
		case err != nil:
			return nil, err
		}
		tiles[i] = found
	}
	return tiles, nil
}

// LogTilesFrom implements store.Transparency.
func (s *Store) LogTilesFrom(ctx context.Context, log uuid.UUID, from store.LogTileAt, limit int) ([]*store.LogTile, error) {
	return readAll(ctx, s, "SELECT "+tileColumns+" FROM log_tiles WHERE log_id = ? AND (level, number) >= (?, ?) ORDER BY level, number LIMIT ?",
		[]any{log[:], int64(from.Level), from.Number, int64(limit)}, scanTile)
}

// UnsignedLogs implements store.Transparency.
func (s *Store) UnsignedLogs(ctx context.Context, after ledger.OrgID, limit int) ([]ledger.OrgID, error) {
	return readAll(ctx, s, `SELECT h.org_id FROM heads h
		LEFT JOIN transparency_logs l ON l.org_id = h.org_id AND l.closed_at IS NULL
		LEFT JOIN log_checkpoints c ON c.log_id = l.id AND c.kind = 'newest'
		WHERE h.org_id > ? AND (c.size IS NULL OR c.size < h.count) ORDER BY h.org_id LIMIT ?`, []any{after.UUID[:], int64(limit)},
		func(r row) (ledger.OrgID, error) {
			var org ledger.OrgID
			return org, r.Scan(&org.UUID)
		})
}

// LeaseSigner implements store.Transparency.
func (s *Store) LeaseSigner(ctx context.Context, holder uuid.UUID, now, until ledger.Time) (held bool, err error) {
	err = s.writing(ctx, func(tx *transaction) error {
		err := tx.change(`INSERT INTO log_signer (no, holder, until) VALUES (1, ?1, ?2) ON CONFLICT (no) DO UPDATE SET holder = excluded.holder, until = excluded.until
			WHERE holder = ?1 OR until <= ?3`, holder[:], int64(until), int64(now))
		held = err == nil
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
	return held && err == nil, err
}
