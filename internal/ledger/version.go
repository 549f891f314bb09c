package ledger

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"countersign/internal/canon"
	"countersign/internal/classify"
	"countersign/internal/fault"
)

// The digits of a policy version cover the policy set and every setting that can change a decision:
// what is decided, by whom, and until when. A setting is left out while it is as in unset.

// unset has the values that meant "not set" when versions started to cover the settings. They are
// spelled out instead of taken from DefaultSettings: another default in a later release must not
// change the meaning of old versions.
var unset = Settings{
	EvaluationMode: Enforce, FinancialThreshold: MoneyOf(5000), CumulativeThreshold: MoneyOf(10_000), ApprovalTimeoutHours: 24,
	FailModes: map[string]string{"safe": "allow", "default": "deny"},
	AutoPause: AutoPause{MaxEvents: 10_000, MaxDurationSeconds: 86_400, MaxTokens: 10_000_000},
}

// deciding encodes one member for each setting that decides, including the digits of a policy set,
// or "". The full form has all of them; otherwise members that are not part of the digits are
// omitted. Differences that cannot change a decision, such as the order of a list, have no effect,
// except in budgets, which earlier releases covered as they were set.
func (s *Settings) deciding(set string, full bool) []byte {
	w := canon.BeginObject(nil)
	if full || s.ApprovalTimeoutHours != unset.ApprovalTimeoutHours {
		w.Number("approval_timeout_hours", s.ApprovalTimeoutHours)
	}
	if full || s.AutoPause != unset.AutoPause {
		w.Value(s.AutoPause.appendTo(w.Name("auto_pause")))
	}
	if full || len(s.Budgets) > 0 {
		w.Value(s.appendBudgets(w.Name("budgets")))
	}
	if full || s.CumulativeThreshold.Cmp(unset.CumulativeThreshold) != 0 {
		w.Number("cumulative_financial_threshold_usd", s.CumulativeThreshold.Float())
	}
	if full || s.EvaluationMode != unset.EvaluationMode {
		w.String("evaluation_mode", string(s.EvaluationMode))
	}
	switch {
	case s.ExternalDomainsAllowlist != nil: // an empty list allows no domain
		w.Strings("external_domains_allowlist", widestDomains(s.ExternalDomainsAllowlist))
	case full:
		w.Null("external_domains_allowlist")
	}
	if full || !maps.Equal(s.FailModes, unset.FailModes) {
		w.Value(append(w.Name("fail_modes"), s.CanonicalFailModes()...))
	}
	if full || len(s.FallbackApprovers) > 0 {
		w.Strings("fallback_approvers", asSet(s.FallbackApprovers))
	}
	if words := asSet(s.SafeActions()); full || !slices.Equal(words, asSet(classify.SafeVerbs)) {
		w.Strings("fast_path_actions", words)
	}
	if full || s.FinancialThreshold.Cmp(unset.FinancialThreshold) != 0 {
		w.Number("financial_approval_threshold_usd", s.FinancialThreshold.Float())
	}
	if full || len(s.HighRiskAgents) > 0 {
		folded := make([]string, 0, len(s.HighRiskAgents))
		for _, name := range s.HighRiskAgents {
			folded = append(folded, classify.FoldName(name))
		}
		w.Strings("high_risk_agents", asSet(folded))
	}
	if set != "" {
		w.String("set", set)
	}
	if full || s.TwoPersonApproval {
		w.Bool("two_person_approval", s.TwoPersonApproval)
	}
	return w.End()
}

// DecidingSettings returns the settings that a policy version covers, in the form that it covers.
func (s *Settings) DecidingSettings() []byte { return s.deciding("", true) }

// asSet normalizes a list whose order and duplicates do not matter.
func asSet(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }

