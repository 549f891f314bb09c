package service

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"

	"countersign/internal/bundle"
	"countersign/internal/canon"
	"countersign/internal/evidence"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/tlog"
	"countersign/internal/verify"
)

// sharingService gives evidence to outsiders: tokens, shares and bundles. It also counts the
// use of the legacy routes.
type sharingService struct {
	*shared
	approvals    *approvalService
	findings     *findingService
	transparency *transparencyService
	tokenUses    lastUses[ledger.TokenID]
	legacyUses   legacyUses
	bundling     chan struct{} // semaphore: holds a value for each bundle that is being made
}

// TokenRequest is a request for a public verification token.
type TokenRequest struct {
	Artifact   string
	ArtifactID uuid.UUID
	ExpiresAt  *ledger.Time
}

// ParseTokenRequest reads the body of a request that issues a token.
func ParseTokenRequest(v canon.Value) (*TokenRequest, error) {
	f := canon.NewFields(v)
	request := &TokenRequest{
		Artifact:  f.OneOf("artifact_type", ledger.ArtifactApproval, ledger.ArtifactReceipt),
		ExpiresAt: ledger.ReadTime(f, "expires_at"),
	}
	if !f.Has("artifact_type") {
		f.Fault("artifact_type", "is required: approval or receipt")
	}
	id, err := ledger.ParseID(f.Text("artifact_id", 200))
	if err != nil {
		f.Fault("artifact_id", "is required: the id of the approval or the receipt")
	}
	request.ArtifactID = id
	return request, f.Err()
}

const tokenPrefix = "cvt_"

// IssueToken issues a token that gives the public the minimized verification of one artifact.
// The text is returned once: a retry with the same idempotency key returns the token without
// it.
func (s *sharingService) IssueToken(ctx context.Context, caller *Caller, request *TokenRequest, idempotencyKey string) (*store.TokenRecord, ledger.Secret, error) {
	return s.issue(ctx, caller, request, idempotencyKey, tokenPrefix)
}

func (s *sharingService) issue(ctx context.Context, caller *Caller, request *TokenRequest, idempotencyKey, prefix string) (*store.TokenRecord, ledger.Secret, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, ledger.Secret{}, err
	}
	if err := s.artifactExists(ctx, caller, request); err != nil {
		return nil, ledger.Secret{}, err
	}
	text := ledger.NewOpaqueToken(prefix, s.entropy())
	record := &store.TokenRecord{
		ID: ledger.TokenID{UUID: s.timedID(s.now())}, Org: caller.Org, Hash: ledger.HashToken(text.Reveal()),
		Artifact: request.Artifact, ArtifactID: request.ArtifactID, IdempotencyKey: idempotencyKey,
		CreatedAt: s.now(), ExpiresAt: request.ExpiresAt,
	}
	ref := store.TokenRef{Org: caller.Org, Key: idempotencyKey}
	var issued *store.TokenRecord
	op := &act{caller: caller, org: caller.Org}
	op.needs = func(needs *store.Needs) {
		if idempotencyKey != "" {
			needs.Issued = append(needs.Issued, ref)
		}
	}
	op.change = func(b *batch, org *ledger.Organization) (*auditEntry, error) {
		if record.Artifact == ledger.ArtifactShare && org.Settings.Exports() == ledger.ExportOff {
			return nil, errExportOff
		}
		if b.tampered(ref) {
			return nil, errTokenTampered
		}
		if earlier := b.loaded.Issued[ref]; earlier != nil && idempotencyKey != "" {
			if earlier.Artifact != record.Artifact || earlier.ArtifactID != record.ArtifactID || !sameTime(earlier.ExpiresAt, record.ExpiresAt) {
				return nil, fault.Errorf(fault.CodeIdempotencyConflict, "this Idempotency-Key issued another token already: use a new key for a new token")
			}
			issued = earlier
			return nil, nil
		}
		if record.ExpiresAt != nil && *record.ExpiresAt <= b.now {
			return nil, fault.Invalid(fault.FieldError{Pointer: "/expires_at", Detail: "must be in the future"})
		}
		issued = record
		b.changes.NewTokens = append(b.changes.NewTokens, record)
		if idempotencyKey != "" {
			b.loaded.Issued[ref] = record
		}
		return tokenAuditEntry(ledger.ActTokenCreate, record), nil
	}
	if err := s.committer.commit(ctx, op); err != nil {
		return nil, ledger.Secret{}, err
	}
	if issued != record {
		return issued, ledger.Secret{}, nil
	}
	return record, text, nil
}

