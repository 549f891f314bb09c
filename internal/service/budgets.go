package service

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"countersign/internal/evidence"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/recent"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// counting is what an operation knows of the budget counters that it touches. What it
// knows is a hint: the organization, the action and the approvals say inside the
// transaction, and an operation that finds others there than it has named among its needs
// is planned again with those.
//
// It belongs to one operation, and is changed by whoever plans that.
type counting struct {
	ids []ledger.CounterID
}

// errCountersNotLoaded says that an operation found out only in its transaction which
// counters it needs, and names them the next time.
var errCountersNotLoaded = errors.New("budget counters not loaded")

func (c *counting) need(needs *store.Needs) { needs.Counters = append(needs.Counters, c.ids...) }

// loaded refuses counters that were not named, and names them for the next time.
func (c *counting) loaded(b *batch, ids []ledger.CounterID) error {
	if !slices.ContainsFunc(ids, func(id ledger.CounterID) bool { return !b.named[id] }) {
		return nil
	}
	c.ids = slices.Compact(slices.SortedFunc(slices.Values(append(slices.Clone(c.ids), ids...)), func(a, b ledger.CounterID) int {
		return slices.Compare(a.UUID[:], b.UUID[:])
	}))
	return errCountersNotLoaded
}

// commitWhole commits an operation, again where it has found out only in its transaction
// what it needs.
func (s *Service) commitWhole(ctx context.Context, op operation) error {
	err := s.committer.commit(ctx, op)
	for again := 0; again < mostAgain && (errors.Is(err, errApprovalNotLoaded) || errors.Is(err, errCountersNotLoaded)); again++ {
		err = s.committer.commit(ctx, op)
	}
	return err
}

// liveCounter is a counter that the batch works on.
type liveCounter struct {
	record  *store.CounterRecord
	counter *ledger.BudgetCounter
	moves   int64             // when it was loaded
	loaded  keyring.ChainMark // where it stood before this batch
	fresh   bool              // made by this batch
}

func (c *liveCounter) changed() bool { return c.counter.Moves != c.moves }

// counter finds a counter that the operation named among its needs, as the batch leaves it
// so far; nil where nothing was counted in it yet. One that is not as the service wrote it,
// older than what is remembered of it, or gone is refused.
func (b *batch) counter(org ledger.OrgID, id ledger.CounterID) (*liveCounter, error) {
	if live := b.counters[id]; live != nil {
		return live, nil
	}
	if !b.named[id] {
		return nil, errCountersNotLoaded
	}
	record := b.loaded.Counters[id]
	if record == nil {
		if !b.known[id] {
			// Nobody had made it when the batch was loaded. A batch that has meanwhile is
			// committed first, and this one is refused by the counter's id.
			return nil, nil
		}
		if err := b.service.chainGone(org, ledger.ChainID(id)); !errors.Is(err, ledger.ErrNotFound) {
			return nil, err
		}
		return nil, nil
	}
	if record.Org != org {
		return nil, fmt.Errorf("a budget counter is another organization's: %w", ledger.ErrStateTampered)
	}
	counter, err := b.service.store.ReadCounter(record)
	if err != nil {
		b.service.notice(metTampering{org: org, tampering: verify.RowChanged(evidence.FailingCounterOf(record)), tell: true})
		return nil, err
	}
	if seen, watched := b.service.seenChain(ledger.ChainID(id)); watched {
		if back := verify.CounterBehind(&seen, counter, record.MAC); back != nil {
			return nil, b.service.refuseChain(back)
		}
	}
	live := &liveCounter{record: record, counter: counter, moves: counter.Moves, loaded: verify.CounterMark(counter, record.MAC)}
	b.counters[id] = live
	return live, nil
}

// knownCounters are the counters of which something is remembered.
func (s *Service) knownCounters(ids []ledger.CounterID) map[ledger.CounterID]bool {
	if s.watchedChains == nil || len(ids) == 0 {
		return nil
	}
	known := make(map[ledger.CounterID]bool, len(ids))
	for _, id := range ids {
		if _, watched := s.seenChain(ledger.ChainID(id)); watched {
			known[id] = true
		}
	}
	return known
}

// counterFor is counter for an action that may be the first to be counted.
func (b *batch) counterFor(applied *ledger.Applied) (*ledger.BudgetCounter, error) {
	id := applied.Key.ID()
	live, err := b.counter(applied.Key.Org, id)
	if err != nil {
		return nil, err
	}
	if live == nil {
		counter := ledger.NewBudgetCounter(applied.Key, applied.Label)
		live = &liveCounter{
			fresh: true, counter: counter,
			record: &store.CounterRecord{ID: id, Org: counter.Org, Budget: counter.Budget, Start: counter.Start, Value: counter.Value},
		}
		b.counters[id] = live
	}
	return live.counter, nil
}

