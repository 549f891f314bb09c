package service_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"countersign/internal/fault"
	"countersign/internal/keyring"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/store"
	"countersign/internal/testdb"
	"countersign/internal/verify"
)

// remembering is an organization on a service that records the progress of open chains.
type remembering struct {
	*governed
	journal string
	chains  *keyring.Chains
	direct  *scene
}

func remember(t *testing.T, db *testdb.Database) *remembering {
	t.Helper()
	ring, _ := servicetest.NewRing(t)
	g := &governed{t: t, db: db, store: db.Open(t), ring: ring, clock: newClock()}
	r := &remembering{governed: g, journal: keyring.ChainsFile(filepath.Join(t.TempDir(), "heads.json"))}
	r.direct = g.scene()
	r.start()
	g.who = newTenant(t, g.Service, "acme")
	return r
}

// start starts a process that knows only what the journal contains.
//
//countersign:replica
func (r *remembering) start() {
	r.t.Helper()
	if r.chains != nil {
		_ = r.chains.Close()
	}
	chains, err := keyring.OpenChains(r.journal, r.ring)
	done(r.t, err)
	r.t.Cleanup(func() { _ = chains.Close() })
	committers := 1
	opened := r.store
	if r.db.Kind == "postgres" {
		committers, opened = 2, r.db.Open(r.t)
	}
	r.chains = chains
	r.Service = serve(r.t, service.Config{Store: opened, Keys: r.ring, Secrets: r.ring, Clock: r.clock.Now, Committers: committers, Chains: chains})
}

// other returns another replica, on its own machine.
//
//countersign:replica
func (r *remembering) other() *remembering {
	r.t.Helper()
	other := *r
	governed := *r.governed
	other.governed = &governed
	other.journal = keyring.ChainsFile(filepath.Join(r.t.TempDir(), "heads.json"))
	other.chains = nil
	other.start()
	return &other
}

// chainTables are the tables of an open chain, besides its record in chains.
var chainTables = []string{"chain_states", "events", "addenda", "approvals"}

// tables is a copy of the current content of tables.
type tables map[string][]row

func (s *scene) copyOf(names ...string) tables {
	s.t.Helper()
	copied := make(tables)
	for _, table := range names {
		columns := s.columnsOf(table)
		copied[table] = nil
		s.each("SELECT "+strings.Join(columns, ", ")+" FROM "+table, nil, func(scan func(...any) error) error {
			r := row{table: table, columns: columns, values: make([]any, len(columns))}
			targets := make([]any, len(columns))
			for i := range r.values {
				targets[i] = &r.values[i]
			}
			err := scan(targets...)
			for i, value := range r.values {
				if value, isBytes := value.([]byte); isBytes && value == nil {
					r.values[i] = []byte{}
				}
			}
			copied[table] = append(copied[table], r)
			return err
		})
	}
	return copied
}

// rollBack restores tables to a copy, all in one transaction.
func (s *scene) rollBack(copied tables) {
	s.t.Helper()
	tx := must[*sql.Tx](s.t)(s.direct.BeginTx(s.t.Context(), nil))
	exec := func(query string, args ...any) {
		s.t.Helper()
		_, err := tx.ExecContext(s.t.Context(), query, args...)
		done(s.t, err)
	}
	if s.dialect.mark(1) != "?" {
		exec("SET LOCAL session_replication_role = replica") // without its foreign keys
	}
	for table, rows := range copied {
		exec("DELETE FROM " + table)
		for _, r := range rows {
			exec(s.insertion(&r), r.values...)
		}
	}
	done(s.t, tx.Commit())
}

