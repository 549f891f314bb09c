package httpapi

import (
	"context"
	"net/http"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

func listTokens(x *exchange) error {
	if err := x.readSlug(); err != nil {
		return err
	}
	return x.listTokens(x.api.service.Tokens, x.appendToken)
}

// listTokens answers a page of tokens, or of shares, which are tokens too.
func (x *exchange) listTokens(
	read func(ctx context.Context, caller *service.Caller, before *ledger.TokenID, limit int) ([]*service.Token, error),
	write func(dst []byte, t *service.Token) []byte,
) error {
	q := x.query()
	limit := q.limit()
	var before *ledger.TokenID
	if id, given := q.idCursor(tokenCursor); given {
		before = &ledger.TokenID{UUID: id}
	}
	if err := q.err(); err != nil {
		return err
	}
	tokens, err := read(x.r.Context(), x.caller, before, limit)
	if err != nil {
		return err
	}
	cursor := func(token *service.Token) string { return encodeIDCursor(tokenCursor, token.ID.UUID) }
	return list(x, tokens, limit, cursor, write)
}

// issueToken answers the text with the token that it has just made. Asked again
// under the same key it has none to show, and says so by another status.
func issueToken(x *exchange) error {
	key, err := x.idempotencyKey()
	if err != nil {
		return err
	}
	request, err := parsed(x, service.ParseTokenRequest)
	if err != nil {
		return err
	}
	if err := x.readSlug(); err != nil { // before: the text is shown once
		return err
	}
	token, text, err := x.api.service.IssueToken(x.r.Context(), x.caller, request, key)
	if err != nil {
		return err
	}
	if text.Reveal() == "" {
		return x.answer(http.StatusOK, x.appendToken(nil, token))
	}
	return x.answer(http.StatusCreated, x.appendIssued(nil, token, text))
}

func revokeToken(x *exchange) error {
	id, err := x.pathID("token_id")
	if err != nil {
		return err
	}
	reason, err := parsedOrNothing(x, service.ParseRevocation)
	if err != nil {
		return err
	}
	if err := x.readSlug(); err != nil {
		return err
	}
	token, err := x.api.service.RevokeToken(x.r.Context(), x.caller, ledger.TokenID{UUID: id}, reason)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, x.appendToken(nil, token))
}

// readSlug finds out how the caller's organization is called.
func (x *exchange) readSlug() error {
	org, err := x.api.service.Organization(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	x.slug = org.Slug
	return nil
}

func (x *exchange) appendToken(dst []byte, t *service.Token) []byte {
	w := canon.BeginObject(dst)
	if t.Tampered {
		w.String("token_id", t.ID.String())
		w.String("status", service.TokenStatus(t, 0))
		return w.End()
	}
	x.writeToken(&w, t)
	writeTokenUse(&w, t)
	return w.End()
}

// writeTokenUse writes what has become of a token since it was issued.
func writeTokenUse(w *canon.ObjectWriter, t *service.Token) {
	appendTime(w, "revoked_at", t.RevokedAt)
	w.StringOrNull("revocation_reason", t.RevocationReason)
	appendTime(w, "last_used_at", t.LastUsedAt)
}

func (x *exchange) appendIssued(dst []byte, t *service.Token, text ledger.Secret) []byte {
	w := canon.BeginObject(dst)
	x.writeToken(&w, t)
	w.String("token", text.Reveal())
	w.String("public_path", publicPath+text.Reveal())
	return w.End()
}

func (x *exchange) writeToken(w *canon.ObjectWriter, t *service.Token) {
	w.String("token_id", t.ID.String())
	w.String("id", t.ID.String()) // as other clients read it
	w.String("organization_id", x.slug)
	w.String("artifact_type", t.Artifact)
	w.String("artifact_id", t.ArtifactID.String())
	w.String("status", service.TokenStatus(t, x.api.service.Now()))
	w.String("created_at", t.CreatedAt.String())
	appendTime(w, "expires_at", t.ExpiresAt)
}
