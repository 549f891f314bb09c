package ledger

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"countersign/internal/canon"
)

// Names of acts in the audit log. ActAnchorMade is declared with the anchors.
const (
	ActOrganizationCreate   = "organization.create"
	ActOrganizationUpdate   = "organization.update"
	ActLogBegin             = "audit_log.begin"
	ActRowsTrust            = "rows.trust"
	ActRollbackAccept       = "rollback.accept"
	ActLedgerRestore        = "ledger.restore"
	ActTransparencyClose    = "transparency_log.close"
	ActMasterKeyRotate      = "master_key.rotate"
	ActKeyCreate            = "api_key.create"
	ActKeyUpdate            = "api_key.update"
	ActKeyRotate            = "api_key.rotate"
	ActKeyRevoke            = "api_key.revoke"
	ActKeyExpire            = "api_key.expire"
	ActSignInCreate         = "sign_in.create"
	ActSignInUse            = "sign_in.use"
	ActSignInEnd            = "sign_in.end"
	ActPolicyPut            = "policy.put"
	ActKillSwitchActivate   = "kill_switch.activate"
	ActKillSwitchDeactivate = "kill_switch.deactivate"
	ActChainResume          = "chain.resume"
	ActApprovalApprove      = "approval.approve"
	ActApprovalDeny         = "approval.deny"
	ActApprovalCancel       = "approval.cancel"
	ActApprovalOverrule     = "approval.overrule"
	ActWebhookCreate        = "webhook.create"
	ActWebhookTest          = "webhook.test"
	ActWebhookRedeliver     = "webhook.redeliver"
	ActWebhookDelete        = "webhook.delete"
	ActWebhookDisable       = "webhook.disable"
	ActTokenCreate          = "public_token.create" //nolint:gosec // the name of an act, not a credential
	ActTokenRevoke          = "public_token.revoke"
	ActSigningKeyCreate     = "signing_key.create"
	ActSigningKeyImport     = "signing_key.import"
	ActSigningKeyRetire     = "signing_key.retire"
	ActSigningKeyRevoke     = "signing_key.revoke"
	ActSigningKeyConfirm    = "signing_key.confirm"
	ActSigningKeyRetract    = "signing_key.retract"
	ActApprovalsImport      = "approvals.import"
	ActTamperingFound       = "tampering.found"
	ActTamperingAcknowledge = "tampering.acknowledge"
)

// actSentences describe what was done, by kind of act. {name} is replaced by a member of the
// detail, {target} by the target. A part in brackets is omitted if one of its members is missing,
// because older acts have fewer members.
var actSentences = map[string]string{
	ActOrganizationCreate:   "made the organization {target}[, named {name}]",
	ActOrganizationUpdate:   "changed the settings[: {changed}]",
	ActLogBegin:             "began the audit log",
	ActRowsTrust:            "took over rows from before they were authenticated",
	ActRollbackAccept:       "took the database as it is for the truth[: {receipts_stored} receipts of {receipts_acknowledged}][: {chains} chains are not those that were acknowledged][: {organizations_missing} organizations are missing]",
	ActLedgerRestore:        "restored the ledger from a backup[: {receipts} receipts, and {receipts_lost} that were acknowledged are lost][; {organizations_missing} organizations are missing]",
	ActTransparencyClose:    "closed the transparency log {target}[ of {log_size} receipts], which was ended before",
	ActMasterKeyRotate:      "rotated the master key[: {key}]",
	ActKeyCreate:            "made the API key {name}[ with the role {role}][ of {owner}][, to sign in as {sign_in_as}][, for the Slack member {slack_member}][, until {expires_at}]",
	ActKeyUpdate:            "changed who the API key {name} is for[: sign-in {sign_in_as}][: Slack member {slack_member}]",
	ActKeyRotate:            "gave the API key {name} a new secret[; the old one works until {previous_expires_at}]",
	ActKeyRevoke:            "revoked the API key {name}[ with the role {role}]",
	ActKeyExpire:            "let the API key {name} expire[ at {expires_at}]",
	ActSignInCreate:         "made a sign-in link for the API key {name}[, until {expires_at}]",
	ActSignInUse:            "signed in to the console as {name}[ by single sign-on: {subject} at {issuer}][, until {expires_at}]",
	ActSignInEnd:            "signed out of the console as {name}",
	ActPolicyPut:            "put the policy set {target} in force[: {version}]",
	ActKillSwitchActivate:   "activated the kill switch[: {reason}]",
	ActKillSwitchDeactivate: "deactivated the kill switch[, which {activated_by} had activated][ for: {activated_for}]",
	ActChainResume:          "resumed the chain[ {chain_name}][: {status}]",
	ActApprovalApprove:      "approved[ {action_name} of {agent_name}][ in the chain {chain_name}][ as the Slack member {slack_member}][: {status}]",
	ActApprovalDeny:         "denied[ {action_name} of {agent_name}][ in the chain {chain_name}][ as the Slack member {slack_member}][: {status}]",
	ActApprovalCancel:       "withdrew[ {action_name} of {agent_name}][ in the chain {chain_name}][: {status}]",
	ActApprovalOverrule:     "approved[ {action_name} of {agent_name}][ in the chain {chain_name}][ as the Slack member {slack_member}], which the rules deny by now[: {status}]",
	ActWebhookCreate:        "added a webhook[ to {url}]",
	ActWebhookTest:          "sent a test to the webhook[ to {url}]",
	ActWebhookRedeliver:     "sent a message to the webhook[ to {url}] again",
	ActWebhookDelete:        "deleted the webhook[ to {url}]",
	ActWebhookDisable:       "disabled the webhook[ to {url}], whose endpoint is gone",
	ActTokenCreate:          "made a public link to the {artifact_type}[ {artifact_id}][, until {expires_at}]",
	ActTokenRevoke:          "revoked a public link to the {artifact_type}[ {artifact_id}][: {reason}]",
	ActSigningKeyCreate:     "made a signing key[ named {name}]",
	ActSigningKeyImport:     "imported a signing key[ named {name}]",
	ActSigningKeyRetire:     "retired a signing key[ named {name}][: {status}][; {successor_id} signs from now on]",
	ActSigningKeyRevoke:     "revoked a signing key[ named {name}][: {status}][; {successor_id} signs from now on]",
	ActSigningKeyConfirm:    "confirmed a signing key[ named {name}][: {status}]",
	ActSigningKeyRetract:    "took back that a signing key[ named {name}] was confirmed[: {status}]",
	ActApprovalsImport:      "imported approvals that were decided elsewhere[: {approvals}]",
	ActTamperingFound:       "found that stored evidence was changed outside the service[: {check}]",
	ActTamperingAcknowledge: "acknowledged tampering[: {reason}]",
	ActAnchorMade:           "anchored the {kind} {target} in time[ by {method}]",
}

