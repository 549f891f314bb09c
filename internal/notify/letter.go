package notify

import (
	"fmt"
	"html/template"
	"strings"

	"countersign/internal/ledger"
)

const (
	maxSubject = 150
	maxRow     = 500 // characters of a row's value
)

// wording is how people read about a kind of notice.
type wording struct {
	headline string
	advice   string
}

const (
	adviceDecide = "Open the console to decide. Opening the link decides nothing by itself."
	// Some readers may not be allowed to decide: addresses that a chain named are only notified.
	adviceEscalated = "Half of the time has passed, and nobody has decided. From now on the organization's fallback approvers may, with a key " +
		"of their name, besides those whom the rule names. " + adviceDecide
	adviceLook = "Open the console for the details."
)

var wordings = map[Kind]wording{
	ChainCompleted:        {"Chain completed", adviceLook},
	ChainAutoPaused:       {"Chain paused by a limit", "Open the console to look into it. An admin can resume the chain."},
	ApprovalRequested:     {"Approval needed", adviceDecide},
	ApprovalEscalated:     {"Approval still needed", adviceEscalated},
	ApprovalDecided:       {"Approval decided", adviceLook},
	ApprovalTimedOut:      {"Approval timed out", "Nobody decided in time, and the action was not released. " + adviceLook},
	KillSwitchActivated:   {"Kill switch activated", "Every action is denied until an admin lifts it. " + adviceLook},
	KillSwitchDeactivated: {"Kill switch lifted", adviceLook},
	LedgerTamperFound: {"Tampering found in the ledger",
		"Keep the database and its backups as they are, and run countersign audit. " + adviceLook},
	WebhookTest: {"Test notification", "Someone asked for this test. There is nothing to do."},
}

// letter is a notice as people read it.
type letter struct {
	Headline string
	Rows     []row
	Advice   string
	Link     string
	NoLink   string // shown instead of a link
}

// noLink is shown if the notice has no link.
const noLink = "There is no link, because " + linkMissing + "."

type row struct{ Label, Value string }

func compose(n Notice) letter {
	l := letter{Headline: wordings[n.Kind].headline, Advice: wordings[n.Kind].advice, Link: n.Link, NoLink: noLink}
	add := func(label, value string) {
		if value = oneLine(value, maxRow); value != "" {
			l.Rows = append(l.Rows, row{label, value})
		}
	}
	add("Organization", n.Organization)
	add("Chain", n.Chain)
	add("Environment", n.Environment)
	add("Agent", n.Agent)
	add("Action", n.Action)
	if n.Amount != nil {
		add("Amount", n.Amount.Display()+" "+currency)
	}
	add("Policy", n.Policy)
	add("Reason", n.Reason)
	if len(n.Rules) > 1 { // a single rule is the policy above
		for _, rule := range shownRules(n.Rules, maxRuleName, maxReason) {
			add("Rule", ruleForPeople(rule))
		}
	}
	add("Status", n.Status)
	add("Reviewer", n.Reviewer)
	add("Decided by", deciders[n.Source])
	add("Time", n.At.Std().Format(timeForPeople))
	if n.ExpiresAt != 0 {
		add("Expires", n.ExpiresAt.Std().Format(timeForPeople))
	}
	return l
}

// ruleForPeople says which rule matched, its decision and why.
func ruleForPeople(rule ledger.MatchedRule) string {
	text := rule.Name + " (" + string(rule.Outcome)
	if rule.Shadow {
		text += ", in shadow"
	}
	text += ")"
	if rule.Reason != "" {
		text += ": " + rule.Reason
	}
	return text
}

// deciders describes who decided.
var deciders = map[ledger.Source]string{
	ledger.SourceHuman:   "a person",
	ledger.SourceBackend: "a rule that came into force during the wait",
}

const timeForPeople = "2 January 2006, 15:04 MST"

// subject contains only names, in one line that cannot start another header.
func subject(n Notice) string {
	var b strings.Builder
	fmt.Fprintf(&b, "[%s] %s", oneLine(n.Organization, 50), wordings[n.Kind].headline)
	separator := ": "
	for _, part := range []struct{ before, name string }{{"", n.Action}, {"by ", n.Agent}, {"in ", n.Chain}} {
		if name := oneLine(part.name, 60); name != "" {
			b.WriteString(separator + part.before + name)
			separator = " "
		}
	}
	// Mail programs would decode a name that looks like an encoded word.
	return oneLine(strings.ReplaceAll(b.String(), "=?", "= ?"), maxSubject)
}

func (l letter) text() string {
	var b strings.Builder
	b.WriteString(l.Headline + "\n\n")
	for _, r := range l.Rows {
		fmt.Fprintf(&b, "%-13s %s\n", r.Label+":", r.Value)
	}
	b.WriteString("\n" + l.Advice + "\n")
	if l.Link != "" {
		b.WriteString("\n" + l.Link + "\n")
	} else {
		b.WriteString("\n" + noLink + "\n")
	}
	return b.String()
}

var letterPage = template.Must(template.New("letter").Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{.Headline}}</title></head>
<body style="font-family: sans-serif">
<h1 style="font-size: 1.2em">{{.Headline}}</h1>
<table>{{range .Rows}}
<tr><th style="text-align: left; padding-right: 1em">{{.Label}}</th><td>{{.Value}}</td></tr>{{end}}
</table>
<p>{{.Advice}}</p>{{with .Link}}
<p><a href="{{.}}">Open the console</a></p>{{else}}
<p>{{$.NoLink}}</p>{{end}}
</body></html>
`))
