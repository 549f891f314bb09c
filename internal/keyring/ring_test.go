package keyring

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"countersign/internal/ledger"
)

var organization = uuid.MustParse("01234567-89ab-4cde-8f01-23456789abcd")

// A ring lists its keys in order of creation, and callers cannot change the list.
func TestCurrentKeyAndIDs(t *testing.T) {
	t.Parallel()
	path, first := createdRing(t)
	rotated := rotate(t, path, 2)
	want := []string{first.CurrentKey(), rotated.CurrentKey()}
	if diff := cmp.Diff(want, rotated.IDs()); diff != "" {
		t.Errorf("IDs differ (-want +got):\n%s", diff)
	}
	rotated.IDs()[0] = "changed by the caller"
	if diff := cmp.Diff(want, rotated.IDs()); diff != "" {
		t.Errorf("IDs hands out its own memory (-want +got):\n%s", diff)
	}
}

// Two keys, organizations or purposes never give the same MAC for a message.
func TestMACSeparatesKeysOrganizationsAndPurposes(t *testing.T) {
	t.Parallel()
	path, first := createdRing(t)
	ring := rotate(t, path, 2)
	seen := map[[32]byte]string{}
	for _, keyID := range []string{first.CurrentKey(), ring.CurrentKey()} {
		for _, org := range []uuid.UUID{uuid.Nil, organization} {
			for _, purpose := range []ledger.Purpose{ledger.PurposeReceipt, ledger.PurposeHead, ledger.PurposeChainState, ledger.PurposeKeyCheck, "", "a later one"} {
				name := fmt.Sprintf("%s/%s/%s", keyID, org, purpose)
				mac := mustMAC(t, ring, keyID, org, purpose, "message")
				if other, taken := seen[mac]; taken {
					t.Errorf("%s and %s share a MAC", name, other)
				}
				seen[mac] = name
			}
		}
	}
}

// The MAC of several parts is the MAC of their concatenation.
func TestMACReadsPartsAsOneMessage(t *testing.T) {
	t.Parallel()
	_, ring := createdRing(t)
	whole := mustMAC(t, ring, ring.CurrentKey(), organization, ledger.PurposeHead, "one message")
	for _, parts := range [][]string{{"one", " message"}, {"", "one message", ""}, {"o", "n", "e message"}} {
		if mustMAC(t, ring, ring.CurrentKey(), organization, ledger.PurposeHead, parts...) != whole {
			t.Errorf("the parts %q have another MAC than their concatenation", parts)
		}
	}
	if mustMAC(t, ring, ring.CurrentKey(), organization, ledger.PurposeHead) == whole {
		t.Error("no message has the MAC of a message")
	}
}

// A key that is not on the ring gives no MAC and no fingerprint.
func TestUnknownKeyIsReported(t *testing.T) {
	t.Parallel()
	_, ring := createdRing(t)
	for _, keyID := range []string{"", "mk_aaaaaaaaaaaa", strings.ToUpper(ring.CurrentKey())} {
		if mac, ok := ring.MAC(keyID, organization, ledger.PurposeReceipt, []byte("message")); ok || mac != [32]byte{} {
			t.Errorf("MAC(%q) = %x, %v, want nothing", keyID, mac, ok)
		}
		if print, ok := ring.Fingerprint(keyID); ok || print != [32]byte{} {
			t.Errorf("Fingerprint(%q) = %x, %v, want nothing", keyID, print, ok)
		}
	}
}

