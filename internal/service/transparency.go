package service

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/logsign"
	"countersign/internal/store"
	"countersign/internal/tlog"
	"countersign/internal/verify"
)

// transparencyService serves the transparency logs, and has them signed and witnessed.
type transparencyService struct {
	*shared
	findings *findingService
	logKeys  verify.LogKeys    // nil without them
	logMarks *keyring.LogMarks // nil without them
	signer   *logsign.Signer   // nil where this process signs no logs
}

// Signing is what a service needs to sign transparency logs.
type Signing struct {
	Keys LogSigner
	// Instance begins the origin of each log that this service opens.
	Instance string
}

// LogSigner knows the keys of checkpoints and signs with them.
type LogSigner = logsign.Keys

func (s *Service) newSigner(signing Signing) *logsign.Signer {
	return logsign.New(logsign.Config{
		Keys: signing.Keys, Instance: signing.Instance, Marks: s.logMarks, Store: s.store, Judge: s.judge, ReceiptKeys: s.keys,
		Clock: s.clock, Random: s.random, Log: s.log, Alone: s.alone, CloseEnded: s.closeEnded,
		Changed: func(org ledger.OrgID, log uuid.UUID) {
			s.noteFinding(pendingFinding{org: org, tampering: verify.TransparencyChanged(log), notify: true})
		},
	}, s.randomID())
}

// LogKeys lists the keys that sign checkpoints, or have signed them, the oldest first.
func (s *transparencyService) LogKeys() []keyring.LogKey {
	if s.logKeys == nil {
		return nil
	}
	return s.logKeys.LogKeys(s.clock())
}

// LogCheckpoint is the newest checkpoint of a log, as it is published, with the lines of
// witnesses that have cosigned it by now. Whoever knows the log's id may read it.
func (s *transparencyService) LogCheckpoint(ctx context.Context, id string) ([]byte, error) {
	log, c, err := s.publishedLog(ctx, id)
	if err != nil {
		return nil, err
	}
	cosigned, err := s.judge.AnyCheckpoint(ctx, log, true)
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return nil, s.logFault(log, err)
	case cosigned.Checkpoint == c.Checkpoint:
		c.Cosignatures = cosigned.Cosignatures
	}
	return c.Bytes(), nil
}

// LogTile returns a tile of a log by its path, checked against the newest checkpoint.
func (s *transparencyService) LogTile(ctx context.Context, id, path string) ([]byte, error) {
	tile, ok := tlog.ParseTilePath(path)
	if !ok {
		return nil, fault.ErrNotFound
	}
	log, c, err := s.publishedLog(ctx, id)
	if err != nil {
		return nil, err
	}
	if !tile.Within(c.Size) {
		return nil, fault.ErrNotFound
	}
	data, err := s.judge.Tree(ctx, log.ID, c.Checkpoint).Tile(tile)
	return data, s.logFault(log, err)
}

// publishedLog finds a log and its newest checkpoint.
func (s *transparencyService) publishedLog(ctx context.Context, text string) (*store.TransparencyLog, *verify.SignedCheckpoint, error) {
	id, ok := tlog.ParseLogID(text)
	if !ok {
		return nil, nil, fault.ErrNotFound
	}
	log, err := s.store.TransparencyLog(ctx, uuid.UUID(id))
	if err != nil {
		return nil, nil, visible(err)
	}
	c, err := s.judge.Checkpoint(ctx, log)
	return log, c, s.logFault(log, err)
}

// logFault returns what a caller may see of an error. If the error proves that a log was
// changed, it notes a finding and asks for a rebuild.
func (s *transparencyService) logFault(log *store.TransparencyLog, err error) error {
	err = verify.TreeFault(err)
	if errors.Is(err, ledger.ErrStateTampered) {
		s.findings.noteFinding(pendingFinding{org: log.Org, tampering: verify.TransparencyChanged(log.ID), notify: true})
		if s.signer != nil {
			s.signer.Rebuild(log.Org)
		}
	}
	return visible(err)
}

// LogProof proves that a receipt is in its organization's log.
type LogProof struct {
	Origin     string
	Checkpoint []byte // a signed note, with the lines of witnesses
	Size       int64
	Index      int64 // of the leaf, from 0
	Hashes     []tlog.Hash
}

var errNotSigned = fault.Errorf(fault.CodeUnavailable, "the receipt is in no signed checkpoint yet: try again in a second")

