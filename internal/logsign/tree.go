package logsign

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"

	"countersign/internal/evidence"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/tlog"
	"countersign/internal/verify"
)

// growStep is how many receipts a round reads from the store for one log, so that a long log
// does not delay the others.
const growStep = 4096

// signedLog is the signer's state of a log. Everything in it was authenticated. A round owns it:
// the signer's mu must be held.
type signedLog struct {
	record    *store.TransparencyLog
	edge      *tlog.Edge
	last      [32]byte                 // the hash of the last receipt in the tree; zero for none
	published *verify.SignedCheckpoint // nil before the first
	// pending is the mark of a tree that was signed, but is not published or must be rebuilt:
	// at that size the tree must have the same root. nil for none.
	pending *keyring.LogMark
	// rebuilding says that all tiles are made from receipts, and none was read.
	rebuilding bool
}

// before returns the size of the published checkpoint, -1 before the first.
func (l *signedLog) before() int64 {
	if l.published == nil {
		return -1
	}
	return l.published.Size
}

// growth is a tree that has grown, with the checkpoint to be published.
type growth struct {
	log        *signedLog
	checkpoint tlog.Checkpoint
	tiles      []store.LogTile
	signed     *verify.SignedCheckpoint
}

// grow adds missing receipts to a log's tree. It returns nil if there is nothing to publish, and
// reports whether there are more receipts than it has added. sealed is nil if this process has
// sealed none. The caller holds mu.
func (l *Signer) grow(ctx context.Context, org ledger.OrgID, sealed *receiptRun) (*growth, bool, error) {
	log, known := l.logs.Get(org)
	if !known {
		var err error
		if log, err = l.load(ctx, org); err != nil {
			return nil, false, err
		}
		sealed = nil // earlier receipts must be read from the store
	}
	// Not in the cache while the tree changes, so that a round that fails starts over.
	l.logs.Drop(org)
	complete, err := log.take(sealed)
	more := false
	if err == nil && !complete {
		more, err = l.read(ctx, log)
	}
	if err != nil {
		// Receipts that cannot lead to the signed root must not keep a sound edge from growing.
		if log.rebuilding && (errors.Is(err, ledger.ErrStateTampered) || errors.Is(err, keyring.ErrLogForked)) {
			l.endRebuild(org, false)
		}
		return nil, false, l.refused(ctx, log, err)
	}
	if log.pending != nil && log.edge.Size() < log.pending.Size {
		if !more {
			return nil, false, l.refused(ctx, log, fmt.Errorf("%d receipts were signed, and %d are stored: %w", log.pending.Size, log.edge.Size(), evidence.ErrRolledBack))
		}
		l.logs.Put(org, log, log.edge.Bytes())
		l.sealed.again(org)
		return nil, true, nil
	}
	if more {
		l.sealed.again(org)
	}
	if log.published != nil && log.pending == nil && log.published.Size == log.edge.Size() && l.keys.signed(log.published) {
		if known { // there is nothing to publish, although something asked for it
			if err := l.putBack(ctx, log); err != nil {
				return nil, false, err
			}
		}
		l.keep(log)
		return nil, more, nil
	}
	root, err := log.edge.Root()
	if err != nil {
		return nil, false, err
	}
	g := &growth{log: log, checkpoint: tlog.Checkpoint{Origin: log.record.Origin, Size: log.edge.Size(), Root: root}}
	for _, tile := range log.edge.Grown() {
		g.tiles = append(g.tiles, store.LogTile{LogTileAt: store.LogTileAt{Level: tile.Level, Number: tile.Number}, Hashes: tile.Hashes})
	}
	return g, more, nil
}

// again makes the next round check an organization.
func (s *receiptQueue) again(org ledger.OrgID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[org] == nil {
		s.of[org] = new(receiptRun)
	}
	s.of[org].more = true
}