// A key's fingerprint is stable, and another secret with the same id has another fingerprint.
func TestFingerprintTellsKeysApart(t *testing.T) {
	t.Parallel()
	path, ring := createdRing(t)
	print, ok := ring.Fingerprint(ring.CurrentKey())
	if !ok {
		t.Fatal("no fingerprint of the current key")
	}
	reopened, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if again, ok := reopened.Fingerprint(ring.CurrentKey()); !ok || again != print {
		t.Error("the fingerprint changed when the file was opened again")
	}

	// The same id with another secret, as in a key file that was created again with an old id.
	content := readContent(t, path)
	content.Keys[0].Secret[0] ^= 1
	forged, err := Open(writeContent(t, content))
	if err != nil {
		t.Fatal(err)
	}
	if other, ok := forged.Fingerprint(ring.CurrentKey()); !ok || other == print {
		t.Error("another secret has the same fingerprint")
	}
}

// Reloading a ring picks up a rotation, and older keys still give the same MACs.
func TestReloadPicksUpARotation(t *testing.T) {
	t.Parallel()
	path, ring := createdRing(t)
	old := ring.CurrentKey()
	before := mustMAC(t, ring, old, organization, ledger.PurposeReceipt, "message")
	rotated := rotate(t, path, 2)

	if ring.CurrentKey() != old {
		t.Error("the ring signs with the new key before Reload")
	}
	if err := ring.Reload(); err != nil {
		t.Fatalf("Reload: %v", err)
	}
	if ring.CurrentKey() != rotated.CurrentKey() {
		t.Errorf("CurrentKey() = %s, want %s", ring.CurrentKey(), rotated.CurrentKey())
	}
	if mustMAC(t, ring, old, organization, ledger.PurposeReceipt, "message") != before {
		t.Error("the old key's MAC changed")
	}
	if mustMAC(t, ring, rotated.CurrentKey(), organization, ledger.PurposeReceipt, "message") !=
		mustMAC(t, rotated, rotated.CurrentKey(), organization, ledger.PurposeReceipt, "message") {
		t.Error("two rings of one file disagree")
	}
}

// Reloading a file that has lost or changed a key is refused, and the ring does not change.
func TestReloadRefusesToLoseAKey(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		damage func(t *testing.T, path string)
		want   error
	}{
		{"first key dropped", func(t *testing.T, path string) {
			content := readContent(t, path)
			content.Keys = content.Keys[1:]
			overwrite(t, path, content)
		}, ErrKeyLost},
		{"secret changed", func(t *testing.T, path string) {
			content := readContent(t, path)
			content.Keys[0].Secret[31] ^= 0x80
			overwrite(t, path, content)
		}, ErrKeyLost},
		{"made anew", func(t *testing.T, path string) {
			remove(t, path)
			if _, err := Create(path, seeded(9), now); err != nil {
				t.Fatal(err)
			}
		}, ErrKeyLost},
		{"removed", remove, ErrNotFound},
		{"opened to all", func(t *testing.T, path string) { chmod(t, path, 0o644) }, ErrExposed},
		{"emptied", func(t *testing.T, path string) {
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
		}, ErrInvalid},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			path, _ := createdRing(t)
			ring := rotate(t, path, 2)
			ids, current := ring.IDs(), ring.CurrentKey()
			test.damage(t, path)
			if err := ring.Reload(); !errors.Is(err, test.want) {
				t.Errorf("Reload error = %v, want %v", err, test.want)
			}
			if diff := cmp.Diff(ids, ring.IDs()); diff != "" || ring.CurrentKey() != current {
				t.Errorf("a refused Reload changed the ring (-want +got):\n%s", diff)
			}
		})
	}
}

// MACs stay correct while keys rotate.
//
//countersign:race
func TestConcurrentMACsWhileKeysRotate(t *testing.T) {
	t.Parallel()
	path, ring := createdRing(t)
	old := ring.CurrentKey()
	want := mustMAC(t, ring, old, organization, ledger.PurposeReceipt, "message")
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			for i := range 200 {
				if mac, ok := ring.MAC(old, organization, ledger.PurposeReceipt, []byte("mess"), []byte("age")); !ok || mac != want {
					t.Errorf("worker %d: MAC %d differs", worker, i)
				}
				if _, ok := ring.MAC(ring.CurrentKey(), uuid.UUID{byte(i)}, ledger.PurposeHead, []byte("message")); !ok {
					t.Errorf("worker %d: the current key is not on the ring", worker)
				}
			}
		})
	}
	for turn := range 5 {
		rotate(t, path, byte(10+turn))
		if err := ring.Reload(); err != nil {
			t.Errorf("Reload: %v", err)
		}
	}
	group.Wait()
	if got := len(ring.IDs()); got != 6 {
		t.Errorf("the ring holds %d keys, want 6", got)
	}
}

