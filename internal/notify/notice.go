package notify

import (
	"errors"
	"fmt"
	"net/url"
	"slices"

	"countersign/internal/canon"
	"countersign/internal/ledger"
)

// Kind names what happened. Receivers branch on it, so a kind is never renamed.
type Kind string

// The kinds of notices.
const (
	ChainCompleted        Kind = "chain.completed"
	ChainAutoPaused       Kind = "chain.auto_paused"
	ApprovalRequested     Kind = "approval.requested"
	ApprovalEscalated     Kind = "approval.escalated"
	ApprovalDecided       Kind = "approval.decided"
	ApprovalTimedOut      Kind = "approval.timed_out"
	KillSwitchActivated   Kind = "kill_switch.activated"
	KillSwitchDeactivated Kind = "kill_switch.deactivated"
	LedgerTamperFound     Kind = "ledger.tamper_found"
	WebhookTest           Kind = "webhook.test"
)

// Kinds lists every kind.
func Kinds() []Kind {
	return []Kind{
		ChainCompleted, ChainAutoPaused,
		ApprovalRequested, ApprovalEscalated, ApprovalDecided, ApprovalTimedOut,
		KillSwitchActivated, KillSwitchDeactivated, LedgerTamperFound, WebhookTest,
	}
}

// Known reports whether k is one of Kinds.
func (k Kind) Known() bool { return slices.Contains(Kinds(), k) }

// Notice says what happened: names, and for an action what was found in it and the rules that
// matched. It contains no payloads or secrets. An empty field does not apply.
type Notice struct {
	Kind         Kind
	At           ledger.Time
	Organization string // slug

	Chain       string
	Environment string // environment of the chain
	Agent       string
	Action      string
	Policy      string // the rule that decided
	Reason      string // of that rule, or of the change of the kill switch
	Status      string
	Reviewer    string
	// Source says who decided: a person or a rule. Its values are those of a decision's
	// decision_source. It is "" if nothing was decided.
	Source ledger.Source

	Amount    *ledger.Money        // in US dollars; nil if the action has no readable amount
	Rules     []ledger.MatchedRule // all matching rules, strictest first
	ExpiresAt ledger.Time          // zero: nothing expires
	Link      string               // console page; opening it decides nothing

	// The ids are for programs. They appear only in a webhook's body.
	ChainID    string
	ApprovalID string
	ReceiptID  string
}

// Limits of a notice, in characters and in bytes of JSON. All names at their maximum length fit
// into a body, and so do the rules without their reasons.
const (
	maxName      = 200
	maxReason    = 300
	maxRules     = 20
	maxRuleName  = 100 // the limit of a policy set
	bareRuleName = 60  // if the reasons are omitted
	maxLink      = 2000
	maxBody      = 20 << 10
)

// currency is the only currency of amounts: an amount in another one cannot be compared with a
// threshold, and does not count as an amount.
const currency = "USD"

// linkMissing explains a link that is null.
const linkMissing = "the server was not given its public address: start it with --public-url"

type member struct {
	name  string
	value *string
	limit int
}

// members pairs the texts of a notice with their JSON names.
func (n *Notice) members() []member {
	return []member{
		{"organization", &n.Organization, maxName},
		{"chain_id", &n.ChainID, maxName},
		{"chain_name", &n.Chain, maxName},
		{"approval_id", &n.ApprovalID, maxName},
		{"receipt_id", &n.ReceiptID, maxName},
		{"environment", &n.Environment, maxName},
		{"agent_name", &n.Agent, maxName},
		{"action_name", &n.Action, maxName},
		{"policy_name", &n.Policy, maxName},
		{"reason", &n.Reason, maxReason},
		{"status", &n.Status, maxName},
		{"reviewer", &n.Reviewer, maxName},
		{"decision_source", (*string)(&n.Source), maxName},
		{"link", &n.Link, maxLink},
	}
}

// Encode returns the notice as canonical JSON. The same bytes are stored in the queue and sent as a
// webhook's body. Names are cut and cleaned instead of refused: a strange name is no reason to send
// nothing. If everything together is too long, the reasons of the rules are omitted.
func (n Notice) Encode() ([]byte, error) {
	if err := n.check(); err != nil {
		return nil, err
	}
	body, err := n.encode(shownRules(n.Rules, maxRuleName, maxReason))
	if err == nil && len(body) > maxBody {
		body, err = n.encode(shownRules(n.Rules, bareRuleName, 0))
	}
	return body, err
}