var errTokenTampered = fmt.Errorf("a public token fails its authenticator: %w", ledger.ErrStateTampered)

func sameTime(a, b *ledger.Time) bool {
	return (a == nil) == (b == nil) && (a == nil || *a == *b)
}

func tokenAuditEntry(action string, t *store.TokenRecord) *auditEntry {
	return &auditEntry{action: action, target: t.ID.String(), detail: details(func(w *canon.ObjectWriter) {
		w.String("artifact_id", t.ArtifactID.String())
		w.String("artifact_type", t.Artifact)
		w.StringOrNull("expires_at", formatTime(t.ExpiresAt))
		if t.RevokedAt != nil {
			w.StringOrNull("reason", t.RevocationReason)
			writeChange(w, "status", "active", "revoked")
		}
	})}
}

// artifactExists returns ErrNotFound for an artifact that does not exist or belongs to another
// organization.
func (s *sharingService) artifactExists(ctx context.Context, caller *Caller, request *TokenRequest) error {
	var org ledger.OrgID
	if request.Artifact == ledger.ArtifactApproval {
		approval, err := s.approvals.findApproval(ctx, ledger.ApprovalID{UUID: request.ArtifactID})
		if err != nil {
			return visible(err)
		}
		org = approval.org
	} else {
		record, err := s.store.Receipt(ctx, ledger.ReceiptID{UUID: request.ArtifactID})
		if err != nil {
			return visible(err)
		}
		org = record.Org
	}
	if org != caller.Org {
		return fault.ErrNotFound
	}
	return nil
}

// TokenStatus returns the status of a token at a time.
func TokenStatus(t *store.TokenRecord, now ledger.Time) string {
	switch {
	case t.Tampered:
		return "tampered"
	case t.RevokedAt != nil:
		return "revoked"
	case t.ExpiresAt != nil && now >= *t.ExpiresAt:
		return "expired"
	default:
		return "active"
	}
}

// Now returns the service's time, for views that depend on it.
func (s *shared) Now() ledger.Time { return s.now() }

// Tokens lists the organization's tokens, newest first, without their texts.
func (s *sharingService) Tokens(ctx context.Context, caller *Caller, before *ledger.TokenID, limit int) ([]*store.TokenRecord, error) {
	return s.listTokens(ctx, caller, before, limit, false)
}

// listTokens lists either shares or the other tokens. A token that fails authentication is in
// both lists, because its kind is unknown.
func (s *sharingService) listTokens(ctx context.Context, caller *Caller, before *ledger.TokenID, limit int, shares bool) ([]*store.TokenRecord, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	var listed []*store.TokenRecord
	for {
		page, err := s.store.Tokens(ctx, caller.Org, before, limit)
		if err != nil {
			return nil, visible(err)
		}
		for _, token := range page {
			if before = &token.ID; token.Tampered || (token.Artifact == ledger.ArtifactShare) == shares {
				listed = append(listed, token)
			}
			if len(listed) == limit {
				return listed, nil
			}
		}
		if len(page) < limit {
			return listed, nil
		}
	}
}

// ParseRevocation reads the body of a request that revokes a token. The zero Value stands for
// an empty body.
func ParseRevocation(v canon.Value) (string, error) {
	if v.IsNull() {
		return "", nil
	}
	f := canon.NewFields(v)
	reason := f.Name("reason", 500)
	return reason, f.Err()
}

