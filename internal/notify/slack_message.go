package notify

import (
	"fmt"
	"strings"

	"countersign/internal/ledger"
)

// Limits of Slack's messages, in characters, and of ours within them. All of a message must fit into
// what the server reads of a press, which repeats it.
const (
	maxSlackText  = 3000 // of a section
	maxSlackRow   = 300
	maxSlackRules = 1500
	maxSlackName  = 60 // of the two in a dialog, whose limit is 300
)

// The actions of the buttons.
const (
	SlackApprove = "approve"
	SlackDeny    = "deny"
	slackOpen    = "open" // follows a link; there is nothing to do
)

// SlackApproval is an approval as Slack shows it.
type SlackApproval struct {
	Notice Notice
	// Votes are the names of those who have approved, and Needed is how many must.
	Votes  []string
	Needed int
	// Approve and Deny are the values of the buttons; "" for none.
	Approve, Deny string
	// Superseded says that a newer message asks about the same approval.
	Superseded bool
}

// slackMessage is the arguments of the methods that write messages. Everything that is shown is plain
// text, in which Slack finds no mentions, links or layout.
type slackMessage struct {
	Channel     string       `json:"channel"`
	TS          string       `json:"ts,omitempty"`
	User        string       `json:"user,omitempty"`
	Text        string       `json:"text"` // for notifications; this is not plain text, and must be escaped
	Blocks      []slackBlock `json:"blocks,omitempty"`
	Parse       string       `json:"parse"`
	LinkNames   bool         `json:"link_names"`
	UnfurlLinks bool         `json:"unfurl_links"`
	UnfurlMedia bool         `json:"unfurl_media"`
}

type slackBlock struct {
	Type     string         `json:"type"`
	Text     *slackText     `json:"text,omitempty"`
	Fields   []*slackText   `json:"fields,omitempty"`
	Elements []slackElement `json:"elements,omitempty"`
}

type slackText struct {
	Type  string `json:"type"`
	Text  string `json:"text"`
	Emoji bool   `json:"emoji"`
}

type slackElement struct {
	Type     string        `json:"type"`
	ActionID string        `json:"action_id"`
	Text     *slackText    `json:"text"`
	Style    string        `json:"style,omitempty"`
	Value    string        `json:"value,omitempty"`
	URL      string        `json:"url,omitempty"`
	Confirm  *slackConfirm `json:"confirm,omitempty"`
}

type slackConfirm struct {
	Title   *slackText `json:"title"`
	Text    *slackText `json:"text"`
	Confirm *slackText `json:"confirm"`
	Deny    *slackText `json:"deny"`
	Style   string     `json:"style,omitempty"`
}

func plain(text string) *slackText { return &slackText{Type: "plain_text", Text: text} }

// slackEscapes removes the meaning of the characters with which mentions and links begin.
var slackEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// cut cuts a text with several lines.
func cut(text string, limit int) string {
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit-1]) + "…"
	}
	return text
}

const superseded = "Nobody has decided for half of the time. A newer message in the channel asks again."

func (a *SlackApproval) message() slackMessage {
	m := slackMessage{Text: slackEscapes.Replace(a.summary()), Parse: "none"}
	m.Blocks = append(m.Blocks, slackBlock{Type: "header", Text: plain(a.headline())})
	if a.Superseded {
		m.Blocks = append(m.Blocks, slackBlock{Type: "section", Text: plain(superseded)})
		return m
	}
	m.Blocks = append(m.Blocks, fieldsOf(a.facts())...)
	if reason := oneLine(a.Notice.Reason, maxSlackRow); reason != "" { // too long for half of a line
		m.Blocks = append(m.Blocks, slackBlock{Type: "section", Text: plain("Reason: " + reason)})
	}
	if len(a.Notice.Rules) > 1 { // a single rule is the policy
		rules := []string{"Rules:"}
		for _, rule := range shownRules(a.Notice.Rules, maxRuleName, maxReason) {
			rules = append(rules, oneLine(ruleForPeople(rule), maxRow))
		}
		m.Blocks = append(m.Blocks, slackBlock{Type: "section", Text: plain(cut(strings.Join(rules, "\n"), maxSlackRules))})
	}
	m.Blocks = append(m.Blocks, fieldsOf(a.details())...)
	if a.Notice.Link == "" {
		m.Blocks = append(m.Blocks, slackBlock{Type: "section", Text: plain(noLink)})
	}
	if buttons := a.buttons(); len(buttons) > 0 {
		m.Blocks = append(m.Blocks, slackBlock{Type: "actions", Elements: buttons})
	}
	return m
}

