package service_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/nightly"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// melee is an organization in which several clients, reviewers, admins and workers use the same
// chains at the same time, through two replicas whose writes sometimes fail.
type melee struct {
	*governed
	seed     uint64
	replicas []*service.Service
	journals []*keyring.Chains
	calm     atomic.Bool // no write fails
	alarms   servicetest.Buffer

	mu        sync.Mutex // guards the fields below
	chains    []ledger.ChainID
	opened    map[string]ledger.ChainID       // by idempotency key
	events    map[ledger.ChainID]*meleeEvents // by the chain that the client opened
	sealed    map[ledger.ChainID]string       // receipts by the chain that the client opened
	approvals []ledger.ApprovalID             // asked for
	receipts  []ledger.ReceiptID              // of completed chains
	reviewers []*service.NewKey               // may have been revoked or rotated since
	answers   []meleeAnswer                   // that let an action happen
}

// meleeEvents has the events of a chain and its successors as they were first answered.
type meleeEvents struct {
	chain ledger.ChainID
	byKey map[string]*ledger.Event
}

// meleeAnswer lets an action happen in the organization as an act had left it.
type meleeAnswer struct {
	act  int64
	name string
}

// Whatever several clients, reviewers, admins and workers do at the same time through two
// replicas, also if some of their writes fail before or after they are stored: no alarm is raised,
// each request has one effect, nothing is allowed that was forbidden, and everything that was
// sealed or signed verifies.
//
//countersign:race
func TestInterleavings(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		seed := uint64(time.Now().UnixNano())
		for n := range nightly.Count(1, 100) {
			passed := t.Run(fmt.Sprint(n), func(t *testing.T) {
				m := newMelee(t, db.Fresh(t), seed+uint64(n))
				for round := range nightly.Count(1, 3) {
					m.round(round)
					m.check()
					if t.Failed() {
						break
					}
				}
			})
			if !passed {
				t.Fatalf("seed %d", seed+uint64(n))
			}
		}
	})
}

const (
	meleeWorkers = 6
	meleeSteps   = 45 // of each worker in a round
)

func newMelee(t *testing.T, db *testdb.Database, seed uint64) *melee {
	t.Helper()
	ring, _ := servicetest.NewRing(t)
	m := &melee{
		governed: &governed{t: t, db: db, store: db.Open(t), ring: ring, clock: newClock()},
		seed:     seed, opened: make(map[string]ledger.ChainID), events: make(map[ledger.ChainID]*meleeEvents), sealed: make(map[ledger.ChainID]string),
	}
	folder := t.TempDir()
	watch := must[*keyring.Heads](t)(keyring.OpenHeads(filepath.Join(folder, "heads.json"), ring))
	marks := must[*keyring.LogMarks](t)(keyring.OpenLogMarks(filepath.Join(folder, "heads.logs"), ring))
	for n := range 2 {
		handle := m.another()
		if seed%2 == 0 {
			handle = db.Open(t)
		}
		committers := 1
		if db.Kind == "postgres" {
			committers = 2
		}
		journal := must[*keyring.Chains](t)(keyring.OpenChains(filepath.Join(folder, fmt.Sprint("chains-", n)), ring))
		m.journals = append(m.journals, journal)
		m.replicas = append(m.replicas, serve(t, service.Config{
			Store: m.flaky(handle, uint64(n)), Keys: ring, Secrets: ring, Clock: m.clock.Now, Committers: committers, Timestamps: believer{},
			Log:   slog.New(slog.NewTextHandler(&m.alarms, &slog.HandlerOptions{Level: slog.LevelError})),
			Watch: watch, Chains: journal, LogKeys: ring, LogMarks: marks, Signing: &service.Signing{Keys: ring, Instance: "log.example.com"},
		}))
	}
	m.calm.Store(true)
	m.Service = m.replicas[0]
	done(t, m.Operator().AdoptKeys(t.Context(), ring))
	done(t, m.Operator().AdoptLedger(t.Context(), watch))
	m.who = newTenant(t, m.Service, "acme")
	m.settings(`{"evidence_export":"admins"}`)
	return m
}

