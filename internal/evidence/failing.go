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

// Failing is a stored row that fails its authenticator or is stale.
type Failing struct {
	Kind FailingKind
	ID   string
	// RolledBack reports that the row is authentic but not the version that the last act about it
	// wrote: someone has restored an earlier version.
	RolledBack bool
	// Digest identifies the stored bytes: another edit of the row gives another digest.
	Digest [32]byte
}

// FailingKind says what kind of row failed.
type FailingKind string

// Kinds of failing rows.
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

// failingRows collects failing rows up to a limit, so that an attacker who changes a million rows
// does not exhaust memory.
type failingRows struct {
	store *Store
	most  int
	known func(*Failing) (bool, error) // nil if none are
	found []Failing                    // those that are not known
	last  []Failing                    // those that are
	seen  seenActs
	again bool // a row may have changed while it was read; read all of them again
}

func (f *failingRows) full() bool { return len(f.found) >= f.most }

func (f *failingRows) judge(kind FailingKind, id string, org ledger.OrgID, purpose ledger.Purpose, mac, record []byte) error {
	err := f.store.check(string(kind), org, purpose, mac, record)
	if !errors.Is(err, ledger.ErrStateTampered) {
		return err
	}
	return f.add(failingOf(kind, id, false, mac, record))
}

func failingOf(kind FailingKind, id string, stale bool, mac, record []byte) *Failing {
	h := sha256.New()
	h.Write(record)
	h.Write(mac)
	return &Failing{Kind: kind, ID: id, RolledBack: stale, Digest: [32]byte(h.Sum(nil))}
}

func (f *failingRows) add(row *Failing) error {
	if f.full() {
		return nil
	}
	if f.known != nil {
		known, err := f.known(row)
		if err != nil {
			return err
		}
		if known {
			if len(f.last) < f.most {
				f.last = append(f.last, *row)
			}
			return nil
		}
	}
	f.found = append(f.found, *row)
	return nil
}

// judgeCurrent is judge for a record that names the act that last changed it.
func (f *failingRows) judgeCurrent(ctx context.Context, kind FailingKind, id string, n recordRef, purpose ledger.Purpose, mac, record []byte) error {
	err := f.store.check(string(kind), n.org, purpose, mac, record)
	if errors.Is(err, ledger.ErrStateTampered) {
		return f.add(failingOf(kind, id, false, mac, record))
	}
	if err != nil || f.full() {
		return err
	}
	v, err := f.store.judge(ctx, n, f.seen)
	switch {
	case errors.Is(err, ledger.ErrStateTampered) || errors.Is(err, ErrRolledBack):
		return nil // the check of the log itself reports this
	case err != nil:
		return err
	case v == stale:
		return f.add(failingOf(kind, id, true, mac, record))
	case v == unsure:
		f.again = true
	}
	return nil
}

// FailingRows lists the rows of an organization that belong to no chain and fail their
// authenticators or are older than the audit log says: API keys, signing keys, webhooks, public
// tokens, policy sets, full checks, budget counters, imported approvals, webhook deliveries and
// queued jobs. It returns at most the given number. Those that are known come last, so that however
// many there are, they keep no others out; known may be nil.
func (s *Store) FailingRows(ctx context.Context, org ledger.OrgID, most int, known func(*Failing) (bool, error)) ([]Failing, error) {
	seen := make(seenActs)
	for {
		f := &failingRows{store: s, most: most, known: known, seen: seen}
		for _, list := range []func(context.Context, ledger.OrgID) error{f.keys, f.signingKeys, f.webhooks, f.tokens, f.policies, f.fullChecks, f.counters, f.imported, f.deliveries, f.jobs} {
			if err := list(ctx, org); err != nil {
				return nil, err
			}
		}
		if !f.again {
			return append(f.found, f.last[:min(len(f.last), most-len(f.found))]...), nil
		}
	}
}

const failingPage = 200

// pages reads a list page by page until it ends or enough failing rows were found.
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
		return f.judgeCurrent(ctx, FailingKey, key.ID.String(), keyRef(key), ledger.PurposeAPIKey, key.MAC, encodeKey(key))
	})
}

func (f *failingRows) signingKeys(ctx context.Context, org ledger.OrgID) error {
	keys, err := f.store.port.SigningKeys(ctx, org)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if err := f.judgeCurrent(ctx, FailingSigningKey, key.ID.String(), signingKeyRef(key), ledger.PurposeSigningKey, key.MAC, encodeSigningKey(key)); err != nil {
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
		if err := f.judgeCurrent(ctx, FailingWebhook, webhook.ID.String(), webhookRef(webhook), ledger.PurposeWebhook, webhook.MAC, encodeWebhook(webhook)); err != nil {
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
		return f.judgeCurrent(ctx, FailingToken, token.ID.String(), tokenRef(token), ledger.PurposeToken, token.MAC, encodeToken(token))
	})
}

func (f *failingRows) policies(ctx context.Context, org ledger.OrgID) error {
	before := int64(0)
	read := func() ([]*store.PolicyRecord, error) { return f.store.port.Policies(ctx, org, before, failingPage) }
	return pages(f, read, func(policy *store.PolicyRecord) error {
		before = policy.Number
		return f.judgeCurrent(ctx, FailingPolicy, policy.Version, policyRef(policy), ledger.PurposePolicy, policy.MAC, encodePolicy(policy))
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
		if _, err := f.store.ReadCounter(record); err != nil {
			return f.add(FailingCounterOf(record))
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
		return f.judgeCurrent(ctx, FailingImported, a.ID.String(), importedRef(a), ledger.PurposeImported, a.MAC, encodeImported(a))
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

// FailingCounterOf returns a budget counter as a failing row.
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

// jobs scans all jobs. Nearly all of them are sound, so only a failing one is identified.
func (f *failingRows) jobs(ctx context.Context, org ledger.OrgID) error {
	return f.store.port.ScanJobs(ctx, "", func(job *store.Job) error {
		if job.Org != org {
			return nil
		}
		err := f.store.check(string(FailingJob), job.Org, ledger.PurposeJob, job.MAC, encodeJob(job))
		if !errors.Is(err, ledger.ErrStateTampered) {
			return err
		}
		return f.add(FailingJobOf(job))
	})
}

// FailingJobOf returns a job as a failing row. Its id is a digest, because none of the row's own
// names can be trusted.
func FailingJobOf(job *store.Job) *Failing {
	h := sha256.New()
	h.Write(encodeJob(job))
	h.Write(job.MAC)
	sum := [32]byte(h.Sum(nil))
	return &Failing{Kind: FailingJob, ID: hex.EncodeToString(sum[:8]), Digest: sum}
}
