package sqlite

import (
	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

func (tx *transaction) load(needs *store.Needs) (*store.Loaded, error) {
	loaded := &store.Loaded{
		Orgs:    make(map[ledger.OrgID]*ledger.Organization),
		Keys:    make(map[ledger.KeyID]*ledger.KeyRecord),
		Chains:  make(map[ledger.ChainID]*store.ChainRecord, len(needs.Chains)),
		Heads:   make(map[ledger.OrgID]*ledger.Head),
		Opens:   make(map[store.OpenRef]*store.ChainRecord),
		Repeats: make(map[store.EventRef]*ledger.StoredEvent),
		Addenda: make(map[store.EventAt][]*ledger.Addendum),
	}
	loaded.EventsAfter = func(chain ledger.ChainID, after int64) ([]*ledger.StoredEvent, error) {
		return tx.eventsAfter(chain, after)
	}
	steps := []func(*store.Needs, *store.Loaded) error{
		tx.loadOrgs, tx.loadKeys, tx.loadChains, tx.loadHeads, tx.loadOpens, tx.loadRepeats, tx.loadAddenda,
	}
	for _, step := range steps {
		if err := step(needs, loaded); err != nil {
			return nil, err
		}
	}
	return loaded, nil
}

const orgColumns = "id, slug, name, settings, created_at"

func scanOrg(rows row) (*ledger.Organization, error) {
	var id, settings []byte
	var org ledger.Organization
	if err := rows.Scan(&id, &org.Slug, &org.Name, &settings, (*int64)(&org.CreatedAt)); err != nil {
		return nil, err
	}
	var err error
	org.ID = ledger.OrgID{UUID: uuid.UUID(id)}
	org.Settings, err = ledger.DecodeSettings(settings)
	return &org, err
}

func (tx *transaction) loadOrgs(needs *store.Needs, loaded *store.Loaded) error {
	for _, id := range needs.Orgs {
		if loaded.Orgs[id] != nil {
			continue
		}
		if org := tx.recent.orgs[id]; org != nil {
			loaded.Orgs[id] = org
			continue
		}
		err := tx.query("SELECT "+orgColumns+" FROM organizations WHERE id = ?", []any{id.UUID[:]}, func(rows row) error {
			org, err := scanOrg(rows)
			if err == nil {
				loaded.Orgs[id], tx.recent.orgs[id] = org, org
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

const keyColumns = "id, org_id, name, role, hash, hint, created_at, revoked_at"

func scanKey(rows row) (*ledger.KeyRecord, error) {
	var id, org, hash []byte
	var revoked *int64
	var key ledger.KeyRecord
	if err := rows.Scan(&id, &org, &key.Name, (*string)(&key.Role), &hash, &key.Hint, (*int64)(&key.CreatedAt), &revoked); err != nil {
		return nil, err
	}
	key.ID, key.Org = ledger.KeyID{UUID: uuid.UUID(id)}, ledger.OrgID{UUID: uuid.UUID(org)}
	copy(key.Hash[:], hash)
	key.RevokedAt = (*ledger.Time)(revoked)
	return &key, nil
}

func (tx *transaction) loadKeys(needs *store.Needs, loaded *store.Loaded) error {
	for _, id := range needs.Keys {
		if loaded.Keys[id] != nil {
			continue
		}
		if key := tx.recent.keys[id]; key != nil {
			loaded.Keys[id] = key
			continue
		}
		err := tx.query("SELECT "+keyColumns+" FROM api_keys WHERE id = ?", []any{id.UUID[:]}, func(rows row) error {
			key, err := scanKey(rows)
			if err == nil && len(tx.recent.keys) < maxRecentKeys {
				tx.recent.keys[id] = key
			}
			loaded.Keys[id] = key
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

const chainColumns = "c.no, c.id, c.org_id, c.opened_by, c.external_id, c.environment, c.idempotency_key, c.body, s.status, s.state, s.mac"

const chainTables = " FROM chains c JOIN chain_states s ON s.chain_no = c.no AND s.org_id = c.org_id "

// idOf reads an id; bytes that are none, which only a hand from outside can have
// put there, become the zero id and agree with nothing.
func idOf(column []byte) (id uuid.UUID) {
	if len(column) == len(id) {
		copy(id[:], column)
	}
	return id
}

func scanChain(rows row) (*store.ChainRecord, int64, error) {
	var no int64
	var id, org, openedBy []byte
	var external, key *string
	var c store.ChainRecord
	err := rows.Scan(&no, &id, &org, &openedBy, &external, &c.Environment, &key, &c.Body, (*string)(&c.Status), &c.State, &c.MAC)
	if err != nil {
		return nil, 0, err
	}
	c.ID, c.Org = ledger.ChainID{UUID: idOf(id)}, ledger.OrgID{UUID: idOf(org)}
	c.OpenedBy = ledger.KeyID{UUID: idOf(openedBy)}
	c.ExternalID, c.IdempotencyKey = orEmptyText(external), orEmptyText(key)
	return &c, no, nil
}

func scanChainOnly(rows row) (*store.ChainRecord, error) {
	chain, _, err := scanChain(rows)
	return chain, err
}

func (tx *transaction) loadChains(needs *store.Needs, loaded *store.Loaded) error {
	unread := make([]ledger.ChainID, 0, len(needs.Chains))
	for _, id := range needs.Chains {
		if _, found := loaded.Chains[id]; found {
			continue
		}
		if record, no := tx.recent.find(id); record != nil {
			loaded.Chains[id], tx.numbers[id], tx.statuses[id] = record, no, record.Status
		} else {
			unread = append(unread, id)
		}
	}
	return lists(unread, func(ids []ledger.ChainID) error {
		args := make([]any, len(ids))
		for i := range ids {
			args[i] = ids[i].UUID[:]
		}
		query := "SELECT " + chainColumns + chainTables + "WHERE c.id IN (" + marks(len(ids), "?") + ")"
		return tx.query(query, args, func(rows row) error {
			chain, no, err := scanChain(rows)
			if err != nil {
				return err
			}
			loaded.Chains[chain.ID], tx.numbers[chain.ID], tx.statuses[chain.ID] = chain, no, chain.Status
			return nil
		})
	})
}

const headColumns = "count, last_hash, key_id, mac"

func scanHead(rows row, org ledger.OrgID) (*ledger.Head, error) {
	head := &ledger.Head{Org: org}
	var last []byte
	if err := rows.Scan(&head.Count, &last, &head.KeyID, &head.MAC); err != nil {
		return nil, err
	}
	if len(last) > 0 {
		head.Last = new([32]byte)
		if len(last) == len(head.Last) {
			copy(head.Last[:], last)
		} // else the head fails its authenticator, as a changed record should
	}
	return head, nil
}

func (tx *transaction) loadHeads(needs *store.Needs, loaded *store.Loaded) error {
	for _, id := range needs.Heads {
		if loaded.Heads[id] != nil {
			continue
		}
		err := tx.query("SELECT "+headColumns+" FROM heads WHERE org_id = ?", []any{id.UUID[:]}, func(rows row) error {
			head, err := scanHead(rows, id)
			loaded.Heads[id] = head
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (tx *transaction) loadOpens(needs *store.Needs, loaded *store.Loaded) error {
	for _, ref := range needs.Opens {
		query := "SELECT " + chainColumns + chainTables + "WHERE c.org_id = ? AND c.idempotency_key = ?"
		err := tx.query(query, []any{ref.Org.UUID[:], ref.Key}, func(rows row) error {
			chain, no, err := scanChain(rows)
			if err != nil {
				return err
			}
			loaded.Opens[ref] = chain
			tx.numbers[chain.ID] = no
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// number finds a chain's number; 0 when there is no such chain.
func (tx *transaction) number(chain ledger.ChainID) (int64, error) {
	if no, ok := tx.numbers[chain]; ok {
		return no, nil
	}
	var no int64
	err := tx.query("SELECT no FROM chains WHERE id = ?", []any{chain.UUID[:]}, func(rows row) error { return rows.Scan(&no) })
	tx.numbers[chain] = no
	return no, err
}

func (tx *transaction) loadRepeats(needs *store.Needs, loaded *store.Loaded) error {
	byNumber := make(map[int64]ledger.ChainID, len(needs.Repeats))
	refs := make([]store.EventRef, 0, len(needs.Repeats))
	for _, ref := range needs.Repeats {
		no, err := tx.number(ref.Chain)
		if err != nil {
			return err
		}
		if no != 0 {
			byNumber[no] = ref.Chain
			refs = append(refs, ref)
		}
	}
	return lists(refs, func(refs []store.EventRef) error {
		args := make([]any, 0, 2*len(refs))
		for _, ref := range refs {
			args = append(args, tx.numbers[ref.Chain], ref.Key)
		}
		query := "WITH wanted (chain_no, key) AS (VALUES " + marks(len(refs), "(?,?)") + `)
			SELECT e.chain_no, e.sequence, e.idempotency_key, e.body, e.payload
			FROM wanted CROSS JOIN events e ON e.chain_no = wanted.chain_no AND e.idempotency_key = wanted.key`
		return tx.query(query, args, func(rows row) error {
			var no int64
			event := &ledger.StoredEvent{}
			if err := rows.Scan(&no, &event.Sequence, &event.IdempotencyKey, &event.Body, &event.Payload); err != nil {
				return err
			}
			event.Chain = byNumber[no]
			loaded.Repeats[store.EventRef{Chain: event.Chain, Key: event.IdempotencyKey}] = event
			return nil
		})
	})
}

func (tx *transaction) loadAddenda(needs *store.Needs, loaded *store.Loaded) error {
	for _, at := range needs.Addenda {
		no, err := tx.number(at.Chain)
		if err != nil {
			return err
		}
		if no == 0 || loaded.Addenda[at] != nil {
			continue
		}
		query := "SELECT position, sequence, body FROM addenda WHERE chain_no = ? AND sequence = ? ORDER BY position"
		err = tx.query(query, []any{no, at.Sequence}, func(rows row) error {
			addendum, err := scanAddendum(rows, at.Chain)
			loaded.Addenda[at] = append(loaded.Addenda[at], addendum)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func scanAddendum(rows row, chain ledger.ChainID) (*ledger.Addendum, error) {
	a := &ledger.Addendum{Chain: chain}
	return a, rows.Scan(&a.Position, &a.Sequence, &a.Body)
}

const eventQuery = "SELECT sequence, idempotency_key, body, payload FROM events WHERE chain_no = ? AND sequence > ? ORDER BY sequence LIMIT ?"

func scanEvent(rows row, chain ledger.ChainID) (*ledger.StoredEvent, error) {
	e := &ledger.StoredEvent{Chain: chain}
	var key *string
	err := rows.Scan(&e.Sequence, &key, &e.Body, &e.Payload)
	e.IdempotencyKey = orEmptyText(key)
	return e, err
}

func orEmptyText(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

func (tx *transaction) eventsAfter(chain ledger.ChainID, after int64) ([]*ledger.StoredEvent, error) {
	var events []*ledger.StoredEvent
	err := tx.query(eventQuery, []any{tx.numbers[chain], after, int64(-1)}, func(rows row) error {
		event, err := scanEvent(rows, chain)
		events = append(events, event)
		return err
	})
	return events, err
}