// flaky makes one write in twenty fail: half of them before they are stored, half afterwards.
func (m *melee) flaky(inner store.Store, replica uint64) store.Store {
	breaks := func(stream uint64) func(int64) bool {
		return func(write int64) bool {
			return !m.calm.Load() && rand.New(rand.NewPCG(m.seed^stream, uint64(write))).IntN(40) == 0
		}
	}
	return &faulty{how: lost, breaks: breaks(2*replica + 1), Store: &faulty{how: kept, breaks: breaks(2*replica + 2), Store: inner}}
}

// round lets everybody act at the same time.
func (m *melee) round(round int) {
	m.calm.Store(false)
	defer m.calm.Store(true)
	var all sync.WaitGroup
	for n := range meleeWorkers {
		all.Go(func() {
			f := &fighter{melee: m, name: fmt.Sprintf("%d-%d", round, n), chance: rand.New(rand.NewPCG(m.seed, uint64(round*meleeWorkers+n)))}
			for f.count = range meleeSteps {
				f.act()
			}
		})
	}
	all.Wait()
}

// fighter performs one random operation after the other.
type fighter struct {
	*melee
	name   string
	chance *rand.Rand
	count  int
	tokens []*meleeToken
}

type meleeToken struct {
	id    ledger.TokenID
	text  string
	share bool
}

func (f *fighter) act() {
	operations := []struct {
		weight int
		name   string
		do     func(context.Context) error
	}{
		{4, "open", f.open}, {30, "record", f.record}, {4, "report", f.report}, {4, "outcome", f.outcome}, {8, "vote", f.vote}, {1, "cancel", f.cancel},
		{6, "pass time", f.passTime}, {4, "work", f.work}, {3, "settings", f.change}, {3, "policy", f.policy}, {3, "reviewer", f.reviewer},
		{2, "signing key", f.signingKey}, {1, "kill", f.kill}, {4, "lift", f.lift}, {5, "complete", f.complete}, {3, "resume", f.resume},
		{4, "token", f.token}, {5, "read", f.read},
	}
	operation := operations[draw(f.chance, len(operations), func(i int) int { return operations[i].weight })]
	err := operation.do(context.Background())
	switch code := codeOf(err); {
	case code == fault.CodeInternal, code == fault.CodeEvidenceTampered, code == fault.CodeRolledBack, code == fault.CodeIdempotencyConflict, errors.Is(err, ledger.ErrStateTampered):
		f.t.Errorf("%s: %v", operation.name, err)
	}
}

// any picks a replica.
func (f *fighter) any() *service.Service { return f.replicas[f.chance.IntN(len(f.replicas))] }

// insist repeats a request on any replica until it is answered. Sometimes it repeats it although
// it was answered.
func (f *fighter) insist(attempt func(*service.Service) error) (err error) {
	for range 50 {
		err = attempt(f.any())
		code := codeOf(err)
		if code == "" && f.chance.IntN(8) > 0 || code != "" && code != fault.CodeUnavailable && code != fault.CodeOutcomeUnknown {
			return err
		}
	}
	return err
}

// meleePick picks an element of a list that everybody uses; false if it is empty.
func meleePick[T any](f *fighter, list *[]T) (picked T, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(*list) == 0 {
		return picked, false
	}
	// New ones are used most.
	return (*list)[max(len(*list)-1-f.chance.IntN(8), 0)], true
}

func (f *fighter) open(ctx context.Context) error {
	key := fmt.Sprint("open-", f.chance.IntN(60)) // several may open the same one
	return f.insist(func(s *service.Service) error {
		view, err := s.OpenChain(ctx, f.who.agent, chainNamed(f.t, key), key)
		if err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if known, ok := f.opened[key]; ok && known != view.ID {
			f.t.Errorf("the key %s opened the chains %s and %s", key, known, view.ID)
		} else if !ok {
			f.opened[key] = view.ID
			f.chains = append(f.chains, view.ID)
			f.events[view.ID] = &meleeEvents{chain: view.ID, byKey: make(map[string]*ledger.Event)}
		}
		return nil
	})
}

// action returns the action of an idempotency key, always the same.
func (f *fighter) action(key int) *ledger.Action {
	text := fmt.Sprint("key-", key)
	agent := fmt.Sprint("agent-", key%3)
	switch key % 6 {
	case 0, 5:
		return pay(f.t, agent, gatedAmount, text)
	case 1:
		return pay(f.t, agent, 100, text)
	case 2:
		return pay(f.t, agent, 2500, text)
	case 3:
		return request(f.t, ledger.ParseAction, `{"agent_name":"agent","action_type":"llm_call","action_name":"chat","payload":{},"metadata":{"model":"m","input_tokens":100,"output_tokens":0},"idempotency_key":"`+text+`"}`)
	default:
		return step(f.t, "deploy", text)
	}
}