// The cache of derived keys is bounded, and MACs do not depend on it.
func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	_, ring := createdRing(t)
	organizationOf := func(i int) uuid.UUID { return uuid.UUID{byte(i >> 8), byte(i)} }
	first := mustMAC(t, ring, ring.CurrentKey(), organizationOf(0), ledger.PurposeReceipt, "message")
	for i := range maxCachedStates + 50 {
		mustMAC(t, ring, ring.CurrentKey(), organizationOf(i), ledger.PurposeReceipt, "message")
	}
	if got := len(ring.states.pools); got != maxCachedStates {
		t.Errorf("the cache holds %d entries, want %d", got, maxCachedStates)
	}
	if mustMAC(t, ring, ring.CurrentKey(), organizationOf(0), ledger.PurposeReceipt, "message") != first {
		t.Error("a MAC changed after its key was dropped from the cache")
	}
}

// A ring reveals no secret, however it is printed, logged or marshalled.
func TestRingPrintsNoSecret(t *testing.T) {
	t.Parallel()
	path, ring := createdRing(t)
	mustMAC(t, ring, ring.CurrentKey(), organization, ledger.PurposeReceipt, "message") // fills the cache
	secret := readContent(t, path).Keys[0].Secret
	var logged bytes.Buffer
	slog.New(slog.NewTextHandler(&logged, nil)).Info("event", "ring", ring)
	encoded, err := json.Marshal(ring)
	if err != nil {
		t.Fatal(err)
	}
	outputs := map[string]string{
		"slog": logged.String(), "json": string(encoded), "String": ring.String(), "GoString": ring.GoString(),
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
		outputs[verb] = fmt.Sprintf(verb, ring)
		outputs[verb+" of the keys"] = fmt.Sprintf(verb, ring.keys.Load())
		outputs[verb+" of a holder"] = fmt.Sprintf(verb, struct{ inner *Ring }{ring})
	}
	forms := []string{string(secret), hex.EncodeToString(secret), base64.StdEncoding.EncodeToString(secret), strings.Trim(fmt.Sprint(secret), "[]")}
	for name, output := range outputs {
		for _, form := range forms {
			if strings.Contains(output, form) {
				t.Errorf("%s gives the master secret away", name)
			}
		}
	}
	for _, name := range []string{"slog", "String", "GoString", "%v", "%#v", "%x"} {
		if !strings.Contains(outputs[name], redactedRing) {
			t.Errorf("%s = %q, want %q in it", name, outputs[name], redactedRing)
		}
	}
}

