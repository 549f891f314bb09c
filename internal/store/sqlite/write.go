package sqlite

import (
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// apply writes what a plan returned. Organizations and chains come before the records
// that refer to them.
func (tx *transaction) apply(c *store.Changes) error {
	for _, write := range [...]func() error{
		func() error { return each(c.Orgs, tx.updateOrg) },
		func() error { return each(c.NewKeys, tx.insertKey) },
		func() error { return each(c.Keys, tx.updateKey) },
		func() error { return each(c.NewRotations, tx.insertRotation) },
		func() error { return each(c.NewChains, tx.insertChain) },
		func() error { return each(c.NewEvents, tx.insertEvent) },
		func() error { return each(c.NewAddenda, tx.insertAddendum) },
		func() error { return each(c.NewReceipts, tx.insertReceipt) },
		func() error { return each(c.States, tx.updateState) },
		func() error { return each(c.Heads, tx.putHead) },
		func() error { return each(c.NewCounters, tx.insertCounter) },
		func() error { return each(c.Counters, tx.updateCounter) },
		func() error { return each(c.NewApprovals, tx.insertApproval) },
		func() error { return each(c.Approvals, tx.updateApproval) },
		func() error { return each(c.NewPolicies, tx.insertPolicy) },
		func() error { return each(c.Webhooks, tx.putWebhook) },
		func() error { return each(c.NewTokens, tx.insertToken) },
		func() error { return each(c.RevokedTokens, tx.revokeToken) },
		func() error { return each(c.SigningKeys, tx.putSigningKey) },
		func() error { return each(c.Anchors, tx.putAnchor) },
		func() error { return each(c.NewImported, tx.insertImported) },
		func() error { return each(c.Transparency, tx.putTransparencyLog) },
		func() error { return each(c.NewActs, tx.insertAct) },
		func() error { return each(c.Logs, tx.putLog) },
		func() error { return each(c.Findings, tx.putFinding) },
		func() error { return each(c.NewPostings, tx.insertPosting) },
		func() error { return each(store.MergeReceiptPostings(c.ReceiptPostings), tx.putReceiptPosting) },
		func() error { return each(c.NewJobs, tx.insertJob) },
	} {
		if err := write(); err != nil {
			return err
		}
	}
	return nil
}

func each[T any](records []T, write func(T) error) error {
	for _, record := range records {
		if err := write(record); err != nil {
			return err
		}
	}
	return nil
}

func (tx *transaction) insertOrg(org *ledger.Organization) error {
	settings, controls, err := encodeOrg(org)
	if err != nil {
		return err
	}
	return tx.exec("INSERT INTO organizations ("+orgColumns+") VALUES (?, ?, ?, ?, ?, ?)",
		org.ID.UUID[:], org.Slug, org.Name, settings, int64(org.CreatedAt), controls)
}

func (tx *transaction) updateOrg(org *ledger.Organization) error {
	settings, controls, err := encodeOrg(org)
	if err != nil {
		return err
	}
	return tx.change("UPDATE organizations SET name = ?, settings = ?, controls = ? WHERE id = ?", org.Name, settings, controls, org.ID.UUID[:])
}

func encodeOrg(org *ledger.Organization) (settings, controls []byte, err error) {
	if settings, err = org.Settings.Encode(); err != nil {
		return nil, nil, err
	}
	controls, err = org.Controls.Encode()
	return settings, controls, err
}

func (tx *transaction) insertChain(c *store.ChainRecord) error {
	var no int64
	err := tx.query(`INSERT INTO chains (id, org_id, opened_by, external_id, environment, idempotency_key, body)
		VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING no`,
		[]any{c.ID.UUID[:], c.Org.UUID[:], c.OpenedBy.UUID[:], orNull(c.ExternalID), c.Environment, orNull(c.IdempotencyKey), c.Body},
		func(r row) error { return r.Scan(&no) })
	if err != nil {
		return err
	}
	tx.numbers[c.ID] = no
	return tx.exec("INSERT INTO chain_states (chain_no, org_id, status, state, mac) VALUES (?, ?, ?, ?, ?)",
		no, c.Org.UUID[:], string(c.Status), c.State, c.MAC)
}

// existing is number for a chain that must exist: ErrNotFound when it does not.
func (tx *transaction) existing(chain ledger.ChainID) (int64, error) {
	no, err := tx.number(chain)
	if err == nil && no == 0 {
		err = store.ErrNotFound
	}
	return no, err
}

func (tx *transaction) insertEvent(e *ledger.StoredEvent) error {
	no, err := tx.existing(e.Chain)
	if err != nil {
		return err
	}
	return tx.exec("INSERT INTO events (chain_no, sequence, idempotency_key, body, payload, redactions, mac) VALUES (?, ?, ?, ?, ?, ?, ?)",
		no, e.Sequence, orNull(e.IdempotencyKey), e.Body, e.Payload, e.Redactions, e.MAC)
}

func (tx *transaction) insertAddendum(a *ledger.Addendum) error {
	no, err := tx.existing(a.Chain)
	if err != nil {
		return err
	}
	return tx.exec("INSERT INTO addenda (chain_no, position, sequence, body) VALUES (?, ?, ?, ?)", no, a.Position, a.Sequence, a.Body)
}

func (tx *transaction) insertReceipt(r *ledger.StoredReceipt) error {
	return tx.exec("INSERT INTO receipts (id, org_id, sequence, chain_id, previous_hash, body) VALUES (?, ?, ?, ?, ?, ?)",
		r.ID.UUID[:], r.Org.UUID[:], r.Sequence, r.Chain.UUID[:], orEmpty(r.PreviousHash), r.Body)
}

// updateState does not write a status that has not changed: SQLite would write its
// index entry again, for every recorded action.
func (tx *transaction) updateState(c *store.ChainRecord) error {
	no, err := tx.existing(c.ID)
	if err != nil {
		return err
	}
	if tx.statuses[c.ID] == c.Status {
		return tx.change("UPDATE chain_states SET state = ?, mac = ? WHERE chain_no = ?", c.State, c.MAC, no)
	}
	return tx.change("UPDATE chain_states SET status = ?, state = ?, mac = ? WHERE chain_no = ?", string(c.Status), c.State, c.MAC, no)
}

func (tx *transaction) putHead(head *ledger.Head) error {
	return tx.exec(`INSERT INTO heads (org_id, count, last_hash, key_id, mac) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (org_id) DO UPDATE SET count = excluded.count, last_hash = excluded.last_hash, key_id = excluded.key_id, mac = excluded.mac`,
		head.Org.UUID[:], head.Count, bytesOf(head.Last), head.KeyID, head.MAC)
}

func (tx *transaction) insertApproval(a *store.ApprovalRecord) error {
	return tx.exec("INSERT INTO approvals ("+approvalColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
		a.ID.UUID[:], a.Org.UUID[:], a.Chain.UUID[:], a.Sequence, a.OpenedBy.UUID[:], int64(a.RequestedAt), string(a.Status), a.Body, a.MAC)
}

func (tx *transaction) updateApproval(a *store.ApprovalRecord) error {
	return tx.change("UPDATE approvals SET status = ?, body = ?, mac = ? WHERE id = ?", string(a.Status), a.Body, a.MAC, a.ID.UUID[:])
}

func (tx *transaction) insertPolicy(p *store.PolicyRecord) error {
	return tx.exec("INSERT INTO policies ("+policyColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
		p.Org.UUID[:], p.Number, p.Version, p.Format, p.Document, int64(p.CreatedAt), p.CreatedBy, orEmpty(p.MAC), p.Act)
}

func (tx *transaction) insertAct(a *ledger.StoredAct) error {
	return tx.exec("INSERT INTO acts (org_id, sequence, body) VALUES (?, ?, ?)", a.Org.UUID[:], a.Sequence, a.Body)
}

func (tx *transaction) putLog(log *ledger.ActLog) error {
	return tx.exec(`INSERT INTO act_logs (org_id, count, last_hash, controls, mac) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (org_id) DO UPDATE SET count = excluded.count, last_hash = excluded.last_hash, controls = excluded.controls, mac = excluded.mac`,
		log.Org.UUID[:], log.Count, bytesOf(log.Last), log.Controls[:], orEmpty(log.MAC))
}
