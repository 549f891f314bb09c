package httpapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// decisionCase is one case of testdata/decisions.json: what governs an
// organization, a chain opened in it, and what is then asked and answered.
type decisionCase struct {
	Name     string          `json:"name"`
	Settings json.RawMessage `json:"settings"` // changes of the organization's
	Policy   json.RawMessage `json:"policy"`   // put before the chain is opened
	Open     json.RawMessage `json:"open"`     // members of the opening request
	Steps    []decisionStep  `json:"steps"`
}

type decisionStep struct {
	Do       string          `json:"do"`       // see the stage's acts
	As       string          `json:"as"`       // whose key; each act has its usual one
	Body     json.RawMessage `json:"body"`     // what is sent
	Approval int             `json:"approval"` // which of those asked for, from 1; 0: the last
	Seconds  float64         `json:"seconds"`  // how far the clock moves
	Status   int             `json:"status"`   // of the answer; 0: 200
	Code     string          `json:"code"`     // of a refusal
	// Want is what the answer must hold; where a name ends in ~, a part of it. A
	// dotted name leads into an object or an array.
	Want map[string]any `json:"want"`
	// Absent names members that must not be there.
	Absent []string `json:"absent"`
}

func decisionCases(t *testing.T) []decisionCase {
	t.Helper()
	data, err := os.ReadFile("testdata/decisions.json")
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var cases []decisionCase
	if err := decoder.Decode(&cases); err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, c := range cases {
		if seen[c.Name] || len(c.Steps) == 0 {
			t.Errorf("%s: stands twice, or asks nothing", c.Name)
		}
		seen[c.Name] = true
	}
	return cases
}

// TestDecisions plays the table through the API, on either store.
func TestDecisions(t *testing.T) {
	cases := decisionCases(t)
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		c := &handClock{}
		c.now.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMilli())
		s := start(t, open(t), setup{clock: c.Now})
		for i, table := range cases {
			t.Run(table.Name, func(t *testing.T) { newStage(t, s, c, i, &table).play(table.Steps) })
		}
	})
}

// handClock moves when it is told to.
type handClock struct{ now atomic.Int64 }

func (c *handClock) Now() time.Time { return time.UnixMilli(c.now.Load()) }

func (c *handClock) advance(seconds float64) { c.now.Add(int64(seconds * 1000)) }

// stage is an organization of its own, so that no case governs another.
type stage struct {
	*stack
	t         *testing.T
	clock     *handClock
	keys      map[string]credential
	chain     string
	approvals []string
	event     string // the last recorded
	lease     string // the last granted
}

func newStage(t *testing.T, s *stack, clock *handClock, number int, c *decisionCase) *stage {
	t.Helper()
	slug := fmt.Sprintf("case-%d", number)
	_, first, err := s.Service.Operator().CreateOrganization(t.Context(), slug, "")
	if err != nil {
		t.Fatal(err)
	}
	g := &stage{stack: s, t: t, clock: clock, keys: map[string]credential{
		"admin":  {first.Text.Reveal(), first.Record.ID},
		"member": s.named(t, slug, ledger.RoleMember, "a member"),
		"second": s.named(t, slug, ledger.RoleMember, "a second member"),
		"agent":  s.named(t, slug, ledger.RoleAgent, "an agent"),
	}}
	if c.Settings != nil {
		s.patch(t, g.keys["admin"], string(c.Settings)).expect(t, http.StatusOK)
	}
	if c.Policy != nil {
		s.put(t, g.keys["admin"], "application/json", string(c.Policy)).expect(t, http.StatusOK)
	}
	body := map[string]any{"name": "decisions"}
	if c.Open != nil {
		if err := json.Unmarshal(c.Open, &body); err != nil {
			t.Fatal(err)
		}
	}
	g.chain = s.open(t, g.keys["agent"], string(encode(t, body)))
	return g
}

