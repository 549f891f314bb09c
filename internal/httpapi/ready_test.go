package httpapi_test

import (
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"countersign/internal/httpapi"
	"countersign/internal/keyring"
	"countersign/internal/servicetest"
)

// memory is a memory of heads that a test can change.
type memory struct {
	heads atomic.Pointer[map[uuid.UUID]keyring.Seen]
}

func (m *memory) Seen(org uuid.UUID) (keyring.Seen, bool) {
	if heads := m.heads.Load(); heads != nil {
		seen, ok := (*heads)[org]
		return seen, ok
	}
	return keyring.Seen{}, false
}

func (m *memory) All() map[uuid.UUID]keyring.Seen {
	if heads := m.heads.Load(); heads != nil {
		return maps.Clone(*heads)
	}
	return nil
}

func (*memory) Note(uuid.UUID, keyring.Seen) {}

func (*memory) Flush() error { return nil }

// A database that was rolled back behind receipts that were given out is not ready,
// makes no receipts, and says so without naming anyone.
func TestRollback(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		m := &memory{}
		s := start(t, open(t), setup{watch: m})
		type report struct {
			Status string
			Checks []struct{ Name, Status, Detail string }
		}
		check := func(want int) report {
			fresh := s.limited(t, nil, 0) // without what was found before
			return decode[report](t, fresh.get(t, credential{}, "/readyz").expect(t, want).without(t, "acme", s.acme.id))
		}
		if got := check(http.StatusOK); len(got.Checks) != 5 || got.Checks[2].Name != "rollback" || got.Checks[2].Status != "ok" {
			t.Errorf("ready says %+v", got)
		}
		s.seal(t, s.acme.agent, "before")
		id := s.open(t, s.acme.agent, `{"name":"n"}`)
		m.heads.Store(&map[uuid.UUID]keyring.Seen{uuid.MustParse(s.acme.id): {Count: 2}})
		if got := check(http.StatusServiceUnavailable); got.Status != "unavailable" || got.Checks[0].Status != "ok" || got.Checks[2].Status != "failed" {
			t.Errorf("rolled back, ready says %+v", got)
		}
		refused := s.post(t, s.acme.agent, "/v1/chains/"+id+"/complete", "").refuse(t, http.StatusServiceUnavailable, "store_rolled_back")
		if refused.header.Get("Retry-After") != "60" {
			t.Errorf("Retry-After is %q", refused.header.Get("Retry-After"))
		}
		s.seal(t, s.rival.agent, "theirs")
		m.heads.Store(nil)
		check(http.StatusOK)
		s.complete(t, s.acme.agent, id, "")
	})
}

// A new install is ready, although nobody would be notified when an approval escalates: the check
// only mentions it. From an organization's first approval on, the service is degraded: it answers
// 200, says in how many organizations and what to do, and names none. It is ready again when
// somebody would be notified.
func TestReadinessIsDegradedWhereEscalationsReachNobody(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		s := start(t, open(t), setup{})
		type reason struct {
			Name  string
			Count int
		}
		type report struct {
			Status  string
			Reasons []reason
			Checks  []struct{ Name, Status, Detail string }
		}
		check := func(status string, reasons []reason, checked, detail string) {
			t.Helper()
			fresh := s.limited(t, nil, 0) // without what was found before
			got := decode[report](t, fresh.get(t, credential{}, "/readyz").expect(t, http.StatusOK).without(t, "acme", s.acme.id, "rival", s.rival.id))
			last := got.Checks[len(got.Checks)-1]
			if got.Status != status || last.Name != "escalation" || last.Status != checked || !strings.HasPrefix(last.Detail, detail) {
				t.Errorf("ready says %+v, want %s, the check %s with %q", got, status, checked, detail)
			}
			if diff := cmp.Diff(reasons, got.Reasons); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
		}
		check("ready", []reason{}, "ok", "no approval was asked for yet in 2 of 2 organizations")
		s.ask(t, s.acme.agent, s.open(t, s.acme.agent, `{"name":"n"}`))
		check("degraded", []reason{{"escalation_without_channel", 1}}, "degraded", "in 1 of 2 organizations nobody is notified when an approval escalates: add a webhook")
		s.ask(t, s.rival.agent, s.open(t, s.rival.agent, `{"name":"n"}`))
		check("degraded", []reason{{"escalation_without_channel", 2}}, "degraded", "in 2 of 2 organizations nobody is notified when an approval escalates")
		hook := `{"url":"https://hooks.example.com/x","events":["approval.escalated"]}`
		s.post(t, s.acme.admin, "/v1/webhooks", hook).expect(t, http.StatusCreated)
		check("degraded", []reason{{"escalation_without_channel", 1}}, "degraded", "in 1 of 2 organizations")
		s.post(t, s.rival.admin, "/v1/webhooks", hook).expect(t, http.StatusCreated)
		check("ready", []reason{}, "ok", "")
	})
}