// InclusionProof proves that an organization's receipt with that sequence is in its log:
// under the newest cosigned checkpoint if that covers it, otherwise under the newest. The
// proof is checked against the checkpoint. A receipt that is not signed yet is unavailable.
func (s *transparencyService) InclusionProof(ctx context.Context, org ledger.OrgID, sequence int64) (*LogProof, error) {
	log, err := s.openLog(ctx, org)
	if err != nil {
		return nil, err
	}
	c, err := s.judge.Cosigned(ctx, log)
	if errors.Is(err, store.ErrNotFound) || err == nil && c.Size < sequence {
		c, err = s.judge.Checkpoint(ctx, log)
	}
	switch {
	case errors.Is(err, store.ErrNotFound), err == nil && c.Size < sequence:
		return nil, errNotSigned
	case err != nil:
		return nil, s.logFault(log, err)
	}
	proof := &LogProof{Origin: log.Origin, Checkpoint: c.Bytes(), Size: c.Size, Index: sequence - 1}
	found := false
	err = s.store.ScanReceipts(ctx, org, sequence, sequence, func(r *ledger.StoredReceipt) error {
		found = true
		leaf := tlog.LeafHash(r.Body)
		var err error
		proof.Hashes, err = s.judge.Tree(ctx, log.ID, c.Checkpoint).Inclusion(proof.Index, leaf)
		return err
	})
	switch {
	case err != nil:
		return nil, s.logFault(log, err)
	case !found:
		return nil, fault.ErrNotFound
	}
	return proof, nil
}

// openLog is the log of an organization that is signed now.
func (s *transparencyService) openLog(ctx context.Context, org ledger.OrgID) (*store.TransparencyLog, error) {
	logs, err := s.store.TransparencyLogs(ctx, org)
	if err != nil {
		return nil, visible(err)
	}
	for _, log := range logs {
		if log.Tampered {
			return nil, s.logFault(log, fmt.Errorf("a transparency log fails its authenticator: %w", ledger.ErrStateTampered))
		}
	}
	for _, log := range logs {
		if log.ClosedAt == nil {
			return log, nil
		}
	}
	return nil, errNotSigned
}

// LogKeyOf is a log's key under the log's name.
type LogKeyOf struct {
	keyring.LogKey
	VerifierKey string
}

// LogVerifierKeys are the keys of an organization's log, under the log's name, the oldest
// first; ledger.ErrNotFound where the organization is not known.
func (o *Operator) LogVerifierKeys(ctx context.Context, slug string) (origin string, keys []LogKeyOf, err error) {
	org, err := o.service.store.OrganizationBySlug(ctx, slug)
	if err != nil {
		return "", nil, visible(err)
	}
	log, err := o.service.openLog(ctx, org.ID)
	if err != nil {
		return "", nil, err
	}
	for _, key := range o.service.LogKeys() {
		vkey, err := tlog.VerifierKey(log.Origin, key.Public)
		if err != nil {
			return "", nil, err
		}
		keys = append(keys, LogKeyOf{key, vkey})
	}
	return log.Origin, keys, nil
}

// closing closes an organization's open log together with an act, because the database is no
// longer the one that was signed. The signer opens another log.
type closing struct {
	log *store.TransparencyLog // nil where none is open
	end *tlog.Checkpoint       // the last that was signed, as far as is known; nil for none
}

// closingOf reads what is to be closed. A log whose row fails cannot be: the signer refuses
// it, and the audit names it.
func (o *Operator) closingOf(ctx context.Context, org ledger.OrgID) (*closing, error) {
	log, err := o.service.openLog(ctx, org)
	switch {
	case errors.Is(err, errNotSigned), errors.Is(err, ledger.ErrStateTampered):
		return &closing{}, nil
	case err != nil:
		return nil, err
	}
	c := &closing{log: log}
	last, err := o.service.judge.AnyCheckpoint(ctx, log, false)
	switch {
	case err == nil:
		c.end = &last.Checkpoint
	case !errors.Is(err, store.ErrNotFound) && !errors.Is(err, ledger.ErrStateTampered):
		return nil, visible(err)
	}
	if o.service.logMarks == nil {
		return c, nil
	}
	if mark, ok := o.service.logMarks.Mark(log.ID); ok && (c.end == nil || mark.Size > c.end.Size) { // the database was put back
		c.end = &tlog.Checkpoint{Origin: log.Origin, Size: mark.Size, Root: mark.Root}
	}
	return c, nil
}

// closeEnded closes a log that is stored as open and must never be signed again.
func (s *Service) closeEnded(ctx context.Context, org ledger.OrgID) error {
	closing, err := s.Operator().closingOf(ctx, org)
	if err == nil && closing.log == nil {
		err = keyring.ErrLogEnded
	}
	if err != nil {
		return err
	}
	return s.committer.commit(ctx, &act{org: org, actor: ledger.ActorService, change: func(b *batch, _ *ledger.Organization) (*auditEntry, error) {
		closing.enter(b)
		return &auditEntry{action: ledger.ActTransparencyClose, target: tlog.LogID(closing.log.ID).String(), detail: details(closing.describe)}, nil
	}})
}