// refused returns the error of a tree that could not grow. If the receipts do not lead to a
// checkpoint that only revoked keys have signed, that was made with a stolen key: refused reports it.
func (l *Signer) refused(ctx context.Context, log *signedLog, err error) error {
	unproven := log.pending != nil && log.published != nil && log.published.Revoked && log.pending.Size == log.published.Size
	if unproven && (errors.Is(err, keyring.ErrLogForked) || errors.Is(err, evidence.ErrRolledBack)) {
		return l.changed(ctx, log.record, fmt.Errorf("%w: %w", ledger.ErrStateTampered, err))
	}
	return err
}

// take adds the receipts that this process has sealed, as long as they follow the tree without a
// gap. It reports whether the tree is then complete, so that nothing need be read from the
// store.
func (l *signedLog) take(sealed *receiptRun) (complete bool, err error) {
	if sealed == nil {
		return false, nil
	}
	for _, r := range sealed.receipts {
		switch next := l.edge.Size() + 1; {
		case r.Sequence < next: // already read from the store
		case r.Sequence > next:
			return false, nil
		default:
			if err := l.add(r.StoredReceipt, r.Hash()); err != nil {
				return false, err
			}
		}
	}
	return !sealed.more && len(sealed.receipts) > 0 && l.pending == nil, nil
}

// add appends a verified receipt with the given hash.
func (l *signedLog) add(r *ledger.StoredReceipt, hash [32]byte) error {
	linked := len(r.PreviousHash) == 0
	if l.edge.Size() > 0 {
		linked = bytes.Equal(r.PreviousHash, l.last[:])
	}
	if !linked || r.Sequence != l.edge.Size()+1 {
		return fmt.Errorf("receipt %d does not follow the one before it: %w", r.Sequence, ledger.ErrStateTampered)
	}
	l.edge.Add(tlog.LeafHash(r.Body))
	l.last = hash
	if l.pending == nil || l.edge.Size() != l.pending.Size {
		return nil
	}
	root, err := l.edge.Root()
	if err == nil && root != l.pending.Root {
		err = fmt.Errorf("the receipts lead to a root other than the signed one: %w", keyring.ErrLogForked)
	}
	return err
}

// read adds receipts from the store and reports whether there are more. It verifies the
// signature, columns and link of each.
func (l *Signer) read(ctx context.Context, log *signedLog) (more bool, err error) {
	id := log.record.Org
	org, err := l.Store.Organization(ctx, id)
	if err != nil {
		return false, err
	}
	head, behind, err := l.Heads.Current(ctx, id)
	if err != nil {
		return false, err
	}
	switch {
	case !head.Authentic(l.ReceiptKeys):
		return false, fmt.Errorf("organization without an authentic head: %w", ledger.ErrStateTampered)
	case behind, head.Count < log.edge.Size():
		return false, evidence.ErrRolledBack
	}
	from, to := log.edge.Size()+1, min(head.Count, log.edge.Size()+growStep)
	if from <= to {
		err = l.Store.ScanReceipts(ctx, id, from, to, func(r *ledger.StoredReceipt) error {
			in := ledger.Inspect(r, org.Slug, l.ReceiptKeys)
			if in.Fault != "" {
				return fmt.Errorf("receipt %d fails its %s: %w", r.Sequence, in.Fault, ledger.ErrStateTampered)
			}
			return log.add(r, in.Hash)
		})
	}
	switch {
	case err != nil:
		return false, err
	case log.edge.Size() != to:
		return false, fmt.Errorf("receipt %d is missing: %w", log.edge.Size()+1, ledger.ErrStateTampered)
	case to == head.Count && to > 0 && (head.Last == nil || log.last != *head.Last):
		return false, fmt.Errorf("the head's hash is not that of the last receipt: %w", ledger.ErrStateTampered)
	}
	return to < head.Count, nil
}

// maxCloseAttempts bounds how often an ended log is closed in one round. Closing it again helps
// where somebody else changed the organization at the same moment.
const maxCloseAttempts = 3