// RecordKind is a kind of administrative record. Each record contains, covered by its
// authenticator, the number of the act that last changed it.
type RecordKind string

// The kinds of records that acts change. An organization is not one of them: the end of the audit
// log contains its hash.
const (
	RecordKey        RecordKind = "api_key"
	RecordToken      RecordKind = "public_token"
	RecordSigningKey RecordKind = "signing_key"
	RecordWebhook    RecordKind = "webhook"
	RecordPolicy     RecordKind = "policy"
	RecordSignIn     RecordKind = "sign_in"
	RecordImport     RecordKind = "approvals_import" // has many rows, each of which names it
)

// changedRecord is a record that an act changes: its target, or a member of its detail.
type changedRecord struct {
	kind   RecordKind
	member string // member of the detail; "" for the target
}

// recordsChanged lists the records that each kind of act changes. Every kind is listed, even if it
// changes none.
var recordsChanged = map[string][]changedRecord{
	ActOrganizationCreate:   {{RecordKey, "api_key_id"}, {RecordSigningKey, "signing_key_id"}},
	ActOrganizationUpdate:   nil,
	ActLogBegin:             {{RecordSigningKey, "signing_key_id"}},
	ActRowsTrust:            nil,
	ActRollbackAccept:       nil,
	ActLedgerRestore:        nil,
	ActTransparencyClose:    nil,
	ActMasterKeyRotate:      nil,
	ActKeyCreate:            {{RecordKey, ""}},
	ActKeyUpdate:            {{RecordKey, ""}},
	ActKeyRotate:            {{RecordKey, ""}},
	ActKeyRevoke:            {{RecordKey, ""}},
	ActKeyExpire:            {{RecordKey, ""}},
	ActSignInCreate:         {{RecordSignIn, "link"}},
	ActSignInUse:            {{RecordSignIn, "link"}, {RecordSignIn, "session"}},
	ActSignInEnd:            {{RecordSignIn, "session"}},
	ActPolicyPut:            {{RecordPolicy, ""}},
	ActKillSwitchActivate:   nil,
	ActKillSwitchDeactivate: nil,
	ActChainResume:          nil,
	ActApprovalApprove:      nil,
	ActApprovalDeny:         nil,
	ActApprovalCancel:       nil,
	ActApprovalOverrule:     nil,
	ActWebhookCreate:        {{RecordWebhook, ""}},
	ActWebhookTest:          nil,
	ActWebhookRedeliver:     nil,
	ActWebhookDelete:        {{RecordWebhook, ""}},
	ActWebhookDisable:       {{RecordWebhook, ""}},
	ActTokenCreate:          {{RecordToken, ""}},
	ActTokenRevoke:          {{RecordToken, ""}},
	ActSigningKeyCreate:     {{RecordSigningKey, ""}},
	ActSigningKeyImport:     {{RecordSigningKey, ""}},
	ActSigningKeyRetire:     {{RecordSigningKey, ""}, {RecordSigningKey, "successor_id"}},
	ActSigningKeyRevoke:     {{RecordSigningKey, ""}, {RecordSigningKey, "successor_id"}},
	ActSigningKeyConfirm:    {{RecordSigningKey, ""}},
	ActSigningKeyRetract:    {{RecordSigningKey, ""}},
	ActApprovalsImport:      {{RecordImport, ""}},
	ActTamperingFound:       nil,
	ActTamperingAcknowledge: nil,
	ActAnchorMade:           nil,
}

