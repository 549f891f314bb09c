package storetest

import (
	"testing"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

var unsealedCases = []testCase{
	{name: "rows that name no act are found and given one", run: numbersRows, unaudited: true},
	{name: "rows without an authenticator are found and given one", run: sealsRows, unaudited: true},
}

func sealsRows(t *testing.T, w *world) {
	m, other := w.join(t), w.join(t)
	w.unsealed(t, other)
	w.putWebhooks(t, w.webhook(m.org.ID))
	want := w.unsealed(t, m)
	found := must[*store.Rows](t)(w.UnsealedRows(t.Context(), m.org.ID, 10))
	for i, job := range found.Jobs {
		want.Jobs[i].No = job.No
	}
	assertEqual(t, "unsealed", found, want)
	for _, mac := range authenticators(want) {
		*mac = []byte("sealed now")
	}
	late := *want.Webhooks[0]
	if err := w.SealRows(t.Context(), want); err != nil {
		t.Fatalf("seal: %v", err)
	}
	if left := must[*store.Rows](t)(w.UnsealedRows(t.Context(), m.org.ID, 10)); left.Len() != 0 {
		t.Errorf("%d rows are unsealed still", left.Len())
	}
	// A row that has an authenticator keeps it.
	late.MAC = []byte("too late")
	if err := w.SealRows(t.Context(), &store.Rows{Webhooks: []*store.WebhookRecord{&late}}); err != nil {
		t.Fatalf("seal again: %v", err)
	}
	w.look(t, &store.Needs{Webhooks: []ledger.WebhookID{late.ID}}, func(loaded *store.Loaded) {
		assertEqual(t, "sealed", loaded.Webhooks[late.ID], want.Webhooks[0])
	})
	if others := must[*store.Rows](t)(w.UnsealedRows(t.Context(), other.org.ID, 10)); others.Len() != want.Len() {
		t.Errorf("%d rows of the other organization are unsealed, want %d", others.Len(), want.Len())
	}
}

func numbersRows(t *testing.T, w *world) {
	m := w.join(t)
	want := &store.Rows{
		Webhooks: []*store.WebhookRecord{w.webhook(m.org.ID)}, Policies: []*store.PolicyRecord{w.policy(m.org.ID, 1)},
		Tokens: []*store.TokenRecord{w.token(m.org.ID)}, SigningKeys: []*store.SigningKeyRecord{w.signingKey(m.org.ID)},
	}
	number := func(act int64) {
		want.Webhooks[0].Act, want.Policies[0].Act, want.Tokens[0].Act, want.SigningKeys[0].Act = act, act, act, act
	}
	number(0)
	w.write(t, &store.Changes{Webhooks: want.Webhooks, NewPolicies: want.Policies, NewTokens: want.Tokens, SigningKeys: want.SigningKeys})
	found := must[*store.Rows](t)(w.UnsealedRows(t.Context(), m.org.ID, 10))
	assertEqual(t, "without a number", [][]int{{len(found.Webhooks), len(found.Policies), len(found.Tokens), len(found.SigningKeys)}}, [][]int{{1, 1, 1, 1}})
	number(7)
	done(t, w.SealRows(t.Context(), want))
	if left := must[*store.Rows](t)(w.UnsealedRows(t.Context(), m.org.ID, 10)); left.Len() != 0 {
		t.Errorf("%d rows name no act still", left.Len())
	}
	w.look(t, &store.Needs{Webhooks: []ledger.WebhookID{want.Webhooks[0].ID}, Tokens: []ledger.TokenID{want.Tokens[0].ID}, SigningKeys: []ledger.OrgID{m.org.ID}}, func(loaded *store.Loaded) {
		policy, err := loaded.Policy(m.org.ID, 1)
		if err != nil {
			t.Fatal(err)
		}
		assertEqual(t, "numbers", []int64{loaded.Webhooks[want.Webhooks[0].ID].Act, loaded.Tokens[want.Tokens[0].ID].Act, loaded.SigningKeys[m.org.ID][0].Act, policy.Act}, []int64{7, 7, 7, 7})
	})
}

// unsealed stores one row in each table without an authenticator.
func (w *world) unsealed(t *testing.T, m *member) *store.Rows {
	t.Helper()
	job := w.job("unsealed", "", w.now())
	job.Org = m.org.ID
	rows := &store.Rows{
		Webhooks: []*store.WebhookRecord{w.webhook(m.org.ID)}, Policies: []*store.PolicyRecord{w.policy(m.org.ID, 1)},
		Tokens: []*store.TokenRecord{w.token(m.org.ID)}, SigningKeys: []*store.SigningKeyRecord{w.signingKey(m.org.ID)},
		Anchors: []*store.AnchorRecord{w.anchor(m.org.ID, 1, authority)}, Jobs: []*store.Job{job},
	}
	for _, mac := range authenticators(rows) {
		*mac = []byte{}
	}
	w.write(t, &store.Changes{
		Webhooks: rows.Webhooks, NewPolicies: rows.Policies, NewTokens: rows.Tokens, SigningKeys: rows.SigningKeys, NewJobs: rows.Jobs,
	})
	w.putAnchors(t, rows.Anchors...)
	return rows
}

// authenticators returns those of the rows.
func authenticators(rows *store.Rows) (macs []*[]byte) {
	for _, webhook := range rows.Webhooks {
		macs = append(macs, &webhook.MAC)
	}
	for _, policy := range rows.Policies {
		macs = append(macs, &policy.MAC)
	}
	for _, token := range rows.Tokens {
		macs = append(macs, &token.MAC)
	}
	for _, key := range rows.SigningKeys {
		macs = append(macs, &key.MAC)
	}
	for _, anchor := range rows.Anchors {
		macs = append(macs, &anchor.MAC)
	}
	for _, job := range rows.Jobs {
		macs = append(macs, &job.MAC)
	}
	return macs
}
