package service_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/testdb"
)

// stopping is a service in simulated time. Its stops wait as they do in production.
type stopping struct {
	*service.Service
	t     *testing.T
	who   *tenant
	chain ledger.ChainID
}

func newStopping(t *testing.T, alone bool) *stopping {
	t.Helper()
	s := &stopping{t: t, Service: serve(t, service.Config{Store: testdb.SQLite(t).Open(t), Clock: time.Now, Alone: alone, Delay: service.Delay})}
	s.who = newTenant(t, s.Service, "acme")
	s.chain = must[*service.ChainView](t)(s.OpenChain(t.Context(), s.who.agent, chainNamed(t, "one"), "")).ID
	time.Sleep(2 * ledger.LeaseRunOut) // what setting up granted has run out
	return s
}

func (s *stopping) record(name string) *service.Recorded {
	s.t.Helper()
	return must[*service.Recorded](s.t)(s.RecordEvent(s.t.Context(), s.who.agent, s.chain, step(s.t, name, "")))
}

// stops returns the use cases that can make decisions stricter.
func (s *stopping) stops() map[string]func(context.Context) error {
	patch := must[canon.Value](s.t)(canon.Parse([]byte(`{"high_risk_agents":["intern"]}`)))
	key := newKey(s.t, s.Service, "acme", ledger.RoleAgent).Record.ID
	other := newKey(s.t, s.Service, "acme", ledger.RoleAgent).Record.ID
	return map[string]func(context.Context) error{
		"activate": func(ctx context.Context) error {
			_, err := s.ActivateKillSwitch(ctx, s.who.admin, "drill")
			return err
		},
		"put a policy": func(ctx context.Context) error {
			_, err := s.PutPolicy(ctx, s.who.admin, &service.PolicyDocument{Text: []byte(`{"rules":[],"fast_path":true}`)})
			return err
		},
		"settings": func(ctx context.Context) error {
			_, err := s.UpdateOrganization(ctx, s.who.admin, patch)
			return err
		},
		"revoke": func(ctx context.Context) error {
			_, err := s.RevokeAPIKey(ctx, s.who.admin, key)
			return err
		},
		"revoke at the command line": func(ctx context.Context) error {
			_, err := s.Operator().RevokeKey(ctx, "acme", other)
			return err
		},
	}
}

func took(do func()) time.Duration {
	began := time.Now()
	do()
	return time.Since(began)
}

// A stop is answered when every lease has expired, even if it is a repeat that changes nothing. An
// act that is not a stop never waits.
func TestAStopOutlastsEveryLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStopping(t, false)
		for name, stop := range s.stops() {
			for _, what := range []string{"", ", again", ", a third time"} {
				if waited := took(func() { done(t, stop(t.Context())) }); waited != ledger.LeaseRunOut {
					t.Errorf("%s%s is answered after %s", name, what, waited)
				}
			}
		}
		for name, call := range map[string]func() error{
			"deactivate": func() error { _, err := s.DeactivateKillSwitch(t.Context(), s.who.admin); return err },
			"read":       func() error { _, err := s.KillSwitch(t.Context(), s.who.admin); return err },
			"refused":    func() error { _, err := s.ActivateKillSwitch(t.Context(), s.who.member, "x"); return ignore(err) },
			"issue a key": func() error {
				_, err := s.CreateAPIKey(t.Context(), s.who.admin, &service.KeyRequest{Name: "k", Role: ledger.RoleAgent})
				return err
			},
		} {
			if waited := took(func() { done(t, call()) }); waited != 0 {
				t.Errorf("%s is answered after %s", name, waited)
			}
		}
	})
}

func ignore(error) error { return nil }