// RevokeToken revokes a token for the next request on every replica. It is idempotent: the
// first reason is kept.
func (s *sharingService) RevokeToken(ctx context.Context, caller *Caller, id ledger.TokenID, reason string) (*store.TokenRecord, error) {
	return s.revokeToken(ctx, caller, id, reason, false)
}

func (s *sharingService) revokeToken(ctx context.Context, caller *Caller, id ledger.TokenID, reason string, share bool) (*store.TokenRecord, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	var revoked store.TokenRecord
	op := &act{caller: caller, org: caller.Org}
	op.needs = func(needs *store.Needs) { needs.Tokens = append(needs.Tokens, id) }
	op.change = func(b *batch, org *ledger.Organization) (*auditEntry, error) {
		if b.tampered(id) {
			return nil, errTokenTampered
		}
		token := b.loaded.Tokens[id]
		if token == nil || token.Org != org.ID || (token.Artifact == ledger.ArtifactShare) != share {
			return nil, fault.ErrNotFound
		}
		if revoked = *token; token.RevokedAt != nil {
			return nil, nil
		}
		now := b.now
		revoked.RevokedAt, revoked.RevocationReason = &now, reason
		b.loaded.Tokens[id] = &revoked
		b.changes.RevokedTokens = append(b.changes.RevokedTokens, &revoked)
		return tokenAuditEntry(ledger.ActTokenRevoke, &revoked), nil
	}
	if err := s.committer.commit(ctx, op); err != nil {
		return nil, err
	}
	return &revoked, nil
}

// openToken returns an active token by its text. It returns ErrNotFound whatever is wrong with
// the token, including a share that is used as a token, or a token as a share.
func (s *sharingService) openToken(ctx context.Context, text string, share bool) (*store.ActiveToken, error) {
	now := s.now()
	token, err := s.store.ActiveToken(ctx, ledger.HashToken(text), now)
	if errors.Is(err, store.ErrNotFound) {
		return nil, fault.ErrNotFound
	}
	if err != nil {
		return nil, visible(err)
	}
	if token.Tampered {
		s.log.Error("a public token's record was changed outside the service: run countersign audit")
		s.findings.noteFinding(pendingFinding{org: token.Org, tampering: &verify.Tampering{Check: ledger.CheckRegistry, Place: "a public token was changed outside the service"}})
		return nil, fault.ErrNotFound
	}
	if (token.Artifact == ledger.ArtifactShare) != share {
		return nil, fault.ErrNotFound
	}
	s.tokenUses.note(token.ID, now)
	return token, nil
}

// VerifyToken is the public verification through a token.
func (s *sharingService) VerifyToken(ctx context.Context, text string) (*ledger.PublicVerification, error) {
	epoch := s.store.Epoch()
	token, err := s.openToken(ctx, text, false)
	if err != nil {
		return nil, err
	}
	v, err := s.verifyOpened(ctx, token, epoch)
	if err != nil {
		return nil, err
	}
	s.noteProven(token.Org, v)
	public := ledger.Minimize(v)
	return &public, nil
}

// ParseComparison reads the body of a request that compares a hash with a token's artifact.
func ParseComparison(v canon.Value) ([32]byte, error) {
	f := canon.NewFields(v)
	text := f.Text("hash", 200)
	hash, ok := ledger.ParseHash(text)
	if !ok {
		f.Fault("hash", "must be sha256: and 64 hexadecimal digits in lower case: the hash of the receipt, or of the approval's decision record")
	}
	return hash, f.Err()
}

// CompareToken reports whether a token's receipt or approval has this hash. A record that fails
// authentication and an undecided approval have none.
func (s *sharingService) CompareToken(ctx context.Context, text string, hash [32]byte) (bool, error) {
	token, err := s.openToken(ctx, text, false)
	if err != nil {
		return false, err
	}
	if token.Artifact == ledger.ArtifactReceipt {
		receipt, err := token.Receipt(ctx)
		if err != nil || receipt == nil {
			return false, visible(err)
		}
		in := s.judge.Receipts.Inspect(&receipt.NamedReceipt)
		return in.Fault == "" && in.Hash == hash, nil
	}
	approval, err := s.approvals.findApproval(ctx, ledger.ApprovalID{UUID: token.ArtifactID})
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, visible(err)
	}
	own, ok, err := approval.hash()
	return ok && own == hash, visible(err)
}

