package sqlite

import (
	"github.com/google/uuid"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

func (tx *transaction) load(needs *store.Needs) (*store.Loaded, error) {
	loaded := &store.Loaded{
		Orgs:      make(map[ledger.OrgID]*ledger.Organization),
		Keys:      make(map[ledger.KeyID]*ledger.KeyRecord),
		Chains:    make(map[ledger.ChainID]*store.ChainRecord, len(needs.Chains)),
		Counters:  make(map[ledger.CounterID]*store.CounterRecord),
		Heads:     make(map[ledger.OrgID]*ledger.Head),
		Logs:      make(map[ledger.OrgID]*ledger.ActLog),
		Ends:      make(map[ledger.OrgID]*ledger.ActLog),
		Opens:     make(map[store.OpenRef]*store.ChainRecord),
		Repeats:   make(map[store.EventRef]*ledger.StoredEvent),
		Addenda:   make(map[store.EventAt][]*ledger.Addendum),
		Approvals: make(map[ledger.ApprovalID]*store.ApprovalRecord),
		Polls:     make(map[ledger.ChainID]ledger.Time),
		Webhooks:  make(map[ledger.WebhookID]*store.WebhookRecord),
		Tokens:    make(map[ledger.TokenID]*store.TokenRecord),
		Issued:    make(map[store.TokenRef]*store.TokenRecord),
		Rotations: make(map[store.RotationRef]*store.RotationRecord),
		Findings:  make(map[store.FindingRef]*store.FindingRecord),
		Imported:  make(map[ledger.ApprovalID]*store.ImportedApproval),

		SigningKeys: make(map[ledger.OrgID][]*store.SigningKeyRecord),

		Epoch:        tx.cache.epoch,
		EventsAfter:  tx.eventsAfter,
		AddendaAfter: tx.addendaAfter,
		ActsAfter:    tx.actsAfter,
		Policy:       tx.policy,
	}
	steps := [...]func(*store.Needs, *store.Loaded) error{
		tx.loadOrgs, tx.loadKeys, tx.loadChains, tx.loadCounters, tx.loadHeads, tx.loadLogs, tx.loadOpens, tx.loadRepeats, tx.loadAddenda,
		tx.loadApprovals, tx.loadPolls, tx.loadWebhooks, tx.loadTokens, tx.loadIssued, tx.loadRotations, tx.loadFindings, tx.loadSigningKeys, tx.loadImported,
	}
	for _, step := range steps {
		if err := step(needs, loaded); err != nil {
			return nil, err
		}
	}
	return loaded, nil
}

// loadEach runs a query for each key that was not found yet, and stores the record that it
// finds under the key.
func loadEach[K comparable, R any](tx *transaction, wanted []K, found map[K]R, query string, args func(*K) []any, scan func(row) (R, error)) error {
	for i := range wanted {
		if _, known := found[wanted[i]]; known {
			continue
		}
		err := tx.query(query, args(&wanted[i]), func(rows row) error {
			record, err := scan(rows)
			if err == nil {
				found[wanted[i]] = record
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// loadOrgs treats Orgs and Govern alike: the transaction has locked the whole
// database.
func (tx *transaction) loadOrgs(needs *store.Needs, loaded *store.Loaded) error {
	for _, ids := range [...][]ledger.OrgID{needs.Orgs, needs.Govern} {
		for _, id := range ids {
			if err := tx.loadOrg(id, loaded); err != nil {
				return err
			}
			if err := tx.loadEnd(id, loaded); err != nil {
				return err
			}
		}
	}
	return nil
}

func (tx *transaction) loadOrg(id ledger.OrgID, loaded *store.Loaded) error {
	if loaded.Orgs[id] != nil {
		return nil
	}
	if org, ok := tx.cache.orgs.Get(id); ok {
		loaded.Orgs[id] = org
		return nil
	}
	return tx.query("SELECT "+orgColumns+" FROM organizations WHERE id = ?", []any{id.UUID[:]}, func(rows row) error {
		org, err := scanOrg(rows)
		if err == nil {
			loaded.Orgs[id] = org
			tx.cache.orgs.Put(id, org, org.Size())
		}
		return err
	})
}

// loadEnd loads the end of an organization's audit log for Loaded.Ends.
func (tx *transaction) loadEnd(id ledger.OrgID, loaded *store.Loaded) error {
	if loaded.Ends[id] != nil {
		return nil
	}
	if end, ok := tx.cache.ends.Get(id); ok {
		loaded.Ends[id] = end
		return nil
	}
	return tx.query("SELECT "+logColumns+" FROM act_logs WHERE org_id = ?", []any{id.UUID[:]}, func(rows row) error {
		end, err := scanLog(rows, id)
		if err == nil {
			loaded.Ends[id] = end
			tx.cache.ends.Put(id, end, endSize)
		}
		return err
	})
}

// endSize is roughly the size of an audit log's end in memory, in bytes.
const endSize = 300

// actsAfter is Loaded.ActsAfter.
func (tx *transaction) actsAfter(org ledger.OrgID, after int64, limit int) (acts []*ledger.StoredAct, err error) {
	query := "SELECT sequence, body FROM acts WHERE org_id = ? AND sequence > ? ORDER BY sequence LIMIT ?"
	err = tx.query(query, []any{org.UUID[:], after, int64(limit)}, func(r row) error {
		act := &ledger.StoredAct{Org: org}
		acts = append(acts, act)
		return r.Scan(&act.Sequence, &act.Body)
	})
	return acts, classify(err)
}

func (tx *transaction) loadKeys(needs *store.Needs, loaded *store.Loaded) error {
	for _, id := range needs.Keys {
		if loaded.Keys[id] != nil {
			continue
		}
		if key, ok := tx.cache.keys.Get(id); ok {
			loaded.Keys[id] = key
			continue
		}
		err := tx.query("SELECT "+keyColumns+" FROM api_keys WHERE id = ?", []any{id.UUID[:]}, func(rows row) error {
			key, err := scanKey(rows)
			if err == nil {
				tx.cache.keys.Put(id, key, keySize(key))
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

func (tx *transaction) loadLogs(needs *store.Needs, loaded *store.Loaded) error {
	for _, id := range needs.Logs {
		if loaded.Logs[id] != nil {
			continue
		}
		err := tx.query("SELECT "+logColumns+" FROM act_logs WHERE org_id = ?", []any{id.UUID[:]}, func(rows row) error {
			log, err := scanLog(rows, id)
			loaded.Logs[id] = log
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (tx *transaction) loadApprovals(needs *store.Needs, loaded *store.Loaded) error {
	load := func(column string, id uuid.UUID) error {
		return tx.query("SELECT "+approvalColumns+" FROM approvals WHERE "+column+" = ?", []any{id[:]}, func(rows row) error {
			approval, err := scanApproval(rows)
			loaded.Approvals[approval.ID] = approval
			return err
		})
	}
	for _, id := range needs.Approvals {
		if loaded.Approvals[id] != nil {
			continue
		}
		if err := load("id", id.UUID); err != nil {
			return err
		}
	}
	for _, chain := range needs.ApprovalsOf {
		if err := load("chain_id", chain.UUID); err != nil {
			return err
		}
	}
	return nil
}

func (tx *transaction) loadWebhooks(needs *store.Needs, loaded *store.Loaded) error {
	return loadEach(tx, needs.Webhooks, loaded.Webhooks, "SELECT "+webhookColumns+" FROM webhooks WHERE id = ?",
		func(id *ledger.WebhookID) []any { return []any{id.UUID[:]} }, scanWebhook)
}

// policy is Loaded.Policy.
func (tx *transaction) policy(org ledger.OrgID, number int64) (found *store.PolicyRecord, err error) {
	err = tx.query(policyQuery, []any{org.UUID[:], number}, func(rows row) (err error) {
		found, err = scanPolicy(rows)
		return err
	})
	if err == nil && found == nil {
		err = store.ErrNotFound
	}
	return found, classify(err)
}
