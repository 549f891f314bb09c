package console

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// settingsForm is the form with the organization's settings.
type settingsForm struct {
	Name, Mode, Single, Cumulative   string
	Allowlist, HighRisk, Fallback    string // one per line
	Timeout, Abandon                 string // hours
	FastPath                         string // words, one per line
	MaxEvents, MaxSeconds, MaxTokens string
	FailModes                        string // "category: mode", one per line
	Export                           string // who may export evidence
	SlackChannel                     string
	Listed, TwoPerson                bool
	Budgets                          []budgetForm

	Bars     []budgetBar // the current use of budgets
	MoreBars bool        // there are more than are shown

	// Seen is the hash of the settings that the form shows, so that it does not overwrite the
	// changes that somebody else made meanwhile.
	Seen        string
	Saved       bool
	Slack       bool                 // the server has a Slack app
	NoRecipient *service.NoRecipient // nil if escalations reach somebody
	Refusal     *refusal
}

// noRecipient returns why escalations reach nobody. It returns nil if they reach somebody, or if the caller
// is not an admin.
func (v *visit) noRecipient(caller *service.Caller) (*service.NoRecipient, error) {
	if !caller.Role.Includes(ledger.RoleAdmin) {
		return nil, nil
	}
	return v.console.service.NoRecipient(v.r.Context(), caller)
}

// hasSlack reports whether the server has a Slack app.
func (v *visit) hasSlack() bool { return v.console.service.RequireSlack() == nil }

func showSettings(v *visit) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	page, err := settingsOf(v.organization)
	if err != nil {
		return err
	}
	if page.NoRecipient, err = v.noRecipient(caller); err != nil {
		return err
	}
	if page.Bars, page.MoreBars, err = v.budgetBars(caller); err != nil {
		return err
	}
	page.Slack = v.hasSlack()
	page.Saved = v.r.URL.Query().Get("saved") == "yes"
	return v.show(http.StatusOK, "settings.html", "Settings", page)
}

func settingsOf(org *ledger.Organization) (*settingsForm, error) {
	s := &org.Settings
	seen, err := settingsHash(org)
	if err != nil {
		return nil, err
	}
	var modes []string
	for category, mode := range s.FailModes {
		modes = append(modes, category+": "+mode)
	}
	slices.Sort(modes)
	return &settingsForm{
		Name: org.Name, Mode: string(s.EvaluationMode), Single: s.FinancialThreshold.String(), Cumulative: s.CumulativeThreshold.String(),
		Listed: s.ExternalDomainsAllowlist != nil, Allowlist: strings.Join(s.ExternalDomainsAllowlist, "\n"),
		HighRisk: strings.Join(s.HighRiskAgents, "\n"), Fallback: strings.Join(s.FallbackApprovers, "\n"),
		Timeout: strconv.FormatFloat(s.ApprovalTimeoutHours, 'f', -1, 64), TwoPerson: s.TwoPersonApproval,
		Abandon: strconv.FormatFloat(s.AbandonHours(), 'f', -1, 64), FastPath: strings.Join(s.SafeActions(), "\n"),
		MaxEvents:  strconv.FormatInt(s.AutoPause.MaxEvents, 10),
		MaxSeconds: strconv.FormatInt(s.AutoPause.MaxDurationSeconds, 10),
		MaxTokens:  strconv.FormatInt(s.AutoPause.MaxTokens, 10),
		Export:     string(s.Exports()), SlackChannel: s.SlackChannel, FailModes: strings.Join(modes, "\n"), Seen: seen, Budgets: budgetForms(s.Budgets),
	}, nil
}

func settingsHash(org *ledger.Organization) (string, error) {
	body, err := org.Settings.Encode()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append(body, org.Name...))
	return hex.EncodeToString(sum[:]), nil
}

// maxSettingsForm is the size of a form with as much as a request of the API can contain, in bytes.
const maxSettingsForm = 3 << 20

func saveSettings(v *visit) error {
	caller, err := v.admin()
	if err != nil {
		return err
	}
	sent, err := v.form(maxSettingsForm)
	if codeOf(err) == fault.CodeTooLarge {
		return fault.Errorf(fault.CodeTooLarge, "the form is larger than %d bytes; go back and shorten it, or change such large settings over the API (PATCH /v1/organization)", maxSettingsForm)
	}
	if err != nil {
		return err
	}
	err = v.changeSettings(caller, sent)
	if why := refusalOf(err); why != nil {
		page := typedSettings(sent)
		page.Refusal, page.Slack = why, v.hasSlack()
		return v.show(why.Status, "settings.html", "Settings", page)
	}
	if err != nil {
		return err
	}
	v.seeOther("/settings?saved=yes")
	return nil
}