// endLogs notes outside the database that an organization's logs are never signed again. It
// is called before they are closed in the database: the signer closes an open log that has
// ended.
func (o *Operator) endLogs(org uuid.UUID) error {
	if o.service.logMarks == nil {
		return nil
	}
	return o.service.logMarks.End(org)
}

// enter enters the closing into a batch.
func (c *closing) enter(b *batch) {
	if c.log == nil {
		return
	}
	closed := *c.log
	closed.ClosedAt = &b.now
	b.changes.Transparency = append(b.changes.Transparency, &closed)
}

// describe says in an act where the log ended.
func (c *closing) describe(w *canon.ObjectWriter) {
	if c.log == nil {
		return
	}
	w.String("log_closed", tlog.LogID(c.log.ID).String())
	if c.end != nil {
		w.String("log_root", ledger.FormatHash(c.end.Root))
		w.Int("log_size", c.end.Size)
	}
}

// GrownLogs lists the organizations whose logs this replica has published since the last
// call, all of them in the first call since it became the signer. Replicas that are not the
// signer have none.
func (s *transparencyService) GrownLogs(ctx context.Context) (grown []ledger.OrgID, signs bool, err error) {
	if s.signer == nil {
		return nil, false, nil
	}
	grown, signs, err = s.signer.GrownLogs(ctx)
	return grown, signs, visible(err)
}

// LogToWitness is the newest checkpoint of an organization's log, which is to be shown to
// witnesses.
type LogToWitness struct {
	Org        ledger.OrgID
	Origin     string
	Size       int64
	Checkpoint []byte // a signed note, without the lines of witnesses
	// Cosigned is the newest cosigned checkpoint, with the lines of its witnesses, whose
	// number is Cosignatures; nil if there is none.
	Cosigned     []byte
	CosignedSize int64
	Cosignatures int

	log        *store.TransparencyLog
	checkpoint tlog.Checkpoint
}

// LogToWitness returns nil if there is nothing to cosign: no log, no receipt in it, or no
// signature by a key that is valid today.
func (s *transparencyService) LogToWitness(ctx context.Context, org ledger.OrgID) (*LogToWitness, error) {
	log, err := s.openLog(ctx, org)
	if errors.Is(err, errNotSigned) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	newest, err := s.judge.AnyCheckpoint(ctx, log, false)
	switch {
	case errors.Is(err, store.ErrNotFound), err == nil && (newest.Size == 0 || newest.Revoked):
		return nil, nil
	case err != nil:
		return nil, s.logFault(log, err)
	}
	found := &LogToWitness{Org: org, Origin: log.Origin, Size: newest.Size, Checkpoint: newest.Note, log: log, checkpoint: newest.Checkpoint}
	cosigned, err := s.judge.AnyCheckpoint(ctx, log, true)
	switch {
	case err == nil:
		found.Cosigned, found.CosignedSize, found.Cosignatures = cosigned.Bytes(), cosigned.Size, tlog.CountCosignatures(cosigned.Cosignatures)
	case errors.Is(err, ledger.ErrStateTampered): // told of, and replaced by the next cosignatures
		_ = s.logFault(log, err)
	case !errors.Is(err, store.ErrNotFound):
		return nil, visible(err)
	}
	return found, nil
}

// ProveToWitness proves that a checkpoint begins with the log at an older size: what a
// witness asks for. From size 0 on, and at the same size, the proof is empty.
func (s *transparencyService) ProveToWitness(ctx context.Context, log *LogToWitness, older int64) ([]tlog.Hash, error) {
	if older <= 0 || older >= log.Size {
		return nil, nil
	}
	proof, _, err := s.judge.Tree(ctx, log.log.ID, log.checkpoint).Consistency(older)
	return proof, s.logFault(log.log, err)
}

// AttachCosignatures stores the cosignatures of a checkpoint: lines to be appended to it,
// which the caller has verified. Stored lines of the same checkpoint stay unless they are by
// the same keys; those of a smaller checkpoint are replaced. If a larger one is stored,
// nothing changes.
func (s *transparencyService) AttachCosignatures(ctx context.Context, log *LogToWitness, cosignatures []byte) error {
	kept, err := s.judge.AnyCheckpoint(ctx, log.log, true)
	switch {
	case err == nil && kept.Checkpoint == log.checkpoint:
		cosignatures, err = tlog.MergeCosignatures(log.Checkpoint, kept.Cosignatures, cosignatures)
		if err != nil {
			return err
		}
	case err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, ledger.ErrStateTampered):
		return visible(err)
	}
	return visible(s.store.PutWitnessed(ctx, &store.LogCheckpoint{
		Log: log.log.ID, Size: log.Size, Root: log.checkpoint.Root, Note: log.Checkpoint, Cosignatures: cosignatures,
	}))
}