// checkNamed expects a finding and an audit that name a chain.
func (r *remembering) checkNamed(chain ledger.ChainID, also ...string) {
	r.t.Helper()
	r.WaitForFindings()
	r.ForgetFindings()
	names := func(text string) bool {
		for _, word := range append(also, chain.String()) {
			if !strings.Contains(text, word) {
				return false
			}
		}
		return true
	}
	findings := must[[]*service.Finding](r.t)(r.Operator().Findings(r.t.Context(), r.who.slug))
	if !slices.ContainsFunc(findings, func(f *service.Finding) bool {
		return f.Check == string(ledger.CheckRollback) && f.Open() && names(f.Subject)
	}) {
		r.t.Errorf("no open finding names the chain %s %v", chain, also)
	}
	report := must[*verify.AuditReport](r.t)(r.Operator().Audit(r.t.Context(), r.who.slug, verify.AuditOptions{}))
	if !slices.ContainsFunc(append(report.RolledBack, report.Break), func(found *ledger.Break) bool {
		return found != nil && found.Check == ledger.CheckRollback && names(found.Detail)
	}) {
		r.t.Errorf("the audit finds %+v and %+v, want the chain %s named %v", report.Break, report.RolledBack, chain, also)
	}
}

// checkClean expects that neither the chore nor an audit finds anything.
func (r *remembering) checkClean(receipts int64) {
	r.t.Helper()
	done(r.t, r.ProveChains(r.t.Context()))
	r.WaitForFindings()
	r.ForgetFindings()
	if open := must[int](r.t)(r.OpenFindings(r.t.Context())); open > 0 {
		r.t.Errorf("%d findings are open", open)
	}
	checkIntact(r.t, r.Service, r.who.slug, receipts)
}

// lives are the ways in which a server can encounter a chain that was rolled back.
var lives = map[string]func(r *remembering){
	"running":   func(*remembering) {},
	"restarted": func(r *remembering) { r.start() },
	"restarted on a machine that stopped in a flush": func(r *remembering) {
		r.record(r.open("noise"), step(r.t, "noise", "")) // is lost
		r.start()
	},
}

// An open chain that is rolled back to an earlier state, together with everything recorded since,
// is refused: by the next event, outcome, decision, poll, list and completion. It is reported, and
// stays refused until an operator accepts it.
//
//countersign:race
func TestOpenChainsCannotBeShortened(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		for name, live := range lives {
			t.Run(name, func(t *testing.T) {
				r := remember(t, db.Fresh(t))
				chain := r.open("work")
				pending := r.ask(chain)
				first := r.record(chain, step(t, "first", "first")).Event
				then := r.direct.copyOf(chainTables...)
				done(t, r.decide(r.who.member, pending, false))
				r.record(chain, step(t, "second", "second"))
				r.record(chain, step(t, "third", "third"))
				done(t, r.chains.Flush())
				newest := r.direct.copyOf(chainTables...)
				r.checkClean(0)
				r.direct.rollBack(then)
				live(r)
				ctx := t.Context()
				attempts := map[string]func() error{
					"an event": func() error {
						_, err := r.RecordEvent(ctx, r.who.agent, chain, step(t, "more", ""))
						return err
					},
					"a repeat": func() error {
						_, err := r.RecordEvent(ctx, r.who.agent, chain, step(t, "first", "first"))
						return err
					},
					"a report": func() error {
						_, err := r.ReportEvents(ctx, r.who.agent, chain, reported(t, "a"))
						return err
					},
					"an outcome": func() error {
						_, err := r.ReportOutcome(ctx, r.who.agent, chain, first.ID, &ledger.Entry{Result: ledger.Succeeded})
						return err
					},
					"a decision": func() error { return r.decide(r.who.member, pending, true) },
					"a deadline": func() error { _, err := r.AdvanceApproval(ctx, pending); return err },
					"a poll":     func() error { _, err := r.Approval(ctx, r.who.agent, pending, 0); return err },
					"a poll of the chain": func() error {
						_, err := r.ChainApprovals(ctx, r.who.agent, chain)
						return err
					},
					"a view":       func() error { _, err := r.Chain(ctx, r.who.agent, chain); return err },
					"a completion": func() error { _, err := r.CompleteChain(ctx, r.who.agent, chain, &ledger.Completion{}); return err },
				}
				for what, attempt := range attempts {
					checkCode(t, what, attempt(), fault.CodeEvidenceTampered)
				}
				listed := must[[]*service.ChainView](t)(r.Chains(ctx, r.who.member, service.ChainFilter{Limit: 10}))
				if i := slices.IndexFunc(listed, func(v *service.ChainView) bool { return v.Chain.ID == chain }); i < 0 || !listed[i].Tampered {
					t.Error("the list shows the chain as if nothing were wrong")
				}
				r.checkNamed(chain)
				done(t, r.ProveChains(ctx))
				r.direct.rollBack(newest)
				if state := r.complete(chain).State; state.Actions != 4 {
					t.Errorf("the chain is sealed with %d actions, want 4", state.Actions)
				}
			})
		}
	})
}

