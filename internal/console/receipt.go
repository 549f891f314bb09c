package console

import (
	"encoding/json"
	"net/http"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// receiptView is a stored receipt with the verdict on it. Content is nil if the stored bytes cannot be
// read. The verdict also covers the receipt's place in the ledger, its events and its approvals.
type receiptView struct {
	ID      ledger.ReceiptID
	Check   *ledger.ReceiptCheck
	Content *receiptContent
	Agents  list[string]
	Domains list[string]
	Lines   list[receiptLine]
	Asked   list[receiptApproval]
	Stored  []byte
}

// receiptContent is the JSON of a receipt.
type receiptContent struct {
	Number        string            `json:"receipt_number"`
	Chain         string            `json:"chain_id"`
	Organization  string            `json:"organization"`
	Summary       string            `json:"summary"`
	Environment   string            `json:"environment"`
	ExternalID    string            `json:"external_chain_id"`
	Mode          string            `json:"evaluation_mode"`
	StartedAt     string            `json:"started_at"`
	CompletedAt   string            `json:"completed_at"`
	GeneratedAt   string            `json:"generated_at"`
	Agents        []string          `json:"agents_involved"`
	Actions       int64             `json:"total_actions"`
	Metrics       receiptMetrics    `json:"cumulative_metrics"`
	Lines         []receiptLine     `json:"events_summary"`
	Approvals     []receiptApproval `json:"approvals"`
	PolicyVersion string            `json:"policy_version"`
	PreviousHash  string            `json:"previous_receipt_hash"`
	Metadata      json.RawMessage   `json:"metadata"`
	EventsDigest  string            `json:"events_digest"`
	KeyID         string            `json:"key_id"`
	Format        string            `json:"format"`
	Signature     string            `json:"signature"`
}

type receiptMetrics struct {
	Exposure       json.Number `json:"financial_exposure_usd"`
	Communications int64       `json:"external_communications_count"`
	Records        int64       `json:"records_modified_count"`
	Domains        []string    `json:"external_domains_contacted"`
	Cost           json.Number `json:"estimated_cost_usd"`
	Unpriced       int64       `json:"unpriced_calls_count"`
}

type receiptLine struct {
	Agent    string `json:"agent_name"`
	Type     string `json:"action_type"`
	Name     string `json:"action_name"`
	Decision string `json:"policy_decision"`
	Count    int64  `json:"count"`
	FirstAt  string `json:"first_at"`
	LastAt   string `json:"last_at"`
}

type receiptApproval struct {
	ID          string `json:"approval_id"`
	Agent       string `json:"agent_name"`
	Action      string `json:"action_name"`
	Status      string `json:"status"`
	RequestedAt string `json:"requested_at"`
	DecidedAt   string `json:"decided_at"`
}

// readReceipt decodes a stored receipt. It returns nil if that fails. The strict parser runs first,
// because encoding/json accepts duplicate names and would show only the last one.
func readReceipt(stored *ledger.StoredReceipt) *receiptContent {
	if _, err := canon.Parse(stored.Body); err != nil {
		return nil
	}
	var content receiptContent
	if err := json.Unmarshal(stored.Body, &content); err != nil {
		return nil
	}
	if string(content.Metadata) == "null" {
		content.Metadata = nil
	}
	return &content
}

func summaryOf(stored *ledger.StoredReceipt) string {
	if content := readReceipt(stored); content != nil {
		return content.Summary
	}
	return "The stored record was changed and is not shown."
}

func (v *visit) receiptView(caller *service.Caller, stored *ledger.StoredReceipt) (*receiptView, error) {
	check, err := v.console.service.CheckOwnReceipt(v.r.Context(), caller, stored.ID)
	if err != nil {
		return nil, err
	}
	view := &receiptView{ID: stored.ID, Check: check, Content: readReceipt(stored), Stored: stored.Body}
	if c := view.Content; c != nil {
		view.Agents = firstOf(c.Agents, maxNames)
		view.Domains = firstOf(c.Metrics.Domains, maxNames)
		view.Lines = firstOf(c.Lines, maxLines)
		view.Asked = firstOf(c.Approvals, maxLines)
	}
	return view, nil
}

type receiptPage struct {
	*receiptView
	Previous neighbour
	Next     neighbour
	Share    *shareForm    // nil unless the caller is an admin
	Evidence *evidenceForm // nil unless the caller is an admin
}

// neighbour is the previous or the next receipt, and whether the hash that links the two is right.
type neighbour struct {
	ID     ledger.ReceiptID
	Number string
	// State is "linked", "broken", "missing" if there must be one, or "none" if there need not be
	// one.
	State string
}

func showReceipt(v *visit) error {
	caller, err := v.member()
	if err != nil {
		return err
	}
	id, err := ledger.ParseID(v.r.PathValue("receipt_id"))
	if err != nil {
		return errNoReceipt
	}
	stored, err := v.console.service.Receipt(v.r.Context(), caller, ledger.ReceiptID{UUID: id})
	if codeOf(err) == fault.CodeNotFound {
		return errNoReceipt
	}
	if err != nil {
		return err
	}
	page := &receiptPage{Share: v.shareForm(caller, ledger.ArtifactReceipt, stored.ID.UUID), Evidence: v.evidenceForm(caller, stored.ID)}
	if page.receiptView, err = v.receiptView(caller, stored); err != nil {
		return err
	}
	if err := v.loadNeighbours(caller, stored, page); err != nil {
		return err
	}
	title := "Receipt"
	if page.Check.Sound {
		title += " " + page.Check.Number
	}
	return v.show(http.StatusOK, "receipt.html", title, page)
}

var errNoReceipt = fault.Errorf(fault.CodeNotFound, "your organization has no such receipt")

func (v *visit) loadNeighbours(caller *service.Caller, stored *ledger.StoredReceipt, page *receiptPage) error {
	around, err := v.console.service.Receipts(v.r.Context(), caller, stored.Sequence+2, 3)
	if err != nil {
		return err
	}
	page.Previous, page.Next = neighbour{State: "none"}, neighbour{State: "none"}
	if stored.Sequence > 1 || len(stored.PreviousHash) > 0 {
		page.Previous.State = "missing"
	}
	for _, other := range around {
		switch other.Sequence {
		case stored.Sequence - 1:
			page.Previous = checkLink(other, other, stored)
		case stored.Sequence + 1:
			page.Next = checkLink(other, stored, other)
		}
	}
	return nil
}

// checkLink checks the hash in the later receipt against the earlier one. It reads the hash from the
// signed bytes, because the column in the store could have been changed.
func checkLink(shown, earlier, later *ledger.StoredReceipt) neighbour {
	n := neighbour{ID: shown.ID, State: "broken", Number: "receipt"}
	if content := readReceipt(shown); content != nil {
		n.Number = content.Number
	}
	if content := readReceipt(later); content != nil && content.PreviousHash == ledger.FormatHash(earlier.Hash()) {
		n.State = "linked"
	}
	return n
}
