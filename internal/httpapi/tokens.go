package httpapi

import (
	"context"
	"net/http"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// linkKind is a kind of public link. Both kinds are tokens to the service. They are listed, issued
// and revoked in the same way, and differ in the members of their answers.
type linkKind struct {
	id     string // the member and the path parameter that hold the link's id
	secret string // the member that holds the text, which is shown once
	path   string // the public path, to which the text is appended
	// subject writes the members that say what the link is for.
	subject func(x *exchange, w *canon.ObjectWriter, t *service.Token)
	// slug says that subject needs the slug of the caller's organization.
	slug bool
}

var tokenLink = linkKind{
	id: "token_id", secret: "token", path: publicPath, slug: true,
	subject: func(x *exchange, w *canon.ObjectWriter, t *service.Token) {
		w.String("id", t.ID.String()) // an alias that other clients read
		w.String("organization_id", x.slug)
		w.String("artifact_type", t.Artifact)
		w.String("artifact_id", t.ArtifactID.String())
	},
}

var shareLink = linkKind{
	id: "share_id", secret: "share", path: sharePath,
	subject: func(_ *exchange, w *canon.ObjectWriter, t *service.Token) {
		w.String("receipt_id", t.ArtifactID.String())
	},
}

func listTokens(x *exchange) error { return x.listLinks(&tokenLink, x.api.service.Tokens) }

func listShares(x *exchange) error { return x.listLinks(&shareLink, x.api.service.Shares) }

func (x *exchange) listLinks(
	kind *linkKind, read func(ctx context.Context, caller *service.Caller, before *ledger.TokenID, limit int) ([]*service.Token, error),
) error {
	if err := x.readSlug(kind); err != nil {
		return err
	}
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
	return list(x, tokens, limit, cursor, func(dst []byte, t *service.Token) []byte { return x.appendLink(dst, kind, t) })
}

func issueToken(x *exchange) error {
	return x.issueLink(&tokenLink, service.ParseTokenRequest, x.api.service.IssueToken)
}

func createShare(x *exchange) error {
	return x.issueLink(&shareLink, service.ParseShareRequest, x.api.service.Share)
}

// issueLink answers 201 with the text of a new link. If the idempotency key was used before, the
// text cannot be shown again, and the answer is 200 without it.
func (x *exchange) issueLink(
	kind *linkKind, parse func(canon.Value) (*service.TokenRequest, error),
	issue func(ctx context.Context, caller *service.Caller, request *service.TokenRequest, key string) (*service.Token, ledger.Secret, error),
) error {
	key, err := x.idempotencyKey()
	if err != nil {
		return err
	}
	request, err := parsed(x, parse)
	if err != nil {
		return err
	}
	// The slug is read first: if that failed after the link was issued, its text would be lost.
	if err := x.readSlug(kind); err != nil {
		return err
	}
	token, text, err := issue(x.r.Context(), x.caller, request, key)
	if err != nil {
		return err
	}
	if text.Reveal() == "" {
		return x.answer(http.StatusOK, x.appendLink(nil, kind, token))
	}
	w := canon.BeginObject(nil)
	x.writeLink(&w, kind, token)
	w.String(kind.secret, text.Reveal())
	w.String("public_path", kind.path+text.Reveal())
	return x.answer(http.StatusCreated, w.End())
}

func revokeToken(x *exchange) error { return x.revokeLink(&tokenLink, x.api.service.RevokeToken) }

func revokeShare(x *exchange) error { return x.revokeLink(&shareLink, x.api.service.RevokeShare) }

func (x *exchange) revokeLink(
	kind *linkKind, revoke func(ctx context.Context, caller *service.Caller, id ledger.TokenID, reason string) (*service.Token, error),
) error {
	id, err := x.pathID(kind.id)
	if err != nil {
		return err
	}
	reason, err := parsedOptional(x, service.ParseRevocation)
	if err != nil {
		return err
	}
	if err := x.readSlug(kind); err != nil {
		return err
	}
	token, err := revoke(x.r.Context(), x.caller, ledger.TokenID{UUID: id}, reason)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, x.appendLink(nil, kind, token))
}

// readSlug loads the slug of the caller's organization if links of the kind show it.
func (x *exchange) readSlug(kind *linkKind) error {
	if !kind.slug {
		return nil
	}
	org, err := x.api.service.Organization(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	x.slug = org.Slug
	return nil
}

func (x *exchange) appendLink(dst []byte, kind *linkKind, t *service.Token) []byte {
	w := canon.BeginObject(dst)
	if t.Tampered {
		w.String(kind.id, t.ID.String())
		w.String("status", service.TokenStatus(t, 0))
		return w.End()
	}
	x.writeLink(&w, kind, t)
	appendTime(&w, "revoked_at", t.RevokedAt)
	w.StringOrNull("revocation_reason", t.RevocationReason)
	appendTime(&w, "last_used_at", t.LastUsedAt)
	return w.End()
}

func (x *exchange) writeLink(w *canon.ObjectWriter, kind *linkKind, t *service.Token) {
	w.String(kind.id, t.ID.String())
	kind.subject(x, w, t)
	w.String("status", service.TokenStatus(t, x.api.service.Now()))
	w.String("created_at", t.CreatedAt.String())
	appendTime(w, "expires_at", t.ExpiresAt)
}
