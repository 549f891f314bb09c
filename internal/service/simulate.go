package service

import (
	"context"
	"errors"
	"fmt"
	"math"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// Simulation asks what a candidate set would have decided about what was
// recorded.
type Simulation struct {
	Document  PolicyDocument
	Since     ledger.Time // of the chains' opening; 0: all
	MaxEvents int
}

// The bounds of a simulation.
const (
	maxSimulated      = 100_000
	defaultSimulated  = 10_000
	maxExamples       = 50
	maxSimulatedBytes = 256 << 10
)

// ParseSimulation reads the body of a request to simulate: the candidate set as
// an object or as the text of a document, and how far to look.
func ParseSimulation(v canon.Value) (*Simulation, error) {
	f := ledger.NewFields(v)
	s := &Simulation{MaxEvents: int(f.Int("max_events", 1, maxSimulated))}
	if s.MaxEvents == 0 {
		s.MaxEvents = defaultSimulated
	}
	if since := f.Time("since"); since != nil {
		s.Since = *since
	}
	candidate, _ := v.Get("policy")
	f.Ignore("policy")
	switch candidate.Kind() {
	case canon.String:
		s.Document = PolicyDocument{Text: []byte(candidate.Str()), YAML: true}
	case canon.Object:
		s.Document = PolicyDocument{Text: candidate.Append(nil)}
	default:
		f.Fault("policy", "is required: the candidate set as an object, or as a string of YAML")
	}
	if len(s.Document.Text) > maxSimulatedBytes {
		f.Fault("policy", "must have at most %d bytes", maxSimulatedBytes)
	}
	return s, f.Err()
}

// SimulationReport says what would have been decided differently.
type SimulationReport struct {
	PolicyVersion string // the candidate's, as if it were put next
	Events        int64
	Chains        int64
	Changed       int64
	Complete      bool // every recorded event was looked at
	Changes       []ChangeCount
	Examples      []ChangedDecision
}

// ChangeCount counts the events whose decision would have moved in one way.
type ChangeCount struct {
	From, To ledger.Outcome
	Count    int64
}

// ChangedDecision is one event that would have been decided differently.
type ChangedDecision struct {
	Chain      ledger.ChainID
	Event      *ledger.RecordedEvent
	Outcome    ledger.Outcome
	PolicyName string
	Reason     string
}

var errEnough = errors.New("enough")

// SimulatePolicy runs a candidate set over recorded events, newest chains first,
// each chain from its beginning, under the organization's settings of now. The
// kill switch plays no part in it. Chains are looked at one by one, and not in the order
// in which they shared budgets: so what budgets decided stands as it was recorded, and
// rules that ask what is left of one are told that all of it is.
func (s *Service) SimulatePolicy(ctx context.Context, caller *Caller, request *Simulation) (*SimulationReport, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	// One at a time: each reads all that was recorded, and keeps a connection for as long.
	done, err := s.simulating.turn(ctx, caller.Org)
	if err != nil {
		return nil, visible(err)
	}
	defer done()
	set, err := s.compileFor(ctx, caller.Org, &request.Document)
	if err != nil {
		return nil, err
	}
	org, err := s.organization(ctx, caller.Org)
	if err != nil {
		return nil, err
	}
	if err := readBudgets(&org.Settings, set.Budgets(), "", setBudgetFirst); err != nil {
		return nil, err
	}
	org.Controls.KillSwitch = ledger.KillSwitch{}
	candidate := compiled(ledger.PolicyVersion(org.Controls.Policy.Number+1, set.Canonical()), set).Under(&org.Settings)
	run := &simulation{
		service: s, org: org, policy: candidate, limit: int64(request.MaxEvents),
		report: &SimulationReport{PolicyVersion: candidate.Version, Complete: true},
	}
	err = s.store.ScanEvents(ctx, caller.Org, request.Since, func(record *store.ChainRecord, stored *ledger.StoredEvent) error {
		return run.visit(ctx, record, stored)
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, visible(err)
	}
	return run.report, nil
}

type simulation struct {
	service *Service
	org     *ledger.Organization
	policy  *ledger.Policy
	limit   int64
	report  *SimulationReport

	chain   *ledger.Chain
	state   *ledger.ChainState
	entries int64              // of the chain, as it was recorded
	addenda []*ledger.Addendum // of the chain, those still to come
	asked   map[int64]*ledger.Approval
}

// begin turns to another chain.
func (r *simulation) begin(ctx context.Context, record *store.ChainRecord) (err error) {
	if r.chain, err = ledger.DecodeChain(record.Body); err != nil {
		return err
	}
	if r.addenda, err = r.service.store.Addenda(ctx, record.ID, 1, math.MaxInt64); err != nil {
		return err
	}
	r.state = ledger.NewChainState(r.chain.StartedAt, r.policy.Version)
	if r.chain.Predecessor() != nil {
		state, err := ledger.DecodeChainState(record.State, record.MAC, r.service.keys, r.chain)
		if err != nil {
			return fmt.Errorf("%w: %w", ledger.ErrStateTampered, err)
		}
		r.state.Carried = state.Carried
	}
	r.entries, r.asked = 0, make(map[int64]*ledger.Approval)
	r.report.Chains++
	return nil
}

// catchUp does what people did between two events: a decision settles what waits
// here too, and a paused chain is resumed.
func (r *simulation) catchUp() error {
	for len(r.addenda) > 0 && r.addenda[0].Position == r.entries+1 {
		entry, err := ledger.DecodeEntry(r.addenda[0].Body)
		if err != nil {
			return err
		}
		r.addenda, r.entries = r.addenda[1:], r.entries+1
		if approval := r.asked[entry.Sequence]; entry.Kind == ledger.EntryApproval && approval != nil {
			approval.Status = entry.ApprovalStatus
			r.state.Settle(approval, entry.RecordedAt)
		}
		if entry.Kind == ledger.EntryResume && r.state.Status == ledger.ChainAutoPaused {
			if _, err := r.state.Resume(r.chain.ID, entry.Event, "", entry.RecordedAt); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *simulation) visit(ctx context.Context, record *store.ChainRecord, stored *ledger.StoredEvent) error {
	if r.report.Events >= r.limit {
		r.report.Complete = false
		return errEnough
	}
	if r.chain == nil || r.chain.ID != record.ID {
		if err := r.begin(ctx, record); err != nil {
			return err
		}
	}
	if err := r.catchUp(); err != nil {
		return err
	}
	r.entries++
	event, err := r.service.store.ReadEvent(r.org.ID, stored)
	if err != nil {
		return err
	}
	if !event.Carries(stored) {
		return fmt.Errorf("payload of event %d: %w", event.Sequence, ledger.ErrStateTampered)
	}
	r.report.Events++
	action, err := ledger.Reconstruct(event, stored.Payload)
	if err != nil {
		return err
	}
	r.service.price(action)
	if err := r.service.examine(ctx, r.org.ID, r.policy, action); err != nil {
		return err
	}
	recorded := r.state.Record(&ledger.Recording{
		Keys: r.service.keys, Policy: r.policy, Org: r.org, Chain: r.chain, Action: action,
		Now: event.RecordedAt, NewApproval: func() ledger.ApprovalID { return ledger.ApprovalID{} },
	})
	if recorded.Approval != nil {
		r.asked[event.Sequence] = recorded.Approval
	}
	r.compare(event, recorded.Event)
	return nil
}

func (r *simulation) compare(event *ledger.RecordedEvent, anew *ledger.Event) {
	from, to := event.Decision.Outcome, anew.Decision.Outcome
	if by := event.Decision.BudgetOutcome(); by.StricterThan(to) {
		to = by
	}
	if from == to || event.Decision.KillSwitchActive {
		return
	}
	r.report.Changed++
	r.count(from, to)
	if len(r.report.Examples) < maxExamples {
		r.report.Examples = append(r.report.Examples, ChangedDecision{
			Chain: r.chain.ID, Event: event, Outcome: to, PolicyName: anew.Decision.PolicyName, Reason: anew.Decision.Reason,
		})
	}
}

func (r *simulation) count(from, to ledger.Outcome) {
	for i := range r.report.Changes {
		if c := &r.report.Changes[i]; c.From == from && c.To == to {
			c.Count++
			return
		}
	}
	r.report.Changes = append(r.report.Changes, ChangeCount{From: from, To: to, Count: 1})
}