// The published vectors of key derivation and MACs are correct.
func TestDerivationVectors(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join("..", "..", "testdata", "vectors", "keys.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Salt  string
		Cases []struct {
			Master       string         `json:"master_secret_hex"`
			Organization uuid.UUID      `json:"organization_id"`
			Purpose      ledger.Purpose `json:"purpose"`
			Key          string         `json:"derived_key_hex"`
			Message      string         `json:"message_hex"`
			MAC          string         `json:"mac_hex"`
		}
	}
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	if vectors.Salt != derivationSalt || len(vectors.Cases) == 0 {
		t.Fatalf("vectors have the salt %q and %d cases", vectors.Salt, len(vectors.Cases))
	}
	for _, vector := range vectors.Cases {
		t.Run(fmt.Sprintf("%.4s/%.8s/%s", vector.Master, vector.Organization, vector.Purpose), func(t *testing.T) {
			t.Parallel()
			master := unhex(t, vector.Master)
			if got := hex.EncodeToString(deriveKey(ledger.NewSecret(string(master)), vector.Organization, vector.Purpose)); got != vector.Key {
				t.Errorf("derived key = %s, want %s", got, vector.Key)
			}
			id := "mk_aaaaaaaaaaaa"
			ring, err := Open(writeContent(t, document{Version: 1, Current: id, Keys: []entry{{ID: id, Secret: master, CreatedAt: now}}}))
			if err != nil {
				t.Fatal(err)
			}
			mac := mustMAC(t, ring, id, vector.Organization, vector.Purpose, string(unhex(t, vector.Message)))
			if got := hex.EncodeToString(mac[:]); got != vector.MAC {
				t.Errorf("MAC = %s, want %s", got, vector.MAC)
			}
			if print, _ := ring.Fingerprint(id); vector.Organization == uuid.Nil && vector.Purpose == ledger.PurposeKeyCheck && print != mac {
				t.Error("the fingerprint is not the MAC of its label")
			}
		})
	}
}

func BenchmarkMAC(b *testing.B) {
	ring, err := Create(filepath.Join(b.TempDir(), "keys.json"), seeded(1), now)
	if err != nil {
		b.Fatal(err)
	}
	keyID := ring.CurrentKey()
	for _, size := range []int{32, 1024, 16 << 10} {
		message := make([]byte, size)
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				if _, ok := ring.MAC(keyID, organization, ledger.PurposeReceipt, message); !ok {
					b.Fatal("the key is not on the ring")
				}
			}
		})
	}
	b.Run("parallel", func(b *testing.B) {
		message := make([]byte, 1024)
		b.ReportAllocs()
		b.RunParallel(func(each *testing.PB) {
			for each.Next() {
				if _, ok := ring.MAC(keyID, organization, ledger.PurposeReceipt, message); !ok {
					b.Error("the key is not on the ring")
				}
			}
		})
	})
	b.Run("derive", func(b *testing.B) {
		master := ring.keys.Load().masters[keyID]
		b.ReportAllocs()
		for b.Loop() {
			deriveKey(master, organization, ledger.PurposeReceipt)
		}
	})
}

// A replica verifies what another one has signed with a key that it has not picked up yet, because
// the key file has it. It signs nothing with that key, forgets none, and still reports an unknown
// key.
func TestRingLearnsKeysOfTheFile(t *testing.T) {
	t.Parallel()
	path, ring := createdRing(t)
	before := ring.CurrentKey()
	other := rotate(t, path, 2)
	sealed, err := other.Seal(uuid.Nil, "label", []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	if opened, err := ring.Open(uuid.Nil, "label", sealed); err != nil || string(opened) != "secret" {
		t.Errorf("a sealed secret: %q, %v", opened, err)
	}
	if mustMAC(t, ring, other.CurrentKey(), organization, ledger.PurposeReceipt, "message") !=
		mustMAC(t, other, other.CurrentKey(), organization, ledger.PurposeReceipt, "message") {
		t.Error("a record of the other replica does not verify")
	}
	if _, ok := ring.MAC("mk_unknown", organization, ledger.PurposeReceipt); ok {
		t.Error("an unknown key is known")
	}
	if ring.CurrentKey() != before {
		t.Error("the ring signs with a key that the store may not know yet")
	}
	keys := ring.LogKeys(time.Now())
	if len(keys) != 2 || !keys[0].Signs() || keys[1].Signs() || keys[1].ID != other.CurrentKey() {
		t.Errorf("the log keys are %+v", keys)
	}
	if ring.Learn() {
		t.Error("nothing new was learnt")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(path, rand.Reader, time.Now()); err != nil || ring.Learn() {
		t.Errorf("learnt from a file that has lost its keys, %v", err)
	}
}
