package evidence

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// recordRef identifies a record and the number of the act that last changed it.
type recordRef struct {
	org  ledger.OrgID
	kind ledger.RecordKind
	name string
	act  int64
}

func keyRef(k *ledger.KeyRecord) recordRef {
	return recordRef{k.Org, ledger.RecordKey, k.ID.String(), k.Act}
}

func tokenRef(t *store.TokenRecord) recordRef {
	return recordRef{t.Org, ledger.RecordToken, t.ID.String(), t.Act}
}

func signingKeyRef(k *store.SigningKeyRecord) recordRef {
	return recordRef{k.Org, ledger.RecordSigningKey, k.ID.String(), k.Act}
}

func webhookRef(w *store.WebhookRecord) recordRef {
	return recordRef{w.Org, ledger.RecordWebhook, w.ID.String(), w.Act}
}

func policyRef(p *store.PolicyRecord) recordRef {
	return recordRef{p.Org, ledger.RecordPolicy, p.Version, p.Act}
}

func signInRef(in *store.SignIn) recordRef {
	return recordRef{in.Org, ledger.RecordSignIn, SignInName(in.Hash), in.Act}
}

// SignInName is the name of a sign-in link or session in the audit log. It is half of the stored
// hash, so it cannot be used to sign in.
func SignInName(hash [32]byte) string { return hex.EncodeToString(hash[:16]) }

// errStale says that a record is authentic but not the newest version.
func errStale(n recordRef) error {
	return fmt.Errorf("a record (%s) is not the version that the last act about it wrote: %w", n.kind, ledger.ErrStateTampered)
}

// assignActs sets the act number of every changed record to the act that changes it.
func assignActs(changes *store.Changes) error {
	acts := make(map[ledger.OrgID][]*ledger.StoredAct)
	for _, act := range changes.NewActs {
		acts[act.Org] = append(acts[act.Org], act)
	}
	changed := make(map[ledger.OrgID]*ledger.History, len(acts))
	for org, entered := range acts {
		history, err := ledger.Changed(entered)
		if err != nil {
			return err
		}
		changed[org] = history
	}
	return errors.Join(
		assignEach(changed, keyRef, func(k *ledger.KeyRecord, act int64) { k.Act = act }, changes.NewKeys, changes.Keys),
		assignEach(changed, tokenRef, func(t *store.TokenRecord, act int64) { t.Act = act }, changes.NewTokens, changes.RevokedTokens),
		assignEach(changed, signingKeyRef, func(k *store.SigningKeyRecord, act int64) { k.Act = act }, changes.SigningKeys),
		assignEach(changed, webhookRef, func(w *store.WebhookRecord, act int64) { w.Act = act }, changes.Webhooks),
		assignEach(changed, policyRef, func(p *store.PolicyRecord, act int64) { p.Act = act }, changes.NewPolicies),
		assignEach(changed, importedRef, func(a *store.ImportedApproval, act int64) { a.Act = act }, changes.NewImported),
	)
}

func assignEach[R any](changed map[ledger.OrgID]*ledger.History, name func(R) recordRef, set func(R, int64), lists ...[]R) error {
	for _, rows := range lists {
		for _, row := range rows {
			n := name(row)
			history := changed[n.org]
			if history == nil || history.ByAct(n.kind, n.name) == 0 {
				return fmt.Errorf("a record (%s) is written without an act that names it", n.kind)
			}
			set(row, history.ByAct(n.kind, n.name))
		}
	}
	return nil
}

// checkCurrent checks that a row loaded in a transaction is the newest version. The transaction
// holds the organization's lock, without which no act changes a record, so the history covers the
// row.
func (s *Store) checkCurrent(n recordRef) error {
	m := s.memoryOf(n.org)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.history == nil || m.behind && m.history.End().Count < m.known.Count {
		return m.historyErr()
	}
	if m.history.LastAct(n.kind, n.name) != n.act {
		return errStale(n)
	}
	return nil
}

// historyErr says why the history cannot be used. The caller holds m.mu.
func (m *logMemory) historyErr() error {
	if m.behind {
		return ErrRolledBack
	}
	return errLog
}

// seenActs maps a record to the act that was known to have changed it last before the record was
// read. The ref's act number is zero in the key.
type seenActs map[recordRef]int64

// verdict is the result of judging a record that was read without a lock.
type verdict int

const (
	current verdict = iota
	stale           // a later act was known before the record was read
	unsure          // the record may have changed since it was read; read it again
)

// judge compares a record that was read outside a transaction with the history. It brings the
// history up to date first if the record is newer.
func (s *Store) judge(ctx context.Context, n recordRef, seen seenActs) (verdict, error) {
	m := s.memoryOf(n.org)
	last, ahead, err := m.last(n)
	// Other writers may append acts faster than this loop reads them.
	for tries := 0; (errors.Is(err, errLags) || ahead) && tries < maxTries; tries++ {
		if err := s.catchUp(ctx, n.org); err != nil && !errors.Is(err, ErrRolledBack) {
			return stale, err
		}
		last, ahead, err = m.last(n)
		if ahead { // the log was read after the record and does not contain its act
			break
		}
	}
	if err != nil {
		return stale, err
	}
	name := n
	name.act = 0
	before, known := seen[name]
	switch {
	case last == n.act:
		return current, nil
	case ahead || known && (n.act < before || last == before):
		return stale, nil
	}
	seen[name] = last
	return unsure, nil
}

// maxTries bounds how often a growing log is read again.
const maxTries = 100

// errLags says that the history does not reach the known end of the log.
var errLags = fmt.Errorf("the audit log grows faster than it is read: %w", store.ErrUnavailable)

// last returns the number of the act that last changed a record. ahead reports whether the record
// names an act beyond the end of the history.
func (m *logMemory) last(n recordRef) (last int64, ahead bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.behind && (m.history == nil || m.history.End().Count < m.known.Count):
		return 0, false, ErrRolledBack
	case m.history == nil || m.history.End().Count < m.known.Count:
		return 0, false, errLags
	}
	return m.history.LastAct(n.kind, n.name), n.act > m.history.End().Count, nil
}

// readCurrent reads rows outside a transaction until each is known to be either current or stale.
// check authenticates a row. reject turns a failing row into what callers may see of it.
func readCurrent[R any](ctx context.Context, s *Store, read func() ([]R, error), check func(R) error, name func(R) recordRef, reject func(R, error) (R, error)) ([]R, error) {
	seen := make(seenActs)
	for {
		rows, err := read()
		if err != nil {
			return nil, err
		}
		again := false
		for i, row := range rows {
			err := check(row)
			if err == nil {
				var v verdict
				if v, err = s.judge(ctx, name(row), seen); err == nil && v == stale {
					err = errStale(name(row))
				}
				again = again || err == nil && v == unsure
			}
			switch {
			case err == nil:
			case errors.Is(err, ledger.ErrStateTampered):
				if rows[i], err = reject(row, err); err != nil {
					return nil, err
				}
			default:
				return nil, err
			}
		}
		if !again {
			return rows, nil
		}
	}
}

// readOneCurrent is readCurrent for a single row.
func readOneCurrent[R any](ctx context.Context, s *Store, read func() (R, error), check func(R) error, name func(R) recordRef, reject func(R, error) (R, error)) (R, error) {
	rows, err := readCurrent(ctx, s, func() ([]R, error) {
		row, err := read()
		return []R{row}, err
	}, check, name, reject)
	if err != nil {
		var none R
		return none, err
	}
	return rows[0], nil
}

// refuse rejects a row altogether.
func refuse[R any](row R, err error) (R, error) { return row, err }