// verifyOpened verifies a token's artifact. The epoch was taken before the token was read.
func (s *sharingService) verifyOpened(ctx context.Context, token *store.ActiveToken, epoch evidence.Epoch) (*ledger.Verification, error) {
	if token.Artifact == ledger.ArtifactReceipt {
		return s.verifyOpenedReceipt(ctx, token, epoch)
	}
	_, v, err := s.verifyApprovalPublicly(ctx, ledger.ApprovalID{UUID: token.ArtifactID})
	if errors.Is(err, fault.ErrNotFound) {
		return s.judge.MissingArtifact(token.Artifact, token.ArtifactID), nil
	}
	return v, err
}

func (s *sharingService) verifyOpenedReceipt(ctx context.Context, token *store.ActiveToken, epoch evidence.Epoch) (*ledger.Verification, error) {
	if v := s.judge.Receipts.Proven(ledger.ReceiptID{UUID: token.ArtifactID}, epoch); v != nil {
		return v, nil
	}
	receipt, err := token.Receipt(ctx)
	if err != nil {
		return nil, visible(err)
	}
	if receipt == nil {
		return s.judge.MissingArtifact(token.Artifact, token.ArtifactID), nil
	}
	v, err := s.judge.Receipts.Prove(ctx, receipt, epoch)
	return v, visible(err)
}

// verifyApprovalPublicly verifies an approval for an outsider. It also returns the approval's
// organization.
func (s *sharingService) verifyApprovalPublicly(ctx context.Context, id ledger.ApprovalID) (ledger.OrgID, *ledger.Verification, error) {
	approval, err := s.approvals.findApproval(ctx, id)
	if err != nil {
		return ledger.OrgID{}, nil, visible(err)
	}
	v, err := approval.judge(ctx)
	return approval.org, v, visible(err)
}

// noteProven records the tampering that a public request has proven. It notifies nobody,
// because outsiders must not be able to trigger notices; the self-check does.
func (s *sharingService) noteProven(org ledger.OrgID, v *ledger.Verification) {
	if t := verify.FromVerification(v); t != nil {
		s.findings.noteFinding(pendingFinding{org: org, tampering: t})
	}
}

// VerifyApprovalPublicly is the legacy public verification by an approval's id. It counts the
// use of the route.
func (s *sharingService) VerifyApprovalPublicly(ctx context.Context, route string, id ledger.ApprovalID) (*ledger.PublicVerification, error) {
	org, v, err := s.verifyApprovalPublicly(ctx, id)
	s.NoteLegacyUse(route, org)
	if err != nil {
		return nil, err
	}
	s.noteProven(org, v)
	public := ledger.Minimize(v)
	return &public, nil
}

// FlushTokenUse stores when tokens were last used. The worker calls it regularly, and the server
// when it shuts down.
func (s *sharingService) FlushTokenUse(ctx context.Context) error {
	return s.tokenUses.flush(ctx, s.store.TouchTokens)
}

// ParseShareRequest reads the body of a request that shares a receipt.
func ParseShareRequest(v canon.Value) (*TokenRequest, error) {
	f := canon.NewFields(v)
	request := &TokenRequest{Artifact: ledger.ArtifactShare, ExpiresAt: ledger.ReadTime(f, "expires_at")}
	id, err := ledger.ParseID(f.Text("receipt_id", 200))
	if err != nil {
		f.Fault("receipt_id", "is required: the id of the receipt")
	}
	request.ArtifactID = id
	return request, f.Err()
}

const sharePrefix = "cvs_"

