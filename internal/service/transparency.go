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

// transparencyService serves the transparency logs, and provides what the submission to
// witnesses needs.
type transparencyService struct {
	*shared
	findings *findingService
	logKeys  verify.LogKeys    // nil if not configured
	logMarks *keyring.LogMarks // nil if not configured
	signer   *logsign.Signer   // nil if this process does not sign logs
}

// Signing configures the signing of transparency logs.
type Signing struct {
	Keys LogSigner
	// Instance is the prefix of the origin of each log that this service opens.
	Instance string
}

// LogSigner holds the keys of checkpoints and signs with them.
type LogSigner = logsign.Keys

func (s *Service) newSigner(signing Signing) *logsign.Signer {
	return logsign.New(logsign.Config{
		Keys: signing.Keys, Instance: signing.Instance, Marks: s.logMarks, Store: s.store, Heads: s.judge.Heads, Logs: s.judge.Logs, ReceiptKeys: s.keys,
		Clock: s.clock, Random: s.random, Log: s.log, Alone: s.alone, CloseEnded: s.closeEnded,
		Changed: func(org ledger.OrgID, log uuid.UUID) {
			s.noteFinding(pendingFinding{org: org, tampering: verify.TransparencyChanged(log), notify: true})
		},
	}, s.randomID())
}

// LogKeys lists the keys that sign checkpoints or have signed them, oldest first.
func (s *transparencyService) LogKeys() []keyring.LogKey {
	if s.logKeys == nil {
		return nil
	}
	return s.logKeys.LogKeys(s.clock())
}