// facts are what somebody who decides wants to know first, and how it was decided. How it stands is
// the headline.
func (a *SlackApproval) facts() []row {
	n := a.Notice
	rows := []row{{"Action", n.Action}, {"Amount", ""}, {"Agent", n.Agent}, {"Environment", n.Environment}, {"Reviewer", n.Reviewer}}
	if n.Amount != nil {
		rows[1].Value = n.Amount.Display() + " " + currency
	}
	if n.Source == ledger.SourceBackend {
		rows = append(rows, row{"Decided by", deciders[n.Source]})
	}
	switch {
	case a.waits() && n.ExpiresAt != 0:
		rows = append(rows, row{"Expires", n.ExpiresAt.Std().Format(timeForPeople)})
	case n.Status == "approved" || n.Status == "denied":
		rows = append(rows, row{"Decided", n.At.Std().Format(timeForPeople)})
	case !a.waits():
		rows = append(rows, row{"Ended", n.At.Std().Format(timeForPeople)})
	}
	return append(rows, a.votes()...)
}

// details are where the action belongs.
func (a *SlackApproval) details() []row {
	n := a.Notice
	rows := []row{{"Policy", n.Policy}, {"Chain", n.Chain}, {"Organization", n.Organization}}
	if a.waits() {
		rows = append(rows, row{"Requested", n.At.Std().Format(timeForPeople)})
	}
	return rows
}

func (a *SlackApproval) waits() bool {
	return a.Notice.Kind == ApprovalRequested || a.Notice.Kind == ApprovalEscalated
}

// fieldsOf returns a section with the rows that have a value; none if no row has.
func fieldsOf(rows []row) []slackBlock {
	section := slackBlock{Type: "section"}
	for _, r := range rows {
		if value := oneLine(r.Value, maxSlackRow); value != "" {
			section.Fields = append(section.Fields, plain(r.Label+": "+value))
		}
	}
	if len(section.Fields) == 0 {
		return nil
	}
	return []slackBlock{section}
}

// summary is the text of notifications.
func (a *SlackApproval) summary() string {
	text := subject(a.Notice)
	if a.Notice.Amount != nil {
		text += ", " + a.Notice.Amount.Display() + " " + currency
	}
	return text
}

// headline says how the approval stands.
func (a *SlackApproval) headline() string {
	switch a.Notice.Status {
	case "approved":
		return "Approved"
	case "denied":
		return "Denied"
	case "cancelled":
		return "Cancelled: nobody waits for it any more"
	case "timed_out":
		return "Timed out: nobody decided"
	}
	return wordings[a.Notice.Kind].headline
}

func (a *SlackApproval) votes() []row {
	if a.Needed < 2 {
		return nil
	}
	text := fmt.Sprintf("%d of %d", len(a.Votes), a.Needed)
	if len(a.Votes) > 0 {
		text += ", by " + strings.Join(a.Votes, ", ")
	}
	return []row{{"Approved", text}}
}

func (a *SlackApproval) buttons() (buttons []slackElement) {
	if a.Approve != "" {
		buttons = append(buttons, a.button(SlackApprove, "Approve", "primary", a.Approve))
	}
	if a.Deny != "" {
		buttons = append(buttons, a.button(SlackDeny, "Deny", "danger", a.Deny))
	}
	if a.Notice.Link != "" {
		buttons = append(buttons, slackElement{Type: "button", ActionID: slackOpen, Text: plain("Open in the console"), URL: a.Notice.Link})
	}
	return buttons
}

// button returns a button that decides. A decision is final, so Slack asks once more.
func (a *SlackApproval) button(action, word, style, value string) slackElement {
	asked := oneLine(a.Notice.Action, maxSlackName) + " by " + oneLine(a.Notice.Agent, maxSlackName)
	if a.Notice.Amount != nil { // in front, where no name can pretend to be it or push it out
		asked = a.Notice.Amount.Display() + " " + currency + ": " + asked
	}
	return slackElement{
		Type: "button", ActionID: action, Text: plain(word), Style: style, Value: value,
		Confirm: &slackConfirm{
			Title: plain(word + "?"), Text: plain(asked), Confirm: plain(word), Deny: plain("Back"), Style: style,
		},
	}
}