// Known tampering makes the service degraded until an operator has acknowledged it: it
// answers 200, counts, and names nothing. A row that a request comes upon counts too.
//
//countersign:race
func TestReadinessIsDegradedByTampering(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		s := start(t, open(t), setup{})
		receipt := *s.seal(t, s.acme.agent, "sealed").ReceiptID
		chain := s.open(t, s.acme.agent, `{"name":"open"}`)
		type reason struct {
			Name  string
			Count int
		}
		type report struct {
			Status  string
			Reasons []reason
			Checks  []struct{ Name, Status, Detail string }
		}
		counted := func() int {
			t.Helper()
			fresh := s.limited(t, nil, 0) // without what was found before
			got := decode[report](t, fresh.get(t, credential{}, "/readyz").expect(t, http.StatusOK).without(t, "acme", s.acme.id, chain))
			status, count := "ok", 0
			for _, reason := range got.Reasons {
				if reason.Name == "tampering" {
					status, count = "degraded", reason.Count
				}
			}
			if check := got.Checks[3]; check.Name != "tampering" || check.Status != status || count > 0 && got.Status != "degraded" {
				t.Errorf("ready says %+v", got)
			}
			return count
		}
		if count := counted(); count != 0 {
			t.Errorf("%d findings in an untouched database", count)
		}
		s.database.exec(t, "UPDATE receipts SET body = ? WHERE sequence = 1", []byte("nothing"))
		s.get(t, s.acme.member, "/v1/verification/v2/receipts/"+receipt).expect(t, http.StatusOK)
		if count := counted(); count != 1 {
			t.Errorf("%d findings after a member's verification, want 1", count)
		}
		s.database.exec(t, "UPDATE chain_states SET mac = state WHERE status = 'active'")
		s.post(t, s.acme.agent, "/v1/chains/"+chain+"/complete", "").refuse(t, http.StatusInternalServerError, "evidence_tampered")
		servicetest.Eventually(t, "what the request came upon is kept", func() bool {
			findings, err := s.Service.Operator().Findings(t.Context(), "acme")
			return err == nil && len(findings) == 2
		})
		findings, err := s.Service.Operator().Findings(t.Context(), "acme")
		for _, finding := range findings {
			if err == nil {
				err = s.Service.Operator().Acknowledge(t.Context(), finding, "a test")
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if count := counted(); count != 0 {
			t.Errorf("%d findings are open when all are acknowledged", count)
		}
	})
}

// Probes do not walk over every organization each time.
func TestReadinessIsRemembered(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		m := &memory{}
		s := start(t, open(t), setup{watch: m})
		s.get(t, credential{}, "/readyz").expect(t, http.StatusOK)
		m.heads.Store(&map[uuid.UUID]keyring.Seen{uuid.MustParse(s.acme.id): {Count: 9}})
		s.get(t, credential{}, "/readyz").expect(t, http.StatusOK)
	})
}

// legacyCounter counts as the metrics do.
type legacyCounter struct {
	routes chan string
	legacy chan string
}

func (c *legacyCounter) Request(route string, _ int, _ time.Duration) { c.routes <- route }

func (c *legacyCounter) LegacyRequest(route string) { c.legacy <- route }

// Requests to the old public addresses are counted under their routes, and requests
// to the new one are not.
func TestLegacyUseIsCounted(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		asked := s.ask(t, s.acme.agent, s.open(t, s.acme.agent, `{"name":"n"}`))
		token := s.issue(t, s.acme.admin, "approval", asked)
		counter := &legacyCounter{make(chan string, 10), make(chan string, 10)}
		counted := *s
		counted.api = httpapi.New(httpapi.Config{Service: s.Service, Log: slog.New(capturing), Observe: counter})
		counted.listen(t)
		for path, want := range map[string]string{
			"/public/approvals/" + asked: "/public/approvals/{approval_id}", "/v1/approvals/" + asked + "/verify": "/v1/approvals/{approval_id}/verify",
			"/public/approvals/x": "/public/approvals/{approval_id}", token.Path: "",
		} {
			counted.get(t, credential{}, path)
			route := <-counter.routes
			if want == "" {
				want = "/public/v2/verify/{opaque_token}"
			} else if got := <-counter.legacy; got != want {
				t.Errorf("counted as %s, want %s", got, want)
			}
			if route != want {
				t.Errorf("observed as %s, want %s", route, want)
			}
		}
		if len(counter.legacy) > 0 {
			t.Errorf("counted %s as old", <-counter.legacy)
		}
	})
}
