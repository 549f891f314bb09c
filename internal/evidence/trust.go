package evidence

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// trustPage is the number of rows read at a time.
const trustPage = 200

// Unsealed counts the rows of an organization that have no authenticator or name no act. If there
// are many, the count is a lower bound. Such rows predate authenticators or had theirs removed;
// either way they are refused.
func (s *Store) Unsealed(ctx context.Context, org ledger.OrgID) (int, error) {
	keys, err := s.unsealedKeys(ctx, org)
	if err != nil {
		return 0, err
	}
	rows, err := s.UnsealedRows(ctx, org, trustPage)
	if err != nil {
		return 0, err
	}
	return len(keys) + rows.Len(), nil
}

// Trust says how much of an existing database an operator trusts when taking it over.
type Trust int

const (
	// TrustNumbers trusts authentic rows that name no act because they predate act numbers.
	TrustNumbers Trust = iota
	// TrustAll also trusts rows without an authenticator.
	TrustAll
)

// SealExisting seals, as they are, the rows of an organization that predate authenticators or act
// numbers. Each gets the number of the last act about it in the audit log. It is meant to be run
// once, by an operator: it trusts that each row is the newest version.
func (s *Store) SealExisting(ctx context.Context, org ledger.OrgID, trust Trust) (int, error) {
	if s.keys == nil {
		return 0, errNoKeys
	}
	if err := s.catchUp(ctx, org); err != nil {
		return 0, err
	}
	t := &takeOver{store: s, org: org, trust: trust}
	taken, err := t.keys(ctx)
	if err != nil {
		return taken, err
	}
	for limit := trustPage; ; {
		rows, err := s.UnsealedRows(ctx, org, limit)
		if err != nil {
			return taken, err
		}
		found := rows.Len()
		rows.Webhooks = takeEach(t, rows.Webhooks, s.checkWebhook, s.sealWebhook, webhookRef, func(w *store.WebhookRecord) *rowSeal { return &rowSeal{&w.MAC, &w.Act} })
		rows.Policies = takeEach(t, rows.Policies, s.checkPolicy, s.sealPolicy, policyRef, func(p *store.PolicyRecord) *rowSeal { return &rowSeal{&p.MAC, &p.Act} })
		rows.Tokens = takeEach(t, rows.Tokens, s.checkToken, s.sealToken, tokenRef, func(t *store.TokenRecord) *rowSeal { return &rowSeal{&t.MAC, &t.Act} })
		rows.SigningKeys = takeEach(t, rows.SigningKeys, s.checkSigningKey, s.sealSigningKey, signingKeyRef, func(k *store.SigningKeyRecord) *rowSeal { return &rowSeal{&k.MAC, &k.Act} })
		if trust != TrustAll {
			rows.Anchors, rows.Jobs = nil, nil
		}
		sealEach(s.sealAnchor, rows.Anchors)
		for _, job := range rows.Jobs {
			job.DueAt = job.RunAt
			s.sealJob(job)
		}
		if rows.Len() == 0 && found < limit { // only rows that are not trusted are left
			return taken, nil
		}
		if err := s.SealRows(ctx, rows); err != nil {
			return taken, err
		}
		taken += rows.Len()
		// Rows that are not trusted are found again: they must not hide those behind them.
		limit = trustPage + found - rows.Len()
	}
}

type takeOver struct {
	store *Store
	org   ledger.OrgID
	trust Trust
}

// rowSeal points to the fields of a record that SealExisting sets.
type rowSeal struct {
	mac *[]byte
	act *int64
}

// trusted reports whether a row may be sealed as it is.
func (t *takeOver) trusted(mac []byte, check error) bool {
	if len(mac) == 0 {
		return t.trust == TrustAll
	}
	return check == nil
}

// lastAct returns the last act about a record in the audit log.
func (t *takeOver) lastAct(n recordRef) int64 {
	m := t.store.memoryOf(t.org)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.history == nil {
		return 1
	}
	return m.history.LastAct(n.kind, n.name)
}

// takeEach numbers and seals the trusted rows, and returns them.
func takeEach[R any](t *takeOver, rows []R, check func(R) error, seal func(R), name func(R) recordRef, members func(R) *rowSeal) []R {
	var taken []R
	for _, row := range rows {
		part := members(row)
		if !t.trusted(*part.mac, check(row)) {
			continue
		}
		*part.act = t.lastAct(name(row))
		seal(row)
		taken = append(taken, row)
	}
	return taken
}

func (t *takeOver) keys(ctx context.Context) (int, error) {
	s := t.store
	keys, err := s.unsealedKeys(ctx, t.org)
	if err != nil || len(keys) == 0 {
		return 0, err
	}
	taken := 0
	err = s.port.Transact(ctx, &store.Needs{Govern: []ledger.OrgID{t.org}, Keys: keys}, func(loaded *store.Loaded) (*store.Changes, error) {
		changes := new(store.Changes)
		for _, id := range keys {
			key := loaded.Keys[id]
			if key == nil || len(key.MAC) > 0 && key.Act > 0 || !t.trusted(key.MAC, s.checkKey(key)) {
				continue
			}
			sealed := *key
			sealed.Act = t.lastAct(keyRef(key))
			s.sealKey(&sealed)
			changes.Keys = append(changes.Keys, &sealed)
		}
		taken = len(changes.Keys)
		return changes, nil
	})
	return taken, err
}

func (s *Store) unsealedKeys(ctx context.Context, org ledger.OrgID) ([]ledger.KeyID, error) {
	var unsealed []ledger.KeyID
	var after ledger.KeyID
	for {
		keys, err := s.port.Keys(ctx, org, after, trustPage)
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			if len(key.MAC) == 0 || key.Act == 0 {
				unsealed = append(unsealed, key.ID)
			}
		}
		if len(keys) < trustPage {
			return unsealed, nil
		}
		after = keys[len(keys)-1].ID
	}
}