// standings are where the budgets stand that an action is held against, and those that
// rules ask about. It is called before anything is changed.
func (b *batch) standings(c *counting, org *ledger.Organization, policy *ledger.Policy, live *liveChain, subject *ledger.Subject, action *ledger.Action) ([]ledger.BudgetStanding, error) {
	if len(org.Settings.Budgets) == 0 {
		b.service.hints.drop(org.ID)
		return nil, nil
	}
	b.service.hints.put(org, policy)
	applied := org.Settings.Applying(org.ID, subject, action, ledger.Later(b.now, live.state.LastAt), policy.Budgets)
	return b.stand(c, action, applied)
}

func (b *batch) stand(c *counting, action *ledger.Action, applied []ledger.Applied) ([]ledger.BudgetStanding, error) {
	if err := c.loaded(b, idsOf(applied)); err != nil {
		return nil, err
	}
	standings := make([]ledger.BudgetStanding, 0, len(applied))
	for i := range applied {
		counter, err := b.counterFor(&applied[i])
		if err != nil {
			return nil, err
		}
		standings = append(standings, applied[i].Stand(action, counter))
	}
	return standings, nil
}

// standAgain are the standings of an action that was recorded before: by the counters that
// it was counted in, and for rules that ask about others by those of now.
func (b *batch) standAgain(c *counting, org *ledger.Organization, policy *ledger.Policy, subject *ledger.Subject, action *ledger.Action, uses []ledger.BudgetUse, at ledger.Time) ([]ledger.BudgetStanding, error) {
	if len(org.Settings.Budgets) == 0 {
		return nil, nil
	}
	read := readAgain(org, policy, subject, action, uses, at)
	if err := c.loaded(b, append(idsOf(read), idsOfUses(uses)...)); err != nil {
		return nil, err
	}
	var failed error
	standings := org.Settings.StandAgain(uses, func(id ledger.CounterID) *ledger.BudgetCounter {
		live, err := b.counter(org.ID, id)
		if err != nil || live == nil {
			failed = errors.Join(failed, err)
			return nil
		}
		return live.counter
	})
	if failed != nil {
		return nil, failed
	}
	others, err := b.stand(c, action, read)
	return append(standings, others...), err
}

// readAgain are the budgets that rules ask about and in which an action was not counted.
func readAgain(org *ledger.Organization, policy *ledger.Policy, subject *ledger.Subject, action *ledger.Action, uses []ledger.BudgetUse, at ledger.Time) []ledger.Applied {
	if len(policy.Budgets) == 0 {
		return nil
	}
	read := org.Settings.Applying(org.ID, subject, action, at, policy.Budgets)
	read = slices.DeleteFunc(read, func(a ledger.Applied) bool {
		return !slices.Contains(policy.Budgets, a.Budget.Name) ||
			slices.ContainsFunc(uses, func(use ledger.BudgetUse) bool { return use.Budget == a.Budget.Name })
	})
	for i := range read {
		read[i].Counted = false
	}
	return read
}

func idsOf(applied []ledger.Applied) []ledger.CounterID {
	ids := make([]ledger.CounterID, 0, len(applied))
	for i := range applied {
		ids = append(ids, applied[i].Key.ID())
	}
	return ids
}

func idsOfUses(uses []ledger.BudgetUse) []ledger.CounterID {
	ids := make([]ledger.CounterID, 0, len(uses))
	for i := range uses {
		ids = append(ids, uses[i].Counter)
	}
	return ids
}

// settleUses ends what an approval held of budgets. A counter that fails is left as it is:
// it lets nothing happen any more, and must not keep an approval from its end.
func (b *batch) settleUses(approval *ledger.Approval) {
	for _, use := range approval.Reserved.Uses {
		live, err := b.counter(approval.Org, use.Counter)
		if err != nil || live == nil {
			b.service.log.Error("an approval ended whose budget counter is missing or fails: run countersign audit")
			continue
		}
		live.counter.Settle(use.Amount, approval.Status == ledger.ApprovalApproved)
	}
}

// finishCounters encodes the counters that moved.
func (b *batch) finishCounters() {
	for _, live := range b.counters {
		if !live.changed() {
			continue
		}
		live.counter.Revision++
		live.record.Body, live.record.MAC = live.counter.Encode(b.service.keys)
		if live.fresh {
			b.changes.NewCounters = append(b.changes.NewCounters, live.record)
		} else {
			b.changes.Counters = append(b.changes.Counters, live.record)
		}
	}
}

