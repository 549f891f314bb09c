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

func (f *failingRows) keys(ctx context.Context, org ledger.OrgID) error {
	var after ledger.KeyID
	for !f.full() {
		keys, err := f.store.port.Keys(ctx, org, after, failingPage)
		if err != nil {
			return err
		}
		for _, key := range keys {
			if err := f.judge(FailingKey, key.ID.String(), key.Org, ledger.PurposeAPIKey, key.MAC, encodeKey(key)); err != nil {
				return err
			}
			after = key.ID
		}
		if len(keys) < failingPage {
			break
		}
	}
	return nil
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
	for !f.full() {
		tokens, err := f.store.port.Tokens(ctx, org, before, failingPage)
		if err != nil {
			return err
		}
		for _, token := range tokens {
			if err := f.judge(FailingToken, token.ID.String(), token.Org, ledger.PurposeToken, token.MAC, encodeToken(token)); err != nil {
				return err
			}
			before = &token.ID
		}
		if len(tokens) < failingPage {
			break
		}
	}
	return nil
}

func (f *failingRows) fullChecks(ctx context.Context, org ledger.OrgID) error {
	var after ledger.ReceiptID
	for !f.full() {
		checks, err := f.store.port.FullChecks(ctx, org, after, failingPage)
		if err != nil {
			return err
		}
		for _, check := range checks {
			if err := f.judge(FailingFullCheck, check.Receipt.String(), check.Org, ledger.PurposeFullCheck, check.MAC, encodeFullCheck(check)); err != nil {
				return err
			}
			after = check.Receipt
		}
		if len(checks) < failingPage {
			break
		}
	}
	return nil
}

func (f *failingRows) jobs(ctx context.Context, org ledger.OrgID) error {
	return f.store.port.ScanJobs(ctx, "", func(job *store.Job) error {
		if job.Org != org {
			return nil
		}
		return f.judge(FailingJob, FailingJobOf(job).ID, job.Org, ledger.PurposeJob, job.MAC, encodeJob(job))
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