func (n Notice) encode(rules []ledger.MatchedRule) ([]byte, error) {
	var data []canon.Member
	for _, m := range n.members() {
		if text := oneLine(*m.value, m.limit); text != "" {
			data = append(data, textMember(m.name, text))
		}
	}
	if n.Link == "" {
		data = append(data, canon.Member{Name: "link"}, textMember("link_missing", linkMissing))
	}
	if n.ExpiresAt != 0 {
		data = append(data, textMember("expires_at", n.ExpiresAt.String()))
	}
	if n.Amount != nil {
		amount, err := canon.NumberValue(n.Amount.Float())
		if err != nil {
			return nil, fmt.Errorf("encode a notice's amount: %w", err)
		}
		data = append(data, canon.Member{Name: "amount", Value: amount}, textMember("currency", currency))
	}
	if len(rules) > 0 {
		list, err := canon.Parse(ledger.AppendMatched(nil, rules))
		if err != nil {
			return nil, fmt.Errorf("encode a notice's rules: %w", err)
		}
		data = append(data, canon.Member{Name: "matched_rules", Value: list})
	}
	object, err := canon.ObjectValue(data...)
	if err != nil {
		return nil, fmt.Errorf("encode a notice: %w", err)
	}
	body := canon.BeginObject(nil)
	body.Raw("data", object.Append(nil))
	body.String("timestamp", n.At.String())
	body.String("type", string(n.Kind))
	return body.End(), nil
}

// shownRules returns the rules with names and reasons cut to one line of at most the given lengths.
func shownRules(rules []ledger.MatchedRule, name, reason int) []ledger.MatchedRule {
	shown := make([]ledger.MatchedRule, min(len(rules), maxRules))
	for i := range shown {
		shown[i] = rules[i]
		shown[i].Name = oneLine(rules[i].Name, name)
		shown[i].Reason = oneLine(rules[i].Reason, reason)
	}
	return shown
}

func textMember(name, text string) canon.Member {
	value, err := canon.StringValue(text)
	if err != nil {
		// oneLine has made it valid UTF-8, which is the only requirement.
		panic("notify: " + err.Error())
	}
	return canon.Member{Name: name, Value: value}
}

// Decode decodes the result of Encode. Unknown members are ignored: they are from a newer release,
// and the rest is still worth delivering.
func Decode(body []byte) (Notice, error) {
	if len(body) > maxBody {
		return Notice{}, fmt.Errorf("a notice must have at most %d bytes", maxBody)
	}
	value, err := canon.Parse(body)
	if err != nil {
		return Notice{}, fmt.Errorf("decode a notice: %w", err)
	}
	data, _ := value.Get("data")
	n := Notice{Kind: Kind(text(value, "type"))}
	for _, m := range n.members() {
		*m.value = text(data, m.name)
	}
	if n.At, err = ledger.ParseTime(text(value, "timestamp")); err != nil {
		return Notice{}, fmt.Errorf("decode a notice's timestamp: %w", err)
	}
	if expiry := text(data, "expires_at"); expiry != "" {
		if n.ExpiresAt, err = ledger.ParseTime(expiry); err != nil {
			return Notice{}, fmt.Errorf("decode a notice's expiry: %w", err)
		}
	}
	if amount, given := data.Get("amount"); given {
		money := ledger.MoneyOf(amount.Float())
		n.Amount = &money
	}
	rules, _ := data.Get("matched_rules")
	for _, rule := range rules.Items() {
		shadow, _ := rule.Get("shadow")
		n.Rules = append(n.Rules, ledger.MatchedRule{
			Name: text(rule, "name"), Outcome: ledger.Outcome(text(rule, "decision")), Reason: text(rule, "reason"), Shadow: shadow.Bool(),
		})
	}
	return n, n.check()
}

func text(object canon.Value, name string) string {
	value, _ := object.Get(name)
	return value.Str()
}

func (n Notice) check() error {
	switch {
	case !n.Kind.Known():
		return errors.New("a notice needs a known kind")
	case n.Organization == "":
		return errors.New("a notice needs its organization")
	case n.Link != "" && !isWebLink(n.Link):
		return fmt.Errorf("a notice's link must be an http or https URL of at most %d bytes", maxLink)
	}
	return nil
}

func isWebLink(link string) bool {
	u, err := url.Parse(link)
	return err == nil && len(link) <= maxLink && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http") &&
		link == oneLine(link, maxLink)
}
