package httpapi_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

type approval struct {
	ID          string  `json:"id"`
	ChainID     string  `json:"chain_id"`
	Status      string  `json:"status"`
	PayloadHash string  `json:"payload_sha256"`
	DecidedAt   *string `json:"decided_at"`
	Votes       int     `json:"votes"`
	Comment     *string `json:"comment"`
	Decision    *struct {
		Decision string `json:"policy_decision"`
		Reason   string `json:"decision_reason"`
		Killed   bool   `json:"kill_switch_active"`
	} `json:"decision"`
	Reviewer *struct {
		KeyID string `json:"key_id"`
		Name  string `json:"name"`
	} `json:"reviewer"`
}

// Approval lists hold what the filter and the caller's role allow, newest first, in
// pages of any size.
func TestApprovalLists(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		var asked []string
		chains := []string{s.open(t, s.acme.agent, `{"name":"a"}`), s.open(t, s.acme.other, `{"name":"b"}`)}
		for i := range 6 {
			asked = append(asked, s.ask(t, []credential{s.acme.agent, s.acme.other}[i%2], chains[i%2]))
		}
		s.post(t, s.acme.member, "/v1/approvals/"+asked[0]+"/approve", "").expect(t, http.StatusOK)
		s.post(t, s.acme.member, "/v1/approvals/"+asked[1]+"/deny", "").expect(t, http.StatusOK)
		ids := func(key credential, query string, limit int) (ids []string) {
			for _, a := range everyPage[approval](t, s, key, "/v1/approvals", limit) {
				ids = append(ids, a.ID)
			}
			if query != "" {
				ids = nil
				for _, a := range decode[page[approval]](t, s.get(t, key, "/v1/approvals?"+query).expect(t, http.StatusOK)).Data {
					ids = append(ids, a.ID)
				}
			}
			slices.Sort(ids)
			return ids
		}
		sorted := func(indexes ...int) (ids []string) {
			for _, i := range indexes {
				ids = append(ids, asked[i])
			}
			slices.Sort(ids)
			return ids
		}
		for _, test := range []struct {
			name  string
			key   credential
			query string
			want  []string
		}{
			{"all", s.acme.member, "", sorted(0, 1, 2, 3, 4, 5)},
			{"an agent's own", s.acme.agent, "", sorted(0, 2, 4)},
			{"waiting", s.acme.admin, "status=pending", sorted(2, 3, 4, 5)},
			{"approved", s.acme.member, "status=approved", sorted(0)},
			{"an agent's denied", s.acme.agent, "status=denied", nil},
			{"of a chain", s.acme.member, "chain_id=" + chains[1], sorted(1, 3, 5)},
			{"of a chain, denied", s.acme.member, "status=denied&chain_id=" + strings.ToUpper(chains[1]), sorted(1)},
			{"of another's chain", s.acme.agent, "chain_id=" + chains[1], nil},
			{"of another organization", s.rival.admin, "chain_id=" + chains[0], nil},
		} {
			for _, limit := range []int{1, 2, 4, 200} {
				if got := ids(test.key, test.query, limit); !slices.Equal(got, test.want) {
					t.Errorf("%s, in pages of %d: %d approvals, want %d", test.name, limit, len(got), len(test.want))
				}
			}
		}
		all := everyPage[struct {
			RequestedAt string `json:"requested_at"`
		}](t, s, s.acme.member, "/v1/approvals", 2)
		if !slices.IsSortedFunc(all, func(a, b struct {
			RequestedAt string `json:"requested_at"`
		}) int {
			return strings.Compare(b.RequestedAt, a.RequestedAt)
		}) {
			t.Errorf("not newest first: %v", all)
		}
	})
}

