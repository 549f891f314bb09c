package store

import (
	"context"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// Transparency keeps the transparency logs: Merkle trees over receipts, whose roots are
// signed as checkpoints. The signer writes it, of which there is one at a time, and so do
// the requests that close a log; completing a chain does not.
type Transparency interface {
	TransparencyLog(ctx context.Context, id uuid.UUID) (*TransparencyLog, error)
	// TransparencyLogs lists all logs of an organization, oldest first. At most one is open.
	TransparencyLogs(ctx context.Context, org ledger.OrgID) ([]*TransparencyLog, error)
	// OpenTransparencyLog stores a new log; ErrExists when its organization has an open one.
	OpenTransparencyLog(ctx context.Context, log *TransparencyLog) error
	// LogCheckpoint finds the newest checkpoint of a log or, with witnessed, the newest
	// that witnesses have cosigned.
	LogCheckpoint(ctx context.Context, log uuid.UUID, witnessed bool) (*LogCheckpoint, error)
	// PublishLogs stores checkpoints with their tiles. It is a compare-and-swap: when a log
	// is closed, or its newest checkpoint does not have the size Before, it returns
	// ErrNotFound and writes nothing, because another signer was first.
	PublishLogs(ctx context.Context, publications []*LogPublication) error
	// PutWitnessed replaces the newest cosigned checkpoint, unless that is larger than the
	// given one; then it changes nothing and returns nil. One that is larger than the newest
	// checkpoint was not cosigned, and is always replaced.
	PutWitnessed(ctx context.Context, checkpoint *LogCheckpoint) error
	// LogTiles returns one tile for each wanted one, in their order. Hashes is nil where a
	// tile does not exist.
	LogTiles(ctx context.Context, log uuid.UUID, wanted []LogTileAt) ([]*LogTile, error)
	// LogTilesFrom lists a log's tiles by level and number, beginning with from.
	LogTilesFrom(ctx context.Context, log uuid.UUID, from LogTileAt, limit int) ([]*LogTile, error)
	// UnsignedLogs lists, by id, organizations after the given one that have no open log, or
	// whose newest checkpoint covers fewer receipts than they have. It is a hint: nothing is
	// authenticated.
	UnsignedLogs(ctx context.Context, after ledger.OrgID, limit int) ([]ledger.OrgID, error)
	// LeaseSigner makes holder the signer until the given moment, or extends its lease. It
	// reports false when another process holds the lease at now.
	LeaseSigner(ctx context.Context, holder uuid.UUID, now, until ledger.Time) (held bool, err error)
}

// TransparencyLog is a log. Only ClosedAt and MAC change after it is opened.
type TransparencyLog struct {
	ID       uuid.UUID // 128 random bits
	Org      ledger.OrgID
	Origin   string
	OpenedAt ledger.Time
	ClosedAt *ledger.Time // nil while it is open
	MAC      []byte       // authenticates all of it
	// Tampered is as in WebhookRecord; then only ID and Org are set.
	Tampered bool
}

// LogCheckpoint is a signed checkpoint. Its signatures authenticate it.
type LogCheckpoint struct {
	Log  uuid.UUID
	Size int64
	Root [32]byte
	Note []byte // signed by the log's keys
	// Cosignatures are the signature lines of witnesses, to be appended to Note; empty for
	// none.
	Cosignatures []byte
}

// LogPublication is a checkpoint that replaces the newest one, and the tiles that changed.
type LogPublication struct {
	LogCheckpoint
	Before int64 // the size of the checkpoint that it replaces; -1 for none
	Tiles  []LogTile
}

// LogTileAt is the position of a tile in its log.
type LogTileAt struct {
	Level  int
	Number int64
}

// LogTile is a tile with the hashes that it has so far, 32 bytes each. The root of the
// checkpoint authenticates them.
type LogTile struct {
	LogTileAt
	Hashes []byte
}
