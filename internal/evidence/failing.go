package evidence

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Failing is a stored row that fails its authenticator, or is older than it should be.
type Failing struct {
	Kind FailingKind
	ID   string
	// Old says that the row is authentic and not the one that the last act about it has
	// left: somebody has put it back.
	Old bool
	// Digest is of the row as it is stored: after another edit it is another one.
	Digest [32]byte
}

// FailingKind says what a row that fails was to be.
type FailingKind string

// The kinds of rows that are listed.
const (
	FailingKey        FailingKind = "API key"
	FailingSigningKey FailingKind = "signing key"
	FailingWebhook    FailingKind = "webhook"
	FailingToken      FailingKind = "public token"
	FailingPolicy     FailingKind = "policy set"
	FailingFullCheck  FailingKind = "record of a full check"
	FailingJob        FailingKind = "queued job"
	FailingCounter    FailingKind = "budget counter"
	FailingImported   FailingKind = "imported approval"
	FailingDelivery   FailingKind = "webhook delivery"
)

// failingRows collects rows that fail, up to a bound: whoever changes a million rows must
// not fill the memory of those who look.
type failingRows struct {
	store *Store
	most  int
	found []Failing
	seen  seenActs
	again bool // a row may have changed while it was read: all are read again
}

func (f *failingRows) full() bool { return len(f.found) >= f.most }

func (f *failingRows) judge(kind FailingKind, id string, org ledger.OrgID, purpose ledger.Purpose, mac, record []byte) error {
	err := f.store.check(string(kind), org, purpose, mac, record)
	if !errors.Is(err, ledger.ErrStateTampered) {
		return err
	}
	f.add(kind, id, false, mac, record)
	return nil
}

func (f *failingRows) add(kind FailingKind, id string, old bool, mac, record []byte) {
	if !f.full() {
		h := sha256.New()
		h.Write(record)
		h.Write(mac)
		f.found = append(f.found, Failing{Kind: kind, ID: id, Old: old, Digest: [32]byte(h.Sum(nil))})
	}
}

// judgeNumbered is judge for a record that names the act that changed it last.
func (f *failingRows) judgeNumbered(ctx context.Context, kind FailingKind, id string, n numbered, purpose ledger.Purpose, mac, record []byte) error {
	found := len(f.found)
	if err := f.judge(kind, id, n.org, purpose, mac, record); err != nil || len(f.found) > found || f.full() {
		return err
	}
	v, err := f.store.judge(ctx, n, f.seen)
	switch {
	case errors.Is(err, ledger.ErrStateTampered) || errors.Is(err, ErrRolledBack):
		return nil // the log itself is found by those who look at it
	case err != nil:
		return err
	case v == old:
		f.add(kind, id, true, mac, record)
	case v == unsure:
		f.again = true
	}
	return nil
}

// FailingRows lists the rows of an organization that fail their authenticators, or are
// older than the audit log says, and belong to no chain: API keys, signing keys, webhooks,
// public tokens, policy sets, full checks, counters of budgets, imported approvals, the log of
// webhook deliveries and queued jobs. It names at most so many.
func (s *Store) FailingRows(ctx context.Context, org ledger.OrgID, most int) ([]Failing, error) {
	seen := make(seenActs)
	for {
		f := &failingRows{store: s, most: most, seen: seen}
		for _, list := range []func(context.Context, ledger.OrgID) error{f.keys, f.signingKeys, f.webhooks, f.tokens, f.policies, f.fullChecks, f.counters, f.imported, f.deliveries, f.jobs} {
			if err := list(ctx, org); err != nil {
				return nil, err
			}
		}
		if !f.again {
			return f.found, nil
		}
	}
}

const failingPage = 200

// pages visits a list page by page, until it ends or enough was found.
func pages[R any](f *failingRows, read func() ([]R, error), visit func(R) error) error {
	for !f.full() {
		rows, err := read()
		if err != nil {
			return err
		}
		for _, row := range rows {
			if err := visit(row); err != nil {
				return err
			}
		}
		if len(rows) < failingPage {
			return nil
		}
	}
	return nil
}

func (f *failingRows) keys(ctx context.Context, org ledger.OrgID) error {
	var after ledger.KeyID
	read := func() ([]*ledger.KeyRecord, error) { return f.store.port.Keys(ctx, org, after, failingPage) }
	return pages(f, read, func(key *ledger.KeyRecord) error {
		after = key.ID
		return f.judgeNumbered(ctx, FailingKey, key.ID.String(), numberedKey(key), ledger.PurposeAPIKey, key.MAC, encodeKey(key))
	})
}

func (f *failingRows) signingKeys(ctx context.Context, org ledger.OrgID) error {
	keys, err := f.store.port.SigningKeys(ctx, org)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if err := f.judgeNumbered(ctx, FailingSigningKey, key.ID.String(), numberedSigningKey(key), ledger.PurposeSigningKey, key.MAC, encodeSigningKey(key)); err != nil {
			return err
		}
	}
	return nil
}

