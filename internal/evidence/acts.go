package evidence

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// numbered is a record that carries the number of the act that changed it last.
type numbered struct {
	org  ledger.OrgID
	kind ledger.RecordKind
	name string
	act  int64
}

func numberedKey(k *ledger.KeyRecord) numbered {
	return numbered{k.Org, ledger.RecordKey, k.ID.String(), k.Act}
}

func numberedToken(t *store.TokenRecord) numbered {
	return numbered{t.Org, ledger.RecordToken, t.ID.String(), t.Act}
}

func numberedSigningKey(k *store.SigningKeyRecord) numbered {
	return numbered{k.Org, ledger.RecordSigningKey, k.ID.String(), k.Act}
}

func numberedWebhook(w *store.WebhookRecord) numbered {
	return numbered{w.Org, ledger.RecordWebhook, w.ID.String(), w.Act}
}

func numberedPolicy(p *store.PolicyRecord) numbered {
	return numbered{p.Org, ledger.RecordPolicy, p.Version, p.Act}
}

func numberedSignIn(in *store.SignIn) numbered {
	return numbered{in.Org, ledger.RecordSignIn, SignInName(in.Hash), in.Act}
}

// SignInName is what acts call a sign-in link or a session: half of what is stored of it,
// which opens nothing.
func SignInName(hash [32]byte) string { return hex.EncodeToString(hash[:16]) }

// errOld says that a record is authentic and not the newest.
func errOld(n numbered) error {
	return fmt.Errorf("a record (%s) is not the one that the last act about it has left: %w", n.kind, ledger.ErrStateTampered)
}

// number gives the records of some changes the numbers of the acts that change them.
func number(changes *store.Changes) error {
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
		numberEach(changed, numberedKey, func(k *ledger.KeyRecord, act int64) { k.Act = act }, changes.NewKeys, changes.Keys),
		numberEach(changed, numberedToken, func(t *store.TokenRecord, act int64) { t.Act = act }, changes.NewTokens, changes.RevokedTokens),
		numberEach(changed, numberedSigningKey, func(k *store.SigningKeyRecord, act int64) { k.Act = act }, changes.SigningKeys),
		numberEach(changed, numberedWebhook, func(w *store.WebhookRecord, act int64) { w.Act = act }, changes.Webhooks),
		numberEach(changed, numberedPolicy, func(p *store.PolicyRecord, act int64) { p.Act = act }, changes.NewPolicies),
		numberEach(changed, numberedImported, func(a *store.ImportedApproval, act int64) { a.Act = act }, changes.NewImported),
	)
}

func numberEach[R any](changed map[ledger.OrgID]*ledger.History, name func(R) numbered, set func(R, int64), lists ...[]R) error {
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

// held is check for a row of a transaction: its organization's log stands still for what
// changes records, so that the history is that of the row.
func (s *Store) held(n numbered) error {
	m := s.memoryOf(n.org)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.history == nil || m.behind && m.history.End().Count < m.known.Count {
		return m.trouble()
	}
	if m.history.LastAct(n.kind, n.name) != n.act {
		return errOld(n)
	}
	return nil
}

// trouble is why nothing can be said of records. Callers hold the mutex.
func (m *logMemory) trouble() error {
	if m.behind {
		return ErrRolledBack
	}
	return errLog
}

// seenActs are the acts that were known to have changed records last, before those
// records were read. The key leaves the number out.
type seenActs map[numbered]int64

// verdict on a record that was read without a lock.
type verdict int

const (
	current verdict = iota
	old             // another act changed it last, and that was known before it was read
	unsure          // it may have changed since it was read: it must be read again
)

// judge holds a record that was read outside a transaction against the history. Where
// the record is newer, the history goes on first.
func (s *Store) judge(ctx context.Context, n numbered, seen seenActs) (verdict, error) {
	m := s.memoryOf(n.org)
	last, ahead, err := m.last(n)
	// Others may enter acts faster than they are read here.
	for tries := 0; (errors.Is(err, errLags) || ahead) && tries < maxTries; tries++ {
		if err := s.catchUp(ctx, n.org); err != nil && !errors.Is(err, ErrRolledBack) {
			return old, err
		}
		last, ahead, err = m.last(n)
		if ahead { // the log was read after the record, and does not know its act
			break
		}
	}
	if err != nil {
		return old, err
	}
	name := n
	name.act = 0
	before, known := seen[name]
	switch {
	case last == n.act:
		return current, nil
	case ahead || known && (n.act < before || last == before):
		return old, nil
	}
	seen[name] = last
	return unsure, nil
}

// maxTries is how often a log is read again that moves on meanwhile.
const maxTries = 100

// errLags says that the history does not lead to the end that is known.
var errLags = fmt.Errorf("the audit log moves on faster than it is read: %w", store.ErrUnavailable)

// last is the number of the act that changed a record last, and whether the record says
// that it was changed by one that is not known yet.
func (m *logMemory) last(n numbered) (last int64, ahead bool, err error) {
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

// readCurrent reads rows outside a transaction until it is known of each whether it is
// the newest. check authenticates a row, reject says what may be told of one that fails.
func readCurrent[R any](ctx context.Context, s *Store, read func() ([]R, error), check func(R) error, name func(R) numbered, reject func(R, error) (R, error)) ([]R, error) {
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
				if v, err = s.judge(ctx, name(row), seen); err == nil && v == old {
					err = errOld(name(row))
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

// readOneCurrent is readCurrent for a single row, which is refused when it fails.
func readOneCurrent[R any](ctx context.Context, s *Store, read func() (R, error), check func(R) error, name func(R) numbered) (R, error) {
	rows, err := readCurrent(ctx, s, func() ([]R, error) {
		row, err := read()
		return []R{row}, err
	}, check, name, func(row R, err error) (R, error) { return row, err })
	if err != nil {
		var none R
		return none, err
	}
	return rows[0], nil
}
