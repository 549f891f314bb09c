package storetest

import (
	"fmt"
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var signingKeyCases = []testCase{
	{name: "a signing key is stored unchanged", run: keepsSigningKeys},
	{name: "a signing key that is known is replaced", run: replacesSigningKey},
	{name: "signing keys are listed oldest first", run: listsSigningKeys},
	{name: "signing keys are loaded by organization", run: loadsSigningKeys},
	{name: "an organization begins with its signing key", run: beginsWithSigningKey},
	{name: "signing keys of a refused organization are not kept", run: refusedSigningKey},
}

func (w *world) signingKey(org ledger.OrgID) *store.SigningKeyRecord {
	now := w.now()
	public := ledger.HashToken(fmt.Sprint("signing key ", now))
	return &store.SigningKeyRecord{
		ID: ledger.SigningKeyID{UUID: ledger.NewTimedID(now, w.random())}, Org: org, Public: public[:], Private: []byte("sealed"),
		Status: "active", Name: fmt.Sprint("signer ", now), CreatedAt: now, MAC: fmt.Appendf(nil, "mac %d", now), Act: int64(now),
	}
}

func (w *world) putSigningKeys(t *testing.T, records ...*store.SigningKeyRecord) {
	t.Helper()
	w.write(t, &store.Changes{SigningKeys: records})
}

func (w *world) wantSigningKeys(t *testing.T, what string, org ledger.OrgID, want ...*store.SigningKeyRecord) {
	t.Helper()
	assertEqual(t, what, must[[]*store.SigningKeyRecord](t)(w.open(t).SigningKeys(t.Context(), org)), want)
}

func keepsSigningKeys(t *testing.T, w *world) {
	m := w.join(t)
	plain, full, imported := w.signingKey(m.org.ID), w.signingKey(m.org.ID), w.signingKey(m.org.ID)
	retired, revoked := w.now(), w.now()
	full.Public, full.Private, full.Status, full.Name = everyByte()[:32], everyByte(), "revoked", "clé d'été 🔏"
	full.RetiredAt, full.RevokedAt, full.MAC = &retired, &revoked, everyByte()
	imported.Private, imported.Status, imported.Name = nil, "historical", ""
	w.putSigningKeys(t, plain, full, imported)
	w.wantSigningKeys(t, "keys", m.org.ID, plain, full, imported)
	if kept := must[[]*store.SigningKeyRecord](t)(w.SigningKeys(t.Context(), m.org.ID)); kept[2].Private != nil {
		t.Error("an imported key has got a private half")
	}
}

// replacesSigningKey also has a key with the same id in another organization: registries are
// separate.
func replacesSigningKey(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	record, neighbour, namesake := w.signingKey(m.org.ID), w.signingKey(m.org.ID), w.signingKey(other.org.ID)
	namesake.ID = record.ID
	w.putSigningKeys(t, record, neighbour, namesake)
	at := w.now()
	record.Status, record.RetiredAt, record.Name, record.MAC = "retired", &at, "renamed", []byte("other")
	next := w.signingKey(m.org.ID)
	w.putSigningKeys(t, next, record)
	w.wantSigningKeys(t, "retired", m.org.ID, record, neighbour, next)
	record.Status, record.RetiredAt, record.RevokedAt, record.Private = "revoked", nil, &at, nil
	w.putSigningKeys(t, record)
	w.wantSigningKeys(t, "revoked", m.org.ID, record, neighbour, next)
	w.wantSigningKeys(t, "namesake", other.org.ID, namesake)
}

func listsSigningKeys(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	w.putSigningKeys(t, w.signingKey(other.org.ID))
	first, second, third := w.signingKey(m.org.ID), w.signingKey(m.org.ID), w.signingKey(m.org.ID)
	w.putSigningKeys(t, third, first)
	w.putSigningKeys(t, second)
	w.wantSigningKeys(t, "keys", m.org.ID, first, second, third)
	w.wantSigningKeys(t, "an unknown organization's", w.newOrganization().ID)
}

func loadsSigningKeys(t *testing.T, w *world) {
	one, two, bare, unnamed := w.join(t), w.join(t), w.join(t), w.join(t)
	first, second, third := w.signingKey(one.org.ID), w.signingKey(one.org.ID), w.signingKey(two.org.ID)
	w.putSigningKeys(t, third, second, w.signingKey(unnamed.org.ID), first)
	orgs := []ledger.OrgID{two.org.ID, one.org.ID, bare.org.ID, one.org.ID, w.newOrganization().ID}
	w.look(t, &store.Needs{SigningKeys: orgs}, func(loaded *store.Loaded) {
		want := map[ledger.OrgID][]*store.SigningKeyRecord{one.org.ID: {first, second}, two.org.ID: {third}}
		assertEqual(t, "keys", loaded.SigningKeys, want)
	})
}

func beginsWithSigningKey(t *testing.T, w *world) {
	org := w.newOrganization()
	with := w.beginning(t, org, w.newKey(org.ID))
	record := w.signingKey(org.ID)
	with.SigningKeys = []*store.SigningKeyRecord{record}
	if err := w.CreateOrganization(t.Context(), org, ledger.NewHead(org.ID, w.keys), with); err != nil {
		t.Fatalf("create organization: %v", err)
	}
	w.wantSigningKeys(t, "keys", org.ID, record)
}

func refusedSigningKey(t *testing.T, w *world) {
	m := w.join(t)
	org := w.newOrganization()
	org.Slug = m.org.Slug
	with := w.beginning(t, org, w.newKey(org.ID))
	with.SigningKeys = []*store.SigningKeyRecord{w.signingKey(org.ID)}
	wantError(t, "create", w.CreateOrganization(t.Context(), org, ledger.NewHead(org.ID, w.keys), with), store.ErrExists)
	w.wantSigningKeys(t, "keys", org.ID)
}