// widestDomains drops the domains that another one of the list includes. It looks for the parents
// of each domain instead of comparing all pairs: an allowlist may have a thousand domains, and every
// transaction that decides an action determines the version.
func widestDomains(domains []string) []string {
	listed := make(map[string]bool, len(domains))
	for _, domain := range domains {
		listed[domain] = true
	}
	return slices.DeleteFunc(asSet(domains), func(domain string) bool {
		_, parent, found := strings.Cut(domain, ".")
		for found && !listed[parent] {
			_, parent, found = strings.Cut(parent, ".")
		}
		return found
	})
}

// policyVersion returns the version of a policy set with the settings.
func (s *Settings) policyVersion(version string) string {
	number, digits, _ := strings.Cut(version, "+")
	deciding := s.deciding(digits, false)
	if string(deciding) == `{"set":"`+digits+`"}` {
		return version
	}
	return number + "+" + PayloadHash(deciding)[:12]
}

// Names reports whether a version is that of the set with the settings. Versions of earlier
// releases covered only the budgets of the settings.
func (s *Settings) Names(version, set string) bool {
	earlier := unset
	earlier.Budgets = s.Budgets
	return version == s.policyVersion(set) || version == earlier.policyVersion(set)
}

// Under returns the policy as it decides with an organization's settings.
func (p *Policy) Under(s *Settings) *Policy {
	version := s.policyVersion(p.Version)
	if version == p.Version {
		return p
	}
	under := *p
	under.Version = version
	return &under
}

// PolicyVersion returns the version of what decides for the organization: its policy set with its
// settings.
func (o *Organization) PolicyVersion() string { return o.Settings.policyVersion(o.SetVersion()) }

// SetVersion returns the version of the organization's policy set as it was put.
func (o *Organization) SetVersion() string {
	if o.Controls.Policy.Number > 0 {
		return o.Controls.Policy.Version
	}
	return BuiltinPolicy.Version
}

// PastSettings are an organization's former settings according to its audit log. The zero value is
// before the first act. It is not safe for concurrent use.
type PastSettings struct {
	changes []map[string]settingChange // oldest first
}

// settingChange is one member of the detail of an organization.update act.
type settingChange struct {
	From json.RawMessage `json:"from"`
}

// maxPastSettings bounds how many changes are kept, newest first.
const maxPastSettings = 10_000

// Step adds the next act.
func (p *PastSettings) Step(stored *StoredAct) error {
	said, err := read(stored)
	if err != nil || string(said.action) != ActOrganizationUpdate {
		return err
	}
	act, err := DecodeAct(stored.Body)
	if err != nil {
		return err
	}
	var detail struct {
		Changed map[string]settingChange `json:"changed"`
	}
	if err := json.Unmarshal(act.Detail, &detail); err != nil {
		return fmt.Errorf("%w: %w", errUnreadableAct, err)
	}
	delete(detail.Changed, "name") // not a setting
	if len(detail.Changed) == 0 {
		return nil
	}
	if p.changes = append(p.changes, detail.Changed); len(p.changes) > maxPastSettings {
		p.changes = p.changes[1:]
	}
	return nil
}

// Find goes back from the current settings to those with which a set has the version. A match is
// proven by the version's digits; a tampered act can only prevent finding one.
func (p *PastSettings) Find(now *Settings, version, set string) (*Settings, error) {
	encoded, err := now.Encode()
	if err != nil {
		return nil, err
	}
	members := make(map[string]json.RawMessage)
	if err := json.Unmarshal(encoded, &members); err != nil {
		return nil, fmt.Errorf("decode settings: %w", err)
	}
	for i := len(p.changes) - 1; i >= 0; i-- {
		for name, change := range p.changes[i] {
			if string(change.From) == "null" { // the setting had its default
				delete(members, name)
				continue
			}
			members[name] = change.From
		}
		body, err := json.Marshal(members)
		if err != nil {
			return nil, fmt.Errorf("encode settings: %w", err)
		}
		before, err := DecodeSettings(body)
		if err == nil && before.Names(version, set) {
			return &before, nil
		}
	}
	return nil, fault.ErrNotFound
}