func (f *fighter) record(ctx context.Context) error {
	chain, ok := meleePick(f, &f.chains)
	if !ok {
		return f.open(ctx)
	}
	key := f.chance.IntN(25)
	return f.insist(func(s *service.Service) error {
		action := f.action(key)
		recorded, err := s.RecordEvent(ctx, f.who.agent, chain, action)
		if err == nil {
			f.answered(chain, action, recorded)
		}
		return err
	})
}

// answered compares an answer with the first one for the same event.
func (f *fighter) answered(chain ledger.ChainID, action *ledger.Action, recorded *service.Recorded) {
	f.mu.Lock()
	defer f.mu.Unlock()
	event := recorded.Event
	if first := f.events[chain].byKey[action.IdempotencyKey]; first == nil {
		f.events[chain].byKey[action.IdempotencyKey] = event
		if event.Approval != (ledger.ApprovalID{}) {
			f.approvals = append(f.approvals, event.Approval)
		}
	} else if event.ID != first.ID || event.Chain != first.Chain || event.Sequence != first.Sequence || event.Approval != first.Approval {
		f.t.Errorf("%s in %s is answered as event %d (%s), and before as event %d (%s)", action.IdempotencyKey, chain, event.Sequence, event.ID, first.Sequence, first.ID)
	}
	if action.Source == "" && (event.Status == ledger.EventAllowed || event.Status == ledger.EventFlagged) {
		f.answers = append(f.answers, meleeAnswer{recorded.Terms.Act, action.ActionName})
	}
}

func (f *fighter) report(ctx context.Context) error {
	chain, ok := meleePick(f, &f.chains)
	if !ok {
		return nil
	}
	first := f.chance.IntN(10)
	return f.insist(func(s *service.Service) error {
		actions := reported(f.t, fmt.Sprint("local-", first), fmt.Sprint("local-", first+1), fmt.Sprint("local-", first+2))
		report, err := s.ReportEvents(ctx, f.who.agent, chain, actions)
		if err != nil {
			return err
		}
		for i, result := range report.Results {
			if result.Err == nil {
				f.answered(chain, actions[i], result.Recorded)
			}
		}
		return nil
	})
}

func (f *fighter) outcome(ctx context.Context) error {
	chain, ok := meleePick(f, &f.chains)
	if !ok {
		return nil
	}
	var event *ledger.Event
	f.mu.Lock()
	for _, event = range f.events[chain].byKey {
		break
	}
	f.mu.Unlock()
	if event == nil {
		return nil
	}
	return f.insist(func(s *service.Service) error {
		_, err := s.ReportOutcome(ctx, f.who.agent, event.Chain, event.ID, &ledger.Entry{Result: ledger.Succeeded, Detail: "done"})
		return err
	})
}

// vote decides an approval as one of the reviewers, some of whom have been revoked.
func (f *fighter) vote(ctx context.Context) error {
	id, ok := meleePick(f, &f.approvals)
	if !ok {
		return nil
	}
	approve := f.chance.IntN(4) > 0
	key, ok := meleePick(f, &f.reviewers)
	return f.insist(func(s *service.Service) error {
		caller := f.who.member
		if ok {
			var err error
			if caller, err = s.Authenticate(ctx, key.Text.Reveal()); err != nil {
				return err
			}
		}
		_, err := s.DecideApproval(ctx, caller, id, &ledger.Verdict{Approve: approve})
		return err
	})
}

func (f *fighter) cancel(ctx context.Context) error {
	id, ok := meleePick(f, &f.approvals)
	if !ok {
		return nil
	}
	return f.insist(func(s *service.Service) error {
		_, err := s.CancelApproval(ctx, f.who.agent, id, "not needed")
		return err
	})
}

func (f *fighter) passTime(context.Context) error {
	span := time.Duration(f.chance.IntN(1200)) * time.Second
	if f.chance.IntN(4) == 0 {
		span = 90 * time.Minute // approvals time out before a worker has seen it
	}
	f.clock.Advance(span)
	return nil
}