// A spent budget stays spent: rolling a chain back to before its payments does not allow further
// ones.
//
//countersign:race
func TestBudgetsCannotBeRolledBack(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		for name, live := range lives {
			t.Run(name, func(t *testing.T) {
				r := remember(t, db.Fresh(t))
				chain := r.open("budget")
				then := r.direct.copyOf(chainTables...)
				for range 3 {
					r.record(chain, payment(t, 4000, ""))
				}
				if status := r.record(chain, payment(t, 4000, "")).Event.Status; status != ledger.EventAwaiting {
					t.Fatalf("a payment above the budget is %s", status)
				}
				done(t, r.chains.Flush())
				r.direct.rollBack(then)
				live(r)
				_, err := r.RecordEvent(t.Context(), r.who.agent, chain, payment(t, 4000, ""))
				checkCode(t, "a payment", err, fault.CodeEvidenceTampered)
				r.checkNamed(chain)
			})
		}
	})
}

// An abandoned chain names its successor. Rolling that back does not lead to a second successor
// with a budget of its own.
//
//countersign:race
func TestSuccessionCannotBeRolledBack(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		r := remember(t, db)
		chain := r.open("left")
		r.record(chain, step(t, "first", ""))
		r.clock.Advance(73 * time.Hour)
		r.passRound(r.Service)
		if !r.chainState(chain).Abandoned {
			t.Fatal("the chain is not abandoned")
		}
		then := r.direct.copyOf("chain_states")
		r.record(chain, payment(t, 4000, ""))
		done(t, r.chains.Flush())
		now := r.direct.copyOf("chain_states")
		r.checkClean(1)
		left := func(row row) bool {
			return fmt.Sprint(row.value("status")) == string(ledger.ChainCompleted) || fmt.Sprint(row.value("status")) == string(ledger.ChainFailed)
		}
		was := then["chain_states"][slices.IndexFunc(then["chain_states"], left)]
		is := now["chain_states"][slices.IndexFunc(now["chain_states"], left)]
		done(t, r.direct.replace(is, was))
		for _, name := range []string{"running", "restarted"} {
			lives[name](r)
			_, err := r.RecordEvent(t.Context(), r.who.agent, chain, payment(t, 4000, ""))
			checkCode(t, name, err, fault.CodeEvidenceTampered)
		}
		r.checkNamed(chain)

		// A server that remembers neither chain opens a second successor. Its audit says what was done
		// from the chains alone, before that and after.
		stranger := r.over(r.store)
		for _, when := range []string{"before", "after"} {
			report := must[*verify.AuditReport](t)(stranger.Operator().Audit(t.Context(), "acme", verify.AuditOptions{}))
			if report.Break == nil || report.Break.Check != ledger.CheckChain || !strings.Contains(report.Break.Detail, "it continues the chain "+chain.String()) {
				t.Errorf("%s a second successor, the audit finds %+v", when, report.Break)
			}
			must[*service.Recorded](t)(stranger.RecordEvent(t.Context(), r.who.agent, chain, step(t, "second", "")))
		}
	})
}

