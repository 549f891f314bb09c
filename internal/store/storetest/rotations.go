package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var rotationCases = []testCase{
	{name: "a key is stored with its agents, owner, expiry and previous secret", run: keepsKeyMembers},
	{name: "keys are found by who signs in as them", run: findsBySignInAs},
	{name: "keys are found by their Slack member", run: findsBySlackMember},
	{name: "a rotated key is found by both secrets", run: findsBothSecrets},
	{name: "a second rotation ends the oldest secret", run: secondRotation},
	{name: "a change of one key leaves the others alone", run: changesOneKey},
	{name: "a key of another organization is not changed", run: foreignKeyStays},
	{name: "a secret that another key has is refused", run: takenSecret},
	{name: "a rotation is seen by the next transaction", run: rotationIsSeen},
	{name: "a rotation is found by organization and idempotency key", run: loadsRotations},
	{name: "an idempotency key of a rotation is used once", run: rotationKeyIsUnique},
	{name: "concurrent rotations lose no secret", run: rotationsAtOnce, concurrent: true},
	{name: "one rotation, repeated concurrently", run: oneRotation, concurrent: true},
	{name: "rotation against revocation", run: rotationAgainstRevocation, concurrent: true},
	{name: "rotation against use", run: rotationAgainstUse, concurrent: true},
	{name: "rotations, uses and openings in crossing orders", run: crossingKeys, concurrent: true},
}

// boundKey returns a key with every optional member set.
func (w *world) boundKey(org ledger.OrgID) *ledger.KeyRecord {
	key := w.newKey(org)
	expires, used := w.now()+1000, w.now()
	key.Agents, key.Owner = []string{"zürich", "a\"b", "in\u200btern"}, "Ünal <unal@example.com>"
	key.SignInAs, key.SlackMember = "someone@example.com", "T1/U1"
	key.ExpiresAt, key.LastUsedAt, key.ExpiryLogged = &expires, &used, true
	key.Previous = &ledger.PreviousSecret{Hash: w.secret(), ExpiresAt: w.now()}
	return key
}

// secret returns the hash of a new secret.
func (w *world) secret() [32]byte { return ledger.HashToken(fmt.Sprint("secret ", w.now())) }

// rotate replaces a key's secret under the audit log's lock, like the service, unless the key is
// revoked. With an idempotency key it is done once.
func (w *world) rotate(ctx context.Context, s store.Store, key *ledger.KeyRecord, idempotencyKey string) (*ledger.KeyRecord, error) {
	rotated := new(ledger.KeyRecord)
	ref := store.RotationRef{Org: key.Org, Key: idempotencyKey}
	needs := &store.Needs{Keys: []ledger.KeyID{key.ID}}
	if idempotencyKey != "" {
		needs.Rotations = []store.RotationRef{ref}
	}
	err := w.administer(ctx, s, needs, key.Org, "api_key.rotate", func(loaded *store.Loaded) (*store.Changes, error) {
		*rotated = *loaded.Keys[key.ID]
		changes := new(store.Changes)
		if rotated.RevokedAt != nil || loaded.Rotations[ref] != nil {
			return changes, nil
		}
		now := w.now()
		rotated.Previous = &ledger.PreviousSecret{Hash: rotated.Hash, ExpiresAt: now + 500}
		rotated.Hash, rotated.Hint = w.secret(), fmt.Sprintf("csk_…%04d", now%10000)
		changes.Keys = []*ledger.KeyRecord{rotated}
		if idempotencyKey != "" {
			changes.NewRotations = []*store.RotationRecord{{Org: key.Org, Key: key.ID, IdempotencyKey: idempotencyKey, Overlap: 500 * time.Millisecond, RotatedAt: now, MAC: everyByte()}}
		}
		return changes, nil
	})
	return rotated, err
}