// work does what a worker does, and sometimes stops halfway.
func (f *fighter) work(ctx context.Context) error {
	s := f.any()
	if err := s.QueueAbandonment(ctx); err != nil {
		return err
	}
	if err := s.FlushPolls(ctx); err != nil {
		return err
	}
	jobs, err := s.Jobs().Claim(ctx, time.Minute, map[string]int{service.JobDeadline: 5, service.JobAbandon: 1})
	if err != nil {
		return err
	}
	for _, job := range jobs {
		if f.chance.IntN(20) == 0 {
			continue
		}
		do := s.Jobs().Deadline
		if job.Kind == service.JobAbandon {
			do = s.Jobs().Abandon
		}
		err := do(ctx, job)
		if code := codeOf(err); code == fault.CodeUnavailable || code == fault.CodeOutcomeUnknown {
			err = s.Jobs().Retry(ctx, job, time.Second, "again")
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) { // its lease had run out, and another worker has finished it
			return fmt.Errorf("%s: %w", job.Kind, err)
		}
	}
	return s.ProveChains(ctx)
}

func (f *fighter) change(ctx context.Context) error {
	budgets := `[]`
	if f.chance.IntN(4) > 0 {
		budgets = fmt.Sprintf(`[{"name":"all","scope":"organization","window":"month","limit_usd":%d,"decision":"require_approval"},
			{"name":"each","scope":"agent","window":"month","limit_usd":%d,"decision":"deny"},{"name":"tokens","scope":"key","window":"day","limit_tokens":2000,"decision":"deny"}]`,
			10_000*(1+f.chance.IntN(9)), 20_000*(1+f.chance.IntN(9)))
	}
	patch := fmt.Sprintf(`{"approval_timeout_hours":%d,"abandon_after_hours":%d,"two_person_approval":%v,"auto_pause":{"max_events":%d},"budgets":%s}`,
		1+f.chance.IntN(3), 1+f.chance.IntN(3), f.chance.IntN(4) == 0, 5+f.chance.IntN(40), budgets)
	return f.insist(func(s *service.Service) error {
		_, err := s.UpdateOrganization(ctx, f.who.admin, value(f.t, patch))
		return err
	})
}

func (f *fighter) policy(ctx context.Context) error {
	sets := []string{thaw, thaw, freeze, flagDeploys, denyDeploys}
	set := sets[f.chance.IntN(len(sets))]
	return f.insist(func(s *service.Service) error {
		_, err := s.PutPolicy(ctx, f.who.admin, &service.PolicyDocument{Text: []byte(set), YAML: set != flagDeploys})
		return err
	})
}

// reviewer makes, rotates or revokes a reviewer's key.
func (f *fighter) reviewer(ctx context.Context) error {
	key, ok := meleePick(f, &f.reviewers)
	if ok && f.chance.IntN(3) == 0 {
		return f.insist(func(s *service.Service) error {
			_, err := s.RevokeAPIKey(ctx, f.who.admin, key.Record.ID)
			return err
		})
	}
	name := fmt.Sprintf("reviewer %s %d", f.name, f.count)
	rotates := ok && f.chance.IntN(2) == 0
	return f.insist(func(s *service.Service) error {
		var made *service.NewKey
		var err error
		if rotates {
			made, err = s.RotateAPIKey(ctx, f.who.admin, &service.Rotation{Key: key.Record.ID, Overlap: time.Minute, IdempotencyKey: name})
		} else {
			made, err = s.CreateAPIKey(ctx, f.who.admin, &service.KeyRequest{Name: name, Role: ledger.RoleMember})
		}
		if err == nil && made.Text.Reveal() != "" {
			f.mu.Lock()
			f.reviewers = append(f.reviewers, made)
			f.mu.Unlock()
		}
		return err
	})
}

func (f *fighter) signingKey(ctx context.Context) error {
	return f.insist(func(s *service.Service) error {
		key, err := s.CreateSigningKey(ctx, f.who.admin, &service.SigningKeyRequest{Name: "another"})
		if err != nil || f.chance.IntN(2) == 0 {
			return err
		}
		_, err = f.any().RetireSigningKey(ctx, f.who.admin, key.ID)
		return err
	})
}

func (f *fighter) kill(ctx context.Context) error {
	return f.insist(func(s *service.Service) error {
		_, err := s.ActivateKillSwitch(ctx, f.who.admin, "drill")
		return err
	})
}