// load reads or opens a log, and compares what is stored with what was signed.
func (l *Signer) load(ctx context.Context, org ledger.OrgID) (*signedLog, error) {
	record, err := l.record(ctx, org)
	if err != nil {
		return nil, err
	}
	mark, marked := l.Marks.Mark(record.ID)
	for attempt := 1; marked && mark.Ended; attempt++ { // the process that ended it has not closed it, or has crashed
		if attempt > maxCloseAttempts {
			return nil, keyring.ErrLogEnded
		}
		if err := l.CloseEnded(ctx, org); err != nil {
			return nil, err
		}
		if record, err = l.record(ctx, org); err != nil {
			return nil, err
		}
		mark, marked = l.Marks.Mark(record.ID)
	}
	log := &signedLog{record: record, edge: tlog.NewEdge(), rebuilding: true}
	log.published, err = l.Logs.AnyCheckpoint(ctx, record, false)
	switch {
	case errors.Is(err, store.ErrNotFound):
		if marked && mark.Size > 0 {
			log.pending = &mark
		}
		return log, nil
	case err != nil:
		return nil, l.changed(ctx, record, err)
	}
	if marked {
		if err := l.compare(ctx, log, mark); err != nil {
			return nil, err
		}
	}
	if c := log.published; c.Revoked && (!marked || mark.Size < c.Size) {
		// Another replica has signed it, or a thief of the key: the receipts must lead to its root.
		log.pending = &keyring.LogMark{Org: org.UUID, Size: c.Size, Root: c.Root}
		return log, nil
	}
	return log, l.loadEdge(ctx, log)
}

// compare compares the stored checkpoint with the mark of what this replica has signed.
func (l *Signer) compare(ctx context.Context, log *signedLog, mark keyring.LogMark) error {
	c := log.published.Checkpoint
	switch {
	case mark.Size > c.Size: // a crash before publication, or a rolled back database
		log.pending = &mark
	case mark.Size == c.Size && mark.Root != c.Root:
		return l.changed(ctx, log.record, keyring.ErrLogForked)
	case mark.Size > 0 && mark.Size < c.Size: // another replica has signed since
		_, root, err := l.Logs.Tree(ctx, log.record.ID, c).Consistency(mark.Size)
		if errors.Is(err, tlog.ErrInconsistent) {
			return nil // tiles are damaged: loadEdge rebuilds the tree up to this checkpoint
		}
		if err == nil && root != mark.Root {
			err = l.changed(ctx, log.record, keyring.ErrLogForked)
		}
		return err
	}
	return nil
}

// loadEdge reads the edge of the published tree, and the last receipt in it. A tree whose
// tiles were changed is rebuilt from the receipts, and must reach the same root.
func (l *Signer) loadEdge(ctx context.Context, log *signedLog) error {
	c := log.published.Checkpoint
	if c.Size == 0 {
		return nil
	}
	rebuild := l.toRebuild(log.record.Org)
	tree := l.Logs.Tree(ctx, log.record.ID, c)
	edge, err := tree.Edge()
	if err == nil && !rebuild {
		read := false
		err = l.Store.ScanReceipts(ctx, log.record.Org, c.Size, c.Size, func(r *ledger.StoredReceipt) error {
			read, log.last = true, r.Hash()
			_, err := tree.Inclusion(c.Size-1, tlog.LeafHash(r.Body))
			return err
		})
		if err == nil && !read {
			return fmt.Errorf("%d receipts were signed, and the last is missing: %w", c.Size, ledger.ErrStateTampered)
		}
	}
	switch {
	case err == nil && !rebuild:
		log.edge, log.rebuilding = edge, false
		return nil
	case err != nil && !errors.Is(err, tlog.ErrInconsistent):
		return err
	case err != nil:
		_ = l.changed(ctx, log.record, verify.TreeFault(err))
	}
	if log.pending == nil {
		log.pending = &keyring.LogMark{Org: log.record.Org.UUID, Size: c.Size, Root: c.Root}
	}
	return nil
}