func (v *visit) changeSettings(caller *service.Caller, sent form) error {
	seen, err := settingsHash(v.organization)
	if err != nil {
		return err
	}
	if sent.text("seen") != seen {
		return fault.Errorf(fault.CodeInvalid, "nothing was saved, because somebody changed the settings after you opened this page: open the settings again and repeat your changes")
	}
	wanted, err := settingsRequest(sent, &v.organization.Settings)
	if err != nil {
		return err
	}
	_, err = v.console.service.UpdateOrganization(v.r.Context(), caller, wanted)
	return err
}

// typedSettings returns a form as it was sent, to show it again.
func typedSettings(sent form) *settingsForm {
	return &settingsForm{
		Name: sent.text("name"), Mode: sent.text("evaluation_mode"), Single: sent.text("single"), Cumulative: sent.text("cumulative"),
		Listed: sent.text("listed") != "", Allowlist: sent.text("allowlist"), HighRisk: sent.text("high_risk"), Fallback: sent.text("fallback"),
		Timeout: sent.text("timeout"), TwoPerson: sent.text("two_person") != "",
		Abandon: sent.text("abandon"), FastPath: sent.text("fast_path"),
		MaxEvents: sent.text("max_events"), MaxSeconds: sent.text("max_seconds"), MaxTokens: sent.text("max_tokens"),
		Export: sent.text("evidence_export"), SlackChannel: sent.text("slack_channel"), FailModes: sent.text("fail_modes"), Seen: sent.text("seen"), Budgets: withEmptyRow(sentBudgets(sent)),
	}
}

// settingsRequest converts the form to the API's form. A setting that the organization has not set stays
// unset if the form has the default, so that it follows later changes of the default.
func settingsRequest(sent form, now *ledger.Settings) (canon.Value, error) {
	members := map[string]any{
		"name": sent.text("name"), "evaluation_mode": sent.text("evaluation_mode"),
		"financial_approval_threshold_usd": number(sent.text("single")), "cumulative_financial_threshold_usd": number(sent.text("cumulative")),
		"external_domains_allowlist": nil, "high_risk_agents": sent.lines("high_risk"), "fallback_approvers": sent.lines("fallback"),
		"approval_timeout_hours": number(sent.text("timeout")), "two_person_approval": sent.text("two_person") != "",
		"slack_channel": optional(sent.text("slack_channel")),
		"auto_pause": map[string]any{
			"max_events": number(sent.text("max_events")), "max_duration_seconds": number(sent.text("max_seconds")), "max_tokens": number(sent.text("max_tokens")),
		},
	}
	if abandon := sent.text("abandon"); abandon != strconv.FormatFloat(now.AbandonHours(), 'f', -1, 64) {
		members["abandon_after_hours"] = number(abandon)
	}
	if export := sent.text("evidence_export"); export != "" && export != string(now.Exports()) {
		members["evidence_export"] = export
	}
	if words := sent.lines("fast_path"); !slices.Equal(words, now.SafeActions()) {
		members["fast_path_actions"] = words
	}
	if sent.text("listed") != "" {
		members["external_domains_allowlist"] = sent.lines("allowlist")
	}
	modes := make(map[string]string)
	for _, line := range sent.lines("fail_modes") {
		category, mode, found := strings.Cut(line, ":")
		if !found {
			return canon.Value{}, fault.Errorf(fault.CodeInvalid, "each line of the fail modes must be a category, a colon, and deny or allow")
		}
		modes[strings.TrimSpace(category)] = strings.TrimSpace(mode)
	}
	members["fail_modes"] = modes
	members["budgets"] = budgetsRequest(sent, len(now.Budgets))
	return request(members)
}

// number returns a text as a JSON number if it is one. Any other text is returned unchanged, and the
// validation of the setting says what is wrong with it.
func number(text string) any {
	if v, err := canon.Parse([]byte(text)); err == nil && v.Kind() == canon.Number {
		return json.Number(text)
	}
	return text
}
