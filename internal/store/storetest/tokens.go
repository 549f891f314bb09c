package storetest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var tokenCases = []testCase{
	{name: "a token is stored unchanged", run: keepsTokens},
	{name: "an active token is found by its hash until it expires", run: findsActiveToken},
	{name: "a token that is unknown, revoked or expired is not found", run: inactiveToken},
	{name: "tokens are listed newest first, page by page", run: listsTokens},
	{name: "a token with the greatest id is listed", run: listsGreatestToken},
	{name: "tokens are loaded by id, doubles once", run: loadsTokens},
	{name: "an issue is found by organization and key", run: loadsIssued},
	{name: "a revocation moves its moment, its reason and the MAC alone", run: revokesToken},
	{name: "a revocation of an unknown token writes nothing", run: revokesUnknownToken},
	{name: "the last use is stored and never moves back", run: touchesTokens},
	{name: "missing tokens are not touched", run: touchesMissingTokens},
}

func (w *world) token(org ledger.OrgID) *store.TokenRecord {
	now := w.now()
	return &store.TokenRecord{
		ID: ledger.TokenID{UUID: ledger.NewTimedID(now, w.random())}, Org: org, Hash: ledger.HashToken(fmt.Sprint("token ", now)),
		Artifact: "receipt", ArtifactID: w.receiptID().UUID, CreatedAt: now, MAC: fmt.Appendf(nil, "mac %d", now), Act: int64(now),
	}
}

// issue stores new tokens of an organization.
func (w *world) issue(t *testing.T, m *member, count int) []*store.TokenRecord {
	t.Helper()
	records := make([]*store.TokenRecord, count)
	for i := range records {
		records[i] = w.token(m.org.ID)
	}
	w.write(t, &store.Changes{NewTokens: records})
	return records
}

// wantTokens compares all tokens of an organization. want is ordered oldest first.
func (w *world) wantTokens(t *testing.T, what string, org ledger.OrgID, want ...*store.TokenRecord) {
	t.Helper()
	want = slices.Clone(want)
	slices.Reverse(want)
	assertEqual(t, what, must[[]*store.TokenRecord](t)(w.open(t).Tokens(t.Context(), org, nil, 1000)), want)
}

func keepsTokens(t *testing.T, w *world) {
	m := w.join(t)
	plain, full := w.token(m.org.ID), w.token(m.org.ID)
	expires, revoked, used := w.now(), w.now(), w.now()
	full.Hash, full.Artifact, full.ArtifactID = [32]byte(everyByte()), "approval", uuid.UUID(everyByte()[200:216])
	full.IdempotencyKey, full.RevocationReason = "clé 🔑", "it's \"leaked\", naïvely"
	full.ExpiresAt, full.RevokedAt, full.LastUsedAt = &expires, &revoked, &used
	full.MAC = everyByte()
	w.write(t, &store.Changes{NewTokens: []*store.TokenRecord{plain, full}})
	w.wantTokens(t, "tokens", m.org.ID, plain, full)
	assertEqual(t, "plain", activeToken(t, w.open(t), plain.Hash, w.now()), plain)
}

func activeToken(t *testing.T, s store.Store, hash [32]byte, now ledger.Time) *store.TokenRecord {
	t.Helper()
	return must[*store.ActiveToken](t)(s.ActiveToken(t.Context(), hash, now)).TokenRecord
}

func findsActiveToken(t *testing.T, w *world) {
	m := w.join(t)
	w.issue(t, m, 3)
	endless, brief := w.token(m.org.ID), w.token(m.org.ID)
	expires := w.now() + lifetime
	brief.ExpiresAt = &expires
	w.write(t, &store.Changes{NewTokens: []*store.TokenRecord{endless, brief}})
	for _, now := range []ledger.Time{0, w.now(), expires - 1} {
		assertEqual(t, "brief", activeToken(t, w, brief.Hash, now), brief)
		assertEqual(t, "endless", activeToken(t, w, endless.Hash, now), endless)
	}
	assertEqual(t, "endless", activeToken(t, w, endless.Hash, 1<<60), endless)
}