// putBack reports it if the stored checkpoint is older than the one that this process has published
// or read before. The next round publishes the log again.
func (l *Signer) putBack(ctx context.Context, log *signedLog) error {
	if log.published == nil {
		return nil
	}
	c, err := l.Logs.AnyCheckpoint(ctx, log.record, false)
	if errors.Is(err, store.ErrNotFound) || err == nil && c.Size < log.published.Size {
		err = fmt.Errorf("the newest checkpoint is older than the published one: %w", ledger.ErrStateTampered)
	}
	if err != nil {
		return l.changed(ctx, log.record, err)
	}
	return nil
}

// changed reports that a log was changed outside the service if the error proves that. It
// returns the error. In a rolled back database the log is older, too: that is reported as a
// rollback and not here.
func (l *Signer) changed(ctx context.Context, record *store.TransparencyLog, err error) error {
	if _, behind, headErr := l.Heads.Current(ctx, record.Org); headErr == nil && behind {
		return errors.Join(evidence.ErrRolledBack, err)
	}
	// An operator may have ended the log during the round: the next round opens a new one.
	if reloadErr := l.Marks.Reload(); reloadErr != nil {
		return errors.Join(reloadErr, err)
	}
	if mark, marked := l.Marks.Mark(record.ID); marked && mark.Ended {
		return errors.Join(keyring.ErrLogEnded, err)
	}
	if errors.Is(err, ledger.ErrStateTampered) || errors.Is(err, keyring.ErrLogForked) {
		l.Changed(record.Org, record.ID)
	}
	return err
}

// record returns the organization's open log, and opens one if there is none. A log that this
// replica has signed must be stored, open or closed.
func (l *Signer) record(ctx context.Context, org ledger.OrgID) (*store.TransparencyLog, error) {
	if err := l.Marks.Reload(); err != nil { // an operator may have ended a log
		return nil, err
	}
	logs, err := l.Store.TransparencyLogs(ctx, org)
	if err != nil {
		return nil, err
	}
	var open *store.TransparencyLog
	byID := make(map[uuid.UUID]*store.TransparencyLog, len(logs))
	for _, log := range logs {
		if log.Tampered {
			return nil, l.changed(ctx, log, fmt.Errorf("a transparency log fails its authenticator: %w", ledger.ErrStateTampered))
		}
		if byID[log.ID] = log; log.ClosedAt == nil {
			open = log
		}
	}
	if signed, _, ok := l.Marks.Of(org.UUID); ok && (open == nil || open.ID != signed) {
		if byID[signed] == nil || byID[signed].ClosedAt == nil {
			missing := &store.TransparencyLog{ID: signed, Org: org}
			return nil, l.changed(ctx, missing, fmt.Errorf("the log %s was signed and is not stored: %w", tlog.LogID(signed), ledger.ErrStateTampered))
		}
		if err := l.Marks.EndLog(signed); err != nil {
			return nil, err
		}
	}
	if open != nil {
		return open, nil
	}
	return l.open(ctx, org)
}

// open opens a log. If several replicas do so concurrently, the store keeps one of them.
func (l *Signer) open(ctx context.Context, org ledger.OrgID) (*store.TransparencyLog, error) {
	var id tlog.LogID
	if _, err := io.ReadFull(l.Random, id[:]); err != nil {
		return nil, fmt.Errorf("make the id of a transparency log: %w", err)
	}
	record := &store.TransparencyLog{ID: uuid.UUID(id), Org: org, Origin: tlog.Origin(l.Instance, id), OpenedAt: l.now()}
	if err := l.Store.OpenTransparencyLog(ctx, record); err != nil {
		return nil, err
	}
	return record, nil
}
