package ledger

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/mail"
	"regexp"
	"slices"
	"strings"

	"countersign/internal/canon"
	"countersign/internal/classify"
)

// Settings are the limits and thresholds that an admin sets for an organization.
type Settings struct {
	EvaluationMode           Mode     `json:"evaluation_mode"`
	FinancialThreshold       Money    `json:"financial_approval_threshold_usd"`
	CumulativeThreshold      Money    `json:"cumulative_financial_threshold_usd"`
	ExternalDomainsAllowlist []string `json:"external_domains_allowlist"` // nil: off
	HighRiskAgents           []string `json:"high_risk_agents"`
	ApprovalTimeoutHours     float64  `json:"approval_timeout_hours"`
	FallbackApprovers        []string `json:"fallback_approvers"`
	TwoPersonApproval        bool     `json:"two_person_approval"`
	// FastPathActions are the first words of actions that clients may decide themselves; nil means
	// all of classify.SafeVerbs, empty means none.
	FastPathActions []string `json:"fast_path_actions,omitzero"`
	// AbandonAfterHours is the number of hours without a request after which a chain is sealed as
	// abandoned; 0 means the default.
	AbandonAfterHours float64           `json:"abandon_after_hours,omitzero"`
	FailModes         map[string]string `json:"fail_modes"`
	AutoPause         AutoPause         `json:"auto_pause"`
	Budgets           []Budget          `json:"budgets,omitzero"`
	// EvidenceExport says who may export evidence; "" means ExportOff.
	EvidenceExport Export `json:"evidence_export,omitzero"`
	// SlackChannel is the id of the Slack channel in which approvals are requested; "" for none.
	SlackChannel string `json:"slack_channel,omitzero"`
}

// Export says who may export evidence from the service.
type Export string

// The values of the setting evidence_export.
const (
	ExportOff    Export = "off"
	ExportAdmins Export = "admins"
)

// Exports returns who may export evidence, by default nobody.
func (s *Settings) Exports() Export { return cmp.Or(s.EvidenceExport, ExportOff) }

// AutoPause are the limits at which a chain pauses itself.
type AutoPause struct {
	MaxEvents          int64 `json:"max_events"`
	MaxDurationSeconds int64 `json:"max_duration_seconds"`
	MaxTokens          int64 `json:"max_tokens"`
}

func (p AutoPause) appendTo(dst []byte) []byte {
	w := canon.BeginObject(dst)
	w.Int("max_duration_seconds", p.MaxDurationSeconds)
	w.Int("max_events", p.MaxEvents)
	w.Int("max_tokens", p.MaxTokens)
	return w.End()
}

// DefaultSettings returns the settings of a new organization.
func DefaultSettings() Settings {
	return Settings{
		EvaluationMode:       Enforce,
		FinancialThreshold:   MoneyOf(5000),
		CumulativeThreshold:  MoneyOf(10000),
		HighRiskAgents:       []string{},
		ApprovalTimeoutHours: 24,
		FallbackApprovers:    []string{},
		FailModes:            map[string]string{"safe": "allow", "default": "deny"},
		AutoPause:            AutoPause{MaxEvents: 10_000, MaxDurationSeconds: 24 * 60 * 60, MaxTokens: 10_000_000},
	}
}

// MaxEventsCeiling bounds the events of a chain: an event's id has 32 bits for its sequence, and a
// receipt lists what a chain did.
const MaxEventsCeiling = 1_000_000

// Encode returns the settings in their stored form.
func (s *Settings) Encode() ([]byte, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode settings: %w", err)
	}
	return body, nil
}

// DecodeSettings decodes the result of Encode. Settings that were added later have their defaults.
func DecodeSettings(body []byte) (Settings, error) {
	s := DefaultSettings()
	s.FailModes = nil
	if err := json.Unmarshal(body, &s); err != nil {
		return Settings{}, fmt.Errorf("decode settings: %w", err)
	}
	if s.FailModes == nil {
		s.FailModes = DefaultSettings().FailModes
	}
	return s, nil
}

// SafeActions returns the first words of actions that clients may decide themselves.
func (s *Settings) SafeActions() []string {
	if s.FastPathActions == nil {
		return classify.SafeVerbs
	}
	return s.FastPathActions
}

// CanonicalFailModes returns the fail modes in the form that an opened chain contains.
func (s *Settings) CanonicalFailModes() []byte {
	w := canon.BeginObject(nil)
	for _, category := range slices.Sorted(maps.Keys(s.FailModes)) {
		w.String(category, s.FailModes[category])
	}
	return w.End()
}

