package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"

	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/tlog"
)

// LogKeys knows the keys that sign checkpoints, or have signed them.
type LogKeys interface {
	LogKeys(now time.Time) []keyring.LogKey
}

// SignedCheckpoint is a checkpoint that a key of this instance has signed.
type SignedCheckpoint struct {
	tlog.Checkpoint
	Note         []byte
	Cosignatures []byte
	// SignedBy are the keys whose signatures hold; Revoked says that all of them are
	// revoked.
	SignedBy []string
	Revoked  bool
}

// Bytes is the checkpoint as it is published: a signed note, with the lines of witnesses.
func (c *SignedCheckpoint) Bytes() []byte {
	return append(append(make([]byte, 0, len(c.Note)+len(c.Cosignatures)), c.Note...), c.Cosignatures...)
}

// Checkpoint is the newest checkpoint of a log. One that no key has signed which is good
// today is refused; a closed log, which nobody signs again, is shown with the signatures
// that it has.
func (j *Judge) Checkpoint(ctx context.Context, log *store.TransparencyLog) (*SignedCheckpoint, error) {
	c, err := j.AnyCheckpoint(ctx, log, false)
	if err != nil {
		return nil, err
	}
	if c.Revoked && log.ClosedAt == nil {
		return nil, fmt.Errorf("a checkpoint is signed by revoked keys alone: %w", ledger.ErrStateTampered)
	}
	return c, nil
}

// AnyCheckpoint is the newest checkpoint of a log, or the newest that witnesses have cosigned,
// for whoever judges by itself what a revoked key has signed.
func (j *Judge) AnyCheckpoint(ctx context.Context, log *store.TransparencyLog, witnessed bool) (*SignedCheckpoint, error) {
	stored, err := j.store.LogCheckpoint(ctx, log.ID, witnessed)
	if err != nil {
		return nil, err
	}
	opened, err := j.OpenCheckpoint(log, append(bytes.Clone(stored.Note), stored.Cosignatures...))
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

// Cosigned is the newest checkpoint of a log that witnesses have cosigned, with the log's
// newest signatures where it is the newest of all: the log's keys may have changed since. One
// that only revoked keys have signed is store.ErrNotFound: the witnesses are asked again.
func (j *Judge) Cosigned(ctx context.Context, log *store.TransparencyLog) (*SignedCheckpoint, error) {
	c, err := j.AnyCheckpoint(ctx, log, true)
	if err != nil {
		return nil, err
	}
	newest, err := j.Checkpoint(ctx, log)
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

// OpenCheckpoint reads a signed checkpoint of a log.
func (j *Judge) OpenCheckpoint(log *store.TransparencyLog, signed []byte) (*SignedCheckpoint, error) {
	if j.logKeys == nil {
		return nil, errors.New("checkpoints cannot be read without the master keys")
	}
	keys := j.logKeys.LogKeys(j.now().Std())
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

// Tree is the tree under a checkpoint. What it returns leads to the checkpoint's root; what
// does not is TreeFault's.
func (j *Judge) Tree(ctx context.Context, log uuid.UUID, c tlog.Checkpoint) *tlog.Tree {
	return tlog.NewTree(c.Size, c.Root, func(tiles []tlog.Tile) ([][]byte, error) {
		wanted := make([]store.LogTileAt, len(tiles))
		for i, tile := range tiles {
			wanted[i] = store.LogTileAt{Level: tile.Level, Number: tile.Number}
		}
		found, err := j.store.LogTiles(ctx, log, wanted)
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

// TreeFault says of an error of a Tree that it proves tampering, where it does.
func TreeFault(err error) error {
	if errors.Is(err, tlog.ErrInconsistent) {
		return fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
	}
	return err
}

// TransparencyChanged is the tampering by which an organization's transparency log is not
// as the service wrote it.
func TransparencyChanged(log uuid.UUID) *Tampering {
	return &Tampering{Check: ledger.CheckTransparency, Place: fmt.Sprintf("the transparency log %s was changed outside the service", tlog.LogID(log))}
}

// inspectTransparency holds every log of the organization, and all of its tiles, against
// the checkpoint that was signed.
func (a *audit) inspectTransparency(ctx context.Context) (*ledger.Break, error) {
	logs, err := a.judge.store.TransparencyLogs(ctx, a.org.ID)
	if err != nil {
		return nil, err
	}
	for _, log := range logs {
		err := a.inspectLog(ctx, log)
		if errors.Is(err, ledger.ErrStateTampered) {
			return &ledger.Break{Check: ledger.CheckTransparency, Detail: TransparencyChanged(log.ID).Place}, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func (a *audit) inspectLog(ctx context.Context, log *store.TransparencyLog) error {
	if log.Tampered {
		return ledger.ErrStateTampered
	}
	for _, witnessed := range []bool{false, true} {
		c, err := a.judge.AnyCheckpoint(ctx, log, witnessed)
		if errors.Is(err, store.ErrNotFound) {
			continue // nothing was signed yet
		}
		if err != nil {
			return err
		}
		if err := a.inspectTiles(ctx, log, c.Checkpoint); err != nil {
			return err
		}
	}
	return nil
}

// inspectTiles reads every tile of a tree. A tile is checked with those above it, of which
// there are few: so a look at all costs a few times as much as reading each.
func (a *audit) inspectTiles(ctx context.Context, log *store.TransparencyLog, c tlog.Checkpoint) error {
	tree := a.judge.Tree(ctx, log.ID, c)
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
