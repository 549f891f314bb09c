package evidence

import (
	"encoding/hex"
	"slices"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// SealSigningKey authenticates a signing key that is about to be written.
func (s *Store) SealSigningKey(key *store.SigningKeyRecord) {
	key.MAC = s.seal(key.Org, ledger.PurposeSigningKey, signingKeyRecord(key))
}

// Genuine reports whether a registry of signing keys is as the service wrote it.
func (s *Store) Genuine(keys []*store.SigningKeyRecord) bool {
	return !slices.ContainsFunc(keys, func(key *store.SigningKeyRecord) bool {
		return !ledger.Authentic(s.keys, key.Org, ledger.PurposeSigningKey, key.MAC, signingKeyRecord(key))
	})
}

// signingKeyRecord is what a key's authenticator covers: that it exists, and how
// far it is to be trusted.
func signingKeyRecord(key *store.SigningKeyRecord) []byte {
	w := canon.BeginObject(nil)
	w.String("created_at", key.CreatedAt.String())
	w.String("id", key.ID.String())
	w.StringOrNull("name", key.Name)
	w.String("public", hex.EncodeToString(key.Public))
	writeMoment(&w, "retired_at", key.RetiredAt)
	writeMoment(&w, "revoked_at", key.RevokedAt)
	w.String("status", key.Status)
	return w.End()
}

// SealToken authenticates a public token that is about to be written.
func (s *Store) SealToken(token *store.TokenRecord) {
	token.MAC = s.seal(token.Org, ledger.PurposeToken, tokenRecord(token))
}

// GenuineToken reports whether a public token is as the service wrote it.
func (s *Store) GenuineToken(token *store.TokenRecord) bool {
	return ledger.Authentic(s.keys, token.Org, ledger.PurposeToken, token.MAC, tokenRecord(token))
}

// tokenRecord is what a token's authenticator covers: what it opens, and until
// when.
func tokenRecord(t *store.TokenRecord) []byte {
	w := canon.BeginObject(nil)
	w.String("artifact_id", t.ArtifactID.String())
	w.String("artifact_type", t.Artifact)
	writeMoment(&w, "expires_at", t.ExpiresAt)
	w.String("hash", hex.EncodeToString(t.Hash[:]))
	w.String("id", t.ID.String())
	writeMoment(&w, "revoked_at", t.RevokedAt)
	return w.End()
}

func writeMoment(w *canon.ObjectWriter, name string, at *ledger.Time) {
	if at == nil {
		w.Null(name)
		return
	}
	w.String(name, at.String())
}

// AnchorOf is the anchor that a record keeps.
func AnchorOf(record *store.AnchorRecord) *ledger.Anchor {
	return &ledger.Anchor{
		Org: record.Org, Kind: record.Subject.Kind, Subject: record.Subject.ID, Sequence: record.Sequence, Method: record.Method,
		Digest: record.Digest, Standing: ledger.AnchorStanding(record.Status), Reason: record.Reason, Proof: record.Proof,
	}
}
