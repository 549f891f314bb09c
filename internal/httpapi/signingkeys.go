package httpapi

import (
	"bytes"
	"context"
	"encoding/base64"
	"net/http"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// listSigningKeys loads all keys and selects a page, because there are only a few.
func listSigningKeys(x *exchange) error {
	q := x.query()
	limit := q.limit()
	after, given := q.idCursor(signingKeyCursor)
	if err := q.err(); err != nil {
		return err
	}
	keys, err := x.api.service.SigningKeys(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	var page []*service.SigningKey
	for _, key := range keys {
		if len(page) < limit && (!given || bytes.Compare(key.ID.UUID[:], after[:]) > 0) {
			page = append(page, key)
		}
	}
	cursor := func(key *service.SigningKey) string { return encodeIDCursor(signingKeyCursor, key.ID.UUID) }
	return list(x, page, limit, cursor, appendSigningKey)
}

func createSigningKey(x *exchange) error {
	request, err := parsedOptional(x, service.ParseSigningKeyRequest)
	if err != nil {
		return err
	}
	key, err := x.api.service.CreateSigningKey(x.r.Context(), x.caller, request)
	if err != nil {
		return err
	}
	return x.answer(http.StatusCreated, appendSigningKey(nil, key))
}

func retireSigningKey(x *exchange) error { return x.moveSigningKey(x.api.service.RetireSigningKey) }

func revokeSigningKey(x *exchange) error { return x.moveSigningKey(x.api.service.RevokeSigningKey) }

func confirmSigningKey(x *exchange) error { return x.moveSigningKey(x.api.service.ConfirmSigningKey) }

func retractSigningKey(x *exchange) error { return x.moveSigningKey(x.api.service.RetractSigningKey) }

// moveSigningKey changes the status of the key that the path names.
func (x *exchange) moveSigningKey(move func(context.Context, *service.Caller, ledger.SigningKeyID) (*service.SigningKey, error)) error {
	id, err := x.pathID("key_id")
	if err != nil {
		return err
	}
	key, err := move(x.r.Context(), x.caller, ledger.SigningKeyID{UUID: id})
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, appendSigningKey(nil, key))
}

func appendSigningKey(dst []byte, k *service.SigningKey) []byte {
	w := canon.BeginObject(dst)
	w.String("key_id", k.ID.String())
	if k.Tampered {
		w.String("status", "tampered")
		return w.End()
	}
	w.StringOrNull("name", k.Name)
	w.String("status", k.Status)
	w.String("public_key", base64.StdEncoding.EncodeToString(k.Public))
	w.String("created_at", k.CreatedAt.String())
	appendTime(&w, "retired_at", k.RetiredAt)
	appendTime(&w, "revoked_at", k.RevokedAt)
	return w.End()
}
