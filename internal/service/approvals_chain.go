package service

import (
	"cmp"
	"context"
	"slices"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// ChainApprovals are a chain's approvals for clients that poll per chain.
type ChainApprovals struct {
	// Standing is the strictest of all, as it is now: such a client must not go ahead
	// while a person is asked, nor after anyone said no, nor while the kill switch is
	// active or the rules have come to deny one of those shown. "" where nobody was
	// asked.
	Standing ledger.ApprovalStatus
	Shown    []*ApprovalView // the undecided first, each part oldest first
}

// ChainApprovals finds what people were asked about in a chain.
func (s *Service) ChainApprovals(ctx context.Context, caller *Caller, chain ledger.ChainID) (*ChainApprovals, error) {
	s.granted(caller.Org) // perhaps: before anything is read
	if err := s.authorize(ctx, caller, ledger.RoleAgent); err != nil {
		return nil, err
	}
	view, err := s.newestOf(ctx, caller, chain)
	if err != nil {
		return nil, err
	}
	s.polledBy(caller, view)
	// What was asked in the chains that this one continues counts: a denial does not
	// pass away with the chain that it was given in.
	lineage := append(slices.Clone(view.Chain.Continues), view.Chain.ID)
	shown, err := s.approvalsOf(ctx, caller, lineage)
	if err != nil || len(shown) == 0 {
		return &ChainApprovals{Shown: shown}, err
	}
	for _, view := range shown {
		if view.Status.Open() && caller.asksFor(view) { // of the others there may be many
			s.approvalPolls.note(view.ID, s.now())
		}
	}
	slices.SortFunc(shown, func(a, b *ApprovalView) int {
		switch {
		case a.Status.Open() == b.Status.Open():
			return cmp.Or(cmp.Compare(a.RequestedAt, b.RequestedAt), cmp.Compare(a.Sequence, b.Sequence))
		case a.Status.Open():
			return -1
		default:
			return 1
		}
	})
	standing := shown[0].Status
	if !standing.Open() {
		if standing, err = s.strictestEnd(ctx, caller, lineage, shown); err != nil {
			return nil, err
		}
		held := func(v *ApprovalView) bool { return v.Killed || v.Now() != v.Status }
		standing = Polled(&ApprovalView{Status: standing, Killed: slices.ContainsFunc(shown, held)})
	}
	return &ChainApprovals{Standing: standing, Shown: shown}, nil
}

// Polled is the status that clients are shown which poll per chain: what may happen
// now, and for one that was cancelled a plain no.
func Polled(v *ApprovalView) ledger.ApprovalStatus {
	if status := v.Now(); status != ledger.ApprovalCancelled {
		return status
	}
	return ledger.ApprovalDenied
}

// approvalsOf finds the newest approvals of chains, the last chain's first, and the
// undecided of a chain before the others.
func (s *Service) approvalsOf(ctx context.Context, caller *Caller, lineage []ledger.ChainID) ([]*ApprovalView, error) {
	const most = 200
	views := make([]*ApprovalView, 0, most)
	seen := make(map[ledger.ApprovalID]bool)
	for _, chain := range slices.Backward(lineage) {
		for _, status := range []ledger.ApprovalStatus{ledger.ApprovalPending, ledger.ApprovalEscalated, ""} {
			if len(views) == most {
				return views, nil
			}
			found, err := s.listApprovals(ctx, caller, ApprovalFilter{Chain: &chain, Status: status, Limit: most}, false)
			if err != nil {
				return nil, err
			}
			for _, view := range found {
				if len(views) < most && !seen[view.ID] {
					seen[view.ID] = true
					views = append(views, view)
				}
			}
		}
	}
	return views, nil
}

// strictestEnd looks among all approvals of chains in which none is open, not only
// among those that are shown.
func (s *Service) strictestEnd(ctx context.Context, caller *Caller, lineage []ledger.ChainID, shown []*ApprovalView) (ledger.ApprovalStatus, error) {
	for _, end := range []ledger.ApprovalStatus{ledger.ApprovalDenied, ledger.ApprovalTimedOut, ledger.ApprovalCancelled} {
		// One that has run out is timed out before anyone has recorded that.
		if slices.ContainsFunc(shown, func(view *ApprovalView) bool { return view.Status == end }) {
			return end, nil
		}
		for _, chain := range lineage {
			found, err := s.store.Approvals(ctx, store.ApprovalQuery{Org: caller.Org, Chain: &chain, Status: end, Limit: 1})
			if err != nil {
				return "", visible(err)
			}
			if len(found) > 0 {
				return end, nil
			}
		}
	}
	return ledger.ApprovalApproved, nil
}
