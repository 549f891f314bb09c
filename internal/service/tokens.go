package service

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// TokenRequest asks for a public verification token.
type TokenRequest struct {
	Artifact   string
	ArtifactID uuid.UUID
	ExpiresAt  *ledger.Time
}

// ParseTokenRequest reads the body of a request that issues a token.
func ParseTokenRequest(v canon.Value) (*TokenRequest, error) {
	f := ledger.NewFields(v)
	request := &TokenRequest{
		Artifact:  f.OneOf("artifact_type", ledger.ArtifactApproval, ledger.ArtifactReceipt),
		ExpiresAt: f.Time("expires_at"),
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

// IssueToken makes a token that shows strangers the minimized verification of one
// artifact. The text is returned once: under the same idempotency key the token
// is found again, without it.
func (s *Service) IssueToken(ctx context.Context, caller *Caller, request *TokenRequest, idempotencyKey string) (*store.TokenRecord, ledger.Secret, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, ledger.Secret{}, err
	}
	if err := s.artifactExists(ctx, caller, request); err != nil {
		return nil, ledger.Secret{}, err
	}
	text := ledger.NewOpaqueToken(tokenPrefix, s.entropy())
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
	op.change = func(b *batch, _ *ledger.Organization) (*deed, error) {
		if b.tampered(ref) {
			return nil, errTokenTampered
		}
		if earlier := b.loaded.Issued[ref]; earlier != nil && idempotencyKey != "" {
			if earlier.Artifact != record.Artifact || earlier.ArtifactID != record.ArtifactID || !sameTime(earlier.ExpiresAt, record.ExpiresAt) {
				return nil, ledger.Errorf(ledger.CodeIdempotencyConflict, "this Idempotency-Key issued another token already: use a new key for a new token")
			}
			issued = earlier
			return nil, nil
		}
		if record.ExpiresAt != nil && *record.ExpiresAt <= b.now {
			return nil, ledger.Invalid(ledger.FieldError{Pointer: "/expires_at", Detail: "must be in the future"})
		}
		issued = record
		b.changes.NewTokens = append(b.changes.NewTokens, record)
		if idempotencyKey != "" {
			b.loaded.Issued[ref] = record
		}
		return tokenDeed(ledger.ActTokenCreate, record), nil
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

func tokenDeed(action string, t *store.TokenRecord) *deed {
	return &deed{action: action, target: t.ID.String(), detail: details(func(w *canon.ObjectWriter) {
		w.String("artifact_id", t.ArtifactID.String())
		w.String("artifact_type", t.Artifact)
		w.StringOrNull("expires_at", moment(t.ExpiresAt))
		if t.RevokedAt != nil {
			w.StringOrNull("reason", t.RevocationReason)
			moved(w, "status", "active", "revoked")
		}
	})}
}

// artifactExists refuses an artifact that is not there, or another
// organization's, with one and the same answer.
func (s *Service) artifactExists(ctx context.Context, caller *Caller, request *TokenRequest) error {
	var org ledger.OrgID
	if request.Artifact == ledger.ArtifactApproval {
		approval, err := s.findApproval(ctx, ledger.ApprovalID{UUID: request.ArtifactID})
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
		return ledger.ErrNotFound
	}
	return nil
}

// TokenStatus is where a token stands at a moment.
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

// Now is the service's time, for what depends on it when it is shown.
func (s *Service) Now() ledger.Time { return s.now() }

// Tokens lists the organization's tokens, newest first, never their texts.
func (s *Service) Tokens(ctx context.Context, caller *Caller, before *ledger.TokenID, limit int) ([]*store.TokenRecord, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	tokens, err := s.store.Tokens(ctx, caller.Org, before, limit)
	return tokens, visible(err)
}

// ParseRevocation reads the body of a request that revokes a token; the zero
// Value stands for no body.
func ParseRevocation(v canon.Value) (string, error) {
	if v.IsNull() {
		return "", nil
	}
	f := ledger.NewFields(v)
	reason := f.Name("reason", 500)
	return reason, f.Err()
}

// RevokeToken ends a token with the next request on every replica. Repeating it
// changes nothing, and the first reason stands.
func (s *Service) RevokeToken(ctx context.Context, caller *Caller, id ledger.TokenID, reason string) (*store.TokenRecord, error) {
	if err := caller.require(ledger.RoleAdmin); err != nil {
		return nil, err
	}
	var revoked store.TokenRecord
	op := &act{caller: caller, org: caller.Org}
	op.needs = func(needs *store.Needs) { needs.Tokens = append(needs.Tokens, id) }
	op.change = func(b *batch, org *ledger.Organization) (*deed, error) {
		if b.tampered(id) {
			return nil, errTokenTampered
		}
		token := b.loaded.Tokens[id]
		if token == nil || token.Org != org.ID {
			return nil, ledger.ErrNotFound
		}
		if revoked = *token; token.RevokedAt != nil {
			return nil, nil
		}
		now := b.now
		revoked.RevokedAt, revoked.RevocationReason = &now, reason
		b.loaded.Tokens[id] = &revoked
		b.changes.RevokedTokens = append(b.changes.RevokedTokens, &revoked)
		return tokenDeed(ledger.ActTokenRevoke, &revoked), nil
	}
	if err := s.committer.commit(ctx, op); err != nil {
		return nil, err
	}
	return &revoked, nil
}

// openToken finds what a token opens. Whatever is wrong with the token, the answer is the
// same.
func (s *Service) openToken(ctx context.Context, text string) (*store.ActiveToken, error) {
	now := s.now()
	token, err := s.store.ActiveToken(ctx, ledger.HashToken(text), now)
	if errors.Is(err, store.ErrNotFound) {
		return nil, ledger.ErrNotFound
	}
	if err != nil {
		return nil, visible(err)
	}
	if token.Tampered {
		s.log.Error("a public token's record was changed outside the service: run countersign audit")
		s.notice(metTampering{org: token.Org, tampering: &verify.Tampering{Check: ledger.CheckRegistry, Place: "a public token was changed outside the service"}})
		return nil, ledger.ErrNotFound
	}
	s.used.note(token.ID, now)
	return token, nil
}

// VerifyToken is the public verification through a token.
func (s *Service) VerifyToken(ctx context.Context, text string) (*ledger.PublicVerification, error) {
	token, err := s.openToken(ctx, text)
	if err != nil {
		return nil, err
	}
	v, err := s.verifyOpened(ctx, token)
	if err != nil {
		return nil, err
	}
	s.noticeProven(token.Org, v)
	public := ledger.Minimize(v)
	return &public, nil
}

// ParseComparison reads the body of a request that compares a hash with what a token is
// about.
func ParseComparison(v canon.Value) ([32]byte, error) {
	f := ledger.NewFields(v)
	text := f.Text("hash", 200)
	hash, ok := ledger.ParseHash(text)
	if !ok {
		f.Fault("hash", "must be sha256: and 64 hexadecimal digits in lower case: the hash of the receipt, or of the approval's decision record")
	}
	return hash, f.Err()
}

// CompareToken reports whether a token is about the receipt, or the approval, of which
// somebody holds a copy with this hash. Nothing matches a record that fails, nor an
// approval that is not decided.
func (s *Service) CompareToken(ctx context.Context, text string, hash [32]byte) (bool, error) {
	token, err := s.openToken(ctx, text)
	if err != nil {
		return false, err
	}
	if token.Artifact == ledger.ArtifactReceipt {
		if token.Receipt == nil {
			return false, nil
		}
		in := s.judge.InspectReceipt(&token.Receipt.NamedReceipt)
		return in.Fault == "" && in.Hash == hash, nil
	}
	approval, err := s.findApproval(ctx, ledger.ApprovalID{UUID: token.ArtifactID})
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, visible(err)
	}
	own, ok, err := approval.hash()
	return ok && own == hash, visible(err)
}

// verifyOpened verifies what a token opens.
func (s *Service) verifyOpened(ctx context.Context, token *store.ActiveToken) (*ledger.Verification, error) {
	switch {
	case token.Receipt != nil:
		v, err := s.judge.Receipt(ctx, token.Receipt, verify.Rationed)
		return v, visible(err)
	case token.Artifact == ledger.ArtifactReceipt:
		return s.judge.Gone(token.Artifact, token.ArtifactID), nil
	}
	_, v, err := s.verifyApprovalPublicly(ctx, ledger.ApprovalID{UUID: token.ArtifactID})
	if errors.Is(err, ledger.ErrNotFound) {
		return s.judge.Gone(token.Artifact, token.ArtifactID), nil
	}
	return v, err
}

// verifyApprovalPublicly also says whose approval it is, where there is one.
func (s *Service) verifyApprovalPublicly(ctx context.Context, id ledger.ApprovalID) (ledger.OrgID, *ledger.Verification, error) {
	approval, err := s.findApproval(ctx, id)
	if err != nil {
		return ledger.OrgID{}, nil, visible(err)
	}
	v, err := approval.judge(ctx)
	if err == nil {
		s.noticeProven(approval.org, v)
	}
	return approval.org, v, visible(err)
}

// noticeProven keeps what a stranger's request has proven, once, and tells nobody: the
// daily check does that, and strangers must not be able to.
func (s *Service) noticeProven(org ledger.OrgID, v *ledger.Verification) {
	if t := verify.Proven(v); t != nil {
		s.notice(metTampering{org: org, tampering: t})
	}
}

// VerifyApprovalPublicly is the legacy public verification by an approval's id. The use of
// the route is counted.
func (s *Service) VerifyApprovalPublicly(ctx context.Context, route string, id ledger.ApprovalID) (*ledger.PublicVerification, error) {
	org, v, err := s.verifyApprovalPublicly(ctx, id)
	s.NoteLegacyUse(route, org)
	if err != nil {
		return nil, err
	}
	public := ledger.Minimize(v)
	return &public, nil
}

// FlushTokenUse writes down when tokens were last used. The worker calls it now
// and then, and once at the end.
func (s *Service) FlushTokenUse(ctx context.Context) error {
	return s.used.flush(ctx, s.store.TouchTokens)
}
