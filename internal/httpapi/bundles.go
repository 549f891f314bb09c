package httpapi

import (
	"net/http"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

const (
	sharePath    = "/public/shares/"
	sharePattern = sharePath + "{share}"
)

func getBundle(x *exchange) error {
	q := x.parameters("payloads")
	payloads := q.boolean("payloads")
	if err := q.err(); err != nil {
		return err
	}
	id, err := x.namedReceipt()
	if err != nil {
		return err
	}
	body, err := x.api.service.Bundle(x.r.Context(), x.caller, id, payloads)
	if err != nil {
		return err
	}
	x.bundle(body)
	return nil
}

// bundle answers a file for a person to keep.
func (x *exchange) bundle(body []byte) {
	x.w.Header().Set("Content-Disposition", `attachment; filename="countersign.bundle"`)
	x.write(http.StatusOK, service.BundleType, body)
}

func listShares(x *exchange) error { return x.listTokens(x.api.service.Shares, x.appendShare) }

func createShare(x *exchange) error {
	key, err := x.idempotencyKey()
	if err != nil {
		return err
	}
	request, err := parsed(x, service.ParseShareRequest)
	if err != nil {
		return err
	}
	share, text, err := x.api.service.Share(x.r.Context(), x.caller, request, key)
	if err != nil {
		return err
	}
	if text.Reveal() == "" {
		return x.answer(http.StatusOK, x.appendShare(nil, share))
	}
	w := canon.BeginObject(nil)
	x.writeShare(&w, share)
	w.String("share", text.Reveal())
	w.String("public_path", sharePath+text.Reveal())
	return x.answer(http.StatusCreated, w.End())
}

func revokeShare(x *exchange) error {
	id, err := x.pathID("share_id")
	if err != nil {
		return err
	}
	reason, err := parsedOrNothing(x, service.ParseRevocation)
	if err != nil {
		return err
	}
	share, err := x.api.service.RevokeShare(x.r.Context(), x.caller, ledger.TokenID{UUID: id}, reason)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, x.appendShare(nil, share))
}

func openShare(x *exchange) error {
	body, err := x.api.service.OpenShare(x.r.Context(), x.r.PathValue("share"))
	if err != nil {
		return err
	}
	x.bundle(body)
	return nil
}

func (x *exchange) appendShare(dst []byte, t *service.Token) []byte {
	w := canon.BeginObject(dst)
	if t.Tampered {
		w.String("share_id", t.ID.String())
		w.String("status", service.TokenStatus(t, 0))
		return w.End()
	}
	x.writeShare(&w, t)
	writeTokenUse(&w, t)
	return w.End()
}

func (x *exchange) writeShare(w *canon.ObjectWriter, t *service.Token) {
	w.String("share_id", t.ID.String())
	w.String("receipt_id", t.ArtifactID.String())
	w.String("status", service.TokenStatus(t, x.api.service.Now()))
	w.String("created_at", t.CreatedAt.String())
	appendTime(w, "expires_at", t.ExpiresAt)
}
