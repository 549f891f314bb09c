package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"

	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/tlog"
)

// LogKeys returns the current and former keys that sign checkpoints.
type LogKeys interface {
	LogKeys(now time.Time) []keyring.LogKey
	// Learn adds keys that another replica may have signed with, and reports whether there were
	// any.
	Learn() bool
}

// Logs verifies transparency logs. A checkpoint that it returns carries a valid signature of this
// instance, and what it reads of a tree leads to the checkpoint's root.
type Logs struct {
	*reader
	logKeys  LogKeys           // nil without them
	logMarks *keyring.LogMarks // likewise
}

// SignedCheckpoint is a checkpoint that a key of this instance has signed.
type SignedCheckpoint struct {
	tlog.Checkpoint
	Note         []byte
	Cosignatures []byte
	// SignedBy are the keys with valid signatures. Revoked says that all of them are revoked.
	SignedBy []string
	Revoked  bool
}

// Bytes returns the checkpoint as it is published: a signed note with the witnesses' lines.
func (c *SignedCheckpoint) Bytes() []byte {
	return append(append(make([]byte, 0, len(c.Note)+len(c.Cosignatures)), c.Note...), c.Cosignatures...)
}

// ErrLogKeyRevoked says that only revoked keys have signed a checkpoint. That is so for a moment
// after a revocation. Whether it was signed before, or with a stolen key, is for the signer to find
// out, which has the receipts.
var ErrLogKeyRevoked = fault.Errorf(fault.CodeUnavailable, "the log's key was revoked, and the log is not signed with another one yet: try again in some seconds")

// Checkpoint returns the newest checkpoint of a log. It refuses one that only revoked keys have
// signed with ErrLogKeyRevoked, except for a closed log, which is never signed again.
func (l *Logs) Checkpoint(ctx context.Context, log *store.TransparencyLog) (*SignedCheckpoint, error) {
	c, err := l.AnyCheckpoint(ctx, log, false)
	if err != nil {
		return nil, err
	}
	if c.Revoked && log.ClosedAt == nil {
		return nil, ErrLogKeyRevoked
	}
	return c, nil
}

// AnyCheckpoint returns the newest checkpoint of a log, or the newest that witnesses have cosigned.
// It does not refuse checkpoints signed by revoked keys.
func (l *Logs) AnyCheckpoint(ctx context.Context, log *store.TransparencyLog, witnessed bool) (*SignedCheckpoint, error) {
	stored, err := l.store.LogCheckpoint(ctx, log.ID, witnessed)
	if err != nil {
		return nil, err
	}
	opened, err := l.open(log, append(bytes.Clone(stored.Note), stored.Cosignatures...))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
	}
	opened.Note = stored.Note
	if opened.Size != stored.Size || opened.Root != stored.Root {
		return nil, fmt.Errorf("columns of a checkpoint: %w", ledger.ErrStateTampered)
	}
	if !witnessed && len(stored.Cosignatures) > 0 {
		return nil, fmt.Errorf("the newest checkpoint has cosignatures: %w", ledger.ErrStateTampered)
	}
	opened.Cosignatures = stored.Cosignatures
	return opened, nil
}

// Cosigned returns the newest checkpoint of a log that witnesses have cosigned. If that is also the
// log's newest checkpoint, it has the log's newest signatures, because the log's keys may have
// changed since. If only revoked keys have signed it, the error is store.ErrNotFound, so that the
// witnesses cosign again.
func (l *Logs) Cosigned(ctx context.Context, log *store.TransparencyLog) (*SignedCheckpoint, error) {
	c, err := l.AnyCheckpoint(ctx, log, true)
	if err != nil {
		return nil, err
	}
	newest, err := l.Checkpoint(ctx, log)
	switch {
	case err != nil:
		return nil, err
	case newest.Checkpoint == c.Checkpoint:
		newest.Cosignatures = c.Cosignatures
		return newest, nil
	case c.Revoked:
		return nil, store.ErrNotFound
	}
	return c, nil
}