func (f *fighter) lift(ctx context.Context) error {
	return f.insist(func(s *service.Service) error {
		_, err := s.DeactivateKillSwitch(ctx, f.who.admin)
		return err
	})
}

func (f *fighter) complete(ctx context.Context) error {
	chain, ok := meleePick(f, &f.chains)
	if !ok {
		return nil
	}
	completion := &ledger.Completion{Failed: f.chance.IntN(4) == 0}
	return f.insist(func(s *service.Service) error {
		completed, err := s.CompleteChain(ctx, f.who.agent, chain, completion)
		if err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if known, ok := f.sealed[chain]; !ok {
			f.sealed[chain] = string(completed.Receipt)
			f.receipts = append(f.receipts, *completed.State.Receipt)
		} else if known != string(completed.Receipt) {
			f.t.Errorf("the chain %s has two receipts:\n%s\n%s", chain, known, completed.Receipt)
		}
		return nil
	})
}

func (f *fighter) resume(ctx context.Context) error {
	chain, ok := meleePick(f, &f.chains)
	if !ok {
		return nil
	}
	return f.insist(func(s *service.Service) error {
		_, err := s.ResumeChain(ctx, f.who.admin, chain)
		return err
	})
}

// token issues, checks or revokes a public token or a share.
func (f *fighter) token(ctx context.Context) error {
	if len(f.tokens) > 0 && f.chance.IntN(3) > 0 {
		at := f.chance.IntN(len(f.tokens))
		token := f.tokens[at]
		show := func(s *service.Service) (err error) {
			if token.share {
				_, err = s.OpenShare(ctx, token.text)
			} else {
				var shown *ledger.PublicVerification
				if shown, err = s.VerifyToken(ctx, token.text); err == nil && shown.Overall == ledger.VerdictFailed {
					f.t.Errorf("a token shows %+v", shown)
				}
			}
			return err
		}
		if err := show(f.any()); codeOf(err) == fault.CodeNotFound {
			f.t.Errorf("a token that was issued is not found: %v", err)
		}
		if f.chance.IntN(3) > 0 {
			return nil
		}
		f.tokens = slices.Delete(f.tokens, at, at+1)
		err := f.insist(func(s *service.Service) (err error) {
			if token.share {
				_, err = s.RevokeShare(ctx, f.who.admin, token.id, "over")
			} else {
				_, err = s.RevokeToken(ctx, f.who.admin, token.id, "over")
			}
			return err
		})
		if shown := show(f.any()); err == nil && codeOf(shown) != fault.CodeNotFound {
			f.t.Errorf("a token that was revoked is answered %v", shown)
		}
		return err
	}
	receipt, ok := meleePick(f, &f.receipts)
	if !ok {
		return nil
	}
	share, key := f.chance.IntN(2) == 0, fmt.Sprintf("token %s %d", f.name, f.count)
	request := &service.TokenRequest{Artifact: ledger.ArtifactReceipt, ArtifactID: receipt.UUID}
	if share {
		request.Artifact = ledger.ArtifactShare
	}
	var made *meleeToken
	err := f.insist(func(s *service.Service) error {
		issue := s.IssueToken
		if share {
			issue = s.Share
		}
		record, text, err := issue(ctx, f.who.admin, request, key)
		if err != nil {
			return err
		}
		if made != nil && made.id != record.ID {
			f.t.Errorf("one request issued the tokens %s and %s", made.id, record.ID)
		}
		if made == nil && text.Reveal() != "" {
			made = &meleeToken{record.ID, text.Reveal(), share}
		}
		return nil
	})
	if made != nil {
		f.tokens = append(f.tokens, made)
	}
	return err
}

func (f *fighter) read(ctx context.Context) error {
	s := f.any()
	if id, ok := meleePick(f, &f.approvals); ok {
		if _, err := s.Approval(ctx, f.who.agent, id, 0); err != nil {
			return err
		}
	}
	if receipt, ok := meleePick(f, &f.receipts); ok {
		check, err := s.CheckReceipt(ctx, receipt)
		if err != nil {
			return err
		}
		if !check.Valid {
			f.t.Errorf("receipt %s does not verify in public", receipt)
		}
	}
	chain, ok := meleePick(f, &f.chains)
	if !ok {
		return nil
	}
	if _, err := s.ChainApprovals(ctx, f.who.agent, chain); err != nil {
		return err
	}
	view, err := s.Chain(ctx, f.who.agent, chain)
	if err != nil {
		return err
	}
	_, err = s.Events(ctx, f.who.member, view.ID, 0, 50)
	return err
}

