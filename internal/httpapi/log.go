package httpapi

import (
	"encoding/base64"
	"net/http"
	"time"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
)

// immutable is the Cache-Control of content that never changes.
const immutable = "public, max-age=31536000, immutable"

// logKeys lists the public keys that sign checkpoints. It leaves out their names: a key is named by
// its log's origin, which is not public.
func logKeys(x *exchange) error {
	dst := append([]byte(nil), `{"keys":[`...)
	for i, key := range x.api.service.LogKeys() {
		if i > 0 {
			dst = append(dst, ',')
		}
		w := canon.BeginObject(dst)
		w.String("algorithm", "Ed25519")
		writeMoment(&w, "created_at", key.CreatedAt)
		w.String("key_id", key.ID)
		w.String("public_key", base64.StdEncoding.EncodeToString(key.Public))
		writeMoment(&w, "retired_at", key.RetiredAt)
		writeMoment(&w, "revoked_at", key.RevokedAt)
		w.String("status", string(key.Status))
		dst = w.End()
	}
	x.w.Header().Set("Cache-Control", "no-cache")
	return x.answer(http.StatusOK, append(dst, `]}`...))
}

func writeMoment(w *canon.ObjectWriter, name string, moment time.Time) {
	if moment.IsZero() {
		w.Null(name)
		return
	}
	w.String(name, ledger.TimeOf(moment).String())
}

func logCheckpoint(x *exchange) error {
	checkpoint, err := x.api.service.LogCheckpoint(x.r.Context(), x.r.PathValue("log_id"))
	if err != nil {
		return err
	}
	x.w.Header().Set("Cache-Control", "no-cache")
	x.write(http.StatusOK, "text/plain; charset=utf-8", checkpoint)
	return nil
}

// logTile serves a tile. Even a partial tile never changes, because its width is part of its path.
func logTile(x *exchange) error {
	path := "tile/" + x.r.PathValue("level") + "/" + x.r.PathValue("number")
	if x.r.URL.EscapedPath() != "/public/log/"+x.r.PathValue("log_id")+"/"+path {
		return fault.ErrNotFound // a tile has exactly one address
	}
	tile, err := x.api.service.LogTile(x.r.Context(), x.r.PathValue("log_id"), path)
	if err != nil {
		return err
	}
	x.w.Header().Set("Cache-Control", immutable)
	x.write(http.StatusOK, "application/octet-stream", tile)
	return nil
}
