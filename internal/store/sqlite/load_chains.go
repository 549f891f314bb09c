package sqlite

import (
	"countersign/internal/ledger"
	"countersign/internal/store"
)

func (tx *transaction) loadChains(needs *store.Needs, loaded *store.Loaded) error {
	unread := make([]ledger.ChainID, 0, len(needs.Chains))
	for _, id := range needs.Chains {
		if _, found := loaded.Chains[id]; found {
			continue
		}
		if record, no := tx.cache.chain(id); record != nil {
			loaded.Chains[id], tx.numbers[id], tx.statuses[id] = record, no, record.Status
		} else {
			unread = append(unread, id)
		}
	}
	return batches(unread, func(ids []ledger.ChainID) error {
		args := make([]any, len(ids))
		for i := range ids {
			args[i] = ids[i].UUID[:]
		}
		query := "SELECT " + chainColumns + chainTables + "WHERE c.id IN (" + placeholders(len(ids), "?") + ")"
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

func (tx *transaction) loadOpens(needs *store.Needs, loaded *store.Loaded) error {
	for _, ref := range needs.Opens {
		query := "SELECT " + chainColumns + chainTables + "WHERE c.org_id = ? AND c.idempotency_key = ? AND c.opened_by = ?"
		err := tx.query(query, []any{ref.Org.UUID[:], ref.Key, ref.By.UUID[:]}, func(rows row) error {
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

// number returns the row number of a chain; 0 when there is no such chain.
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
	return batches(refs, func(refs []store.EventRef) error {
		args := make([]any, 0, 2*len(refs))
		for _, ref := range refs {
			args = append(args, tx.numbers[ref.Chain], ref.Key)
		}
		query := "WITH wanted (chain_no, key) AS (VALUES " + placeholders(len(refs), "(?,?)") + `)
			SELECT e.chain_no, e.sequence, e.idempotency_key, e.body, e.payload, e.redactions, e.mac
			FROM wanted CROSS JOIN events e ON e.chain_no = wanted.chain_no AND e.idempotency_key = wanted.key`
		return tx.query(query, args, func(rows row) error {
			var no int64
			event := &ledger.StoredEvent{}
			if err := rows.Scan(&no, &event.Sequence, &event.IdempotencyKey, &event.Body, &event.Payload, &event.Redactions, &event.MAC); err != nil {
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
		query := "SELECT " + addendumColumns + " FROM addenda WHERE chain_no = ? AND sequence = ? ORDER BY position"
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

// eventsAfter is Loaded.EventsAfter.
func (tx *transaction) eventsAfter(chain ledger.ChainID, after int64) ([]*ledger.StoredEvent, error) {
	no, err := tx.number(chain)
	if err != nil {
		return nil, classify(err)
	}
	var events []*ledger.StoredEvent
	query := "SELECT " + eventColumns + " FROM events WHERE chain_no = ? AND sequence > ? ORDER BY sequence"
	err = tx.query(query, []any{no, after}, func(rows row) error {
		event, err := scanEvent(rows, chain)
		events = append(events, event)
		return err
	})
	return events, classify(err)
}

// addendaAfter is Loaded.AddendaAfter.
func (tx *transaction) addendaAfter(chain ledger.ChainID, after int64) ([]*ledger.Addendum, error) {
	no, err := tx.number(chain)
	if err != nil {
		return nil, classify(err)
	}
	var addenda []*ledger.Addendum
	query := "SELECT " + addendumColumns + " FROM addenda WHERE chain_no = ? AND position > ? ORDER BY position"
	err = tx.query(query, []any{no, after}, func(rows row) error {
		addendum, err := scanAddendum(rows, chain)
		addenda = append(addenda, addendum)
		return err
	})
	return addenda, classify(err)
}