// check judges what a round has left.
func (m *melee) check() {
	m.t.Helper()
	ctx := m.t.Context()
	for n, s := range m.replicas {
		done(m.t, s.ProveChains(ctx))
		done(m.t, m.journals[n].Flush())
	}
	report, err := m.replicas[1].Operator().Audit(ctx, "acme", verify.AuditOptions{})
	if err != nil || report.Status != verify.AuditIntact || report.Break != nil {
		m.t.Errorf("the audit: %v, %+v", err, report)
	}
	m.checkEvents(m.states())
	m.checkReceipts()
	if alarms := m.alarms.String(); alarms != "" {
		m.t.Errorf("the servers log: %s", alarms)
	}
}

// meleeState is the part of the organization that decides, after an act.
type meleeState struct {
	killed bool
	set    string // the policy set in force
}

func (s meleeState) forbids(name string) bool {
	return s.killed || s.set == freeze && name == "send_payment" || s.set == denyDeploys && name == "deploy"
}

// states returns what each act left, by its number, and checks that each act was its actor's to
// make.
func (m *melee) states() []meleeState {
	m.t.Helper()
	views, _, err := m.Policies(m.t.Context(), m.who.admin, 0, 10_000)
	done(m.t, err)
	sets := make(map[string]string)
	for _, view := range views {
		number, _, _ := strings.Cut(view.Version, "+") // the rest depends on the settings
		sets[number] = string(must[*service.PolicyView](m.t)(m.Policy(m.t.Context(), m.who.admin, view.Version)).Document)
	}
	states := []meleeState{{}}
	revoked := make(map[string]bool)
	for i, act := range m.acts() {
		if act.Sequence != int64(i+1) {
			m.t.Fatalf("act %d follows act %d", act.Sequence, i)
		}
		if revoked[act.Actor.Key.String()] {
			m.t.Errorf("act %d, %s, is by a key that was revoked before", act.Sequence, act.Action)
		}
		state := states[i]
		switch act.Action {
		case ledger.ActKillSwitchActivate:
			state.killed = true
		case ledger.ActKillSwitchDeactivate:
			state.killed = false
		case ledger.ActPolicyPut:
			number, _, _ := strings.Cut(act.Target, "+")
			set, ok := sets[number]
			if !ok {
				m.t.Fatalf("act %d puts the policy set %q, which is none of %d", act.Sequence, act.Target, len(sets))
			}
			state.set = set
		case ledger.ActKeyRevoke:
			revoked[act.Target] = true
		case ledger.ActApprovalApprove:
			if state.forbids("send_payment") {
				m.t.Errorf("act %d approves a payment in an organization that forbids it: %+v", act.Sequence, state)
			}
		}
		states = append(states, state)
	}
	for _, answer := range m.answers {
		if state := states[answer.act]; state.forbids(answer.name) {
			m.t.Errorf("%s was allowed after act %d: %+v", answer.name, answer.act, state)
		}
	}
	m.answers = nil
	return states
}

