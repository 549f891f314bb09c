package service

import (
	"context"
	"errors"

	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// chainBackError says that a chain is older than what this process remembers of it, or
// gone.
type chainBackError struct{ back *verify.ChainRollback }

func (e *chainBackError) Error() string { return e.back.String() }
func (e *chainBackError) Unwrap() error { return ledger.ErrStateTampered }

// seenChain is what is remembered of a chain. What is read of the chain after it was asked
// for must not be older.
func (s *Service) seenChain(id ledger.ChainID) (seen keyring.ChainWatched, watched bool) {
	if s.watchedChains == nil {
		return seen, false
	}
	return s.watchedChains.Seen(id.UUID)
}

// chainGone is the error for a chain that is remembered and not stored, ErrNotFound where
// nothing is remembered of it, or nothing that concerns the organization.
func (s *Service) chainGone(org ledger.OrgID, id ledger.ChainID) error {
	seen, watched := s.seenChain(id)
	if !watched || seen.Org != org.UUID {
		return ledger.ErrNotFound
	}
	return s.refuseChain(&verify.ChainRollback{Org: org, Chain: id, Gone: true})
}

// refuseChain keeps the rollback of a chain as a finding, some time later, and returns it
// as an error.
func (s *Service) refuseChain(back *verify.ChainRollback) error {
	s.notice(metTampering{org: back.Org, tampering: back.Tampering(), tell: true})
	return &chainBackError{back}
}

// follows refuses a live chain that is older than what is remembered of it. The chain is
// locked, so that nobody can have stored a newer state of it since it was read.
func (b *batch) follows(live *liveChain) error {
	seen, watched := b.service.seenChain(live.chain.ID)
	if !watched {
		return nil
	}
	if back := verify.ChainBehind(&seen, live.chain, live.state, live.record.MAC); back != nil {
		return b.service.refuseChain(back)
	}
	return nil
}

// noteChains remembers the states that a batch has stored. A chain that was put back
// while the batch was being committed shows here.
func (s *Service) noteChains(b *batch) {
	if s.watchedChains == nil {
		return
	}
	for _, live := range b.order {
		if live.changed || live.fresh {
			s.noteChain(live.loaded, verify.MarkOf(live.chain, live.state, live.record.MAC), live.state)
		}
	}
	for _, opened := range b.opened {
		s.noteChain(keyring.ChainMark{}, verify.MarkOf(opened.chain, opened.state, opened.record.MAC), opened.state)
	}
}

func (s *Service) noteChain(before, now keyring.ChainMark, state *ledger.ChainState) {
	if s.watchedChains.Note(before, now, verify.Final(state)) {
		return
	}
	back := &verify.ChainRollback{Org: ledger.OrgID{UUID: now.Org}, Chain: ledger.ChainID{UUID: now.Chain}}
	if state.Status.Sealed() {
		back.Receipt = state.Receipt
	}
	_ = s.refuseChain(back) // whoever uses the chain next is refused
}

// readChain reads a chain as it stands, authenticated and no older than what was
// remembered of it before.
func (s *Service) readChain(ctx context.Context, org ledger.OrgID, id ledger.ChainID) (*ChainView, error) {
	seen, watched := s.seenChain(id)
	record, err := s.store.Chain(ctx, id)
	switch {
	case errors.Is(err, store.ErrNotFound) && watched && seen.Org == org.UUID:
		return nil, s.chainGone(org, id)
	case err != nil:
		return nil, err
	}
	view, err := s.view(record)
	if err != nil || !watched {
		return view, err
	}
	if back := verify.ChainBehind(&seen, view.Chain, view.State, record.MAC); back != nil {
		return nil, s.refuseChain(back)
	}
	return view, nil
}

// newer reads a chain again that was read without its lock, and before anybody asked what
// is remembered of it, where it is older than that.
func (s *Service) newer(ctx context.Context, view *ChainView, mac []byte) (*ChainView, error) {
	seen, watched := s.seenChain(view.Chain.ID)
	if !watched || verify.ChainBehind(&seen, view.Chain, view.State, mac) == nil {
		return view, nil
	}
	again, err := s.readChain(ctx, view.Chain.Org, view.Chain.ID)
	if err != nil {
		return nil, err
	}
	again.Terms, again.BindingKey, again.Organization = view.Terms, view.BindingKey, view.Organization
	if !again.State.Status.Sealed() {
		again.Limits = view.Limits
	}
	return again, nil
}

// mostPutBackTold bounds what one look tells of. The others' turn comes with the next.
const mostPutBackTold = 100

// ProveChains holds open chains against what this process remembers of them, and tells
// their organizations of those that were put back or are gone.
func (s *Service) ProveChains(ctx context.Context) error {
	told := 0
	err := s.judge.ProveChains(ctx, func(back *verify.ChainRollback) {
		if told++; told <= mostPutBackTold {
			s.tellOrLog(ctx, back.Org, back.Tampering())
		}
	})
	return visible(err)
}

// ChainsRemembered says how many open chains are remembered, and how many were dropped
// from that since the start for want of room.
func (s *Service) ChainsRemembered() (chains int, dropped int64) {
	if s.watchedChains == nil {
		return 0, 0
	}
	return s.watchedChains.Watched()
}

// ChainRollbacks finds the chains that are not those that this server has acknowledged.
func (s *Service) ChainRollbacks(ctx context.Context) ([]*verify.ChainRollback, error) {
	found, err := s.judge.ChainRollbacks(ctx)
	return found, visible(err)
}
