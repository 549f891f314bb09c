package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/google/uuid"

	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// pathID reads an id from the path. A text that is not an id is answered like an unknown id.
func (x *exchange) pathID(name string) (uuid.UUID, error) {
	id, err := ledger.ParseID(x.r.PathValue(name))
	if err != nil {
		return uuid.Nil, fault.ErrNotFound
	}
	return id, nil
}

func (x *exchange) chainID() (ledger.ChainID, error) {
	id, err := x.pathID("chain_id")
	return ledger.ChainID{UUID: id}, err
}

func (x *exchange) approvalID() (ledger.ApprovalID, error) {
	id, err := x.pathID("approval_id")
	return ledger.ApprovalID{UUID: id}, err
}

func (x *exchange) receiptID() (ledger.ReceiptID, error) {
	id, err := x.pathID("receipt_id")
	return ledger.ReceiptID{UUID: id}, err
}

// namedReceipt is receiptID for routes of members, who may also use the receipt's number.
func (x *exchange) namedReceipt() (ledger.ReceiptID, error) {
	if name := x.r.PathValue("receipt_id"); strings.HasPrefix(name, ledger.NumberPrefix) {
		return x.api.service.ReceiptNumbered(x.r.Context(), x.caller, name)
	}
	return x.receiptID()
}

func (x *exchange) webhookID() (ledger.WebhookID, error) {
	id, err := x.pathID("webhook_id")
	return ledger.WebhookID{UUID: id}, err
}

func openChain(x *exchange) error {
	key, err := x.idempotencyKey()
	if err != nil {
		return err
	}
	request, err := parsed(x, ledger.ParseChainRequest)
	if err != nil {
		return err
	}
	chain, err := x.api.service.OpenChain(x.r.Context(), x.caller, request, key)
	if err != nil {
		return err
	}
	x.w.Header().Set("Location", "/v1/chains/"+chain.ID.String())
	return x.answer(http.StatusCreated, appendChain(nil, chain, nil))
}

func (x *exchange) idempotencyKey() (string, error) {
	keys := x.r.Header.Values("Idempotency-Key")
	if len(keys) == 0 {
		return "", nil
	}
	bad := func(r rune) bool { return r < ' ' || r > '~' }
	if len(keys) > 1 || keys[0] == "" || len(keys[0]) > ledger.MaxIdempotencyKey || slices.ContainsFunc([]rune(keys[0]), bad) {
		return "", fault.Invalid(fault.FieldError{Pointer: "/Idempotency-Key", Detail: "the header must be given once, with 1 to 200 printable ASCII characters"})
	}
	return keys[0], nil
}

func listChains(x *exchange) error {
	q := x.search("status", "environment", "external_chain_id", "decision")
	filter := service.ChainFilter{
		Status: ledger.ChainStatus(q.text("status")), Environment: q.text("environment"),
		ExternalID: q.text("external_chain_id"), Limit: q.limit(),
	}
	if filter.Status != "" && !slices.Contains(ledger.ChainStatuses, filter.Status) {
		q.fault("status", "must be one of active, auto_paused, completed, failed")
	}
	find := q.find()
	find.Decision = q.decision()
	if id, given := q.idCursor(chainCursor); given {
		filter.Before = &ledger.ChainID{UUID: id}
	}
	if err := q.err(); err != nil {
		return err
	}
	found := new(service.Found[*service.ChainView, ledger.ChainID])
	var err error
	if find.Any() {
		found, err = x.api.service.FindChains(x.r.Context(), x.caller, &service.ChainSearch{Find: find, ChainFilter: filter})
	} else {
		found.Items, err = x.api.service.Chains(x.r.Context(), x.caller, filter)
	}
	if err != nil {
		return err
	}
	cursor := func(c *service.ChainView) string { return encodeIDCursor(chainCursor, c.ID.UUID) }
	rest := ""
	if found.Next != nil {
		rest = encodeIDCursor(chainCursor, found.Next.UUID)
	}
	return listPart(x, found.Items, filter.Limit, cursor, rest, func(dst []byte, c *service.ChainView) []byte {
		return appendChain(dst, c, nil)
	})
}

func getChain(x *exchange) error {
	id, err := x.chainID()
	if err != nil {
		return err
	}
	chain, err := x.api.service.Chain(x.r.Context(), x.caller, id)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, appendChain(nil, chain, nil))
}

func completeChain(x *exchange) error {
	id, err := x.chainID()
	if err != nil {
		return err
	}
	// An empty body completes the chain too. Completing cannot be undone, so null is refused.
	completion, err := parsedOptional(x, ledger.ParseCompletion)
	if err != nil {
		return err
	}
	completed, err := x.api.service.CompleteChain(x.r.Context(), x.caller, id, completion)
	if err != nil {
		return err
	}
	return answerBuffered(x, http.StatusOK, func(dst []byte) []byte { return appendChain(dst, &completed.ChainView, completed.Receipt) })
}

func resumeChain(x *exchange) error {
	id, err := x.chainID()
	if err != nil {
		return err
	}
	chain, err := x.api.service.ResumeChain(x.r.Context(), x.caller, id)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, appendChain(nil, chain, nil))
}