func keepsKeyMembers(t *testing.T, w *world) {
	m := w.join(t)
	key := w.boundKey(m.org.ID)
	w.mustAddKey(t, key)
	assertEqual(t, "by id", must[*ledger.KeyRecord](t)(w.Key(t.Context(), key.ID)), key)
	assertEqual(t, "by hash", must[*ledger.KeyRecord](t)(w.KeyByHash(t.Context(), key.Hash)), key)
	assertEqual(t, "by the previous hash", must[*ledger.KeyRecord](t)(w.KeyByHash(t.Context(), key.Previous.Hash)), key)
	assertEqual(t, "list", must[[]*ledger.KeyRecord](t)(w.Keys(t.Context(), m.org.ID, m.key.ID, 10)), []*ledger.KeyRecord{key})
	w.look(t, &store.Needs{Keys: []ledger.KeyID{key.ID}}, func(loaded *store.Loaded) { assertEqual(t, "loaded", loaded.Keys[key.ID], key) })
	plain := must[*ledger.KeyRecord](t)(w.Key(t.Context(), m.key.ID))
	if plain.Agents != nil || plain.Owner != "" || plain.ExpiresAt != nil || plain.LastUsedAt != nil || plain.Previous != nil || plain.ExpiryLogged ||
		plain.SignInAs != "" || plain.SlackMember != "" {
		t.Errorf("a key without any of it came back as %+v", plain)
	}
}

func findsBySignInAs(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	first, second, third := w.newKey(m.org.ID), w.newKey(other.org.ID), w.newKey(m.org.ID)
	first.SignInAs, second.SignInAs, third.SignInAs = "a@example.com", "a@example.com", "A@example.com"
	ended, at := w.newKey(other.org.ID), w.now()
	ended.SignInAs, ended.ExpiresAt = "a@example.com", &at
	soon := at + 1
	second.ExpiresAt = &soon
	for _, key := range []*ledger.KeyRecord{ended, first, second, third} {
		w.mustAddKey(t, key)
	}
	find := func(identity string, limit int) []*ledger.KeyRecord {
		t.Helper()
		return must[[]*ledger.KeyRecord](t)(w.open(t).KeysBySignInAs(t.Context(), identity, at, limit))
	}
	assertEqual(t, "of all organizations, by id", find("a@example.com", 9), []*ledger.KeyRecord{first, second})
	assertEqual(t, "the first", find("a@example.com", 1), []*ledger.KeyRecord{first})
	for _, identity := range []string{"", "%", "a@example.co", "a@example.com ", "A@EXAMPLE.COM"} {
		if found := find(identity, 9); len(found) > 0 {
			t.Errorf("%q finds %d keys", identity, len(found))
		}
	}
	must[*ledger.KeyRecord](t)(w.revoke(t.Context(), w, second, w.now()))
	assertEqual(t, "without the revoked one", find("a@example.com", 9), []*ledger.KeyRecord{first})
	changed := *first
	changed.SignInAs = ""
	done(t, attempt(t.Context(), w, &store.Changes{Keys: []*ledger.KeyRecord{&changed}}))
	if found := find("a@example.com", 9); len(found) > 0 {
		t.Errorf("a changed key is found by what it was")
	}
	assertEqual(t, "the changed key", must[*ledger.KeyRecord](t)(w.Key(t.Context(), first.ID)), &changed)
}