// A token has expired at the time of its expiry. A revoked token is inactive at any time.
func inactiveToken(t *testing.T, w *world) {
	m := w.join(t)
	revoked, expired, both := w.token(m.org.ID), w.token(m.org.ID), w.token(m.org.ID)
	past, at := w.now(), w.now()
	revoked.RevokedAt, both.RevokedAt = &at, &at
	expired.ExpiresAt, both.ExpiresAt = &past, &past
	w.write(t, &store.Changes{NewTokens: []*store.TokenRecord{revoked, expired, both}})
	for _, test := range []struct {
		name string
		hash [32]byte
		now  ledger.Time
	}{
		{"unknown", w.token(m.org.ID).Hash, w.now()},
		{"no hash", [32]byte{}, w.now()},
		{"revoked", revoked.Hash, w.now()},
		{"revoked, before it was", revoked.Hash, at - 1},
		{"expiring", expired.Hash, past},
		{"expired", expired.Hash, past + 1},
		{"long expired", expired.Hash, 1 << 60},
		{"revoked and expired", both.Hash, w.now()},
	} {
		token, err := w.ActiveToken(t.Context(), test.hash, test.now)
		wantError(t, test.name, err, store.ErrNotFound)
		if token != nil {
			t.Errorf("%s: the token came all the same", test.name)
		}
	}
}

func listsTokens(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	w.issue(t, other, 2)
	records := w.issue(t, m, 12)
	for _, test := range []struct{ before, limit, first, last int }{
		{0, 100, 12, 1}, {0, 3, 12, 10}, {10, 4, 9, 6}, {2, 5, 1, 1}, {1, 5, 0, 1}, {12, 1, 11, 11},
	} {
		var before *ledger.TokenID
		if test.before > 0 {
			before = &records[test.before-1].ID
		}
		var want []*store.TokenRecord
		for number := test.first; number >= test.last; number-- {
			want = append(want, records[number-1])
		}
		got := must[[]*store.TokenRecord](t)(w.Tokens(t.Context(), m.org.ID, before, test.limit))
		assertEqual(t, fmt.Sprintf("%d before %d", test.limit, test.before), got, want)
	}
	w.wantTokens(t, "an unknown organization's", w.newOrganization().ID)
}

// listsGreatestToken stores an id that the service never makes: somebody who writes to the database
// must not be able to hide a token behind its id.
func listsGreatestToken(t *testing.T, w *world) {
	m := w.join(t)
	plain, greatest := w.token(m.org.ID), w.token(m.org.ID)
	greatest.ID.UUID = uuid.Max
	w.write(t, &store.Changes{NewTokens: []*store.TokenRecord{plain, greatest}})
	w.wantTokens(t, "tokens", m.org.ID, plain, greatest)
	assertEqual(t, "next page", must[[]*store.TokenRecord](t)(w.Tokens(t.Context(), m.org.ID, &greatest.ID, 10)), []*store.TokenRecord{plain})
}

func loadsTokens(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	mine, theirs := w.issue(t, m, 2), w.issue(t, other, 1)
	ids := []ledger.TokenID{theirs[0].ID, mine[1].ID, theirs[0].ID, w.token(m.org.ID).ID}
	w.look(t, &store.Needs{Tokens: ids}, func(loaded *store.Loaded) {
		want := map[ledger.TokenID]*store.TokenRecord{mine[1].ID: mine[1], theirs[0].ID: theirs[0]}
		assertEqual(t, "tokens", loaded.Tokens, want)
	})
}

func loadsIssued(t *testing.T, w *world) {
	one, two := w.join(t), w.join(t)
	records := []*store.TokenRecord{w.token(one.org.ID), w.token(two.org.ID), w.token(one.org.ID), w.token(one.org.ID), w.token(one.org.ID)}
	records[0].IdempotencyKey, records[1].IdempotencyKey, records[2].IdempotencyKey = "k", "k", "K"
	at := w.now()
	records[2].RevokedAt = &at // a revoked token keeps its idempotency key
	w.write(t, &store.Changes{NewTokens: records})
	refs := []store.TokenRef{
		{Org: one.org.ID, Key: "k"}, {Org: two.org.ID, Key: "k"}, {Org: one.org.ID, Key: "K"},
		{Org: one.org.ID, Key: "k"}, {Org: two.org.ID, Key: "K"}, {Org: one.org.ID},
	}
	w.look(t, &store.Needs{Issued: refs}, func(loaded *store.Loaded) {
		want := map[store.TokenRef]*store.TokenRecord{refs[0]: records[0], refs[1]: records[1], refs[2]: records[2]}
		assertEqual(t, "issued", loaded.Issued, want)
	})
}

