package verify

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"countersign/internal/ledger"
)

// inspectRecords requires every record that the audit log says was made. API keys, tokens, signing
// keys, endpoints and policy sets are never deleted, except for endpoints by an act. Stale and
// forged records are among the failing rows. Records made during the check are not required.
func (a *audit) inspectRecords(ctx context.Context) (*ledger.Break, error) {
	if len(a.records) == 0 {
		return nil, nil // the log was not walked
	}
	missing := make(map[ledger.Record]bool)
	for record, action := range a.records {
		if record.Kind != ledger.RecordSignIn && record.Kind != ledger.RecordImport && action != ledger.ActWebhookDelete {
			missing[record] = true
		}
	}
	for _, list := range []func(context.Context, ledger.OrgID, map[ledger.Record]bool) error{a.storedKeys, a.storedTokens, a.storedRows} {
		if err := list(ctx, a.org.ID, missing); err != nil {
			return nil, err
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	end, err := a.actLog(ctx)
	if err != nil {
		return nil, err
	}
	// An endpoint may have been deleted since the log was walked.
	if end == nil || end.End() != a.recordsUntil {
		if missing, err = a.stillMissing(ctx, missing); err != nil || len(missing) == 0 {
			return nil, err
		}
	}
	names := make([]string, 0, len(missing))
	for record := range missing {
		names = append(names, string(record.Kind)+" "+record.Name)
	}
	slices.Sort(names)
	all := sha256.Sum256([]byte(strings.Join(names, "\n")))
	more := ""
	const shown = 3
	if len(names) > shown {
		more = fmt.Sprintf(" and %d more", len(names)-shown)
		names = names[:shown]
	}
	return &ledger.Break{
		Check:  ledger.CheckRegistry,
		Detail: "the audit log says that these were made, and they are not there: " + strings.Join(names, ", ") + more,
		// An acknowledgement covers those that were missing then, named or not.
		Evidence: all[:],
	}, nil
}

// stillMissing drops the records that an act has deleted since the log was walked.
func (a *audit) stillMissing(ctx context.Context, missing map[ledger.Record]bool) (map[ledger.Record]bool, error) {
	walked, _, err := a.walkActs(ctx) // inspectActs reports a fault in the log
	if err != nil {
		return nil, err
	}
	for record := range missing {
		if walked.records[record] == ledger.ActWebhookDelete {
			delete(missing, record)
		}
	}
	return missing, nil
}

const recordPage = 200

func (a *audit) storedKeys(ctx context.Context, org ledger.OrgID, missing map[ledger.Record]bool) error {
	keys, err := a.store.AllKeys(ctx, org)
	for _, key := range keys {
		delete(missing, ledger.Record{Kind: ledger.RecordKey, Name: key.ID.String()})
	}
	return err
}

func (a *audit) storedTokens(ctx context.Context, org ledger.OrgID, missing map[ledger.Record]bool) error {
	var before *ledger.TokenID
	for {
		tokens, err := a.store.Tokens(ctx, org, before, recordPage)
		if err != nil {
			return err
		}
		for _, token := range tokens {
			before = &token.ID
			delete(missing, ledger.Record{Kind: ledger.RecordToken, Name: token.ID.String()})
		}
		if len(tokens) < recordPage {
			return nil
		}
	}
}

// storedRows handles the kinds of which an organization has few. Policy sets were already checked
// against the log.
func (a *audit) storedRows(ctx context.Context, org ledger.OrgID, missing map[ledger.Record]bool) error {
	keys, err := a.store.SigningKeys(ctx, org)
	if err != nil {
		return err
	}
	for _, key := range keys {
		delete(missing, ledger.Record{Kind: ledger.RecordSigningKey, Name: key.ID.String()})
	}
	webhooks, err := a.store.Webhooks(ctx, org)
	if err != nil {
		return err
	}
	for _, webhook := range webhooks {
		delete(missing, ledger.Record{Kind: ledger.RecordWebhook, Name: webhook.ID.String()})
	}
	for record := range missing {
		if record.Kind == ledger.RecordPolicy {
			delete(missing, record)
		}
	}
	return nil
}
