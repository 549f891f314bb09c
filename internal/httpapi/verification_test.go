package httpapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// verified is what the tests read of an authenticated result.
type verified struct {
	Verdict struct {
		Overall   string                  `json:"overall_status"`
		Reason    string                  `json:"reason_code"`
		Integrity struct{ Status string } `json:"integrity"`
		Signature struct {
			Status string `json:"status"`
			Key    string `json:"key_status"`
		} `json:"asymmetric_signature"`
		Anchors struct {
			TSA struct{ Status string } `json:"tsa"`
		} `json:"timestamp_anchors"`
		Evidence struct{ Status string }         `json:"evidence_chain"`
		Checks   []struct{ Name, Status string } `json:"checks"`
	} `json:"verification"`
}

// judgement is one cell of the matrix in testdata/verification.json: what is said
// about an artifact, to its organization and to strangers.
type judgement struct {
	Status     int      `json:"status,omitempty"` // of a refusal; 0: 200
	Overall    string   `json:"overall,omitempty"`
	Reason     string   `json:"reason,omitempty"`
	Integrity  string   `json:"integrity,omitempty"`
	Signature  string   `json:"signature,omitempty"`
	Key        string   `json:"key,omitempty"`
	Anchor     string   `json:"anchor,omitempty"`
	Evidence   string   `json:"evidence,omitempty"`
	Fail       []string `json:"fail,omitempty"`        // checks
	NotChecked []string `json:"not_checked,omitempty"` // checks
	Public     string   `json:"public"`                // the overall status; "none" for a 404
	Legacy     string   `json:"legacy,omitempty"`      // where it is not the same
}

// matrix says what stands after each intrusion. What it does not name is as it
// is untouched.
type matrix struct {
	Untouched map[string]judgement `json:"untouched"`
	Cases     []struct {
		Intrusion string               `json:"intrusion"`
		Audit     string               `json:"audit"` // "intact", or the receipt's sequence and the check
		Changed   map[string]judgement `json:"changed"`
	} `json:"cases"`
}

func readMatrix(t *testing.T) *matrix {
	t.Helper()
	data, err := os.ReadFile("testdata/verification.json")
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	m := &matrix{}
	if err := decoder.Decode(m); err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, c := range m.Cases {
		if intrusions[c.Intrusion] == nil || seen[c.Intrusion] {
			t.Errorf("%q is no intrusion, or stands twice", c.Intrusion)
		}
		seen[c.Intrusion] = true
	}
	if len(seen) != len(intrusions) {
		t.Errorf("the table has %d of %d intrusions", len(seen), len(intrusions))
	}
	return m
}

// TestVerificationMatrix plays the table: artifact and state, role, intrusion.
func TestVerificationMatrix(t *testing.T) {
	m := readMatrix(t)
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		c := &handClock{}
		c.now.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMilli())
		s := start(t, open(t), setup{clock: c.Now})
		for i, table := range m.Cases {
			t.Run(table.Intrusion, func(t *testing.T) {
				t.Parallel()
				h := live(t, s, c, fmt.Sprintf("case-%d", i))
				intrusions[table.Intrusion](t, h)
				want := maps.Clone(m.Untouched)
				maps.Copy(want, table.Changed)
				got := make(map[string]judgement)
				for _, name := range slices.Sorted(maps.Keys(h.artifacts)) {
					got[name] = h.judge(t, name)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("judged otherwise (-want +got):\n%s", diff)
				}
				if audit := h.audit(t); audit != table.Audit {
					t.Errorf("the audit says %q, want %q", audit, table.Audit)
				}
			})
		}
	})
}