func findsBySlackMember(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	at := w.now()
	first, second, elsewhere, lower, ended := w.newKey(m.org.ID), w.newKey(m.org.ID), w.newKey(other.org.ID), w.newKey(m.org.ID), w.newKey(m.org.ID)
	for _, key := range []*ledger.KeyRecord{first, second, elsewhere, lower, ended} {
		key.SlackMember = "T1/U1"
	}
	lower.SlackMember, ended.ExpiresAt = "t1/u1", &at
	for _, key := range []*ledger.KeyRecord{first, second, elsewhere, lower, ended} {
		w.mustAddKey(t, key)
	}
	find := func(member string, limit int) []*ledger.KeyRecord {
		t.Helper()
		return must[[]*ledger.KeyRecord](t)(w.open(t).KeysBySlackMember(t.Context(), m.org.ID, member, at, limit))
	}
	assertEqual(t, "of one organization, by id", find("T1/U1", 9), []*ledger.KeyRecord{first, second})
	assertEqual(t, "the first", find("T1/U1", 1), []*ledger.KeyRecord{first})
	for _, member := range []string{"", "%", "T1/U", "T1/U1 ", "T1/U2"} {
		if found := find(member, 9); len(found) > 0 {
			t.Errorf("%q finds %d keys", member, len(found))
		}
	}
	must[*ledger.KeyRecord](t)(w.revoke(t.Context(), w, second, w.now()))
	assertEqual(t, "without the revoked one", find("T1/U1", 9), []*ledger.KeyRecord{first})
	changed := *first
	changed.SlackMember = "T1/U2"
	done(t, attempt(t.Context(), w, &store.Changes{Keys: []*ledger.KeyRecord{&changed}}))
	if found := find("T1/U1", 9); len(found) > 0 {
		t.Errorf("a changed key is found by what it was")
	}
	assertEqual(t, "by the new member", find("T1/U2", 9), []*ledger.KeyRecord{&changed})
}

func findsBothSecrets(t *testing.T, w *world) {
	m := w.join(t)
	rotated := must[*ledger.KeyRecord](t)(w.rotate(t.Context(), w, m.key, ""))
	if rotated.ID != m.key.ID || rotated.Hash == m.key.Hash || rotated.Previous.Hash != m.key.Hash {
		t.Fatal("the rotation did not keep the id and move the secret")
	}
	for _, s := range []store.Store{w.Store, w.open(t)} {
		assertEqual(t, "by the new secret", must[*ledger.KeyRecord](t)(s.KeyByHash(t.Context(), rotated.Hash)), rotated)
		assertEqual(t, "by the old secret", must[*ledger.KeyRecord](t)(s.KeyByHash(t.Context(), m.key.Hash)), rotated)
	}
}

func secondRotation(t *testing.T, w *world) {
	m := w.join(t)
	first := must[*ledger.KeyRecord](t)(w.rotate(t.Context(), w, m.key, ""))
	second := must[*ledger.KeyRecord](t)(w.rotate(t.Context(), w, m.key, ""))
	_, err := w.KeyByHash(t.Context(), m.key.Hash)
	wantError(t, "the oldest secret", err, store.ErrNotFound)
	assertEqual(t, "by the second", must[*ledger.KeyRecord](t)(w.KeyByHash(t.Context(), first.Hash)), second)
	assertEqual(t, "by the third", must[*ledger.KeyRecord](t)(w.KeyByHash(t.Context(), second.Hash)), second)
}

func changesOneKey(t *testing.T, w *world) {
	m := w.join(t)
	other := w.boundKey(m.org.ID)
	w.mustAddKey(t, other)
	must[*ledger.KeyRecord](t)(w.rotate(t.Context(), w, m.key, ""))
	must[*ledger.KeyRecord](t)(w.revoke(t.Context(), w, m.key, w.now()))
	assertEqual(t, "the other", must[*ledger.KeyRecord](t)(w.Key(t.Context(), other.ID)), other)
}

func foreignKeyStays(t *testing.T, w *world) {
	m, stranger := w.join(t), w.join(t)
	moved := *m.key
	moved.Org, moved.Hash = stranger.org.ID, w.secret()
	wantError(t, "change", attempt(t.Context(), w, &store.Changes{Keys: []*ledger.KeyRecord{&moved}}), store.ErrNotFound)
	assertEqual(t, "the key", must[*ledger.KeyRecord](t)(w.Key(t.Context(), m.key.ID)), m.key)
}

func takenSecret(t *testing.T, w *world) {
	m := w.join(t)
	other := w.boundKey(m.org.ID)
	w.mustAddKey(t, other)
	sameHash, samePrevious := *m.key, *m.key
	sameHash.Hash, samePrevious.Previous = other.Hash, other.Previous
	wantError(t, "the secret", attempt(t.Context(), w, &store.Changes{Keys: []*ledger.KeyRecord{&sameHash}}), store.ErrExists)
	wantError(t, "the previous one", attempt(t.Context(), w, &store.Changes{Keys: []*ledger.KeyRecord{&samePrevious}}), store.ErrExists)
	assertEqual(t, "the key", must[*ledger.KeyRecord](t)(w.Key(t.Context(), m.key.ID)), m.key)
}

