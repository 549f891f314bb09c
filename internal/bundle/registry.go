package bundle

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"

	"countersign/internal/canon"
)

// registryHeader is the first line of a signed registry. No checkpoint begins like it: an
// origin has a slash in it, and the second line of a checkpoint is a number.
const registryHeader = "countersign-signing-keys-v1"

// SigningKey is one key of the registry, as a bundle shows it.
type SigningKey struct {
	CreatedAt string
	EndedAt   string // "" while it may sign
	ID        string
	Public    ed25519.PublicKey
	Status    string
}

// RegistryText is the text of the note that a log key signs about the registry.
func RegistryText(origin, signedAt string, keys []SigningKey) string {
	w := canon.BeginObject(nil)
	w.Value(appendList(w.Name("keys"), keys, func(w *canon.ObjectWriter, k *SigningKey) {
		w.String("created_at", k.CreatedAt)
		w.StringOrNull("ended_at", k.EndedAt)
		w.String("key_id", k.ID)
		w.String("public_key", base64.StdEncoding.EncodeToString(k.Public))
		w.String("status", k.Status)
	}))
	w.String("signed_at", signedAt)
	return registryHeader + "\n" + origin + "\n" + string(w.End()) + "\n"
}

// registeredKey is a key that a signature can name.
type registeredKey struct {
	public  ed25519.PublicKey
	revoked bool
}

var (
	errRegistry       = errors.New("the registry of signing keys cannot be read")
	errRegistryOrigin = errors.New("the registry of signing keys is of another log")
	errRegistrySigner = errors.New("the registry of signing keys is not signed with a log key that was given")
)

// readRegistry reads the keys of the registry. Where log keys were given one of them must
// have signed it.
func (v *verification) readRegistry() (map[string]registeredKey, error) {
	signed := v.bundle.SigningKeys
	lines := noteLines(signed)
	if len(lines) != 3 || lines[0] != registryHeader {
		return nil, errRegistry
	}
	if v.checkpoint == nil || lines[1] != v.checkpoint.origin {
		return nil, errRegistryOrigin
	}
	if len(v.trust.logs) > 0 && v.signer(signed, lines[1]) == nil {
		return nil, errRegistrySigner
	}
	content, err := canon.Parse([]byte(lines[2]))
	if err != nil {
		return nil, errRegistry
	}
	listed, _ := content.Get("keys")
	if listed.Kind() != canon.Array {
		return nil, errRegistry
	}
	keys := make(map[string]registeredKey, len(listed.Items()))
	for _, item := range listed.Items() {
		public, err := decodeBase64(text(item, "public_key"))
		id := text(item, "key_id")
		if _, twice := keys[id]; id == "" || twice || err != nil || len(public) != ed25519.PublicKeySize {
			return nil, errRegistry
		}
		keys[id] = registeredKey{public, text(item, "status") == "revoked"}
	}
	return keys, nil
}
