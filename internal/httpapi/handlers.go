package httpapi

import (
	"encoding/json"
	"net/http"
	"slices"

	"countersign/internal/ledger"
	"countersign/internal/service"
)

// Ids in paths: a text that is no id names nothing.

func (x *exchange) chainID() (ledger.ChainID, error) {
	id, err := ledger.ParseID(x.r.PathValue("chain_id"))
	if err != nil {
		return ledger.ChainID{}, ledger.ErrNotFound
	}
	return ledger.ChainID{UUID: id}, nil
}

func (x *exchange) receiptID() (ledger.ReceiptID, error) {
	id, err := ledger.ParseID(x.r.PathValue("receipt_id"))
	if err != nil {
		return ledger.ReceiptID{}, ledger.ErrNotFound
	}
	return ledger.ReceiptID{UUID: id}, nil
}

func openChain(x *exchange) error {
	key, err := x.idempotencyKey()
	if err != nil {
		return err
	}
	body, err := x.body()
	if err != nil {
		return err
	}
	request, err := ledger.ParseChainRequest(body)
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
		return "", ledger.Invalid(ledger.FieldError{Pointer: "/Idempotency-Key", Detail: "the header must be given once, with 1 to 200 printable ASCII characters"})
	}
	return keys[0], nil
}

func listChains(x *exchange) error {
	q := x.query("status", "environment", "external_chain_id")
	filter := service.ChainFilter{
		Status: ledger.ChainStatus(q.text("status")), Environment: q.text("environment"),
		ExternalID: q.text("external_chain_id"), Limit: q.limit(),
	}
	if filter.Status != "" && !slices.Contains(ledger.ChainStatuses, filter.Status) {
		q.fault("status", "must be one of active, auto_paused, completed, failed")
	}
	if id, given := q.idCursor(chainCursor); given {
		filter.Before = &ledger.ChainID{UUID: id}
	}
	if err := q.err(); err != nil {
		return err
	}
	chains, err := x.api.service.Chains(x.r.Context(), x.caller, filter)
	if err != nil {
		return err
	}
	next := ""
	if len(chains) == filter.Limit {
		next = encodeIDCursor(chainCursor, chains[len(chains)-1].ID.UUID)
	}
	return x.answer(http.StatusOK, appendList(nil, chains, next, func(dst []byte, c *service.ChainView) []byte {
		return appendChain(dst, c, nil)
	}))
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

func recordEvent(x *exchange) error {
	id, err := x.chainID()
	if err != nil {
		return err
	}
	body, err := x.body()
	if err != nil {
		return err
	}
	action, err := ledger.ParseAction(body)
	if err != nil {
		return err
	}
	recorded, err := x.api.service.RecordEvent(x.r.Context(), x.caller, id, action)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, appendDecision(make([]byte, 0, 1024), recorded))
}

func listEvents(x *exchange) error {
	id, err := x.chainID()
	if err != nil {
		return err
	}
	q := x.query()
	limit, after := q.limit(), q.numberCursor(eventCursor)
	if err := q.err(); err != nil {
		return err
	}
	events, err := x.api.service.Events(x.r.Context(), x.caller, id, after, limit)
	if err != nil {
		return err
	}
	next := ""
	if len(events) == limit {
		next = encodeNumberCursor(eventCursor, events[len(events)-1].Sequence)
	}
	return x.answer(http.StatusOK, appendList(nil, events, next, appendEvent))
}

func reportOutcome(x *exchange) error {
	id, err := x.chainID()
	if err != nil {
		return err
	}
	event, err := ledger.ParseID(x.r.PathValue("event_id"))
	if err != nil {
		return ledger.ErrNotFound
	}
	body, err := x.body()
	if err != nil {
		return err
	}
	report, err := ledger.ParseOutcomeReport(body)
	if err != nil {
		return err
	}
	result, err := x.api.service.ReportOutcome(x.r.Context(), x.caller, id, ledger.EventID{UUID: event}, report)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, appendOutcome(nil, id, result))
}