// rotationIsSeen loads the key first, for the same reason as revocationIsSeen.
func rotationIsSeen(t *testing.T, w *world) {
	m := w.join(t)
	handles := []store.Store{w.Store, w.open(t)}
	hash := func(s store.Store) (hash [32]byte) {
		err := s.Transact(t.Context(), &store.Needs{Keys: []ledger.KeyID{m.key.ID}}, func(loaded *store.Loaded) (*store.Changes, error) {
			hash = loaded.Keys[m.key.ID].Hash
			return &store.Changes{}, nil
		})
		if err != nil {
			t.Fatalf("transact: %v", err)
		}
		return hash
	}
	for i, s := range handles {
		if hash(s) != m.key.Hash {
			t.Errorf("handle %d: another secret before the rotation", i)
		}
	}
	rotated := must[*ledger.KeyRecord](t)(w.rotate(t.Context(), w, m.key, ""))
	for i, s := range handles {
		if hash(s) != rotated.Hash {
			t.Errorf("handle %d: the old secret after the rotation", i)
		}
	}
}

func loadsRotations(t *testing.T, w *world) {
	m, stranger := w.join(t), w.join(t)
	rotated := must[*ledger.KeyRecord](t)(w.rotate(t.Context(), w, m.key, "first ü"))
	must[*ledger.KeyRecord](t)(w.rotate(t.Context(), w, m.key, ""))
	ref := store.RotationRef{Org: m.org.ID, Key: "first ü"}
	needs := &store.Needs{Rotations: []store.RotationRef{ref, ref, {Org: stranger.org.ID, Key: "first ü"}, {Org: m.org.ID, Key: "second"}, {Org: m.org.ID}}}
	w.look(t, needs, func(loaded *store.Loaded) {
		want := &store.RotationRecord{
			Org: m.org.ID, Key: m.key.ID, IdempotencyKey: "first ü", Overlap: 500 * time.Millisecond, RotatedAt: rotated.Previous.ExpiresAt - 500, MAC: everyByte(),
		}
		assertEqual(t, "rotations", loaded.Rotations, map[store.RotationRef]*store.RotationRecord{ref: want})
	})
}

func rotationKeyIsUnique(t *testing.T, w *world) {
	m, stranger := w.join(t), w.join(t)
	again := func(m *member) *store.Changes {
		return &store.Changes{NewRotations: []*store.RotationRecord{{Org: m.org.ID, Key: m.key.ID, IdempotencyKey: "one", RotatedAt: w.now()}}}
	}
	must[*ledger.KeyRecord](t)(w.rotate(t.Context(), w, m.key, "one"))
	wantError(t, "again", attempt(t.Context(), w, again(m)), store.ErrExists)
	if err := attempt(t.Context(), w, again(stranger)); err != nil {
		t.Errorf("in another organization: %v", err)
	}
}

// rotationsAtOnce rotates one key concurrently. Each rotation sees the secret of the previous one,
// so they form a line.
func rotationsAtOnce(t *testing.T, w *world) {
	const workers, each = 6, 4
	m := w.join(t)
	var made [workers][]*ledger.KeyRecord
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		for range each {
			rotated, err := w.rotate(ctx, s, m.key, "")
			if err != nil {
				return err
			}
			made[worker] = append(made[worker], rotated)
		}
		return nil
	})
	after := make(map[[32]byte][32]byte)
	for _, rotations := range made {
		for _, rotated := range rotations {
			if _, twice := after[rotated.Previous.Hash]; twice {
				t.Fatal("two rotations replaced the same secret")
			}
			after[rotated.Previous.Hash] = rotated.Hash
		}
	}
	last := m.key.Hash
	for range workers * each {
		last = after[last]
	}
	if got := must[*ledger.KeyRecord](t)(w.Key(t.Context(), m.key.ID)); got.Hash != last {
		t.Error("the key has another secret than the last rotation gave it")
	}
}

