package evidence

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Failing is a stored row that fails its authenticator.
type Failing struct {
	Kind FailingKind
	ID   string
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
	FailingFullCheck  FailingKind = "record of a full check"
	FailingJob        FailingKind = "queued job"
)

// failingRows collects rows that fail, up to a bound: whoever changes a million rows must
// not fill the memory of those who look.
type failingRows struct {
	store *Store
	most  int
	found []Failing
}

func (f *failingRows) full() bool { return len(f.found) >= f.most }

func (f *failingRows) judge(kind FailingKind, id string, org ledger.OrgID, purpose ledger.Purpose, mac, record []byte) error {
	err := f.store.check(string(kind), org, purpose, mac, record)
	if !errors.Is(err, ledger.ErrStateTampered) {
		return err
	}
	if !f.full() {
		h := sha256.New()
		h.Write(record)
		h.Write(mac)
		f.found = append(f.found, Failing{kind, id, [32]byte(h.Sum(nil))})
	}
	return nil
}

// FailingRows lists the rows of an organization that fail their authenticators and belong
// to no chain: API keys, signing keys, webhooks, public tokens, full checks and queued
// jobs. It names at most so many.
func (s *Store) FailingRows(ctx context.Context, org ledger.OrgID, most int) ([]Failing, error) {
	f := &failingRows{store: s, most: most}
	for _, list := range []func(context.Context, ledger.OrgID) error{f.keys, f.signingKeys, f.webhooks, f.tokens, f.fullChecks, f.jobs} {
		if err := list(ctx, org); err != nil {
			return nil, err
		}
	}
	return f.found, nil
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
		return f.judge(FailingKey, key.ID.String(), key.Org, ledger.PurposeAPIKey, key.MAC, encodeKey(key))
	})
}

func (f *failingRows) signingKeys(ctx context.Context, org ledger.OrgID) error {
	keys, err := f.store.port.SigningKeys(ctx, org)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if err := f.judge(FailingSigningKey, key.ID.String(), key.Org, ledger.PurposeSigningKey, key.MAC, encodeSigningKey(key)); err != nil {
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
		if err := f.judge(FailingWebhook, webhook.ID.String(), webhook.Org, ledger.PurposeWebhook, webhook.MAC, encodeWebhook(webhook)); err != nil {
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
		return f.judge(FailingToken, token.ID.String(), token.Org, ledger.PurposeToken, token.MAC, encodeToken(token))
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
	return &Failing{FailingJob, hex.EncodeToString(sum[:8]), sum}
}