func completeChain(x *exchange) error {
	id, err := x.chainID()
	if err != nil {
		return err
	}
	body, given, err := x.optionalBody()
	if err != nil {
		return err
	}
	if given && body.IsNull() {
		// No body completes a chain, and that cannot be undone: null was a slip.
		return ledger.Invalid(ledger.FieldError{Detail: "must be an object"})
	}
	completion, err := ledger.ParseCompletion(body)
	if err != nil {
		return err
	}
	completed, err := x.api.service.CompleteChain(x.r.Context(), x.caller, id, completion)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, appendChain(make([]byte, 0, 4096), &completed.ChainView, completed.Receipt))
}

func getChainReceipt(x *exchange) error {
	id, err := x.chainID()
	if err != nil {
		return err
	}
	receipt, err := x.api.service.ReceiptOfChain(x.r.Context(), x.caller, id)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, receipt.Body)
}

func listReceipts(x *exchange) error {
	q := x.query()
	limit, before := q.limit(), q.numberCursor(receiptCursor)
	if err := q.err(); err != nil {
		return err
	}
	receipts, err := x.api.service.Receipts(x.r.Context(), x.caller, before, limit)
	if err != nil {
		return err
	}
	next := ""
	if len(receipts) == limit {
		next = encodeNumberCursor(receiptCursor, receipts[len(receipts)-1].Sequence)
	}
	return x.answer(http.StatusOK, appendList(nil, receipts, next, func(dst []byte, r *ledger.StoredReceipt) []byte {
		return append(dst, r.Body...)
	}))
}

func getReceipt(x *exchange) error {
	id, err := x.receiptID()
	if err != nil {
		return err
	}
	receipt, err := x.api.service.Receipt(x.r.Context(), x.caller, id)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, receipt.Body)
}

func checkReceipt(x *exchange) error {
	id, err := x.receiptID()
	if err != nil {
		return err
	}
	check, err := x.api.service.CheckReceipt(x.r.Context(), id)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, appendCheck(nil, check))
}

func getOrganization(x *exchange) error {
	org, err := x.api.service.Organization(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	return x.organization(org)
}

func patchOrganization(x *exchange) error {
	body, err := x.body()
	if err != nil {
		return err
	}
	org, err := x.api.service.UpdateOrganization(x.r.Context(), x.caller, body)
	if err != nil {
		return err
	}
	return x.organization(org)
}

func (x *exchange) organization(org *ledger.Organization) error {
	body, err := json.Marshal(struct {
		Slug      string `json:"slug"`
		Name      string `json:"name"`
		CreatedAt string `json:"created_at"`
		ledger.Settings
		PolicyVersion string `json:"policy_version"`
	}{org.Slug, org.Name, org.CreatedAt.String(), org.Settings, ledger.BuiltinPolicy.Version})
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, body)
}

func listKeys(x *exchange) error {
	q := x.query()
	limit := q.limit()
	after, _ := q.idCursor(keyCursor)
	if err := q.err(); err != nil {
		return err
	}
	keys, err := x.api.service.APIKeys(x.r.Context(), x.caller, ledger.KeyID{UUID: after}, limit)
	if err != nil {
		return err
	}
	next := ""
	if len(keys) == limit {
		next = encodeIDCursor(keyCursor, keys[len(keys)-1].ID.UUID)
	}
	return x.answer(http.StatusOK, appendList(nil, keys, next, func(dst []byte, k *ledger.KeyRecord) []byte {
		return appendKey(dst, k, nil)
	}))
}

func createKey(x *exchange) error {
	body, err := x.body()
	if err != nil {
		return err
	}
	request, err := service.ParseKeyRequest(body)
	if err != nil {
		return err
	}
	key, err := x.api.service.CreateAPIKey(x.r.Context(), x.caller, request)
	if err != nil {
		return err
	}
	return x.answer(http.StatusCreated, appendKey(nil, key.Record, &key.Text))
}

func revokeKey(x *exchange) error {
	id, err := ledger.ParseID(x.r.PathValue("key_id"))
	if err != nil {
		return ledger.ErrNotFound
	}
	key, err := x.api.service.RevokeAPIKey(x.r.Context(), x.caller, ledger.KeyID{UUID: id})
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, appendKey(nil, key, nil))
}
