package httpapi_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/ledger"
)

// history is an organization with an artifact of every kind and state, and a
// public token for each.
type history struct {
	*stack
	tenant
	clock     *handClock
	artifacts map[string]artifact
	chains    map[string]string // by name, their ids
	shares    []string          // their paths
}

type artifact struct {
	kind, id string
	token    publicToken
}

// live makes one: four sealed chains, of which one failed, and two that are open.
func live(t *testing.T, s *stack, clock *handClock, slug string) *history {
	t.Helper()
	h := &history{stack: s, tenant: s.tenant(t, slug), clock: clock, artifacts: make(map[string]artifact), chains: make(map[string]string)}
	h.begin(t, "lapsing", `,"policy_config":{"approval_timeout_hours":0.01}`)
	h.asks(t, "timed_out", "lapsing", "")
	h.asks(t, "lapsed", "lapsing", "")
	clock.advance(36) // so little that those who live at the same time notice nothing
	if _, err := s.Service.AdvanceApproval(t.Context(), ledger.ApprovalID{UUID: h.id("approval.timed_out")}); err != nil {
		t.Fatal(err)
	}
	h.begin(t, "open", "")
	h.asks(t, "pending", "open", "")
	h.asks(t, "open", "open", "approve")
	for _, sealed := range []struct{ chain, asks, verdict, completion string }{
		{"first", "approved", "approve", ""},
		{"middle", "denied", "deny", ""},
		{"failed", "", "", `{"outcome":"failed","error":{"type":"ValueError","message":"planted-message"}}`},
		{"last", "cancelled", "", ""},
	} {
		h.begin(t, sealed.chain, "")
		s.record(t, h.tenant.agent, h.chains[sealed.chain], anAction)
		if sealed.asks != "" {
			h.asks(t, sealed.asks, sealed.chain, sealed.verdict)
		}
		receipt := *s.complete(t, h.tenant.agent, h.chains[sealed.chain], sealed.completion).ReceiptID
		h.artifacts["receipt."+sealed.chain] = artifact{kind: "receipt", id: receipt}
	}
	for name, made := range h.artifacts {
		made.token = s.issue(t, h.tenant.admin, made.kind, made.id)
		h.artifacts[name] = made
	}
	return h
}

func (h *history) begin(t *testing.T, name, more string) {
	t.Helper()
	h.chains[name] = h.open(t, h.tenant.agent, fmt.Sprintf(`{"name":"planted-%s","external_chain_id":"planted-x-%s"%s}`, name, name, more))
}

func (h *history) asks(t *testing.T, name, chain, verdict string) {
	t.Helper()
	id := h.ask(t, h.tenant.agent, h.chains[chain])
	h.artifacts["approval."+name] = artifact{kind: "approval", id: id}
	if verdict != "" {
		h.post(t, h.tenant.member, "/v1/approvals/"+id+"/"+verdict, `{"comment":"planted-comment"}`).expect(t, http.StatusOK)
	}
}

func (h *history) id(name string) uuid.UUID { return uuid.MustParse(h.artifacts[name].id) }

func (h *history) chain(name string) uuid.UUID { return uuid.MustParse(h.chains[name]) }

// edit replaces a part of a stored body.
func (h *history) edit(t *testing.T, table, where, old, changed string, args ...any) {
	t.Helper()
	if len(old) != len(changed) {
		t.Fatal("an edit keeps the length, so that only what it says differs")
	}
	h.database.replace(t, table, "body", where, old, changed, args...)
}