// Share creates a link that serves outsiders a receipt with its proof, without events and
// decision records. A share is a kind of token: it is listed, revoked and audited like one.
func (s *sharingService) Share(ctx context.Context, caller *Caller, request *TokenRequest, idempotencyKey string) (*store.TokenRecord, ledger.Secret, error) {
	return s.issue(ctx, caller, request, idempotencyKey, sharePrefix)
}

// Shares lists the organization's shares, newest first, without their texts.
func (s *sharingService) Shares(ctx context.Context, caller *Caller, before *ledger.TokenID, limit int) ([]*store.TokenRecord, error) {
	return s.listTokens(ctx, caller, before, limit, true)
}

// RevokeShare revokes a share for the next request on every replica.
func (s *sharingService) RevokeShare(ctx context.Context, caller *Caller, id ledger.TokenID, reason string) (*store.TokenRecord, error) {
	return s.revokeToken(ctx, caller, id, reason, true)
}

// OpenShare returns the bundle of a share, without events and decision records. It returns
// ErrNotFound if the organization has disabled exports.
func (s *sharingService) OpenShare(ctx context.Context, text string) ([]byte, error) {
	token, err := s.openToken(ctx, text, true)
	if err != nil {
		return nil, err
	}
	org, err := s.organization(ctx, token.Org)
	if err != nil {
		return nil, err
	}
	if org.Settings.Exports() == ledger.ExportOff {
		return nil, fault.ErrNotFound
	}
	receipt, err := s.store.PlacedReceipt(ctx, ledger.ReceiptID{UUID: token.ArtifactID})
	if errors.Is(err, store.ErrNotFound) { // the share is authentic, so the receipt existed
		s.noteProven(token.Org, s.judge.MissingArtifact(ledger.ArtifactReceipt, token.ArtifactID))
		err = fmt.Errorf("the receipt of a share is missing: %w", ledger.ErrStateTampered)
	}
	if err != nil {
		return nil, visible(err)
	}
	return s.makeBundle(ctx, receipt, false, false)
}

// BundleType is the media type of a bundle.
const BundleType = bundle.MediaType

// maxBundles is how many bundles a process makes at the same time: each is held in memory.
const maxBundles = 2

// bundleWait is how long a request waits while maxBundles are being made.
const bundleWait = 2 * time.Second

var errBundlesBusy = fault.Errorf(fault.CodeUnavailable, "other bundles are being made: try again in some seconds")

var errExportOff = fault.Errorf(fault.CodeForbidden, "this organization lets no evidence leave the service: an admin can change that with the setting evidence_export")

// Bundle returns the evidence of one receipt for an admin: a file that anyone can verify
// offline. Payloads are optional.
func (s *sharingService) Bundle(ctx context.Context, caller *Caller, id ledger.ReceiptID, payloads bool) ([]byte, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	receipt, err := s.store.PlacedReceipt(ctx, id)
	if err != nil {
		return nil, visible(err)
	}
	if receipt.Org != caller.Org {
		return nil, fault.ErrNotFound
	}
	if org.Settings.Exports() != ledger.ExportAdmins {
		return nil, errExportOff
	}
	return s.makeBundle(ctx, receipt, true, payloads)
}

