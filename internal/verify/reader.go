package verify

import (
	"context"
	"errors"
	"log/slog"

	"github.com/google/uuid"

	"countersign/internal/evidence"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// reader is what all parts of a Judge share: the store, and how a chain's record is authenticated.
type reader struct {
	store *evidence.Store
	keys  ledger.Keys
	keep  func(context.Context, *store.FullCheckRecord) // may be nil
	now   func() ledger.Time
	log   *slog.Logger
}

func (r *reader) newVerification(artifact string, id uuid.UUID) *ledger.Verification {
	return &ledger.Verification{
		Artifact: artifact, ID: id, VerifiedAt: r.now(),
		TSA: ledger.AnchorFinding{Standing: ledger.NotAnchored}, OpenTimestamp: ledger.AnchorFinding{Standing: ledger.NotAnchored},
		Signature: ledger.Finding{Standing: ledger.StandingNotApplicable}, Key: ledger.KeyNotApplicable,
		Evidence: ledger.Finding{Standing: ledger.StandingNotApplicable},
	}
}

// readState is readChain for callers that need only the state.
func (r *reader) readState(record *store.ChainRecord) (state *ledger.ChainState, detail string) {
	_, state, detail = r.readChain(record)
	return state, detail
}

// readChain authenticates a chain's record and state, or says what is wrong with them.
func (r *reader) readChain(record *store.ChainRecord) (chain *ledger.Chain, state *ledger.ChainState, detail string) {
	chain, err := ledger.DecodeChain(record.Body)
	if err != nil {
		return nil, nil, "the record cannot be read"
	}
	if chain.ID != record.ID || chain.Org != record.Org || chain.OpenedBy != record.OpenedBy || chain.ExternalID != record.ExternalID ||
		chain.Environment != record.Environment || chain.IdempotencyKey != record.IdempotencyKey {
		return nil, nil, "the record's columns do not agree with its body"
	}
	state, err = ledger.DecodeChainState(record.State, record.MAC, r.keys, chain)
	if err != nil || state.Status != record.Status {
		return nil, nil, "the record or its state fails the authenticator"
	}
	return chain, state, ""
}

// authenticChain returns the chain to name in a result, or nil if it is missing or not authentic.
func (r *reader) authenticChain(ctx context.Context, id ledger.ChainID) (*ledger.Chain, error) {
	record, err := r.store.Chain(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	chain, _, _ := r.readChain(record)
	return chain, nil
}
