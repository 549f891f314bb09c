package service

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"countersign/internal/cache"
	"countersign/internal/evidence"
	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// budgetService tracks the use of budgets.
type budgetService struct {
	*shared
	chains      *chainService
	budgetHints budgetHints
}

// counting lists the budget counters that an operation needs. It is a hint: the organization,
// the action and the approvals as loaded in the transaction are authoritative, and an
// operation that needs other counters is planned again.
//
// It belongs to one operation, and only the goroutine that plans it writes to it.
type counting struct {
	ids []ledger.CounterID
}

func (c *counting) need(needs *store.Needs) { needs.Counters = append(needs.Counters, c.ids...) }

// loaded fails if one of the counters was not loaded, and adds them for the next attempt.
func (c *counting) loaded(b *batch, ids []ledger.CounterID) error {
	if !slices.ContainsFunc(ids, func(id ledger.CounterID) bool { return !b.loadedCounters[id] }) {
		return nil
	}
	c.ids = slices.Compact(slices.SortedFunc(slices.Values(append(slices.Clone(c.ids), ids...)), func(a, b ledger.CounterID) int {
		return slices.Compare(a.UUID[:], b.UUID[:])
	}))
	return errNotLoaded
}

// liveCounter is a counter in use by the batch.
type liveCounter struct {
	record  *store.CounterRecord
	counter *ledger.BudgetCounter
	moves   int64             // number of moves when it was loaded
	loaded  keyring.ChainMark // its progress before this batch
	fresh   bool              // created by this batch
}

func (c *liveCounter) changed() bool { return c.counter.Moves != c.moves }