func oneRotation(t *testing.T, w *world) {
	const workers = 9
	m := w.join(t)
	var seen [workers][32]byte
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		rotated, err := w.rotate(ctx, s, m.key, "once")
		if errors.Is(err, store.ErrExists) {
			rotated, err = w.rotate(ctx, s, m.key, "once")
		}
		seen[worker] = rotated.Hash
		return err
	})
	got := must[*ledger.KeyRecord](t)(w.Key(t.Context(), m.key.ID))
	if got.Previous == nil || got.Previous.Hash != m.key.Hash {
		t.Fatal("the key was rotated more than once, or never")
	}
	for worker, hash := range seen {
		if hash != got.Hash {
			t.Errorf("worker %d saw a secret that the one rotation did not make", worker)
		}
	}
}

// rotationAgainstRevocation: in either order the key ends up revoked, and no rotation revives it.
func rotationAgainstRevocation(t *testing.T, w *world) {
	const workers = 8
	m := w.join(t)
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		if worker == 0 {
			_, err := w.revoke(ctx, s, m.key, w.now())
			return err
		}
		_, err := w.rotate(ctx, s, m.key, "")
		return err
	})
	got := must[*ledger.KeyRecord](t)(w.Key(t.Context(), m.key.ID))
	if got.RevokedAt == nil {
		t.Error("a rotation brought the revoked key back")
	}
}

// rotationAgainstUse: neither a rotation nor a revocation loses the time of the last use, and no
// use restores an old secret.
func rotationAgainstUse(t *testing.T, w *world) {
	const workers, each = 6, 8
	m := w.join(t)
	base := w.now() + 1_000_000
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		for i := range each {
			var err error
			if worker%2 == 0 {
				_, err = w.rotate(ctx, s, m.key, "")
			} else {
				err = s.TouchKeys(ctx, map[ledger.KeyID]ledger.Time{m.key.ID: base + ledger.Time(i*workers+worker)})
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	got := must[*ledger.KeyRecord](t)(w.Key(t.Context(), m.key.ID))
	if latest := base + (each-1)*workers + workers - 1; got.LastUsedAt == nil || *got.LastUsedAt != latest {
		t.Errorf("the last use is %v, want %v", got.LastUsedAt, latest)
	}
	if got.Hash == m.key.Hash || got.Previous == nil {
		t.Error("a use undid a rotation")
	}
}

// crossingKeys deadlocks in a store that writes keys in the order of its arguments. No call is
// retried, because none has a reason to fail. As in the service, a change of keys governs the
// organization and an opening holds it.
func crossingKeys(t *testing.T, w *world) {
	const workers, each, width = 6, 4, 20
	m := w.join(t)
	keys := make([]*ledger.KeyRecord, width)
	for i := range keys {
		keys[i] = w.newKey(m.org.ID)
		w.mustAddKey(t, keys[i])
	}
	w.together(t, workers, func(ctx context.Context, s store.Store, worker int) error {
		for range each {
			used := make(map[ledger.KeyID]ledger.Time)
			changes, openings := new(store.Changes), new(store.Changes)
			for i := range keys {
				key := *keys[(i*(2*worker+1)+worker)%width]
				key.Hash = w.secret()
				used[key.ID] = w.now()
				changes.Keys = append(changes.Keys, &key)
				chain := w.draft(m)
				chain.OpenedBy = key.ID
				openings.NewChains = append(openings.NewChains, w.record(chain, ""))
			}
			err := s.TouchKeys(ctx, used)
			if err == nil && worker%3 == 0 {
				err = s.Transact(ctx, &store.Needs{Govern: []ledger.OrgID{m.org.ID}}, func(*store.Loaded) (*store.Changes, error) { return changes, nil })
			}
			if err == nil && worker%3 == 1 {
				err = s.Transact(ctx, &store.Needs{Orgs: []ledger.OrgID{m.org.ID}}, func(*store.Loaded) (*store.Changes, error) { return openings, nil })
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