// judge asks for an artifact in every role and sums up what is said. Those who
// may not know learn nothing, whatever was done to it.
func (h *history) judge(t *testing.T, name string) judgement {
	t.Helper()
	made := h.artifacts[name]
	path := "/v1/verification/v2/" + made.kind + "s/" + made.id
	h.get(t, h.tenant.agent, path).refuse(t, http.StatusForbidden, "forbidden")
	h.get(t, h.stack.acme.admin, path).refuse(t, http.StatusNotFound, "not_found")
	h.get(t, credential{}, path).refuse(t, http.StatusUnauthorized, "unauthenticated")
	member, admin := h.get(t, h.tenant.member, path), h.get(t, h.tenant.admin, path)
	if member.status != admin.status || !cmp.Equal(common(t, member), common(t, admin)) {
		t.Errorf("%s: members are told %s, admins %s", name, member.body, admin.body)
	}
	j := judgement{Public: h.stranger(t, made.token.Path)}
	if made.kind == "approval" {
		for _, legacy := range []string{"/public/approvals/" + made.id, "/v1/approvals/" + made.id + "/verify"} {
			if j.Legacy = h.stranger(t, legacy); j.Legacy == j.Public {
				j.Legacy = ""
			}
		}
	}
	if member.status != http.StatusOK {
		j.Status = member.status
		return j
	}
	if made.kind == "receipt" {
		h.checkedPublicly(t, name, j.Public)
	}
	verdict := decode[verified](t, member).Verdict
	j.Overall, j.Reason, j.Integrity, j.Evidence = verdict.Overall, verdict.Reason, verdict.Integrity.Status, verdict.Evidence.Status
	j.Signature, j.Key, j.Anchor = verdict.Signature.Status, verdict.Signature.Key, verdict.Anchors.TSA.Status
	for _, check := range verdict.Checks {
		switch check.Status {
		case "fail":
			j.Fail = append(j.Fail, check.Name)
		case "not_checked":
			j.NotChecked = append(j.NotChecked, check.Name)
		}
	}
	return j
}

// checkedPublicly holds the public check by id against the link.
func (h *history) checkedPublicly(t *testing.T, name, overall string) {
	t.Helper()
	check := decode[receiptCheck](t, h.get(t, credential{}, "/v1/receipts/"+h.artifacts[name].id+"/verify").expect(t, http.StatusOK))
	if check.Valid != (overall == "verified") || check.Valid && check.Checked != "full" {
		t.Errorf("%s: the link says %s, the check by id %+v", name, overall, check)
	}
}

// common is what members and admins are both told.
func common(t *testing.T, a *answer) map[string]any {
	t.Helper()
	told := decode[map[string]any](t, a)
	for _, name := range []string{"capabilities", "admin_context", "request_id"} {
		delete(told, name)
	}
	if verdict, ok := told["verification"].(map[string]any); ok {
		delete(verdict, "verified_at")
	}
	return told
}

// stranger is the verdict on a link: none where there is nothing to show.
func (h *history) stranger(t *testing.T, path string) string {
	t.Helper()
	got, page := h.get(t, credential{}, path), h.browse(t, path)
	if got.status != page.status {
		t.Errorf("a program is answered %d, a person %d", got.status, page.status)
	}
	if got.status != http.StatusOK {
		got.refuse(t, http.StatusNotFound, "not_found")
		return "none"
	}
	return decode[struct {
		Overall string `json:"overall_status"`
	}](t, got).Overall
}

func (h *history) audit(t *testing.T) string {
	t.Helper()
	h.get(t, h.tenant.member, "/v1/verification/v2/ledger").refuse(t, http.StatusForbidden, "forbidden")
	report := decode[ledgerAudit](t, h.get(t, h.tenant.admin, "/v1/verification/v2/ledger").expect(t, http.StatusOK))
	if (report.Status == "intact") != (report.Break == nil) {
		t.Errorf("an audit that is %s finds %+v", report.Status, report.Break)
	}
	if report.Break == nil {
		return report.Status
	}
	return strings.TrimSpace(strings.TrimPrefix(report.Break.Number, "CSN-2026-") + " " + report.Break.Check)
}

type ledgerAudit struct {
	Status   string `json:"status"`
	Receipts int    `json:"receipts_checked"`
	Head     struct {
		Count int     `json:"count"`
		Last  *string `json:"last_receipt_number"`
	} `json:"head"`
	Break *struct {
		Number string `json:"receipt_number"`
		Check  string `json:"check"`
	} `json:"first_break"`
	NotChecked []string `json:"not_checked"`
}