func revokesToken(t *testing.T, w *world) {
	m := w.join(t)
	records := w.issue(t, m, 3)
	used, at := w.now(), w.now()
	err := w.Transact(t.Context(), &store.Needs{Tokens: []ledger.TokenID{records[1].ID}}, func(loaded *store.Loaded) (*store.Changes, error) {
		revoked := *loaded.Tokens[records[1].ID]
		revoked.RevokedAt, revoked.RevocationReason, revoked.MAC = &at, "lost", []byte("other")
		revoked.Artifact, revoked.ExpiresAt, revoked.LastUsedAt = "approval", &used, &used // a revocation must not write these
		return &store.Changes{RevokedTokens: []*store.TokenRecord{&revoked}}, nil
	})
	if err != nil {
		t.Fatalf("transact: %v", err)
	}
	records[1].RevokedAt, records[1].RevocationReason, records[1].MAC = &at, "lost", []byte("other")
	w.wantTokens(t, "tokens", m.org.ID, records...)
	_, err = w.open(t).ActiveToken(t.Context(), records[1].Hash, w.now())
	wantError(t, "revoked", err, store.ErrNotFound)
	w.look(t, &store.Needs{Tokens: []ledger.TokenID{records[1].ID}}, func(loaded *store.Loaded) {
		assertEqual(t, "next transaction", loaded.Tokens[records[1].ID], records[1])
	})
}

func revokesUnknownToken(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	known := w.issue(t, m, 1)[0]
	at := w.now()
	revoked, stranger, moved := *known, w.token(m.org.ID), *known
	revoked.RevokedAt, stranger.RevokedAt, moved.RevokedAt = &at, &at, &at
	moved.Org = other.org.ID
	for name, records := range map[string][]*store.TokenRecord{"unknown": {&revoked, stranger}, "another organization's": {&moved}} {
		companion := w.token(m.org.ID)
		err := attempt(t.Context(), w, &store.Changes{NewTokens: []*store.TokenRecord{companion}, RevokedTokens: records})
		wantError(t, name, err, store.ErrNotFound)
	}
	w.wantTokens(t, "tokens", m.org.ID, known)
}

func (w *world) touch(t *testing.T, used map[ledger.TokenID]ledger.Time) {
	t.Helper()
	if err := w.TouchTokens(t.Context(), used); err != nil {
		t.Fatalf("touch: %v", err)
	}
}

func touchesTokens(t *testing.T, w *world) {
	m := w.join(t)
	records := w.issue(t, m, 4)
	early, late := w.now(), w.now()
	w.touch(t, map[ledger.TokenID]ledger.Time{records[0].ID: early, records[1].ID: late})
	w.touch(t, map[ledger.TokenID]ledger.Time{records[0].ID: late, records[1].ID: early, records[2].ID: early})
	records[0].LastUsedAt, records[1].LastUsedAt, records[2].LastUsedAt = &late, &late, &early
	w.wantTokens(t, "touched", m.org.ID, records...)
	w.touch(t, map[ledger.TokenID]ledger.Time{records[0].ID: late})
	w.touch(t, nil)
	w.wantTokens(t, "touched again", m.org.ID, records...)
	assertEqual(t, "active", activeToken(t, w, records[0].Hash, w.now()), records[0])
}

func touchesMissingTokens(t *testing.T, w *world) {
	m := w.join(t)
	known := w.issue(t, m, 1)[0]
	at := w.now()
	w.touch(t, map[ledger.TokenID]ledger.Time{w.token(m.org.ID).ID: at})
	w.touch(t, map[ledger.TokenID]ledger.Time{w.token(m.org.ID).ID: at, known.ID: at, w.token(m.org.ID).ID: at})
	known.LastUsedAt = &at
	w.wantTokens(t, "tokens", m.org.ID, known)
}