// A wait that is not a plain number of seconds from 0 to 60 is refused.
func TestBadWaits(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		path := "/v1/approvals/" + s.ask(t, s.acme.agent, s.open(t, s.acme.agent, `{"name":"n"}`))
		var refusals []refusal
		for _, wait := range []string{"", "-1", "61", "60.001", "1e1", "NaN", "Inf", "0x1", "1s", "1,5", "+1", "%201", "1.0000", "planted-wait", "1&wait=1"} {
			refusals = append(refusals, refusal{"wait=" + wait, call{method: http.MethodGet, path: path + "?wait=" + wait, key: s.acme.agent.text}, 422, "invalid_request", []string{"/wait"}})
		}
		refusals = append(refusals, refusal{"another parameter", call{method: http.MethodGet, path: path + "?limit=1", key: s.acme.agent.text}, 422, "invalid_request", []string{"/limit"}})
		checkRefusals(t, s, refusals)
		for _, wait := range []string{"0", "0.0", "0.001", "00.01"} {
			if got := decode[approval](t, s.get(t, s.acme.agent, path+"?wait="+wait).expect(t, http.StatusOK)); got.Status != "pending" || got.Decision != nil {
				t.Errorf("waited %s for %+v", wait, got)
			}
		}
		s.get(t, s.acme.other, path+"?wait=60").refuse(t, http.StatusNotFound, "not_found")
		s.get(t, s.rival.admin, path+"?wait=60").refuse(t, http.StatusNotFound, "not_found")
	})
}

// Whoever waits for an approval is answered when it is decided, and not before.
//
//countersign:race
func TestWaitForDecision(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		id := s.open(t, s.acme.agent, `{"name":"wait"}`)
		for verdict, want := range map[string]string{"approve": "allow", "deny": "deny"} {
			mine, other := s.ask(t, s.acme.agent, id), s.ask(t, s.acme.agent, id)
			const waiting = 4
			answers := make(chan *answer, waiting)
			for range waiting {
				go func() { answers <- s.get(t, s.acme.agent, "/v1/approvals/"+mine+"?wait=60") }()
			}
			s.post(t, s.acme.member, "/v1/approvals/"+other+"/deny", "").expect(t, http.StatusOK)
			s.post(t, s.acme.member, "/v1/approvals/"+mine+"/"+verdict, `{"comment":"planted-comment"}`).expect(t, http.StatusOK)
			for range waiting {
				got := decode[approval](t, (<-answers).expect(t, http.StatusOK).without(t, `"reviewer"`))
				if got.ID != mine || got.Decision == nil || got.Decision.Decision != want {
					t.Errorf("waited for %+v", got)
				}
			}
		}
	})
}

// A server's time-out for reading requests does not cut a wait short.
func TestWaitOutlastsTimeouts(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		path := "/v1/approvals/" + s.ask(t, s.acme.agent, s.open(t, s.acme.agent, `{"name":"n"}`))
		server := httptest.NewUnstartedServer(s.api.Handler())
		const limit = 50 * time.Millisecond
		server.Config.ReadTimeout, server.Config.WriteTimeout = limit, limit
		server.Start()
		t.Cleanup(server.Close)
		impatient := *s
		impatient.base = server.URL
		began := time.Now()
		got := decode[approval](t, impatient.get(t, s.acme.agent, path+"?wait=0.3").expect(t, http.StatusOK))
		if took := time.Since(began); took < 300*time.Millisecond || got.Status != "pending" {
			t.Errorf("waited %s for %s", took, got.Status)
		}
	})
}

// Mail scanners and browsers open links: reading decides nothing.
func TestNothingIsDecidedByReading(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		path := "/v1/approvals/" + s.ask(t, s.acme.agent, s.open(t, s.acme.agent, `{"name":"n"}`))
		before := s.database.dump(t)
		for _, verdict := range []string{"/approve", "/deny"} {
			for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete, http.MethodPatch} {
				got := s.do(t, call{method: method, path: path + verdict, key: s.acme.member.text}).refuse(t, http.StatusMethodNotAllowed, "method_not_allowed")
				if got.header.Get("Allow") != http.MethodPost {
					t.Errorf("%s: Allow is %q", method, got.header.Get("Allow"))
				}
			}
		}
		for range 3 {
			s.get(t, s.acme.member, path).expect(t, http.StatusOK)
		}
		if s.database.dump(t) != before {
			t.Error("reading changed what is stored")
		}
	})
}