// noteCounters remembers the counters that a batch has stored, as noteChains does.
func (s *Service) noteCounters(b *batch) {
	if s.watchedChains == nil {
		return
	}
	for _, live := range b.counters {
		if !live.changed() || s.watchedChains.Note(live.loaded, verify.CounterMark(live.counter, live.record.MAC), false) {
			continue
		}
		_ = s.refuseChain(&verify.ChainRollback{ // whoever counts next is refused
			Org: live.counter.Org, Chain: ledger.ChainID{UUID: live.record.ID.UUID}, Budget: live.counter.Budget,
		})
	}
}

// budgetHints keep, of organizations that have budgets, which those are, so that an
// operation can name its counters before it has read the organization. A hint may be old.
type budgetHints struct {
	known *recent.Cache[ledger.OrgID, *budgetHint]
}

type budgetHint struct {
	act      int64
	settings ledger.Settings
	read     []string // by rules
}

// hintsInUse bounds what is kept of hints, in bytes.
const hintsInUse = 1 << 20

func newBudgetHints() budgetHints {
	return budgetHints{recent.New[ledger.OrgID, *budgetHint](hintsInUse)}
}

func (h *budgetHints) put(org *ledger.Organization, policy *ledger.Policy) {
	if known, ok := h.known.Get(org.ID); ok && known.act == org.Controls.Act {
		return
	}
	h.known.Put(org.ID, &budgetHint{act: org.Controls.Act, settings: ledger.Settings{Budgets: org.Settings.Budgets}, read: policy.Budgets}, org.Size())
}

func (h *budgetHints) drop(org ledger.OrgID) {
	if _, ok := h.known.Get(org); ok {
		h.known.Drop(org)
	}
}

// expectCounters names the counters that an action is most likely held against.
func (s *Service) expectCounters(caller *Caller, chain ledger.ChainID, action *ledger.Action) counting {
	hint, ok := s.hints.known.Get(caller.Org)
	if !ok {
		return counting{}
	}
	subject := caller.subject(action.AgentName)
	if known, ok := s.chains.chains.Get(chain); ok {
		subject.Environment = known.Environment
	}
	return counting{ids: idsOf(hint.settings.Applying(caller.Org, subject, action, s.now(), hint.read))}
}

// subject is the caller as budgets know it; the environment is the chain's.
func (c *Caller) subject(agent string) *ledger.Subject {
	return &ledger.Subject{Agent: agent, Key: c.Key, KeyName: c.Name}
}

// readBudgets refuses a set of rules that reads budgets which an organization lacks.
func readBudgets(settings *ledger.Settings, names []string, pointer, remedy string) error {
	for _, name := range names {
		if settings.Budget(name) == nil {
			return ledger.Invalid(ledger.FieldError{Pointer: pointer, Detail: fmt.Sprintf("there is no budget %q: %s", name, remedy)})
		}
	}
	return nil
}

// approvalSubject is who acts in an action that waits for approval. An approval does not
// keep the name of the key.
func approvalSubject(approval *ledger.Approval, chain *ledger.Chain) *ledger.Subject {
	return &ledger.Subject{Environment: chain.Environment, Agent: approval.AgentName, Key: approval.RequestedBy, Unnamed: true}
}

// standings are as in standAgain, for what is shown and not decided. A counter that fails
// is left out: what it leads to is decided in a transaction.
func (v *viewing) standings(ctx context.Context, policy *ledger.Policy, approval *ledger.Approval, chain *ledger.Chain, action *ledger.Action, at ledger.Time) ([]ledger.BudgetStanding, error) {
	uses := approval.Reserved.Uses
	read := readAgain(v.org, policy, approvalSubject(approval, chain), action, uses, at)
	if len(v.org.Settings.Budgets) == 0 || len(uses)+len(read) == 0 {
		return nil, nil
	}
	records, err := v.service.store.BudgetCounters(ctx, append(idsOf(read), idsOfUses(uses)...))
	if err != nil {
		return nil, err
	}
	find := func(id ledger.CounterID) *ledger.BudgetCounter {
		record := records[id]
		if record == nil || record.Org != v.org.ID {
			return nil
		}
		counter, err := v.service.store.ReadCounter(record)
		if err != nil {
			return nil
		}
		return counter
	}
	standings := v.org.Settings.StandAgain(uses, find)
	for _, applied := range read {
		counter := find(applied.Key.ID())
		if counter == nil {
			counter = ledger.NewBudgetCounter(applied.Key, applied.Label)
		}
		standings = append(standings, applied.Stand(action, counter))
	}
	return standings, nil
}
