package verify

import (
	"context"
	"fmt"
	"slices"

	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// inspectPast holds the ledger against what this server remembers to have
// acknowledged.
func (a *audit) inspectPast(ctx context.Context) (*ledger.Break, error) {
	rollback, err := a.judge.rollback(ctx, a.org)
	if err != nil || rollback == nil {
		return nil, err
	}
	return &ledger.Break{Check: ledger.CheckRollback, Detail: fmt.Sprintf(
		"%d receipts were acknowledged, and the ledger of %d is not that one: the database was put back", rollback.Acknowledged, rollback.Stored)}, nil
}

// rows are the inspections of what belongs to an organization as a whole, and to no
// receipt or act.
func (a *audit) rows() []func(context.Context) (*ledger.Break, error) {
	return []func(context.Context) (*ledger.Break, error){a.inspectRegistry, a.inspectKeys, a.inspectQueue, a.inspectFullChecks}
}

// inspectRegistry authenticates the keys that sign decisions, the endpoints that are told
// of them, and the tokens that open verifications to strangers.
func (a *audit) inspectRegistry(ctx context.Context) (*ledger.Break, error) {
	broken := func(detail string) *ledger.Break { return &ledger.Break{Check: ledger.CheckRegistry, Detail: detail} }
	keys, err := a.judge.store.SigningKeys(ctx, a.org.ID)
	if err != nil {
		return nil, err
	}
	if !evidence.Genuine(keys) {
		return broken("a signing key was changed outside the service"), nil
	}
	if !slices.ContainsFunc(keys, func(key *store.SigningKeyRecord) bool { return key.Status == ledger.SigningActive }) {
		return broken("no signing key is active, and the service always leaves one: the registry was changed"), nil
	}
	webhooks, err := a.judge.store.Webhooks(ctx, a.org.ID)
	if err != nil {
		return nil, err
	}
	for _, webhook := range webhooks {
		if webhook.Tampered {
			return broken("the webhook " + webhook.ID.String() + " was changed outside the service, and is told nothing"), nil
		}
	}
	const page = 200
	for before := (*ledger.TokenID)(nil); ; {
		tokens, err := a.judge.store.Tokens(ctx, a.org.ID, before, page)
		if err != nil {
			return nil, err
		}
		for _, token := range tokens {
			if token.Tampered {
				return broken("a public token was changed outside the service"), nil
			}
			before = &token.ID
		}
		if len(tokens) < page {
			return nil, nil
		}
	}
}

// inspectKeys wants every API key as the service wrote it.
func (a *audit) inspectKeys(ctx context.Context) (*ledger.Break, error) {
	keys, err := a.judge.store.AllKeys(ctx, a.org.ID)
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if key.Tampered {
			found := KeyChanged(key.ID)
			return &ledger.Break{Check: found.Check, Detail: found.Place}, nil
		}
	}
	return nil, nil
}

// inspectFullChecks wants what is remembered of large chains as the service wrote it.
func (a *audit) inspectFullChecks(ctx context.Context) (*ledger.Break, error) {
	const page = 200
	var after ledger.ReceiptID
	for {
		checks, err := a.judge.store.FullChecks(ctx, a.org.ID, after, page)
		if err != nil {
			return nil, err
		}
		for _, check := range checks {
			if check.Tampered {
				return &ledger.Break{Check: ledger.CheckRegistry, Detail: "the record of a full check was changed outside the service, and says nothing"}, nil
			}
			after = check.Receipt
		}
		if len(checks) < page {
			return nil, nil
		}
	}
}