// A process that serves a store alone knows when no lease can still be valid, and then answers a
// stop at once.
func TestAStopThatNobodyCanOutrunIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStopping(t, true)
		other := newTenant(t, s.Service, "other")
		approval := s.gated()
		patch := must[canon.Value](t)(canon.Parse([]byte(`{"name":"Acme"}`)))
		stop := func() time.Duration {
			return took(func() { must[*ledger.Organization](t)(s.UpdateOrganization(t.Context(), s.who.admin, patch)) })
		}
		for _, c := range []struct {
			name  string
			grant func()
			waits bool
		}{
			{"nothing", func() {}, false},
			{"an allow", func() { s.record("deploy") }, true},
			{"a lease alone", func() {
				must[*service.ChainView](t)(s.OpenChain(t.Context(), s.who.agent, chainNamed(t, "two"), ""))
			}, true},
			{"a batch", func() {
				must[*service.Report](t)(s.ReportEvents(t.Context(), s.who.agent, s.chain, reported(t, "k")))
			}, true},
			{"an approval shown", func() {
				must[*service.ApprovalView](t)(s.Approval(t.Context(), s.who.agent, approval, 0))
			}, true},
			{"a chain's approvals shown", func() {
				must[*service.ChainApprovals](t)(s.ChainApprovals(t.Context(), s.who.agent, s.chain))
			}, true},
			{"another organization's allow", func() {
				must[*service.ChainView](t)(s.OpenChain(t.Context(), other.agent, chainNamed(t, "theirs"), ""))
			}, false},
			{"a look at the chain", func() { must[*service.ChainView](t)(s.Chain(t.Context(), s.who.agent, s.chain)) }, false},
		} {
			time.Sleep(2 * ledger.LeaseRunOut)
			c.grant()
			want := time.Duration(0)
			if c.waits {
				want = ledger.LeaseRunOut
			}
			time.Sleep(ledger.LeaseRunOut - time.Millisecond)
			if waited := stop(); waited != want {
				t.Errorf("after %s a stop is answered after %s, want %s", c.name, waited, want)
			}
			c.grant()
			time.Sleep(ledger.LeaseRunOut)
			if waited := stop(); waited != 0 {
				t.Errorf("long after %s a stop is answered after %s", c.name, waited)
			}
		}
		// Under the kill switch nothing is granted, and a second stop need not wait.
		must[*ledger.KillSwitch](t)(s.ActivateKillSwitch(t.Context(), s.who.admin, "drill"))
		time.Sleep(2 * ledger.LeaseRunOut)
		s.record("deploy")
		if waited := stop(); waited != 0 {
			t.Errorf("after a denial a stop is answered after %s", waited)
		}
	})
}

// gated records an action that a person approves.
func (s *stopping) gated() ledger.ApprovalID {
	s.t.Helper()
	recorded := must[*service.Recorded](s.t)(s.RecordEvent(s.t.Context(), s.who.agent, s.chain, payment(s.t, gatedAmount, "gated")))
	id := recorded.Event.Approval
	must[*service.ApprovalView](s.t)(s.DecideApproval(s.t.Context(), s.who.member, id, &ledger.Verdict{Approve: true}))
	return id
}

// A new process does not know what leases the one before it granted, so its first stop waits.
//
//countersign:race
func TestTheFirstStopOfAProcessWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testdb.SQLite(t).Open(t)
		ring, _ := servicetest.NewRing(t)
		who := newTenant(t, serve(t, service.Config{Store: store, Keys: ring, Clock: time.Now}), "acme")
		time.Sleep(time.Hour)
		successor := serve(t, service.Config{Store: store, Keys: ring, Clock: time.Now, Alone: true, Delay: service.Delay})
		activate := func() time.Duration {
			return took(func() { must[*ledger.KillSwitch](t)(successor.ActivateKillSwitch(t.Context(), who.admin, "drill")) })
		}
		if waited := activate(); waited != ledger.LeaseRunOut {
			t.Errorf("the first stop is answered after %s", waited)
		}
		if waited := activate(); waited != 0 {
			t.Errorf("the second is answered after %s", waited)
		}
	})
}

// A caller that gives up gets an error, and the change stays in force.
func TestAStopStandsWhenItsCallerGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStopping(t, false)
		for name, stop := range s.stops() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			var err error
			if waited := took(func() { err = stop(ctx) }); waited != time.Second {
				t.Errorf("%s: the caller is told after %s", name, waited)
			}
			cancel()
			checkCode(t, name, err, fault.CodeOutcomeUnknown)
		}
		if denied := s.record("deploy").Event; denied.Status != ledger.EventDenied || !denied.Decision.KillSwitchActive {
			t.Errorf("after an activation that nobody waited for an action is %s", denied.Status)
		}
	})
}