func (g *stage) play(steps []decisionStep) {
	g.t.Helper()
	for i := range steps {
		step := &steps[i]
		got := g.act(step)
		if got == nil {
			continue
		}
		where := fmt.Sprintf("step %d, %s", i+1, step.Do)
		if want := max(step.Status, http.StatusOK); got.status != want || got.problem.Code != step.Code {
			g.t.Fatalf("%s: answered %d %s, want %d %s: %s", where, got.status, got.problem.Code, want, step.Code, got.body)
		}
		checkMembers(g.t, where, got, step)
	}
}

// act does what a step says and returns the answer, nil where there is none.
func (g *stage) act(step *decisionStep) *answer {
	chain, approval := "/v1/chains/"+g.chain, "/v1/approvals/"+g.approval(step)
	switch step.Do {
	case "clock":
		g.clock.advance(step.Seconds)
		return nil
	case "deadline": // what the worker does when an approval's time has come
		if _, err := g.Service.AdvanceApproval(g.t.Context(), ledger.ApprovalID{UUID: uuid.MustParse(g.approval(step))}); err != nil {
			g.t.Fatal(err)
		}
		return nil
	case "record":
		return g.recorded(g.send(step, "agent", http.MethodPost, chain+"/events"))
	case "report":
		return g.send(step, "agent", http.MethodPost, chain+"/events/batch")
	case "outcome":
		return g.send(step, "agent", http.MethodPost, chain+"/events/"+g.event+"/outcome")
	case "complete":
		return g.send(step, "agent", http.MethodPost, chain+"/complete")
	case "resume":
		return g.send(step, "admin", http.MethodPost, chain+"/resume")
	case "chain":
		return g.send(step, "agent", http.MethodGet, chain)
	case "approval status":
		return g.send(step, "agent", http.MethodGet, chain+"/approval-status")
	case "approval":
		return g.send(step, "agent", http.MethodGet, approval)
	case "approve", "deny":
		return g.send(step, "member", http.MethodPost, approval+"/"+step.Do)
	case "settings":
		return g.send(step, "admin", http.MethodPatch, "/v1/organization")
	case "policy":
		return g.send(step, "admin", http.MethodPut, "/v1/policies")
	case "activate", "deactivate":
		return g.send(step, "admin", http.MethodPost, "/v1/kill-switch/"+step.Do)
	}
	g.t.Fatalf("there is no act %q", step.Do)
	return nil
}

func (g *stage) send(step *decisionStep, usual, method, path string) *answer {
	g.t.Helper()
	who := step.As
	if who == "" {
		who = usual
	}
	key, known := g.keys[who]
	if !known {
		g.t.Fatalf("nobody is called %q", who)
	}
	body := step.Body
	if bytes.Contains(body, []byte(`"@"`)) { // the hash that the reviewer saw
		seen := decode[approval](g.t, g.get(g.t, key, strings.TrimSuffix(path, "/"+step.Do)))
		body = bytes.ReplaceAll(body, []byte(`"@"`), encode(g.t, seen.PayloadHash))
	}
	body = bytes.ReplaceAll(body, []byte(`"@lease"`), encode(g.t, g.lease))
	got := g.do(g.t, call{method: method, path: path, key: key.text, body: body})
	if found := leaseID.FindSubmatch(got.body); found != nil {
		g.lease = string(found[1])
	}
	return got
}

var leaseID = regexp.MustCompile(`"fast_path_lease":\{"id":"([^"]+)"`)

func (g *stage) recorded(got *answer) *answer {
	if got.status != http.StatusOK {
		return got
	}
	decided := decode[decision](g.t, got)
	g.event = decided.EventID
	if decided.ApprovalID != nil {
		g.approvals = append(g.approvals, *decided.ApprovalID)
	}
	return got
}

func (g *stage) approval(step *decisionStep) string {
	switch {
	case step.Approval > 0 && step.Approval <= len(g.approvals):
		return g.approvals[step.Approval-1]
	case step.Approval == 0 && len(g.approvals) > 0:
		return g.approvals[len(g.approvals)-1]
	}
	return uuid.Nil.String()
}