// Patch returns the organization with the members of a request replaced. Other members do not
// change.
func (o Organization) Patch(v canon.Value) (Organization, error) {
	f := canon.NewFields(v)
	s := &o.Settings
	if f.Given("name") {
		o.Name = f.RequiredName("name", maxName)
	}
	if f.Given("slug") && f.Text("slug", maxName) != o.Slug {
		f.Fault("slug", "cannot be changed: it is part of signed receipts")
	}
	replace(f, "evaluation_mode", &s.EvaluationMode, func(name string) Mode {
		return Mode(f.OneOf(name, string(Enforce), string(Shadow)))
	})
	money := func(name string) Money { return MoneyOf(f.Number(name, 0, maxAmount)) }
	replace(f, "financial_approval_threshold_usd", &s.FinancialThreshold, money)
	replace(f, "cumulative_financial_threshold_usd", &s.CumulativeThreshold, money)
	if f.Given("external_domains_allowlist") {
		s.ExternalDomainsAllowlist = parseDomains(f, "external_domains_allowlist")
	}
	replace(f, "high_risk_agents", &s.HighRiskAgents, func(name string) []string { return f.Texts(name, maxListed, maxName) })
	replace(f, "approval_timeout_hours", &s.ApprovalTimeoutHours, func(name string) float64 {
		return f.Number(name, minTimeoutHours, maxTimeoutHours)
	})
	replace(f, "fallback_approvers", &s.FallbackApprovers, func(name string) []string { return parseAddresses(f, name) })
	replace(f, "two_person_approval", &s.TwoPersonApproval, f.Bool)
	replace(f, "fast_path_actions", &s.FastPathActions, func(name string) []string { return parseSafeActions(f, name) })
	replace(f, "abandon_after_hours", &s.AbandonAfterHours, func(name string) float64 {
		return f.Number(name, minAbandonHours, maxAbandonHours)
	})
	replace(f, "fail_modes", &s.FailModes, func(name string) map[string]string { return parseFailModes(f, name) })
	replace(f, "auto_pause", &s.AutoPause, func(name string) AutoPause {
		limits := f.Nested(name)
		defer f.Join(limits)
		return patchAutoPause(limits, s.AutoPause)
	})
	replace(f, "evidence_export", &s.EvidenceExport, func(name string) Export {
		return Export(f.OneOf(name, string(ExportOff), string(ExportAdmins)))
	})
	if f.Given("slack_channel") {
		s.SlackChannel = parseSlackChannel(f, "slack_channel")
	}
	replace(f, "budgets", &s.Budgets, func(name string) []Budget { return parseBudgets(f, name) })
	if err := f.Err(); err != nil {
		return Organization{}, err
	}
	return o, nil
}

// replace sets a member that is given, and refuses null: a setting can be replaced but not removed.
func replace[T any](f *canon.Fields, name string, target *T, read func(string) T) {
	if !f.Given(name) {
		return
	}
	if !f.Has(name) {
		f.Fault(name, "must not be null")
		return
	}
	*target = read(name)
}

const (
	maxAddress      = 320 // characters of an e-mail address
	maxAmount       = 1e15
	minTimeoutHours = 1.0 / 3600
	maxTimeoutHours = 24 * 365
	maxSeconds      = 10 * 365 * 24 * 60 * 60
)

func patchAutoPause(f *canon.Fields, limits AutoPause) AutoPause {
	replace(f, "max_events", &limits.MaxEvents, func(n string) int64 { return f.Int(n, 1, MaxEventsCeiling) })
	replace(f, "max_duration_seconds", &limits.MaxDurationSeconds, func(n string) int64 { return f.Int(n, 1, maxSeconds) })
	replace(f, "max_tokens", &limits.MaxTokens, func(n string) int64 { return f.Int(n, 1, math.MaxInt32*1000) })
	return limits
}

// maxSlackID is the maximum length of an id of Slack. Its ids are shorter, and may grow.
const maxSlackID = 31

var slackChannelPattern = regexp.MustCompile(`^[CG][A-Z0-9]{1,30}$`)

// parseSlackChannel reads the id of a channel; null for none. A name would do for Slack, too, but
// somebody else may get it.
func parseSlackChannel(f *canon.Fields, name string) string {
	channel := f.FilledText(name, maxSlackID)
	if channel != "" && !slackChannelPattern.MatchString(channel) {
		f.Fault(name, "must be the id of a Slack channel, such as C0123456789, or null; the channel's details show its id")
	}
	return channel
}

func parseSafeActions(f *canon.Fields, name string) []string {
	words := readTexts(f, name, int64(len(classify.SafeVerbs)), maxName)
	for i, word := range words {
		if !slices.Contains(classify.SafeVerbs, word) || slices.Contains(words[:i], word) {
			f.FaultAt(name, i, "must be one of "+strings.Join(classify.SafeVerbs, ", ")+", each at most once")
		}
	}
	return words
}

func parseFailModes(f *canon.Fields, name string) map[string]string {
	modes := make(map[string]string)
	nested := f.Nested(name)
	categories := nested.Members()
	if len(categories) > 50 {
		f.Fault(name, "must have at most 50 categories")
		return nil
	}
	for _, member := range categories {
		category := member.Name
		if !categoryPattern.MatchString(category) {
			nested.Fault(category, "must be named with 1 to 64 lower-case letters, digits and underscores")
		} else if modes[category] = nested.OneOf(category, "deny", "allow"); !nested.Has(category) {
			nested.Fault(category, "must be deny or allow")
		}
	}
	f.Join(nested)
	return modes
}

var categoryPattern = regexp.MustCompile(`^[a-z0-9_]{1,64}$`)

var domainPattern = regexp.MustCompile(`^([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// parseDomains returns domains in the form that is compared.
func parseDomains(f *canon.Fields, name string) []string {
	domains := readTexts(f, name, maxListed, maxDomain)
	for i, domain := range domains {
		ascii, ok := classify.ASCIIDomain(domain)
		if !ok || !domainPattern.MatchString(ascii) {
			f.Fault(name, "element %d must be a domain in lower case, such as example.com", i)
		}
		domains[i] = ascii
	}
	return domains
}

func parseAddresses(f *canon.Fields, name string) []string {
	addresses := readTexts(f, name, 20, maxAddress)
	for i, address := range addresses {
		if !plausibleAddress(address) {
			f.Fault(name, "element %d must be an e-mail address", i)
		}
	}
	return addresses
}

// Addresses returns the e-mail addresses in a list of names.
func Addresses(names []string) []string {
	var addresses []string
	for _, name := range names {
		if plausibleAddress(name) {
			addresses = append(addresses, name)
		}
	}
	return addresses
}

func plausibleAddress(address string) bool {
	parsed, err := mail.ParseAddress(address)
	return err == nil && parsed.Address == address
}