// LogCheckpoint returns the newest published checkpoint of a log, with the lines of the
// witnesses that have cosigned it so far. Anyone who knows the log's id may read it.
func (s *transparencyService) LogCheckpoint(ctx context.Context, id string) ([]byte, error) {
	log, c, err := s.publishedLog(ctx, id)
	if err != nil {
		return nil, err
	}
	cosigned, err := s.judge.Logs.AnyCheckpoint(ctx, log, true)
	switch {
	case errors.Is(err, store.ErrNotFound):
	case errors.Is(err, ledger.ErrStateTampered): // reported, and published without
		_ = s.logFault(log, err)
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
	data, err := s.judge.Logs.Tree(ctx, log.ID, c.Checkpoint).Tile(tile)
	return data, s.logFault(log, err)
}

// publishedLog returns a log and its newest checkpoint.
func (s *transparencyService) publishedLog(ctx context.Context, text string) (*store.TransparencyLog, *verify.SignedCheckpoint, error) {
	id, ok := tlog.ParseLogID(text)
	if !ok {
		return nil, nil, fault.ErrNotFound
	}
	log, err := s.store.TransparencyLog(ctx, uuid.UUID(id))
	if err != nil {
		return nil, nil, visible(err)
	}
	c, err := s.judge.Logs.Checkpoint(ctx, log)
	return log, c, s.logFault(log, err)
}

// logFault returns what a caller may see of an error. If the error proves that a log was
// changed, logFault records a finding and requests a rebuild. If the log must be signed with
// another key, it asks the signer to do so.
func (s *transparencyService) logFault(log *store.TransparencyLog, err error) error {
	err = verify.TreeFault(err)
	if errors.Is(err, ledger.ErrStateTampered) {
		s.findings.noteFinding(pendingFinding{org: log.Org, tampering: verify.TransparencyChanged(log.ID), notify: true})
		if s.signer != nil {
			s.signer.Rebuild(log.Org)
		}
	}
	if errors.Is(err, verify.ErrLogKeyRevoked) && s.signer != nil {
		s.signer.Recheck(log.Org)
	}
	return visible(err)
}

// LogProof proves that a receipt is in its organization's log.
type LogProof struct {
	Origin     string
	Checkpoint []byte // a signed note, with the lines of witnesses
	Size       int64
	Index      int64 // of the leaf; starts at 0
	Hashes     []tlog.Hash
}

var errNotSigned = fault.Errorf(fault.CodeUnavailable, "the receipt is in no signed checkpoint yet: try again in a second")

// InclusionProof proves that the receipt with the given sequence is in its organization's log:
// under the newest cosigned checkpoint if that covers it, otherwise under the newest one. The
// proof has been verified. For a receipt that is not signed yet, the error is temporary.
func (s *transparencyService) InclusionProof(ctx context.Context, org ledger.OrgID, sequence int64) (*LogProof, error) {
	log, err := s.openLog(ctx, org)
	if err != nil {
		return nil, err
	}
	c, err := s.judge.Logs.Cosigned(ctx, log)
	changed := errors.Is(err, ledger.ErrStateTampered)
	if changed { // reported, and done without
		_ = s.logFault(log, err)
	}
	if changed || errors.Is(err, store.ErrNotFound) || err == nil && c.Size < sequence {
		c, err = s.judge.Logs.Checkpoint(ctx, log)
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
		proof.Hashes, err = s.judge.Logs.Tree(ctx, log.ID, c.Checkpoint).Inclusion(proof.Index, leaf)
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

// openLog returns the open log of an organization. The error is errNotSigned if there is none.
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

// LogKeyOf is a checkpoint key together with its verifier key for one log.
type LogKeyOf struct {
	keyring.LogKey
	VerifierKey string
}

// LogVerifierKeys returns the origin and the keys of an organization's log, oldest first. It
// returns fault.ErrNotFound if there is no such organization.
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
	log *store.TransparencyLog // nil if none is open
	end *tlog.Checkpoint       // the last checkpoint known to be signed; nil for none
}

// closingOf prepares the closing of an organization's open log. A log whose row fails
// authentication cannot be closed: the signer refuses it, and the audit reports it.
func (o *Operator) closingOf(ctx context.Context, org ledger.OrgID) (*closing, error) {
	log, err := o.service.openLog(ctx, org)
	switch {
	case errors.Is(err, errNotSigned), errors.Is(err, ledger.ErrStateTampered):
		return &closing{}, nil
	case err != nil:
		return nil, err
	}
	c := &closing{log: log}
	last, err := o.service.judge.Logs.AnyCheckpoint(ctx, log, false)
	switch {
	case err == nil:
		c.end = &last.Checkpoint
	case !errors.Is(err, store.ErrNotFound) && !errors.Is(err, ledger.ErrStateTampered):
		return nil, visible(err)
	}
	if o.service.logMarks == nil {
		return c, nil
	}
	if mark, ok := o.service.logMarks.Mark(log.ID); ok && (c.end == nil || mark.Size > c.end.Size) { // the database was rolled back
		c.end = &tlog.Checkpoint{Origin: log.Origin, Size: mark.Size, Root: mark.Root}
	}
	return c, nil
}

// closeEnded closes a log that is still open in the store, but must never be signed again. The
// command that ended it may be about to close it: if anything in the organization was changed
// since the log was read, closeEnded closes nothing, and the signer looks again.
func (s *Service) closeEnded(ctx context.Context, id ledger.OrgID) error {
	before, err := s.store.CurrentOrganization(ctx, id)
	if err != nil {
		return err
	}
	closing, err := s.Operator().closingOf(ctx, id)
	if err != nil || closing.log == nil {
		return err
	}
	return s.committer.commit(ctx, &act{org: id, actor: ledger.ActorService, change: func(b *batch, org *ledger.Organization) (*auditEntry, error) {
		if org.Controls.Act != before.Controls.Act {
			return nil, nil
		}
		closing.apply(b)
		return &auditEntry{action: ledger.ActTransparencyClose, target: tlog.LogID(closing.log.ID).String(), detail: details(closing.describe)}, nil
	}})
}

// endLogs records outside the database that an organization's logs must never be signed again.
// Call it before the logs are closed in the database: after a crash in between, the signer
// closes an open log that has ended.
func (o *Operator) endLogs(org uuid.UUID) error {
	if o.service.logMarks == nil {
		return nil
	}
	return o.service.logMarks.End(org)
}

// apply adds the closing to a batch.
func (c *closing) apply(b *batch) {
	if c.log == nil {
		return
	}
	closed := *c.log
	closed.ClosedAt = &b.now
	b.changes.Transparency = append(b.changes.Transparency, &closed)
}

// describe adds the end of the log to the detail of an act.
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

// GrownLogs lists the organizations whose logs this replica has published since the last call;
// in the first call since it became the signer, all organizations. signs reports whether this
// replica is the signer. If it is not, the list is empty.
func (s *transparencyService) GrownLogs(ctx context.Context) (grown []ledger.OrgID, signs bool, err error) {
	if s.signer == nil {
		return nil, false, nil
	}
	grown, signs, err = s.signer.GrownLogs(ctx)
	return grown, signs, visible(err)
}

// LogToWitness is the newest checkpoint of an organization's log, to be submitted to witnesses.
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

// LogToWitness returns the newest checkpoint of an organization's log. It returns nil if there
// is nothing to cosign: no log, no receipt in it, or no signature by a key that is valid today.
func (s *transparencyService) LogToWitness(ctx context.Context, org ledger.OrgID) (*LogToWitness, error) {
	log, err := s.openLog(ctx, org)
	if errors.Is(err, errNotSigned) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	newest, err := s.judge.Logs.AnyCheckpoint(ctx, log, false)
	switch {
	case errors.Is(err, store.ErrNotFound), err == nil && (newest.Size == 0 || newest.Revoked):
		return nil, nil
	case err != nil:
		return nil, s.logFault(log, err)
	}
	found := &LogToWitness{Org: org, Origin: log.Origin, Size: newest.Size, Checkpoint: newest.Note, log: log, checkpoint: newest.Checkpoint}
	cosigned, err := s.judge.Logs.AnyCheckpoint(ctx, log, true)
	switch {
	case err == nil:
		found.Cosigned, found.CosignedSize, found.Cosignatures = cosigned.Bytes(), cosigned.Size, tlog.CountCosignatures(cosigned.Cosignatures)
	case errors.Is(err, ledger.ErrStateTampered): // reported here, and replaced by the next cosignatures
		_ = s.logFault(log, err)
	case !errors.Is(err, store.ErrNotFound):
		return nil, visible(err)
	}
	return found, nil
}

// ProveToWitness returns the consistency proof that a witness asks for: that the log at an older
// size is a prefix of the checkpoint. From size 0, and at the same size, the proof is empty.
func (s *transparencyService) ProveToWitness(ctx context.Context, log *LogToWitness, older int64) ([]tlog.Hash, error) {
	if older <= 0 || older >= log.Size {
		return nil, nil
	}
	proof, _, err := s.judge.Logs.Tree(ctx, log.log.ID, log.checkpoint).Consistency(older)
	return proof, s.logFault(log.log, err)
}

// AttachCosignatures stores the cosignatures of a checkpoint: note lines that the caller has
// verified. Stored lines of the same checkpoint are kept unless they are by the same keys, and
// those of a smaller checkpoint are replaced. If a larger checkpoint is stored, nothing changes.
func (s *transparencyService) AttachCosignatures(ctx context.Context, log *LogToWitness, cosignatures []byte) error {
	kept, err := s.judge.Logs.AnyCheckpoint(ctx, log.log, true)
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