// counter returns a counter, including earlier changes of this batch; nil if nothing was
// counted yet. The operation must have named it among its needs. It refuses a counter that
// fails authentication, was rolled back or was deleted.
func (b *batch) counter(org ledger.OrgID, id ledger.CounterID) (*liveCounter, error) {
	if live := b.counters[id]; live != nil {
		return live, nil
	}
	if !b.loadedCounters[id] {
		return nil, errNotLoaded
	}
	record := b.loaded.Counters[id]
	if record == nil {
		if !b.knownCounters[id] {
			// It did not exist when the batch was loaded. If another batch has created it
			// since, the store refuses this one by the counter's id.
			return nil, nil
		}
		if err := b.service.chainMissing(org, ledger.ChainID(id)); !errors.Is(err, fault.ErrNotFound) {
			return nil, err
		}
		return nil, nil
	}
	if record.Org != org {
		return nil, fmt.Errorf("a budget counter is another organization's: %w", ledger.ErrStateTampered)
	}
	counter, err := b.service.store.ReadCounter(record)
	if err != nil {
		b.service.noteFinding(pendingFinding{org: org, tampering: verify.RowChanged(evidence.FailingCounterOf(record)), notify: true})
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

// knownCounters returns the counters whose progress is recorded outside the database.
func (s *budgetService) knownCounters(ids []ledger.CounterID) map[ledger.CounterID]bool {
	if s.chains.watchedChains == nil || len(ids) == 0 {
		return nil
	}
	known := make(map[ledger.CounterID]bool, len(ids))
	for _, id := range ids {
		if _, watched := s.chains.seenChain(ledger.ChainID(id)); watched {
			known[id] = true
		}
	}
	return known
}

// counterFor is counter for an action that may be the first to count. It creates a missing
// counter.
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

// standings returns the standings of the budgets that apply to an action, and of those that
// rules read. Call it before the batch is changed.
func (b *batch) standings(c *counting, org *ledger.Organization, policy *ledger.Policy, live *liveChain, subject *ledger.Subject, action *ledger.Action) ([]ledger.BudgetStanding, error) {
	if len(org.Settings.Budgets) == 0 {
		b.service.budgetHints.drop(org.ID)
		return nil, nil
	}
	b.service.budgetHints.put(org, policy)
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
		standings = append(standings, applied[i].Standing(action, counter))
	}
	return standings, nil
}

// standAgain returns the standings for an action that was recorded before: those of the
// counters that it was counted in, and the current ones of other budgets that rules read.
func (b *batch) standAgain(c *counting, org *ledger.Organization, policy *ledger.Policy, subject *ledger.Subject, action *ledger.Action, uses []ledger.BudgetUse, at ledger.Time) ([]ledger.BudgetStanding, error) {
	if len(org.Settings.Budgets) == 0 {
		return nil, nil
	}
	read := readAgain(org, policy, subject, action, uses, at)
	if err := c.loaded(b, append(idsOf(read), idsOfUses(uses)...)); err != nil {
		return nil, err
	}
	var failed error
	standings := org.Settings.RepeatedStandings(uses, func(id ledger.CounterID) *ledger.BudgetCounter {
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

// readAgain returns the budgets that rules read and in which the action was not counted.
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

// releaseUses ends an approval's reservations. It skips a counter that fails: such a counter
// allows nothing, and must not block the end of an approval.
func (b *batch) releaseUses(approval *ledger.Approval) {
	for _, use := range approval.Reserved.Uses {
		live, err := b.counter(approval.Org, use.Counter)
		if err != nil || live == nil {
			b.service.log.Error("the budget counter of an ended approval is missing or fails authentication: run countersign audit")
			continue
		}
		live.counter.Settle(use.Amount, approval.Status == ledger.ApprovalApproved)
	}
}

// encodeCounters encodes the changed counters.
func (b *batch) encodeCounters() {
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

// noteCounters records the counters that a batch has stored, as noteChains does for chains.
func (s *budgetService) noteCounters(b *batch) {
	if s.chains.watchedChains == nil {
		return
	}
	for _, live := range b.counters {
		if !live.changed() || s.chains.watchedChains.Note(live.loaded, verify.CounterMark(live.counter, live.record.MAC), false) {
			continue
		}
		_ = s.chains.refuseChain(&verify.ChainRollback{ // the next use of the counter is refused
			Org: live.counter.Org, Chain: ledger.ChainID{UUID: live.record.ID.UUID}, Budget: live.counter.Budget,
		})
	}
}

// budgetHints caches the budgets of organizations, so that an operation can name its
// counters before it has read the organization. A hint may be outdated.
type budgetHints struct {
	known *cache.Cache[ledger.OrgID, *budgetHint]
}

type budgetHint struct {
	act      int64
	settings ledger.Settings
	read     []string // budgets that rules read
}

// budgetHintBytes bounds the cache of hints, in bytes.
const budgetHintBytes = 1 << 20

func newBudgetHints() budgetHints {
	return budgetHints{cache.New[ledger.OrgID, *budgetHint](budgetHintBytes)}
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

// expectCounters returns the counters that an action most likely needs.
func (s *budgetService) expectCounters(caller *Caller, chain ledger.ChainID, action *ledger.Action) counting {
	hint, ok := s.budgetHints.known.Get(caller.Org)
	if !ok {
		return counting{}
	}
	subject := caller.subject(action.AgentName)
	if known, ok := s.chains.chainCache.chains.Get(chain); ok {
		subject.Environment = known.Environment
	}
	return counting{ids: idsOf(hint.settings.Applying(caller.Org, subject, action, s.now(), hint.read))}
}

// subject returns the caller as a subject of budgets, without the chain's environment.
func (c *Caller) subject(agent string) *ledger.Subject {
	return &ledger.Subject{Agent: agent, Key: c.Key, KeyName: c.Name}
}

// readBudgets fails if rules read budgets that the organization does not have.
func readBudgets(settings *ledger.Settings, names []string, pointer, remedy string) error {
	for _, name := range names {
		if settings.Budget(name) == nil {
			return fault.Invalid(fault.FieldError{Pointer: pointer, Detail: fmt.Sprintf("there is no budget %q: %s", name, remedy)})
		}
	}
	return nil
}

// approvalSubject returns the subject of an action that waits for approval. An approval does
// not contain the key's name.
func approvalSubject(approval *ledger.Approval, chain *ledger.Chain) *ledger.Subject {
	return &ledger.Subject{Environment: chain.Environment, Agent: approval.AgentName, Key: approval.RequestedBy, Unnamed: true}
}

// standings is standAgain for views. It leaves out counters that fail: the transaction that
// decides deals with them.
func (v *approvalViewer) standings(ctx context.Context, policy *ledger.Policy, approval *ledger.Approval, chain *ledger.Chain, action *ledger.Action, at ledger.Time) ([]ledger.BudgetStanding, error) {
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
	standings := v.org.Settings.RepeatedStandings(uses, find)
	for _, applied := range read {
		counter := find(applied.Key.ID())
		if counter == nil {
			counter = ledger.NewBudgetCounter(applied.Key, applied.Label)
		}
		standings = append(standings, applied.Standing(action, counter))
	}
	return standings, nil
}

// BudgetUse is the use of a budget in the current window, by one member of its scope.
type BudgetUse struct {
	Budget  *ledger.Budget
	Counter ledger.CounterID
	// Value is the environment, the agent's name as it was first spelled, or the key's name;
	// "" for the organization. Key is the id of the key; nil in other scopes.
	Value                string
	Key                  *ledger.KeyID
	Spent, Waiting, Left ledger.Money
	Start, End           ledger.Time
	// Tampered reports that the stored counter fails authentication. Then only its id and its
	// budget are set.
	Tampered bool
}

// Budgets lists the use of each budget in the current window: by budget in the order of the
// settings, then by the folded name of the member. Members without any use are omitted; the
// organization as a whole is not. The list starts after the given counter.
func (s *budgetService) Budgets(ctx context.Context, caller *Caller, after ledger.CounterID, limit int) ([]*BudgetUse, error) {
	if err := s.authorize(ctx, caller, ledger.RoleMember); err != nil {
		return nil, err
	}
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	l := &budgetList{service: s, org: org, now: s.now(), limit: limit}
	if after != (ledger.CounterID{}) {
		if err := l.resume(ctx, after); err != nil {
			return nil, visible(err)
		}
	}
	for ; l.at < len(org.Settings.Budgets) && len(l.found) < limit; l.at++ {
		if err := l.list(ctx, &org.Settings.Budgets[l.at]); err != nil {
			return nil, visible(err)
		}
		l.after = store.CounterAt{}
	}
	return l.found, nil
}

type budgetList struct {
	service *budgetService
	org     *ledger.Organization
	now     ledger.Time
	limit   int
	at      int             // index of the budget to continue with
	after   store.CounterAt // position within it
	found   []*BudgetUse
}

// wholeKey returns the counter key of an organization-wide budget.
func (l *budgetList) wholeKey(b *ledger.Budget) ledger.CounterKey {
	start, _ := b.Window.Span(l.now)
	return ledger.CounterKey{Org: l.org.ID, Budget: b.Name, Scope: b.Scope, Measure: b.Measure(), Window: b.Window, Start: start}
}

// resume finds the position of a counter. A counter that no longer exists ends the list.
func (l *budgetList) resume(ctx context.Context, after ledger.CounterID) error {
	records, err := l.service.store.BudgetCounters(ctx, []ledger.CounterID{after})
	if err != nil {
		return err
	}
	record := records[after]
	for l.at = range l.org.Settings.Budgets {
		b := &l.org.Settings.Budgets[l.at]
		whole := l.wholeKey(b)
		if b.Scope == ledger.ScopeOrganization && whole.ID() == after {
			l.at++
			return nil
		}
		if record != nil && record.Org == l.org.ID && record.Budget == b.Name {
			l.after = store.CounterAt{Value: record.Value, ID: record.ID}
			return nil
		}
	}
	l.at = len(l.org.Settings.Budgets)
	return nil
}

func (l *budgetList) list(ctx context.Context, b *ledger.Budget) error {
	start, end := b.Window.Span(l.now)
	query := store.CounterQuery{Org: l.org.ID, Budget: b.Name, Start: start, After: l.after}
	before := len(l.found)
	for len(l.found) < l.limit {
		query.Limit = l.limit - len(l.found)
		records, err := l.service.store.CountersOf(ctx, query)
		if err != nil {
			return err
		}
		for _, record := range records {
			query.After = store.CounterAt{Value: record.Value, ID: record.ID}
			if use := l.use(b, record, start, end); use != nil {
				l.found = append(l.found, use)
			}
		}
		if len(records) < query.Limit {
			break
		}
	}
	if b.Scope == ledger.ScopeOrganization && len(l.found) == before && len(l.found) < l.limit && l.after == (store.CounterAt{}) {
		key := l.wholeKey(b)
		l.found = append(l.found, &BudgetUse{Budget: b, Counter: key.ID(), Left: b.Limit(), Start: start, End: end})
	}
	return nil
}

// use returns the view of a counter; nil if the counter belongs to another budget of the same
// name.
func (l *budgetList) use(b *ledger.Budget, record *store.CounterRecord, start, end ledger.Time) *BudgetUse {
	counter, err := l.service.store.ReadCounter(record)
	if err != nil {
		l.service.log.Error(tamperedLog, "of", "a budget counter")
		return &BudgetUse{Budget: b, Counter: record.ID, Start: start, End: end, Tampered: true}
	}
	if !counter.Of(b) {
		return nil
	}
	use := &BudgetUse{
		Budget: b, Counter: record.ID, Value: counter.Label, Spent: counter.Spent, Waiting: counter.Waiting, Left: b.Left(counter), Start: start, End: end,
	}
	if b.Scope == ledger.ScopeKey {
		if id, err := ledger.ParseID(counter.Value); err == nil {
			use.Key = &ledger.KeyID{UUID: id}
		}
	}
	return use
}
