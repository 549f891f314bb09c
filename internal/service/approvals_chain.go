package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
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
	asked, err := s.askedIn(ctx, caller, view)
	if err != nil {
		return nil, err
	}
	shown := asked.shown
	if len(shown) == 0 {
		return &ChainApprovals{Shown: shown}, nil
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
		held := func(v *ApprovalView) bool { return v.Killed || v.Now() != v.Status }
		standing = Polled(&ApprovalView{Status: asked.strictestEnd(), Killed: slices.ContainsFunc(shown, held)})
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

// mostShown bounds how many approvals are shown of a chain and those that it continues.
const mostShown = 200

// askedApprovals are the approvals of a chain and of those that it continues.
type askedApprovals struct {
	shown []*ApprovalView                // the newest chain's first, of each chain the open ones first
	ends  map[ledger.ApprovalStatus]bool // of all that have ended, shown or not
}

// strictestEnd is how the approvals ended, where none is open.
func (a *askedApprovals) strictestEnd() ledger.ApprovalStatus {
	for _, end := range []ledger.ApprovalStatus{ledger.ApprovalDenied, ledger.ApprovalTimedOut, ledger.ApprovalCancelled} {
		if a.ends[end] {
			return end
		}
	}
	return ledger.ApprovalApproved
}

// askedIn reads the approvals of a chain and of those that it continues: a denial does
// not pass away with the chain that it was given in. All of them must be there.
func (s *Service) askedIn(ctx context.Context, caller *Caller, newest *ChainView) (*askedApprovals, error) {
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	asked := &askedApprovals{ends: make(map[ledger.ApprovalStatus]bool)}
	lineage := append(slices.Clone(newest.Chain.Continues), newest.Chain.ID)
	for _, id := range slices.Backward(lineage) {
		view := newest
		if id != newest.Chain.ID {
			if view, err = s.ownChain(ctx, caller, id); err != nil {
				return nil, takenAway(err, "a chain that another continues")
			}
		}
		records, err := s.approvalsOf(ctx, view)
		if err != nil {
			return nil, visible(err)
		}
		if err := s.addAsked(asked, records, org); err != nil {
			return nil, err
		}
	}
	bytes, shared := 0, s.viewing(org)
	for i, view := range asked.shown {
		if bytes >= PageBytes {
			asked.shown = asked.shown[:i]
			break
		}
		if err := s.complete(ctx, view, shared); err != nil {
			return nil, err
		}
		bytes += len(view.Payload)
	}
	if err := s.attend(ctx, caller, asked.shown...); err != nil {
		return nil, err
	}
	return asked, nil
}

// addAsked adds the approvals of one chain, newest first.
func (s *Service) addAsked(asked *askedApprovals, records []*store.ApprovalRecord, org *ledger.Organization) error {
	var open, ended []*ApprovalView
	for _, record := range records {
		view, err := s.bareView(record, org)
		if err != nil {
			return err
		}
		// One that has run out is timed out before anyone has recorded that.
		if view.Status.Open() {
			open = append(open, view)
		} else {
			ended, asked.ends[view.Status] = append(ended, view), true
		}
	}
	both := append(open, ended...)
	asked.shown = append(asked.shown, both[:min(len(both), mostShown-len(asked.shown))]...)
	return nil
}

// approvalsOf reads all approvals of a chain, newest first, and refuses them where one is
// missing or was put back: whoever hides a denial must not be answered with the approvals
// that are left. They are held against the chain as it was read before. What was asked
// since then has a greater sequence, and what was settled since then is not open any
// more, so nothing that happens in between is taken for an edit.
func (s *Service) approvalsOf(ctx context.Context, chain *ChainView) ([]*store.ApprovalRecord, error) {
	records, tampered, err := s.countedApprovals(ctx, chain)
	if err == nil && tampered > 0 {
		return nil, fmt.Errorf("an approval of a chain fails: %w", ledger.ErrStateTampered)
	}
	return records, err
}

// countedApprovals is approvalsOf for those who mark what fails. A row that fails may be
// one that counts: it keeps its place.
func (s *Service) countedApprovals(ctx context.Context, chain *ChainView) (records []*store.ApprovalRecord, tampered int64, err error) {
	query := store.ApprovalQuery{Org: chain.Org, Chain: &chain.Chain.ID, Limit: math.MaxInt32} // how many a chain can have is bounded
	records, err = s.store.Approvals(ctx, query)
	if err != nil {
		return nil, 0, err
	}
	var found, open int64
	for _, record := range records {
		approval, err := s.store.ReadApproval(record)
		switch {
		case errors.Is(err, ledger.ErrStateTampered):
			tampered++
		case err != nil:
			return nil, 0, err
		case approval.Sequence <= chain.State.Actions:
			found++
			if approval.Status.Open() {
				open++
			}
		}
	}
	if found > chain.State.Approvals || found+tampered < chain.State.Approvals || open > chain.State.Waiting {
		return nil, 0, fmt.Errorf("approvals of a chain are missing or put back: %w", ledger.ErrStateTampered)
	}
	return records, tampered, nil
}

// allListed refuses to list a chain's approvals where one is missing.
func (s *Service) allListed(ctx context.Context, caller *Caller, id ledger.ChainID) error {
	view, err := s.ownChain(ctx, caller, id)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil // nor has it any approvals that the caller may see
	}
	if err == nil {
		_, _, err = s.countedApprovals(ctx, view)
	}
	return visible(err)
}

// takenAway is for what an authentic row names: it was there, and where it is not found
// somebody has taken it away.
func takenAway(err error, what string) error {
	if errors.Is(err, ledger.ErrNotFound) {
		return visible(fmt.Errorf("%s is missing: %w", what, ledger.ErrStateTampered))
	}
	return err
}
