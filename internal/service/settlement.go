package service

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Voter is somebody's yes, and why it does not count any more.
type Voter struct {
	ledger.Vote
	Discounted string // "" where it counts; of an approval that has ended it is not asked
}

// Counting is how many of the yeses count.
func (v *ApprovalView) Counting() (n int) {
	for i := range v.Voters {
		if v.Voters[i].Discounted == "" {
			n++
		}
	}
	return n
}

// judgeVotes says of each yes whether it would count now. It is for reviewers to see:
// what counts is judged once more when the approval is settled.
func (v *viewing) judgeVotes(ctx context.Context, view *ApprovalView, stored *ledger.StoredEvent) error {
	event, policy, question, err := v.question(ctx, view.Approval, stored)
	if errors.Is(err, ledger.ErrStateTampered) {
		// Nobody can approve it now. It is shown all the same: it can still be denied.
		for i := range view.Voters {
			view.Voters[i].Discounted = "the rules in force were changed outside the service"
		}
		return nil
	}
	if err != nil {
		return err
	}
	keys := make(map[ledger.KeyID]*ledger.KeyRecord, len(view.Voters))
	for i := range view.Voters {
		id := view.Voters[i].Reviewer.Key
		key, err := v.service.store.Key(ctx, id)
		if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, ledger.ErrStateTampered) {
			return err
		}
		keys[id] = key
	}
	if err := v.service.examine(ctx, v.org.ID, policy, question.Action); err != nil {
		return err
	}
	settlement := event.Settlement(policy, question, view.Approval)
	settlement.Key = func(id ledger.KeyID) *ledger.KeyRecord { return keys[id] }
	for i := range view.Voters {
		view.Voters[i].Discounted = view.Discounts(&view.Voters[i].Vote, settlement)
	}
	return nil
}

// errVoterNotLoaded says that somebody voted after the operation had named those whose
// keys it needs. It names them the next time.
var errVoterNotLoaded = errors.New("key of a voter not loaded")

// mostAgain bounds how often a verdict is tried again because others vote meanwhile.
const mostAgain = 20

// nameVoters has the keys of those loaded who have voted.
func (o *moveApproval) nameVoters(approval *ledger.Approval) {
	o.voters = nil
	for i := range approval.Votes {
		o.voters = append(o.voters, approval.Votes[i].Reviewer.Key)
	}
}

// settlement is what a yes is held against, all of it as it is in this transaction: the
// organization is held, so no key, policy or setting changes before the commit.
func (o *moveApproval) settlement(b *batch, org *ledger.Organization, live *liveChain, approval *ledger.Approval) (*ledger.Settlement, error) {
	if o.event == nil || o.event.ID != approval.Event {
		return nil, fmt.Errorf("an approval is about another event than the one in its place: %w", ledger.ErrStateTampered)
	}
	for i := range approval.Votes {
		if !slices.Contains(o.voters, approval.Votes[i].Reviewer.Key) {
			o.nameVoters(approval)
			return nil, errVoterNotLoaded
		}
	}
	policy, err := b.policyFor(org, o.action)
	if err != nil {
		return nil, err
	}
	now := ledger.Later(b.now, live.state.LastAt)
	standings, err := b.standAgain(&o.counters, org, policy, approvalSubject(approval, live.chain), o.action, approval.Reserved.Uses, now)
	if err != nil {
		return nil, err
	}
	settlement := o.event.Settlement(policy, &ledger.Question{
		Org: org, Chain: live.chain, State: live.state, Action: o.action, Now: now, Standings: standings,
	}, approval)
	settlement.Key = func(id ledger.KeyID) *ledger.KeyRecord { return b.loaded.Keys[id] }
	return settlement, nil
}