// makeBundle collects the evidence of a receipt and its proof. It verifies the bundle as its
// readers will.
func (s *sharingService) makeBundle(ctx context.Context, receipt *store.PlacedReceipt, full, payloads bool) ([]byte, error) {
	timer := time.NewTimer(bundleWait)
	defer timer.Stop()
	select {
	case s.bundling <- struct{}{}:
		defer func() { <-s.bundling }()
	case <-timer.C:
		return nil, errBundlesBusy
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	export, err := s.judge.Receipts.Export(ctx, receipt, full)
	if err != nil {
		return nil, s.exportFault(receipt, err)
	}
	proof, err := s.transparency.InclusionProof(ctx, receipt.Org, receipt.Sequence)
	if err != nil {
		return nil, err
	}
	b := &bundle.Bundle{
		GeneratedAt: s.now().String(), Receipt: string(receipt.Body), ReceiptHash: ledger.FormatHash(receipt.Hash()),
		LogProof: logProof(proof), Anchors: bundledAnchors(export.Anchors), Full: full,
	}
	if full {
		b.Entries, b.Approvals = bundledEntries(export.Entries, payloads), bundledApprovals(export.Approvals)
		if b.SigningKeys, err = s.signedRegistry(ctx, receipt.Org, proof.Origin); err != nil {
			return nil, err
		}
	}
	data := b.Encode()
	if len(data) > bundle.MaxSize {
		return nil, verify.ErrTooLargeToExport
	}
	return data, s.checkBundle(data, proof.Origin)
}

// exportFault returns the error that a caller may see if evidence cannot be exported. It
// records tampering as a finding.
func (s *sharingService) exportFault(receipt *store.PlacedReceipt, err error) error {
	if errors.Is(err, ledger.ErrStateTampered) {
		s.findings.noteFinding(pendingFinding{org: receipt.Org, tampering: &verify.Tampering{Check: ledger.CheckSignature, Receipt: receipt.ID}})
	}
	return visible(err)
}

// checkBundle verifies a bundle with the log's own keys: no bundle is returned that its reader
// would refuse.
func (s *sharingService) checkBundle(data []byte, origin string) error {
	var keys bundle.Keys
	for _, key := range s.transparency.LogKeys() {
		vkey, err := tlog.VerifierKey(origin, key.Public)
		if err != nil {
			return err
		}
		keys.Log = append(keys.Log, vkey)
	}
	trust, err := bundle.NewTrust(keys)
	if err != nil {
		return err
	}
	verdict, err := trust.Verify(data)
	if err != nil {
		return err
	}
	if verdict.Status != bundle.Verified {
		return fmt.Errorf("a bundle does not verify: %+v", verdict.Checks)
	}
	return nil
}

func logProof(p *LogProof) string {
	proof := bundle.Proof{Index: p.Index, Hashes: p.Hashes, Checkpoint: string(p.Checkpoint)}
	return proof.String()
}

func bundledEntries(entries []*ledger.StoredEvent, payloads bool) []bundle.Entry {
	list := make([]bundle.Entry, len(entries))
	for i, entry := range entries {
		list[i].Body = string(entry.Body)
		if payloads && entry.Payload != nil {
			list[i].Payload = optionalText(entry.Payload)
			list[i].Redactions = optionalText(entry.Redactions)
		}
	}
	return list
}

func optionalText(data []byte) *string {
	if data == nil {
		return nil
	}
	text := string(data)
	return &text
}

func bundledApprovals(approvals []*ledger.Approval) []bundle.Approval {
	list := make([]bundle.Approval, len(approvals))
	for i, approval := range approvals {
		list[i].Record = string(approval.DecisionRecord())
		if len(approval.Signature) > 0 {
			list[i].KeyID, list[i].Signature = approval.SigningKey.String(), base64.StdEncoding.EncodeToString(approval.Signature)
		}
	}
	return list
}

func bundledAnchors(anchors []*ledger.Anchor) []bundle.Anchor {
	list := make([]bundle.Anchor, len(anchors))
	for i, anchor := range anchors {
		list[i] = bundle.Anchor{
			Digest: ledger.FormatHash(anchor.Digest), Method: anchor.Method,
			Proof: base64.StdEncoding.EncodeToString(anchor.Proof), Subject: bundle.SubjectReceipt,
		}
		if anchor.Kind == ledger.SubjectApproval {
			list[i].Subject = anchor.Subject.String()
		}
	}
	return list
}

// signedRegistry returns the organization's registry of signing keys, signed with the log's
// keys.
func (s *sharingService) signedRegistry(ctx context.Context, org ledger.OrgID, origin string) (string, error) {
	if s.transparency.signer == nil {
		return "", errNotSigned
	}
	records, err := s.store.SigningKeys(ctx, org)
	if err != nil {
		return "", visible(err)
	}
	if !evidence.AllAuthentic(records) {
		return "", visible(errRegistry)
	}
	keys := make([]bundle.SigningKey, len(records))
	for i, record := range records {
		keys[i] = bundle.SigningKey{
			CreatedAt: record.CreatedAt.String(), ID: record.ID.String(), Public: ed25519.PublicKey(record.Public), Status: record.Status,
		}
		switch {
		case record.RevokedAt != nil:
			keys[i].EndedAt = record.RevokedAt.String()
		case record.RetiredAt != nil:
			keys[i].EndedAt = record.RetiredAt.String()
		}
	}
	signers, _ := s.transparency.signer.NoteSigners(origin)
	signed, err := note.Sign(&note.Note{Text: bundle.RegistryText(origin, s.now().String(), keys)}, signers...)
	return string(signed), err
}

// legacyUses counts requests on legacy routes until a flush stores them: a read must not cost a
// write.
type legacyUses struct {
	mu     sync.Mutex // guards counts
	counts map[store.LegacyUseRef]int64
}

// maxLegacyUses bounds the map. Further uses are counted without an organization until the next
// flush.
const maxLegacyUses = 10_000

// beginningOfDay returns the start of the day in UTC.
func beginningOfDay(at ledger.Time) ledger.Time { return at.Truncate(oneDay) }

func (u *legacyUses) add(use store.LegacyUseRef, requests int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.counts == nil {
		u.counts = make(map[store.LegacyUseRef]int64)
	}
	if _, known := u.counts[use]; !known && len(u.counts) >= maxLegacyUses {
		use.Org = ledger.OrgID{} // there are few routes and days
	}
	u.counts[use] += requests
}

func (u *legacyUses) take() map[store.LegacyUseRef]int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	taken := u.counts
	u.counts = nil
	return taken
}

