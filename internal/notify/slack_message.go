package notify

import (
	"fmt"
	"strings"
)

// Limits of Slack's messages, in characters, and of ours within them. All of a message must fit into
// what the server reads of a press, which repeats it.
const (
	maxSlackText   = 3000 // of a section
	maxSlackFields = 10   // of a section
	maxSlackRow    = 300
	maxSlackRules  = 1500
	maxSlackAsked  = 200 // in a dialog, whose limit is 300
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
	content := compose(a.Notice)
	content.Headline = a.headline(content.Headline)
	m := slackMessage{Text: slackEscapes.Replace(subject(a.Notice)), Parse: "none"}
	m.Blocks = append(m.Blocks, slackBlock{Type: "header", Text: plain(content.Headline)})
	if a.Superseded {
		m.Blocks = append(m.Blocks, slackBlock{Type: "section", Text: plain(superseded)})
		return m
	}
	var rules []string
	fields := slackBlock{Type: "section"}
	for _, r := range append(content.Rows, a.votes()...) {
		if r.Label == ruleLabel {
			rules = append(rules, r.Value)
			continue
		}
		if len(fields.Fields) == maxSlackFields {
			m.Blocks = append(m.Blocks, fields)
			fields.Fields = nil
		}
		fields.Fields = append(fields.Fields, plain(r.Label+": "+oneLine(r.Value, maxSlackRow)))
	}
	m.Blocks = append(m.Blocks, fields)
	if len(rules) > 0 {
		m.Blocks = append(m.Blocks, slackBlock{Type: "section", Text: plain(cut("Rules:\n"+strings.Join(rules, "\n"), maxSlackRules))})
	}
	if a.Notice.Link == "" {
		m.Blocks = append(m.Blocks, slackBlock{Type: "section", Text: plain(noLink)})
	}
	if buttons := a.buttons(); len(buttons) > 0 {
		m.Blocks = append(m.Blocks, slackBlock{Type: "actions", Elements: buttons})
	}
	return m
}

// headline says how the approval stands.
func (a *SlackApproval) headline(waiting string) string {
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
	return waiting
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
	asked := fmt.Sprintf("%s by %s", a.Notice.Action, a.Notice.Agent)
	if a.Notice.Amount != nil {
		asked += ": " + a.Notice.Amount.Display() + " " + currency
	}
	return slackElement{
		Type: "button", ActionID: action, Text: plain(word), Style: style, Value: value,
		Confirm: &slackConfirm{
			Title: plain(word + "?"), Text: plain(oneLine(asked, maxSlackAsked)), Confirm: plain(word), Deny: plain("Back"), Style: style,
		},
	}
}
