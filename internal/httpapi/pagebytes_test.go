package httpapi_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"countersign/internal/httpapi"
	"countersign/internal/service"
)

// Entries as large as a request can make them come on pages that end before their
// limit, and none is lost or repeated where one page ends and the next begins.
func TestPagesAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	for name, check := range map[string]func(*testing.T, *stack){
		"events and approvals": checkLargePayloads,
		"chains and receipts":  checkLargeChains,
		"audit log":            checkLargeActs,
	} {
		t.Run(name, func(t *testing.T) { onEachStack(t, check) })
	}
}

func checkLargePayloads(t *testing.T, s *stack) {
	t.Helper()
	const many = 10
	id := s.open(t, s.acme.agent, `{"name":"large"}`)
	note := strings.Repeat("x", httpapi.MaxBody-400)
	var events, approvals []string
	for n := range many {
		body := s.send(t, http.MethodPost, s.acme.agent, "/v1/chains/"+id+"/events", fmt.Sprintf(
			`{"agent_name":"payer","action_type":"tool_call","action_name":"pay_invoice","payload":{"amount_usd":6000,"n":%d,"note":%q}}`, n, note))
		decided := decode[decision](t, &answer{body: body})
		if decided.ApprovalID == nil {
			t.Fatalf("decided %+v", decided)
		}
		events, approvals = append(events, decided.EventID), append(approvals, *decided.ApprovalID)
	}
	s.checkPages(t, s.acme.member, "/v1/chains/"+id+"/events", entry.id, events)
	s.checkPages(t, s.acme.member, "/v1/approvals", entry.id, reversed(approvals))
}

// A chain is large by the domains that it has contacted, and so is its receipt.
func checkLargeChains(t *testing.T, s *stack) {
	t.Helper()
	const many, actions, each = 16, 10, 99 // a chain keeps 1000 domains, an action 100
	var events []string
	for n := range actions {
		payload, err := json.Marshal(map[string]any{"urls": longDomains("https://", n*each, each)})
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, fmt.Sprintf(`{"agent_name":"a","action_type":"tool_call","action_name":"look","payload":%s,"policy_decision":"allow",
			"decision_source":"local_fast_path","idempotency_key":"k%d","executed_at":"2026-01-01T00:00:00.000Z"}`, payload, n))
	}
	batch := `{"events":[` + strings.Join(events, ",") + `]}`
	var chains []string
	for range many {
		id := s.open(t, s.acme.agent, `{"name":"large"}`)
		s.send(t, http.MethodPost, s.acme.agent, "/v1/chains/"+id+"/events/batch", batch)
		s.send(t, http.MethodPost, s.acme.agent, "/v1/chains/"+id+"/complete", "")
		chains = append(chains, id)
	}
	s.checkPages(t, s.acme.member, "/v1/chains", entry.id, reversed(chains))
	s.checkPages(t, s.acme.member, "/v1/receipts", entry.chain, reversed(chains))
}

// longDomains are nearly as long as domains can be.
func longDomains(prefix string, from, many int) []string {
	label := strings.Repeat("a", 63)
	domains := make([]string, many)
	for i := range domains {
		domains[i] = fmt.Sprintf("%sn%d.%s.%s.%s.%s.example", prefix, from+i, label, label, label, label[:40])
	}
	return domains
}

// An act is as large as the settings that it changed.
func checkLargeActs(t *testing.T, s *stack) {
	t.Helper()
	const many, most = 4, 1000 // as many agents as a list takes, and as long as they can be
	for n := range many {
		agents := make([]string, most)
		for i := range agents {
			agents[i] = strings.Repeat("😀", 180) + fmt.Sprint(n*most+i) // four bytes each
		}
		list, err := json.Marshal(map[string]any{"high_risk_agents": agents})
		if err != nil {
			t.Fatal(err)
		}
		s.send(t, http.MethodPatch, s.acme.admin, "/v1/organization", string(list))
	}
	newest := decode[page[entry]](t, &answer{body: s.send(t, http.MethodGet, s.acme.admin, "/v1/audit-log?limit=1", "")}).Data[0].Sequence
	if newest < many {
		t.Fatalf("the newest act is %d", newest)
	}
	var want []string
	for n := newest; n > 0; n-- {
		want = append(want, fmt.Sprint(n))
	}
	s.checkPages(t, s.acme.admin, "/v1/audit-log", entry.place, want)
}

// entry is what tells the entries of any list apart.
type entry struct {
	ID       string `json:"id"`
	ChainID  string `json:"chain_id"`
	Sequence int    `json:"sequence"`
}

func (e entry) id() string    { return e.ID }
func (e entry) chain() string { return e.ChainID }
func (e entry) place() string { return fmt.Sprint(e.Sequence) }

// checkPages reads a list to its end, in pages as long as can be asked for, and wants
// every entry once and in order, on pages that are too large by their last entry at
// most.
func (s *stack) checkPages(t *testing.T, key credential, path string, name func(entry) string, want []string) {
	t.Helper()
	const most, largest = 50, service.PageBytes + httpapi.MaxBody + 64<<10
	query := url.Values{"limit": {"200"}}
	var names []string
	for pages := 1; pages <= most; pages++ {
		body := s.send(t, http.MethodGet, key, path+"?"+query.Encode(), "")
		if len(body) > largest {
			t.Fatalf("a page of %s has %d bytes, want at most %d", path, len(body), largest)
		}
		got := decode[page[entry]](t, &answer{body: body})
		for _, e := range got.Data {
			names = append(names, name(e))
		}
		if got.Next != nil {
			query.Set("cursor", *got.Next)
			continue
		}
		if pages < 2 {
			t.Errorf("%s came on one page of %d bytes: nothing was shown", path, len(body))
		}
		if !slices.Equal(names, want) {
			t.Errorf("%s lists %d entries, want %d, each once and in order", path, len(names), len(want))
		}
		return
	}
	t.Fatalf("%s has more than %d pages", path, most)
}

// send makes a request past the referee, which has judged the same routes with less
// and takes long over so much.
func (s *stack) send(t *testing.T, method string, key credential, path, body string) []byte {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, s.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+key.text)
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := s.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	answered, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: status %d, %v: %.300s", method, path, response.StatusCode, err, answered)
	}
	return answered
}

func reversed(ids []string) []string {
	ids = slices.Clone(ids)
	slices.Reverse(ids)
	return ids
}