// Record identifies an administrative record.
type Record struct {
	Kind RecordKind
	Name string
}

// Records returns the records that an act changes.
func (a *Act) Records() []Record {
	var records []Record
	for _, changed := range recordsChanged[a.Action] {
		name := a.Target
		if changed.member != "" {
			detail, err := canon.Parse(a.Detail)
			if err != nil {
				continue
			}
			member, _ := detail.Get(changed.member)
			name = member.Str()
		}
		if name != "" {
			records = append(records, Record{changed.kind, name})
		}
	}
	return records
}

// ActKinds lists the kinds of acts in alphabetical order.
func ActKinds() []string { return slices.Sorted(maps.Keys(actSentences)) }

// Sentence describes an act, without its actor. It contains text written by people and agents, so
// callers must escape it. Long values are cut; the detail has them in full.
func (a *Act) Sentence() string {
	pattern, ok := actSentences[a.Action]
	if !ok {
		return a.Action
	}
	detail, err := canon.Parse(a.Detail)
	if err != nil {
		detail = canon.Value{}
	}
	var said strings.Builder
	for pattern != "" {
		open := strings.IndexByte(pattern, '[')
		if open < 0 {
			open = len(pattern)
		}
		part, _ := a.fill(pattern[:open], detail)
		said.WriteString(part)
		if pattern = pattern[open:]; pattern == "" {
			break
		}
		end := strings.IndexByte(pattern, ']')
		if part, complete := a.fill(pattern[1:end], detail); complete {
			said.WriteString(part)
		}
		pattern = pattern[end+1:]
	}
	return said.String()
}

// fill replaces the placeholders in a part of a sentence.
func (a *Act) fill(part string, detail canon.Value) (text string, complete bool) {
	var said strings.Builder
	complete = true
	for {
		before, rest, found := strings.Cut(part, "{")
		said.WriteString(before)
		if !found {
			return said.String(), complete
		}
		name, after, _ := strings.Cut(rest, "}")
		part = after
		value := a.Target
		if name != "target" {
			member, _ := detail.Get(name)
			value = inWords(member)
		}
		if value == "" {
			complete, value = false, "–"
		}
		said.WriteString(value)
	}
}

// Limits on what a sentence shows of a value, in runes.
const (
	maxShown   = 80
	maxChanges = 400
)

// inWords returns a value of a detail for a sentence: a text unchanged, a change as "from … to …",
// changes by their names, and anything else as canonical JSON.
func inWords(v canon.Value) string {
	if from, to, ok := change(v); ok {
		return "from " + from + " to " + to
	}
	switch v.Kind() {
	case canon.Null:
		return ""
	case canon.String:
		return cut(v.Str(), maxShown)
	case canon.Object:
		var changes []string
		for _, member := range v.Members() {
			changes = append(changes, member.Name+" "+inWords(member.Value))
		}
		return cut(strings.Join(changes, "; "), maxChanges)
	default:
		return cut(string(v.Append(nil)), maxShown)
	}
}

func change(v canon.Value) (from, to string, ok bool) {
	was, hasFrom := v.Get("from")
	is, hasTo := v.Get("to")
	if v.Kind() != canon.Object || !hasFrom || !hasTo || len(v.Members()) != 2 {
		return "", "", false
	}
	word := func(v canon.Value) string {
		switch v.Kind() {
		case canon.Null:
			return "none"
		case canon.String:
			return cut(v.Str(), maxShown)
		default:
			return cut(string(v.Append(nil)), maxShown)
		}
	}
	return word(was), word(is), true
}

// cut shortens a text to the given number of runes.
func cut(text string, most int) string {
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most-1]) + "…"
}
