package keyring

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
)

// A sealed secret is opened by the ring that sealed it, also after a rotation, and is never sealed
// to the same bytes twice.
func TestSealedSecretsOpen(t *testing.T) {
	t.Parallel()
	path, ring := createdRing(t)
	// A ring that was rotated since can still open it.
	rings := map[string]*Ring{"the same ring": ring, "a rotated ring": rotate(t, path, 2)}
	for _, secret := range [][]byte{nil, []byte("s"), bytes.Repeat([]byte("secret"), 1000)} {
		sealed, err := ring.Seal(organization, "label", secret)
		if err != nil {
			t.Fatal(err)
		}
		if len(secret) > 1 && bytes.Contains(sealed, secret[:6]) {
			t.Error("the secret stands in what is sealed")
		}
		again, err := ring.Seal(organization, "label", secret)
		if err != nil || bytes.Equal(again, sealed) {
			t.Errorf("the same secret is sealed alike: %v", err)
		}
		for name, r := range rings {
			opened, err := r.Open(organization, "label", sealed)
			if err != nil || !bytes.Equal(opened, secret) {
				t.Errorf("%s opens %d bytes: %v", name, len(opened), err)
			}
		}
	}
}

// A sealed secret cannot be opened with another organization, label or ring, or after any change.
func TestSealedSecretsOpenNowhereElse(t *testing.T) {
	t.Parallel()
	_, ring := createdRing(t)
	foreign, err := Create(filepath.Join(t.TempDir(), "keys.json"), seeded(9), now)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := ring.Seal(organization, "label", []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	for name, open := range map[string]func() ([]byte, error){
		"another organization": func() ([]byte, error) { return ring.Open(uuid.Nil, "label", sealed) },
		"another label":        func() ([]byte, error) { return ring.Open(organization, "other", sealed) },
		"another ring":         func() ([]byte, error) { return foreign.Open(organization, "label", sealed) },
	} {
		if opened, err := open(); !errors.Is(err, ErrSealed) || opened != nil {
			t.Errorf("%s opens it: %q, %v", name, opened, err)
		}
	}
	for i := range sealed {
		changed := bytes.Clone(sealed)
		changed[i] ^= 1
		if opened, err := ring.Open(organization, "label", changed); !errors.Is(err, ErrSealed) || opened != nil {
			t.Errorf("changed in byte %d it opens: %q, %v", i, opened, err)
		}
		if opened, err := ring.Open(organization, "label", sealed[:i]); !errors.Is(err, ErrSealed) || opened != nil {
			t.Errorf("cut to %d bytes it opens: %q, %v", i, opened, err)
		}
	}
}
