package evidence

import (
	"context"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// trustPage is how many rows of a table are read together.
const trustPage = 200

// Unsealed reports how many rows of an organization have no authenticator or name no act,
// or, where there are many, that there are some. They are from before there were any, or
// somebody took it away; either way they are refused.
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

// Trust is how much of what it finds an operator believes who takes a database over.
type Trust int

const (
	// TrustNumbers believes authentic rows that name no act, from before they did.
	TrustNumbers Trust = iota
	// TrustAll believes rows without an authenticator too.
	TrustAll
)

// TakeOver seals the rows of an organization that are from before they had authenticators
// or named the act that changed them last, as they are: each names the act that the audit
// log says. It is for an operator, once: it believes that each row is the newest.
func (s *Store) TakeOver(ctx context.Context, org ledger.OrgID, trust Trust) (int, error) {
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
	for {
		rows, err := s.UnsealedRows(ctx, org, trustPage)
		if err != nil {
			return taken, err
		}
		rows.Webhooks = takeEach(t, rows.Webhooks, s.checkWebhook, s.sealWebhook, numberedWebhook, func(w *store.WebhookRecord) *rowSeal { return &rowSeal{&w.MAC, &w.Act} })
		rows.Policies = takeEach(t, rows.Policies, s.checkPolicy, s.sealPolicy, numberedPolicy, func(p *store.PolicyRecord) *rowSeal { return &rowSeal{&p.MAC, &p.Act} })
		rows.Tokens = takeEach(t, rows.Tokens, s.checkToken, s.sealToken, numberedToken, func(t *store.TokenRecord) *rowSeal { return &rowSeal{&t.MAC, &t.Act} })
		rows.SigningKeys = takeEach(t, rows.SigningKeys, s.checkSigningKey, s.sealSigningKey, numberedSigningKey, func(k *store.SigningKeyRecord) *rowSeal { return &rowSeal{&k.MAC, &k.Act} })
		if trust != TrustAll {
			rows.Anchors, rows.Jobs = nil, nil
		}
		sealEach(s.sealAnchor, rows.Anchors)
		for _, job := range rows.Jobs {
			job.DueAt = job.RunAt
			s.sealJob(job)
		}
		if rows.Len() == 0 { // none is left, but those that are not believed
			return taken, nil
		}
		if err := s.SealRows(ctx, rows); err != nil {
			return taken, err
		}
		taken += rows.Len()
	}
}

// takeOver is one taking over of an organization's rows.
type takeOver struct {
	store *Store
	org   ledger.OrgID
	trust Trust
}

// rowSeal are the members of a record that a taking over writes.
type rowSeal struct {
	mac *[]byte
	act *int64
}

// believed reports whether a row may be sealed as it is.
func (t *takeOver) believed(mac []byte, check error) bool {
	if len(mac) == 0 {
		return t.trust == TrustAll
	}
	return check == nil
}

// lastAct is the act that changed a record last, as the audit log says.
func (t *takeOver) lastAct(n numbered) int64 {
	m := t.store.memoryOf(t.org)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.history == nil {
		return 1
	}
	return m.history.LastAct(n.kind, n.name)
}

// takeEach numbers and seals the rows that are believed, and returns them.
func takeEach[R any](t *takeOver, rows []R, check func(R) error, seal func(R), name func(R) numbered, members func(R) *rowSeal) []R {
	var taken []R
	for _, row := range rows {
		part := members(row)
		if !t.believed(*part.mac, check(row)) {
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
			if key == nil || len(key.MAC) > 0 && key.Act > 0 || !t.believed(key.MAC, s.checkKey(key)) {
				continue
			}
			sealed := *key
			sealed.Act = t.lastAct(numberedKey(key))
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