// A chain that is deleted entirely before it was completed is missed: by requests for it, by the
// chore and by an audit.
//
//countersign:race
func TestRemovedChainsAreMissed(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		for name, live := range lives {
			t.Run(name, func(t *testing.T) {
				r := remember(t, db.Fresh(t))
				kept := r.open("kept")
				all := append([]string{"chains", "chain_polls"}, chainTables...)
				before := r.direct.copyOf(all...)
				chain := r.open("removed")
				r.ask(chain)
				done(t, r.chains.Flush())
				r.direct.rollBack(before)
				live(r)
				done(t, r.ProveChains(t.Context()))
				r.checkNamed(chain, "gone")
				_, err := r.RecordEvent(t.Context(), r.who.agent, chain, step(t, "more", ""))
				checkCode(t, "an event", err, fault.CodeEvidenceTampered)
				_, err = r.Chain(t.Context(), r.who.agent, chain)
				checkCode(t, "a view", err, fault.CodeEvidenceTampered)
				stranger := newTenant(t, r.Service, "stranger")
				_, err = r.Chain(t.Context(), stranger.agent, chain)
				checkCode(t, "a stranger's view", err, fault.CodeNotFound)
				r.record(kept, step(t, "on", ""))
			})
		}
	})
}

// A server whose journal lags behind, because it was killed before it could flush, or was stopped
// while another replica worked, accepts the chains as they are and reports no tampering.
//
//countersign:race
func TestJournalsThatLag(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		r := remember(t, db)
		chain, sealed := r.open("work"), r.open("sealed")
		r.record(chain, step(t, "first", ""))
		done(t, r.chains.Flush())
		asked := r.ask(chain)
		fresh := r.open("fresh")
		r.record(fresh, step(t, "first", ""))
		r.record(sealed, step(t, "last", ""))
		r.complete(sealed)
		r.approve(asked)
		r.start() // without a flush
		r.checkClean(1)
		other := r.other()
		for range 3 {
			for _, replica := range []*remembering{r, other} {
				replica.record(chain, step(t, "turn", ""))
				replica.record(fresh, step(t, "turn", ""))
			}
		}
		r.checkClean(1)
		other.checkClean(1)
		other.complete(chain)
		r.start()
		r.checkClean(2)
		r.complete(fresh)
		other.checkClean(3)
		r.checkClean(3)
		if remembered, _ := r.chains.Watched(); remembered != 0 {
			t.Errorf("%d chains are remembered, and all are sealed", remembered)
		}
	})
}

// A chain that was rolled back and continued by a replica that did not know is found by the
// replica that does, at its next check, and the receipt that was sealed meanwhile is reported.
//
//countersign:race
func TestForksAtAnotherReplica(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		for name, sealed := range map[string]bool{"open": false, "sealed": true} {
			for life, live := range lives {
				t.Run(name+", "+life, func(t *testing.T) {
					r := remember(t, db.Fresh(t))
					other := r.other()
					chain := r.open("work")
					r.record(chain, step(t, "first", ""))
					then := r.direct.copyOf(chainTables...)
					r.record(chain, payment(t, 4000, ""))
					done(t, r.chains.Flush())
					r.direct.rollBack(then)
					for range 3 {
						other.record(chain, step(t, "instead", ""))
					}
					var also []string
					if sealed {
						also = append(also, other.complete(chain).State.Receipt.String())
					}
					live(r)
					done(t, r.ProveChains(t.Context()))
					r.checkNamed(chain, also...)
					if !sealed { // the revision tells nothing any more; the proof does
						done(t, r.chains.Flush())
						r.start()
						done(t, r.ProveChains(t.Context()))
						r.checkNamed(chain)
					}
				})
			}
		}
	})
}

// A chain that was rolled back after another replica had continued it is refused by that replica,
// and the first one misses what it acknowledged.
//
//countersign:race
func TestForksBetweenReplicas(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		r := remember(t, db)
		other := r.other()
		chain := r.open("work")
		r.record(chain, step(t, "first", ""))
		then := r.direct.copyOf(chainTables...)
		other.record(chain, step(t, "second", ""))
		r.direct.rollBack(then)
		_, err := other.RecordEvent(t.Context(), r.who.agent, chain, step(t, "third", ""))
		checkCode(t, "at the replica that knows", err, fault.CodeEvidenceTampered)
		other.WaitForFindings()
		r.record(chain, step(t, "instead", "")) // as far as this one knows, the chain ended there
		r.record(chain, step(t, "after", ""))
		done(t, other.ProveChains(t.Context()))
		other.checkNamed(chain)
	})
}