// checkEvents checks what the chains contain: each event once, whatever was answered, nothing that
// was forbidden, and signed ends of approvals.
func (m *melee) checkEvents(states []meleeState) {
	m.t.Helper()
	ctx := m.t.Context()
	chains := make(map[ledger.ChainID]*service.ChainView)
	filter := service.ChainFilter{Limit: 100}
	for {
		page := must[[]*service.ChainView](m.t)(m.Chains(ctx, m.who.member, filter))
		for _, view := range page {
			chains[view.ID] = view
			filter.Before = &view.ID
		}
		if len(page) < filter.Limit {
			break
		}
	}
	byID := make(map[ledger.EventID]*ledger.RecordedEvent)
	keys := make(map[string]bool)
	for id, view := range chains {
		root := id
		if len(view.Continues) > 0 {
			root = view.Continues[0]
		}
		if view.Tampered || m.events[root] == nil {
			m.t.Errorf("chain %s of %s was not asked for, or is tampered with", id, root)
			continue
		}
		waiting := int64(0)
		var after int64
		for {
			events := must[[]*service.EventView](m.t)(m.Events(ctx, m.who.member, id, after, 100))
			for _, event := range events {
				after++
				if event.Facts == nil || event.Integrity != "" || event.Sequence != after || event.Facts.Chain != id {
					m.t.Fatalf("event %d of %s is %+v", after, id, event)
				}
				if byID[event.Facts.ID] != nil {
					m.t.Errorf("event %s is in two places", event.Facts.ID)
				}
				byID[event.Facts.ID] = event.Facts
				if name := root.String() + event.IdempotencyKey; keys[name] {
					m.t.Errorf("%s is recorded twice", event.IdempotencyKey)
				} else {
					keys[name] = true
				}
				if d := &event.Facts.Decision; d.Source == ledger.SourceBackend && !d.Outcome.StricterThan(ledger.AllowWithFlag) && states[event.Facts.Act].forbids(event.Facts.Action.ActionName) {
					m.t.Errorf("event %d of %s was recorded as %s after act %d: %+v", after, id, d.Outcome, event.Facts.Act, states[event.Facts.Act])
				}
				if approval := event.Facts.Approval; approval != (ledger.ApprovalID{}) && m.checkApproval(view, approval) {
					waiting++
				}
			}
			if len(events) < 100 {
				break
			}
		}
		if after != view.State.Actions || waiting != view.State.Waiting {
			m.t.Errorf("chain %s has %d events and %d wait, its state says %d and %d", id, after, waiting, view.State.Actions, view.State.Waiting)
		}
	}
	m.t.Logf("%d chains with %d events, %d receipts, %d acts", len(chains), len(byID), len(m.sealed), len(states)-1)
	for _, events := range m.events {
		for key, first := range events.byKey {
			if stored := byID[first.ID]; stored == nil || stored.Chain != first.Chain || stored.Sequence != first.Sequence {
				m.t.Errorf("event %d of %s, recorded as %s, is stored as %+v", first.Sequence, first.Chain, key, stored)
			}
		}
	}
}

// checkApproval checks an approval and reports whether it is open.
func (m *melee) checkApproval(chain *service.ChainView, id ledger.ApprovalID) bool {
	m.t.Helper()
	view := m.view(id)
	status := view.Approval.Status
	if status.Open() {
		if chain.State.Status.Sealed() {
			m.t.Errorf("approval %s waits in a sealed chain", id)
		}
		return true
	}
	if status != ledger.ApprovalCancelled && len(view.Signature) == 0 {
		m.t.Errorf("approval %s is %s, and not signed", id, status)
	}
	v := must[*ledger.Verification](m.t)(m.replicas[1].VerifyApproval(m.t.Context(), m.who.member, id))
	if overall, reason := v.Conclude(); overall != ledger.Verified {
		m.t.Errorf("approval %s, %s: %s, %s: %+v", id, status, overall, reason, v)
	}
	return false
}

// checkReceipts verifies every receipt, and its bundle.
func (m *melee) checkReceipts() {
	m.t.Helper()
	ctx := m.t.Context()
	for range 2 { // a round that finds receipts of its own replica may leave those of the other to the next
		m.SignRound(ctx)
	}
	receipts := must[[]*ledger.StoredReceipt](m.t)(m.Receipts(ctx, m.who.member, 0, 10_000))
	known := make(map[string]bool)
	for i, receipt := range receipts {
		if receipt.Sequence != int64(len(receipts)-i) {
			m.t.Errorf("receipt %d is at place %d of %d", receipt.Sequence, i, len(receipts))
		}
		known[string(receipt.Body)] = true
		v := must[*ledger.Verification](m.t)(m.VerifyReceipt(ctx, m.who.member, receipt.ID))
		if overall, reason := v.Conclude(); overall != ledger.Verified {
			m.t.Errorf("receipt %d: %s, %s: %+v", receipt.Sequence, overall, reason, v.Checks)
		}
		if _, err := m.Bundle(ctx, m.who.admin, receipt.ID, true); err != nil {
			m.t.Errorf("the bundle of receipt %d: %v", receipt.Sequence, err)
		}
	}
	for chain, receipt := range m.sealed {
		if !known[receipt] {
			m.t.Errorf("the receipt of %s is not stored: %s", chain, receipt)
		}
	}
}