func (f *failingRows) webhooks(ctx context.Context, org ledger.OrgID) error {
	webhooks, err := f.store.port.Webhooks(ctx, org)
	if err != nil {
		return err
	}
	for _, webhook := range webhooks {
		if err := f.judgeNumbered(ctx, FailingWebhook, webhook.ID.String(), numberedWebhook(webhook), ledger.PurposeWebhook, webhook.MAC, encodeWebhook(webhook)); err != nil {
			return err
		}
	}
	return nil
}

func (f *failingRows) tokens(ctx context.Context, org ledger.OrgID) error {
	var before *ledger.TokenID
	read := func() ([]*store.TokenRecord, error) { return f.store.port.Tokens(ctx, org, before, failingPage) }
	return pages(f, read, func(token *store.TokenRecord) error {
		before = &token.ID
		return f.judgeNumbered(ctx, FailingToken, token.ID.String(), numberedToken(token), ledger.PurposeToken, token.MAC, encodeToken(token))
	})
}

func (f *failingRows) policies(ctx context.Context, org ledger.OrgID) error {
	before := int64(0)
	read := func() ([]*store.PolicyRecord, error) { return f.store.port.Policies(ctx, org, before, failingPage) }
	return pages(f, read, func(policy *store.PolicyRecord) error {
		before = policy.Number
		return f.judgeNumbered(ctx, FailingPolicy, policy.Version, numberedPolicy(policy), ledger.PurposePolicy, policy.MAC, encodePolicy(policy))
	})
}

func (f *failingRows) fullChecks(ctx context.Context, org ledger.OrgID) error {
	var after ledger.ReceiptID
	read := func() ([]*store.FullCheckRecord, error) { return f.store.port.FullChecks(ctx, org, after, failingPage) }
	return pages(f, read, func(check *store.FullCheckRecord) error {
		after = check.Receipt
		return f.judge(FailingFullCheck, check.Receipt.String(), check.Org, ledger.PurposeFullCheck, check.MAC, encodeFullCheck(check))
	})
}

func (f *failingRows) counters(ctx context.Context, org ledger.OrgID) error {
	var after ledger.CounterID
	read := func() ([]*store.CounterRecord, error) { return f.store.AllCounters(ctx, org, after, failingPage) }
	return pages(f, read, func(record *store.CounterRecord) error {
		after = record.ID
		if _, err := f.store.ReadCounter(record); err != nil && !f.full() {
			f.found = append(f.found, *FailingCounterOf(record))
		}
		return nil
	})
}

func (f *failingRows) imported(ctx context.Context, org ledger.OrgID) error {
	var after ledger.ApprovalID
	read := func() ([]*store.ImportedApproval, error) {
		return f.store.port.ImportedApprovals(ctx, org, after, failingPage)
	}
	return pages(f, read, func(a *store.ImportedApproval) error {
		after = a.ID
		return f.judgeNumbered(ctx, FailingImported, a.ID.String(), numberedImported(a), ledger.PurposeImported, a.MAC, encodeImported(a))
	})
}

func (f *failingRows) deliveries(ctx context.Context, org ledger.OrgID) error {
	query := store.DeliveryQuery{Org: org, Since: math.MinInt64, Limit: failingPage}
	read := func() ([]*store.DeliveryRecord, error) { return f.store.port.Deliveries(ctx, query) }
	return pages(f, read, func(d *store.DeliveryRecord) error {
		query.Before = &d.ID
		return f.judge(FailingDelivery, d.ID.String(), d.Org, ledger.PurposeDelivery, d.MAC, encodeDelivery(d))
	})
}

// FailingCounterOf is a budget's counter as a row that fails.
func FailingCounterOf(c *store.CounterRecord) *Failing {
	r := make(record, 0, 256+len(c.Body))
	r.bytes(c.ID.UUID[:])
	r.bytes(c.Org.UUID[:])
	r.text(c.Budget)
	r.time(c.Start)
	r.text(c.Value)
	r.bytes(c.Body)
	r.bytes(c.MAC)
	return &Failing{Kind: FailingCounter, ID: c.ID.String(), Digest: sha256.Sum256(r)}
}

// jobs are many, and nearly all of them sound: only one that fails is given a name.
func (f *failingRows) jobs(ctx context.Context, org ledger.OrgID) error {
	return f.store.port.ScanJobs(ctx, "", func(job *store.Job) error {
		if job.Org != org {
			return nil
		}
		err := f.store.check(string(FailingJob), job.Org, ledger.PurposeJob, job.MAC, encodeJob(job))
		if !errors.Is(err, ledger.ErrStateTampered) {
			return err
		}
		if !f.full() {
			f.found = append(f.found, *FailingJobOf(job))
		}
		return nil
	})
}

// FailingJobOf is a job as a row that fails. A digest tells it from others: it has no
// other name that could be believed.
func FailingJobOf(job *store.Job) *Failing {
	h := sha256.New()
	h.Write(encodeJob(job))
	h.Write(job.MAC)
	sum := [32]byte(h.Sum(nil))
	return &Failing{Kind: FailingJob, ID: hex.EncodeToString(sum[:8]), Digest: sum}
}
