package ledger

import (
	"errors"
	"slices"
	"testing"

	"countersign/internal/fault"
)

// The organization's fallback approvers may decide after the approval has escalated, and not
// before. Those of the chain never gain that right.
func TestFallbackApproversDecideAfterEscalation(t *testing.T) {
	t.Parallel()
	escalated := Time(5)
	for name, test := range map[string]struct {
		reviewer    string
		escalatedAt *Time
		want        fault.Code
	}{
		"an approver":                            {"cfo@example.com", nil, ""},
		"a fallback before escalation":           {"ceo@example.com", nil, fault.CodeForbidden},
		"a fallback after escalation":            {"ceo@example.com", &escalated, ""},
		"the chain's own address, after":         {"agent@example.com", &escalated, fault.CodeForbidden},
		"somebody else after escalation":         {"somebody", &escalated, fault.CodeForbidden},
		"an approver after escalation may still": {"cfo@example.com", &escalated, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &Approval{
				Approvers: []string{"cfo@example.com"}, Escalate: []string{"ceo@example.com", "agent@example.com"}, Fallback: []string{"ceo@example.com"},
				Status: ApprovalPending, RequestedAt: 1, EscalatesAt: 4, ExpiresAt: 10, EscalatedAt: test.escalatedAt,
			}
			if test.escalatedAt != nil {
				a.Status = ApprovalEscalated
			}
			reviewer := Reviewer{Key: KeyID{UUID: [16]byte{1}}, Name: test.reviewer}
			_, err := a.Decide(&Verdict{}, reviewer, nil, 6)
			var got fault.Code
			if own := new(fault.Error); errors.As(err, &own) {
				got = own.Code
			}
			if got != test.want {
				t.Errorf("%v (code %q), want code %q", err, got, test.want)
			}
		})
	}
}

// Deciders describes who may decide now, and who may after escalation.
func TestDeciders(t *testing.T) {
	t.Parallel()
	escalated := Time(5)
	for name, test := range map[string]struct {
		approval Approval
		want     string
	}{
		"anyone":               {Approval{Status: ApprovalPending, Fallback: []string{"ceo"}}, "any member or admin"},
		"those named":          {Approval{Status: ApprovalPending, Approvers: []string{"cfo", "bob"}}, "cfo, bob"},
		"before escalation":    {Approval{Status: ApprovalPending, Approvers: []string{"cfo"}, Fallback: []string{"ceo", "eve"}}, "cfo, and once it has escalated also ceo, eve"},
		"after escalation":     {Approval{Status: ApprovalEscalated, EscalatedAt: &escalated, Approvers: []string{"cfo"}, Fallback: []string{"ceo"}}, "cfo, and since it escalated also ceo"},
		"decided before":       {Approval{Status: ApprovalDenied, Approvers: []string{"cfo"}, Fallback: []string{"ceo"}}, "cfo"},
		"decided after":        {Approval{Status: ApprovalDenied, EscalatedAt: &escalated, Approvers: []string{"cfo"}, Fallback: []string{"ceo"}}, "cfo, and since it escalated also ceo"},
		"the chain's are none": {Approval{Status: ApprovalPending, Approvers: []string{"cfo"}, Escalate: []string{"agent"}}, "cfo"},
	} {
		if got := test.approval.Deciders(); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// A chain's own fallback approvers are notified only if the organization has named none, and may
// never decide. If it has named some, an agent cannot send mail to others.
func TestChainsNameFallbackApproversOnlyWhereNobodyElseDid(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ org, chain, told, decide []string }{
		"nobody":               {nil, nil, nil, nil},
		"the organization":     {[]string{"ceo@example.com"}, nil, []string{"ceo@example.com"}, []string{"ceo@example.com"}},
		"the chain":            {nil, []string{"a@example.com", "a@example.com"}, []string{"a@example.com"}, nil},
		"the organization won": {[]string{"ceo@example.com"}, []string{"a@example.com"}, []string{"ceo@example.com"}, []string{"ceo@example.com"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := question()
			q.Org.Settings.FallbackApprovers, q.Chain.FallbackApprovers = test.org, test.chain
			q.Action.Facts = payment(6000)
			recorded := q.State.Record(&Recording{
				Keys: keyRing, Policy: &Policy{Version: "v"}, Org: q.Org, Chain: q.Chain, Action: q.Action, Now: q.Now,
				NewApproval: func() ApprovalID { return ApprovalID{UUID: [16]byte{9}} },
			})
			if recorded.Approval == nil {
				t.Fatalf("decided %+v", recorded.Event.Decision)
			}
			if a := recorded.Approval; !slices.Equal(a.Escalate, test.told) || !slices.Equal(a.Fallback, test.decide) {
				t.Errorf("told %q, may decide %q; want %q and %q", a.Escalate, a.Fallback, test.told, test.decide)
			}
		})
	}
}