// open parses and verifies a signed checkpoint of a log.
func (l *Logs) open(log *store.TransparencyLog, signed []byte) (*SignedCheckpoint, error) {
	if l.logKeys == nil {
		return nil, errors.New("checkpoints cannot be read without the master keys")
	}
	opened, err := l.openWithKeys(log, signed)
	if err != nil && l.logKeys.Learn() {
		opened, err = l.openWithKeys(log, signed)
	}
	return opened, err
}

func (l *Logs) openWithKeys(log *store.TransparencyLog, signed []byte) (*SignedCheckpoint, error) {
	keys := l.logKeys.LogKeys(l.now().Std())
	verifiers, byHash := make([]note.Verifier, len(keys)), make(map[uint32]keyring.LogKey, len(keys))
	for i, key := range keys {
		verifier, err := tlog.Verifier(log.Origin, key.Public)
		if err != nil {
			return nil, err
		}
		verifiers[i], byHash[verifier.KeyHash()] = verifier, key
	}
	c, verified, err := tlog.Open(signed, log.Origin, verifiers...)
	if err != nil {
		return nil, err
	}
	opened := &SignedCheckpoint{Checkpoint: c, Note: signed, Revoked: true}
	for _, signature := range verified {
		key := byHash[signature.Hash]
		opened.SignedBy = append(opened.SignedBy, key.ID)
		if key.Status != keyring.LogKeyRevoked {
			opened.Revoked = false
		}
	}
	return opened, nil
}

// Tree returns the tree under a checkpoint. Everything that it returns is verified against the
// checkpoint's root. Pass its errors to TreeFault.
func (l *Logs) Tree(ctx context.Context, log uuid.UUID, c tlog.Checkpoint) *tlog.Tree {
	return tlog.NewTree(c.Size, c.Root, func(tiles []tlog.Tile) ([][]byte, error) {
		wanted := make([]store.LogTileAt, len(tiles))
		for i, tile := range tiles {
			wanted[i] = store.LogTileAt{Level: tile.Level, Number: tile.Number}
		}
		found, err := l.store.LogTiles(ctx, log, wanted)
		if err != nil {
			return nil, err
		}
		data := make([][]byte, len(found))
		for i, tile := range found {
			data[i] = tile.Hashes
		}
		return data, nil
	})
}

// TreeFault marks an error of a Tree as tampering if it proves it.
func TreeFault(err error) error {
	if errors.Is(err, tlog.ErrInconsistent) {
		return fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
	}
	return err
}

// TransparencyChanged returns the tampering for a transparency log that is not what the service
// wrote.
func TransparencyChanged(log uuid.UUID) *Tampering {
	return &Tampering{Check: ledger.CheckTransparency, Place: fmt.Sprintf("the transparency log %s was changed outside the service", tlog.LogID(log))}
}