// When an operator accepts chains, what was recorded of them is reset: a chain continues from its
// stored state, and what is acknowledged from then on is recorded.
//
//countersign:race
func TestChainsThatWereAccepted(t *testing.T) {
	testdb.OnEach(t, func(t *testing.T, db *testdb.Database) {
		r := remember(t, db)
		all := append([]string{"chains", "chain_polls"}, chainTables...)
		chain := r.open("work")
		then := r.direct.copyOf(all...)
		r.record(chain, step(t, "first", ""))
		gone := r.open("gone")
		r.record(gone, step(t, "first", ""))
		done(t, r.chains.Flush())
		r.direct.rollBack(then)
		found := must[[]*verify.ChainRollback](t)(r.ChainRollbacks(t.Context()))
		if len(found) != 2 {
			t.Fatalf("found: %v", found)
		}
		done(t, r.ProveChains(t.Context()))
		beside, err := keyring.OpenChains(r.journal, r.ring)
		done(t, err)
		done(t, r.Operator().AcceptChains(t.Context(), found, beside.Accept))
		done(t, r.chains.Reload())
		r.checkClean(0)
		acts := must[[]*ledger.StoredAct](t)(r.Acts(t.Context(), r.who.admin, 0, 20))
		if !slices.ContainsFunc(acts, func(a *ledger.StoredAct) bool {
			return strings.Contains(string(a.Body), `"rollback.accept"`) && strings.Contains(string(a.Body), `"chains":2`)
		}) {
			t.Error("the acceptance is not in the audit log")
		}
		if remembered, _ := r.chains.Watched(); remembered != 1 {
			t.Errorf("%d chains are remembered as they stand, want the one that is left", remembered)
		}
		r.record(chain, step(t, "again", ""))
		done(t, r.chains.Flush())
		r.direct.rollBack(then)
		_, err = r.RecordEvent(t.Context(), r.who.agent, chain, step(t, "more", ""))
		checkCode(t, "an event of a chain that was rolled back once more", err, fault.CodeEvidenceTampered)
		r.start()
		_, err = r.RecordEvent(t.Context(), r.who.agent, chain, step(t, "more", ""))
		checkCode(t, "the same after a restart", err, fault.CodeEvidenceTampered)
	})
}

// unreadableChain is a store in which one chain cannot be read.
type unreadableChain struct {
	store.Store
	id ledger.ChainID
}

func (u *unreadableChain) Chain(ctx context.Context, id ledger.ChainID) (*store.ChainRecord, error) {
	if id == u.id {
		return nil, fmt.Errorf("the disk fails: %w", store.ErrUnavailable)
	}
	return u.Store.Chain(ctx, id)
}

// An audit that has found tampering reports it even if open chains cannot be read afterwards, and
// says that they were not compared with what was acknowledged.
func TestAuditReportsDespiteUnreadableChains(t *testing.T) {
	t.Parallel()
	r := remember(t, testdb.SQLite(t))
	r.complete(r.open("sealed"))
	open := r.open("open")
	r.record(open, step(t, "look", ""))
	done(t, r.chains.Flush())
	r.store = &unreadableChain{Store: r.store, id: open}
	r.start()
	_, err := r.AuditLedger(t.Context(), r.who.admin, verify.AuditOptions{})
	checkCode(t, "nothing was found, and not everything was read", err, fault.CodeUnavailable)
	done(t, r.direct.exec("UPDATE receipts SET body = "+r.direct.dialect.mark(1), []byte("nothing at all")))
	report := must[*verify.LedgerAudit](t)(r.AuditLedger(t.Context(), r.who.admin, verify.AuditOptions{}))
	if report.Break == nil || report.Break.Check != ledger.CheckSignature {
		t.Errorf("the audit finds %+v", report.Break)
	}
	if !slices.Contains(report.NotChecked, string(ledger.CheckRollback)) {
		t.Errorf("not checked: %v", report.NotChecked)
	}
}