// NoteLegacyUse counts a request on a legacy route for the organization of the requested
// artifact; the zero id if it is unknown.
func (s *sharingService) NoteLegacyUse(route string, org ledger.OrgID) {
	s.legacyUses.add(store.LegacyUseRef{Org: org, Day: beginningOfDay(s.now()), Route: route}, 1)
}

// FlushLegacyUse stores how often legacy routes were used. The worker calls it regularly, and the
// server when it shuts down. If the write fails, the counts are kept for the next call. A write
// whose outcome is unknown may be counted twice.
func (s *sharingService) FlushLegacyUse(ctx context.Context) error {
	taken := s.legacyUses.take()
	if len(taken) == 0 {
		return nil
	}
	if err := s.store.AddLegacyUses(ctx, taken); err != nil {
		for use, requests := range taken {
			s.legacyUses.add(use, requests)
		}
		return visible(err)
	}
	return nil
}

// LegacyUse lists how often the organization's artifacts were requested on legacy routes in the
// last days, including today. Counts that are not flushed yet are missing.
func (s *sharingService) LegacyUse(ctx context.Context, caller *Caller, days int) ([]*store.LegacyUse, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	return s.readLegacyUse(ctx, &caller.Org, days)
}

// LegacyUse is Service.LegacyUse for one organization or, without a slug, for all of them and
// for requests of an unknown organization.
func (o *Operator) LegacyUse(ctx context.Context, slug string, days int) ([]*store.LegacyUse, error) {
	if slug == "" {
		return o.service.readLegacyUse(ctx, nil, days)
	}
	org, err := o.Organization(ctx, slug)
	if err != nil {
		return nil, err
	}
	return o.service.readLegacyUse(ctx, &org.ID, days)
}

func (s *sharingService) readLegacyUse(ctx context.Context, org *ledger.OrgID, days int) ([]*store.LegacyUse, error) {
	const page = 1000
	query := store.LegacyUseQuery{Org: org, Since: beginningOfDay(s.now()).Add(-time.Duration(days-1) * oneDay), Limit: page}
	var uses []*store.LegacyUse
	for {
		found, err := s.store.LegacyUses(ctx, query)
		if err != nil {
			return nil, visible(err)
		}
		uses = append(uses, found...)
		if len(found) < page {
			return uses, nil
		}
		query.After = &found[page-1].LegacyUseRef
	}
}
