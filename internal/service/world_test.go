package service_test

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
	"countersign/internal/servicetest"
	"countersign/internal/verify"
)

func randomName() string {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

// ticking returns a clock that moves a little each time it is read.
func ticking() func() time.Time {
	var ticks atomic.Int64
	start := time.Date(2026, 12, 31, 23, 59, 0, 0, time.UTC)
	return func() time.Time { return start.Add(time.Duration(ticks.Add(1)) * 7 * time.Millisecond) }
}

// serve starts a service and stops it with the test.
//
//countersign:replica
func serve(t testing.TB, config service.Config) *service.Service {
	t.Helper()
	if config.Clock == nil {
		config.Clock = ticking()
	}
	return servicetest.Start(t, config).Service
}

// tenant is an organization with callers of each role.
type tenant struct {
	slug                 string
	id                   ledger.OrgID
	admin, member, agent *service.Caller
	agentKey             *service.NewKey
}

func newTenant(t testing.TB, s *service.Service, slug string) *tenant {
	t.Helper()
	org, admin, err := s.Operator().CreateOrganization(t.Context(), slug, "")
	if err != nil {
		t.Fatal(err)
	}
	who := &tenant{slug: slug, id: org.ID, admin: servicetest.Authenticate(t, s, admin)}
	who.member = servicetest.Authenticate(t, s, servicetest.NewKey(t, s, slug, "test", ledger.RoleMember))
	who.agentKey = newKey(t, s, slug, ledger.RoleAgent)
	who.agent = servicetest.Authenticate(t, s, who.agentKey)
	return who
}

func newKey(t testing.TB, s *service.Service, slug string, role ledger.Role) *service.NewKey {
	t.Helper()
	return servicetest.NewKey(t, s, slug, "another "+randomName(), role)
}

func request[T any](t testing.TB, read func(canon.Value) (T, error), body string) T {
	t.Helper()
	v, err := canon.Parse([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := read(v)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func chainNamed(t testing.TB, name string) *ledger.Chain {
	t.Helper()
	return request(t, ledger.ParseChainRequest, `{"name":"`+name+`","external_chain_id":"ext-`+name+`","metadata":{"run":"`+name+`"}}`)
}

func step(t testing.TB, name, key string) *ledger.Action {
	t.Helper()
	body := `{"agent_name":"agent","action_type":"tool_call","action_name":"` + name + `","payload":{"step":"` + name + `"}`
	if key != "" {
		body += `,"idempotency_key":"` + key + `"`
	}
	return request(t, ledger.ParseAction, body+"}")
}

func must[T any](t testing.TB) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func done(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// codeOf returns the error code that a caller sees; "" without an error.
func codeOf(err error) fault.Code {
	var own *fault.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &own):
		return own.Code
	default:
		return fault.CodeInternal
	}
}

func checkCode(t testing.TB, what string, err error, want fault.Code) {
	t.Helper()
	if got := codeOf(err); got != want {
		t.Errorf("%s: %v (code %q), want code %q", what, err, got, want)
	}
}

// checkIntact audits an organization, and expects the given number of receipts and no break.
func checkIntact(t testing.TB, s *service.Service, slug string, receipts int64) {
	t.Helper()
	report, err := s.Operator().Audit(t.Context(), slug, verify.AuditOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if report.Status != verify.AuditIntact || report.Break != nil || report.Receipts != receipts {
		t.Errorf("audit of %s: %s, %d receipts, %v; want it intact with %d", slug, report.Status, report.Receipts, report.Break, receipts)
	}
}