// However many decide at once, one decision stands and all are told the same.
//
//countersign:race
func TestDecideTogether(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		id := s.open(t, s.acme.agent, `{"name":"n"}`)
		asked := s.ask(t, s.acme.agent, id)
		verdicts, keys := []string{"approve", "deny"}, []credential{s.acme.member, s.acme.admin}
		answers := together(16, func(i int) *answer {
			return s.post(t, keys[i/2%2], "/v1/approvals/"+asked+"/"+verdicts[i%2], fmt.Sprintf(`{"comment":"number %d"}`, i))
		})
		stands := decode[approval](t, s.get(t, s.acme.member, "/v1/approvals/"+asked))
		agreed := 0
		for _, got := range answers {
			if got.status == http.StatusConflict {
				got.refuse(t, http.StatusConflict, "approval_decided")
				continue
			}
			agreed++
			if told := decode[approval](t, got.expect(t, http.StatusOK)); told.Status != stands.Status || *told.Comment != *stands.Comment {
				t.Errorf("told %s, and %s stands", told.Status, stands.Status)
			}
		}
		exposure := map[string]float64{"approved": 6000, "denied": 0}
		if chain := decode[chain](t, s.get(t, s.acme.agent, "/v1/chains/"+id)); agreed != 8 || chain.Metrics.Exposure != exposure[stands.Status] {
			t.Errorf("%d agree that it is %s, and the exposure is %v", agreed, stands.Status, chain.Metrics.Exposure)
		}
	})
}

// The digest and the hashes of a receipt follow from what the API shows, when
// people decided in the meantime too.
func TestDigestWithApprovals(t *testing.T) {
	onEachStack(t, func(t *testing.T, s *stack) {
		id := s.open(t, s.acme.agent, `{"name":"digest"}`)
		var asked []string
		for range 3 {
			asked = append(asked, s.ask(t, s.acme.agent, id))
			s.record(t, s.acme.agent, id, anAction)
		}
		s.post(t, s.acme.member, "/v1/approvals/"+asked[1]+"/approve", `{"comment":"fine"}`).expect(t, http.StatusOK)
		s.record(t, s.acme.agent, id, anAction)
		s.post(t, s.acme.member, "/v1/approvals/"+asked[0]+"/deny", "").expect(t, http.StatusOK)
		sealed := s.complete(t, s.acme.agent, id, "")
		events := everyPage[map[string]any](t, s, s.acme.member, "/v1/chains/"+id+"/events", 3)
		if made := decode[receipt](t, &answer{body: sealed.Receipt}); made.Digest != digestOf(t, events) {
			t.Errorf("events_digest is %s, the events give %s", made.Digest, digestOf(t, events))
		}
		shown := make(map[string]map[string]any)
		for _, e := range events {
			if settled, ok := e["approval"].(map[string]any); ok {
				shown[e["approval_id"].(string)] = settled
			}
		}
		lines := decode[struct {
			Approvals []struct {
				ID     string `json:"approval_id"`
				Status string `json:"status"`
				Hash   string `json:"approval_hash"`
			} `json:"approvals"`
		}](t, &answer{body: sealed.Receipt}).Approvals
		for i, want := range []string{"denied", "approved", "cancelled"} {
			if line := lines[i]; line.ID != asked[i] || line.Status != want || line.Hash != shown[line.ID]["approval_hash"] || shown[line.ID]["status"] != want {
				t.Errorf("approval %d is %+v in the receipt and %v among the events", i+1, line, shown[line.ID])
			}
		}
	})
}