// intrusions are what someone with the database can do to a history.
var intrusions = map[string]func(t *testing.T, h *history){
	"nothing": func(*testing.T, *history) {},
	"approval's record edited": func(t *testing.T, h *history) {
		h.edit(t, "approvals", "id = ?", `"status":"approved"`, `"status":"denied"  `, h.id("approval.approved"))
	},
	"approval's reviewer edited": func(t *testing.T, h *history) {
		h.edit(t, "approvals", "id = ?", `"name":"a member"`, `"name":"a forger"`, h.id("approval.approved"))
	},
	"approval's column edited": func(t *testing.T, h *history) {
		h.database.exec(t, "UPDATE approvals SET status = 'approved' WHERE id = ?", h.id("approval.denied"))
	},
	"approval removed": func(t *testing.T, h *history) {
		h.database.exec(t, "DELETE FROM approvals WHERE id = ?", h.id("approval.approved"))
	},
	"payload edited": func(t *testing.T, h *history) {
		h.database.replace(t, "events", "payload", h.database.ofChain+" AND sequence = 2", "6000", "9000", h.chain("first"))
	},
	"payload erased": func(t *testing.T, h *history) {
		h.database.exec(t, "UPDATE events SET payload = NULL WHERE "+h.database.ofChain+" AND sequence = 2", h.chain("first"))
	},
	"addendum removed": func(t *testing.T, h *history) {
		h.database.exec(t, "DELETE FROM addenda WHERE "+h.database.ofChain, h.chain("first"))
	},
	"addendum edited": func(t *testing.T, h *history) {
		h.edit(t, "addenda", h.database.ofChain, `"approval_status":"denied"`, `"approval_status":"approv"`, h.chain("middle"))
	},
	"event edited": func(t *testing.T, h *history) {
		h.edit(t, "events", h.database.ofChain+" AND sequence = 1", "researcher", "intruder..", h.chain("first"))
	},
	"event removed": func(t *testing.T, h *history) {
		h.database.exec(t, "DELETE FROM events WHERE "+h.database.ofChain+" AND sequence = 2", h.chain("first"))
	},
	"receipt edited": func(t *testing.T, h *history) {
		h.edit(t, "receipts", "id = ?", `"total_actions":2`, `"total_actions":9`, h.id("receipt.middle"))
	},
	"receipt removed": func(t *testing.T, h *history) {
		h.database.exec(t, "DELETE FROM receipts WHERE id = ?", h.id("receipt.middle"))
	},
	"last receipt removed": func(t *testing.T, h *history) {
		h.database.exec(t, "DELETE FROM receipts WHERE id = ?", h.id("receipt.last"))
	},
	"receipt moved to another organization": func(t *testing.T, h *history) {
		h.database.exec(t, "UPDATE receipts SET org_id = ?, sequence = ? WHERE id = ?", uuid.MustParse(h.stack.rival.id), h.clock.now.Load(), h.id("receipt.middle"))
	},
	"receipts reordered": func(t *testing.T, h *history) {
		for _, step := range []struct {
			sequence int
			receipt  string
		}{{99, "receipt.middle"}, {2, "receipt.failed"}, {3, "receipt.middle"}} {
			h.database.exec(t, "UPDATE receipts SET sequence = ? WHERE id = ?", step.sequence, h.id(step.receipt))
		}
	},
	"head edited": func(t *testing.T, h *history) {
		h.database.exec(t, "UPDATE heads SET count = count + 1 WHERE org_id = ?", uuid.MustParse(h.tenant.id))
	},
	"head removed": func(t *testing.T, h *history) {
		h.database.exec(t, "DELETE FROM heads WHERE org_id = ?", uuid.MustParse(h.tenant.id))
	},
	"signing key swapped": func(t *testing.T, h *history) {
		h.database.exec(t, "UPDATE signing_keys SET public = ? WHERE org_id = ?", []byte(strings.Repeat("k", 32)), uuid.MustParse(h.tenant.id))
	},
	"signing key removed": func(t *testing.T, h *history) {
		h.database.exec(t, "DELETE FROM signing_keys WHERE org_id = ?", uuid.MustParse(h.tenant.id))
	},
	"anchor edited": func(t *testing.T, h *history) {
		h.anchored(t, "approval.approved", ledger.AnchorPending)
		h.anchored(t, "receipt.middle", ledger.AnchorFailed)
		h.database.exec(t, "UPDATE anchors SET status = 'verified' WHERE org_id = ?", uuid.MustParse(h.tenant.id))
	},
	// What the organization's own people do changes what is said of a key or an
	// anchor, and never the verdict.
	"signing key retired": func(t *testing.T, h *history) { h.endKey(t, "retire") },
	"signing key revoked": func(t *testing.T, h *history) { h.endKey(t, "revoke") },
	"anchors pending": func(t *testing.T, h *history) {
		h.anchored(t, "approval.approved", ledger.AnchorPending)
		h.anchored(t, "receipt.middle", ledger.AnchorPending)
	},
	"anchors verified": func(t *testing.T, h *history) {
		h.anchored(t, "approval.approved", ledger.AnchorVerified)
		h.anchored(t, "receipt.middle", ledger.AnchorVerified)
	},
	"anchors failed": func(t *testing.T, h *history) {
		h.anchored(t, "approval.approved", ledger.AnchorFailed)
		h.anchored(t, "receipt.middle", ledger.AnchorFailed)
	},
}

func (h *history) endKey(t *testing.T, how string) {
	t.Helper()
	keys := decode[page[signingKey]](t, h.get(t, h.tenant.admin, signingPath)).Data
	h.post(t, h.tenant.admin, signingPath+"/"+keys[0].ID+"/"+how, "").expect(t, http.StatusOK)
}

// anchored does what the worker does with an anchor by a timestamp authority: of
// an approval, or of a receipt as the head that it once was.
func (h *history) anchored(t *testing.T, name string, standing ledger.AnchorStanding) {
	t.Helper()
	anchor := &ledger.Anchor{
		Org: ledger.OrgID{UUID: uuid.MustParse(h.tenant.id)}, Kind: ledger.SubjectApproval, Subject: h.id(name), Method: ledger.MethodTSA,
		Standing: standing, Proof: []byte("planted-proof"),
	}
	if standing == ledger.AnchorFailed {
		anchor.Reason = "untrusted"
	}
	var hash string
	if made := h.artifacts[name]; made.kind == "receipt" {
		body := h.get(t, h.tenant.member, "/v1/receipts/"+made.id).expect(t, http.StatusOK).body
		sum := sha256.Sum256(body)
		hash = hex.EncodeToString(sum[:])
		anchor.Kind, anchor.Sequence = ledger.SubjectHead, 2
	} else {
		events := decode[page[struct {
			Approval struct {
				Hash string `json:"approval_hash"`
			} `json:"approval"`
		}]](t, h.get(t, h.tenant.member, "/v1/chains/"+h.chains["first"]+"/events"))
		hash = strings.TrimPrefix(events.Data[1].Approval.Hash, "sha256:")
	}
	digest, err := hex.DecodeString(hash)
	if err != nil || len(digest) != 32 {
		t.Fatalf("the digest is %q: %v", hash, err)
	}
	anchor.Digest = [32]byte(digest)
	if err := h.Service.Jobs().SaveAnchor(t.Context(), anchor); err != nil {
		t.Fatal(err)
	}
}
