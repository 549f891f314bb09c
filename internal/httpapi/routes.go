package httpapi

import (
	"net/http"

	"countersign/internal/fault"
	"countersign/internal/ledger"
)

// Access says who may call a route.
type Access string

// Public routes need no key. The others need a key of at least this role.
const (
	Public Access = "public"
	Agent         = Access(ledger.RoleAgent)
	Member        = Access(ledger.RoleMember)
	Admin         = Access(ledger.RoleAdmin)
)

// Route is one operation of the API. Access is for documentation and tests; the service enforces it.
type Route struct {
	Method  string
	Pattern string
	Access  Access
	// Limited says that Config.PublicRate applies.
	Limited bool
	handle  func(*exchange) error
}

// Routes lists every operation. Tests compare the list with the OpenAPI document and try each route
// with every role.
func (a *API) Routes() []Route {
	return []Route{
		{http.MethodPost, "/v1/chains", Agent, false, openChain},
		{http.MethodGet, "/v1/chains", Agent, false, listChains},
		{http.MethodGet, "/v1/chains/{chain_id}", Agent, false, getChain},
		{http.MethodPost, "/v1/chains/{chain_id}/events", Agent, false, recordEvent},
		{http.MethodGet, "/v1/chains/{chain_id}/events", Member, false, listEvents},
		{http.MethodPost, "/v1/chains/{chain_id}/events/batch", Agent, false, reportEvents},
		{http.MethodPost, "/v1/chains/{chain_id}/events/{event_id}/outcome", Agent, false, reportOutcome},
		{http.MethodPost, "/v1/chains/{chain_id}/complete", Agent, false, completeChain},
		{http.MethodGet, "/v1/chains/{chain_id}/receipt", Agent, false, getChainReceipt},
		{http.MethodPost, "/v1/chains/{chain_id}/resume", Admin, false, resumeChain},
		{http.MethodGet, "/v1/chains/{chain_id}/approval-status", Agent, false, approvalStatus},
		{http.MethodGet, "/v1/approvals", Agent, false, listApprovals},
		{http.MethodGet, waitPattern, Agent, false, getApproval},
		{http.MethodPost, "/v1/approvals/{approval_id}/approve", Member, false, approve},
		{http.MethodPost, "/v1/approvals/{approval_id}/cancel", Agent, false, cancel},
		{http.MethodPost, "/v1/approvals/{approval_id}/deny", Member, false, deny},
		{http.MethodGet, "/v1/receipts", Member, false, listReceipts},
		{http.MethodGet, "/v1/receipts/{receipt_id}", Member, false, getReceipt},
		{http.MethodGet, "/v1/receipts/{receipt_id}/bundle", Admin, false, getBundle},
		{http.MethodGet, "/v1/receipts/{receipt_id}/verify", Public, true, checkReceipt},
		{http.MethodGet, "/v1/verification/v2/approvals/{approval_id}", Member, false, verifyApproval},
		{http.MethodGet, "/v1/verification/v2/receipts/{receipt_id}", Member, false, verifyReceipt},
		{http.MethodGet, "/v1/verification/v2/ledger", Admin, false, auditLedger},
		{http.MethodPost, "/v1/verification/v2/anchors", Admin, false, anchorHead},
		{http.MethodGet, "/v1/public-verification-tokens", Admin, false, listTokens},
		{http.MethodPost, "/v1/public-verification-tokens", Admin, false, issueToken},
		{http.MethodPost, "/v1/public-verification-tokens/{token_id}/revoke", Admin, false, revokeToken},
		{http.MethodGet, publicPattern, Public, true, verifyToken},
		{http.MethodPost, publicPattern, Public, true, compareToken}, // for the page's form, which has no action attribute
		{http.MethodPost, publicPattern + "/compare", Public, true, compareToken},
		{http.MethodGet, "/v1/shares", Admin, false, listShares},
		{http.MethodPost, "/v1/shares", Admin, false, createShare},
		{http.MethodPost, "/v1/shares/{share_id}/revoke", Admin, false, revokeShare},
		{http.MethodGet, sharePattern, Public, true, openShare},
		{http.MethodGet, "/public/approvals/{approval_id}", Public, true, verifyLegacy},
		{http.MethodGet, "/v1/approvals/{approval_id}/verify", Public, true, verifyLegacy},
		{http.MethodGet, "/.well-known/countersign/log-keys", Public, true, logKeys},
		{http.MethodGet, "/public/log/{log_id}/checkpoint", Public, true, logCheckpoint},
		{http.MethodGet, "/public/log/{log_id}/tile/{level}/{number...}", Public, true, logTile},
		{http.MethodGet, "/v1/signing-keys", Admin, false, listSigningKeys},
		{http.MethodPost, "/v1/signing-keys", Admin, false, createSigningKey},
		{http.MethodPost, "/v1/signing-keys/{key_id}/retire", Admin, false, retireSigningKey},
		{http.MethodPost, "/v1/signing-keys/{key_id}/revoke", Admin, false, revokeSigningKey},
		{http.MethodPost, "/v1/signing-keys/{key_id}/confirm", Admin, false, confirmSigningKey},
		{http.MethodPost, "/v1/signing-keys/{key_id}/retract", Admin, false, retractSigningKey},
		{http.MethodGet, "/v1/organization", Member, false, getOrganization},
		{http.MethodPatch, "/v1/organization", Admin, false, patchOrganization},
		{http.MethodGet, "/v1/budgets", Member, false, listBudgets},
		{http.MethodGet, "/v1/policies", Member, false, listPolicies},
		{http.MethodPut, "/v1/policies", Admin, false, putPolicy},
		{http.MethodGet, "/v1/policies/{version}", Member, false, getPolicy},
		{http.MethodPost, "/v1/policies/check", Member, false, checkPolicy},
		{http.MethodPost, "/v1/policies/simulate", Admin, false, simulatePolicy},
		{http.MethodGet, "/v1/kill-switch", Member, false, getKillSwitch},
		{http.MethodPost, "/v1/kill-switch/activate", Admin, false, activateKillSwitch},
		{http.MethodPost, "/v1/kill-switch/deactivate", Admin, false, deactivateKillSwitch},
		{http.MethodGet, "/v1/webhooks", Admin, false, listWebhooks},
		{http.MethodPost, "/v1/webhooks", Admin, false, createWebhook},
		{http.MethodDelete, "/v1/webhooks/{webhook_id}", Admin, false, deleteWebhook},
		{http.MethodPost, "/v1/webhooks/{webhook_id}/test", Admin, false, testWebhook},
		{http.MethodGet, "/v1/webhooks/{webhook_id}/deliveries", Admin, false, listDeliveries},
		{http.MethodPost, "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver", Admin, false, redeliver},
		{http.MethodPost, "/v1/slack/interactions", Public, true, pressSlackButton},
		{http.MethodGet, "/v1/audit-log", Admin, false, listActs},
		{http.MethodGet, "/v1/api-keys", Admin, false, listKeys},
		{http.MethodPost, "/v1/api-keys", Admin, false, createKey},
		{http.MethodPatch, "/v1/api-keys/{key_id}", Admin, false, updateKey},
		{http.MethodPost, "/v1/api-keys/{key_id}/revoke", Admin, false, revokeKey},
		{http.MethodPost, "/v1/api-keys/{key_id}/rotate", Admin, false, rotateKey},
		{http.MethodGet, verifyPath, Public, true, verifyPage},
		{http.MethodGet, "/healthz", Public, false, health},
		{http.MethodGet, "/readyz", Public, false, ready},
		{http.MethodGet, "/openapi.json", Public, true, openAPIJSON},
		{http.MethodGet, "/openapi.yaml", Public, true, openAPIYAML},
		{http.MethodGet, "/docs", Public, true, docsPage},
		{http.MethodGet, "/docs/{asset}", Public, true, docsAsset},
		{http.MethodGet, GuidesPath, Public, true, listGuides},
		{http.MethodGet, GuidesPath + "/{name...}", Public, true, showGuide},
	}
}

var notFound = Route{Pattern: "/", Access: Public, handle: func(*exchange) error {
	return fault.Errorf(fault.CodeNotFound, "there is no such route; /docs lists all routes")
}}

func wrongMethod(pattern, methods string) Route {
	return Route{Pattern: pattern, Access: Public, handle: func(x *exchange) error {
		x.w.Header().Set("Allow", methods)
		return fault.Errorf(fault.CodeMethodNotAllowed, "this route takes %s", methods)
	}}
}