// brokenLogs checks every log of the organization, and all of its tiles, against the signed
// checkpoint.
func (a *audit) brokenLogs(ctx context.Context, broken *collection) error {
	changed := func(log uuid.UUID) error {
		return broken.add(&ledger.Break{Check: ledger.CheckTransparency, Detail: TransparencyChanged(log).Place})
	}
	signed, marked := a.judge.Logs.signed(a.org.ID)
	logs, err := a.store.TransparencyLogs(ctx, a.org.ID)
	if err != nil {
		return err
	}
	if marked && !slices.ContainsFunc(logs, func(log *store.TransparencyLog) bool { return log.ID == signed }) {
		if err := changed(signed); err != nil {
			return err
		}
	}
	for _, log := range logs {
		if broken.full() {
			return nil
		}
		err := a.inspectLog(ctx, log)
		if errors.Is(err, ledger.ErrStateTampered) {
			err = changed(log.ID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// signed is the log of an organization that was signed here and has not ended. It is read
// before the logs that are stored: a log is stored before it is signed.
func (l *Logs) signed(org ledger.OrgID) (log uuid.UUID, ok bool) {
	if l.logMarks == nil {
		return uuid.Nil, false
	}
	log, mark, ok := l.logMarks.Of(org.UUID)
	return log, ok && mark.Size > 0
}

func (a *audit) inspectLog(ctx context.Context, log *store.TransparencyLog) error {
	if log.Tampered {
		return ledger.ErrStateTampered
	}
	for _, witnessed := range []bool{false, true} {
		c, err := a.judge.Logs.AnyCheckpoint(ctx, log, witnessed)
		if errors.Is(err, store.ErrNotFound) && !witnessed {
			c, err = a.missingCheckpoint(ctx, log)
		}
		if errors.Is(err, store.ErrNotFound) {
			continue // nothing was signed, or cosigned, yet
		}
		if err != nil {
			return err
		}
		if err := a.inspectTiles(ctx, log, c.Checkpoint); err != nil {
			return err
		}
		if err := a.inspectNewest(ctx, log, c.Size, witnessed); err != nil {
			return err
		}
	}
	return nil
}

// inspectNewest requires that the newest checkpoint is not older than what was published with it or
// before: than the checkpoint that witnesses have cosigned, and than the tiles of its first level. An
// older one is genuine too, and only these show that it was put back.
func (a *audit) inspectNewest(ctx context.Context, log *store.TransparencyLog, size int64, witnessed bool) error {
	published := size
	if !witnessed {
		const enough = 2 // the last tile, and one that should not be there
		tiles, err := a.store.LogTilesFrom(ctx, log.ID, store.LogTileAt{Number: size / tlog.TileWidth}, enough)
		if err != nil {
			return err
		}
		for _, tile := range tiles {
			if tile.Level == 0 {
				published = max(published, tile.Number*tlog.TileWidth+int64(len(tile.Hashes)/len(tlog.Hash{})))
			}
		}
		if published == size {
			return nil
		}
	}
	newest, err := a.judge.Logs.AnyCheckpoint(ctx, log, false) // read last: it may have grown meanwhile
	if errors.Is(err, store.ErrNotFound) || err == nil && newest.Size < published {
		return fmt.Errorf("the newest checkpoint is older than what was published: %w", ledger.ErrStateTampered)
	}
	return err
}

// missingCheckpoint judges a log that had no checkpoint when it was looked for. Its tiles are
// published together with the first: where there are tiles, a checkpoint must be there now.
func (a *audit) missingCheckpoint(ctx context.Context, log *store.TransparencyLog) (*SignedCheckpoint, error) {
	tiles, err := a.store.LogTilesFrom(ctx, log.ID, store.LogTileAt{}, 1)
	if err != nil {
		return nil, err
	}
	if len(tiles) == 0 {
		return nil, store.ErrNotFound
	}
	c, err := a.judge.Logs.AnyCheckpoint(ctx, log, false)
	if errors.Is(err, store.ErrNotFound) {
		err = fmt.Errorf("a log has tiles and no checkpoint: %w", ledger.ErrStateTampered)
	}
	return c, err
}

// inspectTiles reads every tile of a tree. A tile is checked together with the few tiles above it,
// so the cost is a small multiple of reading each tile once.
func (a *audit) inspectTiles(ctx context.Context, log *store.TransparencyLog, c tlog.Checkpoint) error {
	tree := a.judge.Logs.Tree(ctx, log.ID, c)
	for level := 0; ; level++ {
		hashes := c.Size >> (tlog.TileHeight * level)
		if hashes == 0 {
			return nil
		}
		for first := int64(0); first < hashes; first += tlog.TileWidth {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("read tiles: %w", err)
			}
			tile := tlog.Tile{Level: level, Number: first / tlog.TileWidth, Width: int(min(hashes-first, tlog.TileWidth))}
			if _, err := tree.Tile(tile); err != nil {
				return TreeFault(err)
			}
		}
	}
}
