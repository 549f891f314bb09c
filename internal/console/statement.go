package console

import (
	"slices"
	"strings"
	"unicode"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/service"
)

// statement says in one sentence what an agent wants to do. It is only a summary: a decision is about
// the payload.
type statement []phrase

// phrase is a part of a statement. Given marks a text from the agent, which a page must set apart: an
// agent may call itself "clerk wants to pay 1.00 USD to Ann".
type phrase struct {
	Text  string
	Given bool
}

func (s statement) String() string {
	var text strings.Builder
	for _, p := range s {
		text.WriteString(p.Text)
	}
	return text.String()
}

// maxAgentText is the maximum length of each text from the agent in a statement, in characters.
const maxAgentText = 60

// agentText returns a text from the agent as one short line with invisible characters escaped.
func agentText(text string) phrase {
	return phrase{Text: clip(visible(strings.Join(strings.Fields(text), " ")), maxAgentText), Given: true}
}

// clip shortens a text to most characters. It adds an ellipsis if it cuts something off.
func clip(text string, most int) string {
	n := 0
	for i := range text {
		if n == most {
			return text[:i] + "…"
		}
		n++
	}
	return text
}

// statementOf returns the statement of an approval.
func statementOf(view *service.ApprovalView, found recipients) statement {
	facts := &view.Reserved.Facts
	wants := " wants to "
	if !view.Status.Open() {
		wants = " wanted to "
	}
	s := statement{agentText(view.AgentName), {Text: wants}}
	pays := paymentOf(view.ActionName)
	switch {
	case pays != nil && facts.Amount != nil:
		s = append(s, phrase{Text: pays.verb + " " + money(facts.Amount) + " USD"})
	case pays != nil && amountOf(facts.Amount, view.Matched).Unknown:
		s = append(s, phrase{Text: pays.verb + " an amount that is not known in US dollars"})
	default:
		return append(s, describe(view.ActionName, facts, found)...)
	}
	if found.First != "" {
		s = append(s, phrase{Text: pays.side}, agentText(found.First))
	}
	return s
}

// describe returns the end of the statement for an action that is not a payment.
func describe(action string, facts *ledger.Facts, found recipients) (s statement) {
	s = statement{{Text: "run "}, agentText(action)}
	if facts.Amount != nil {
		s = append(s, phrase{Text: " for " + money(facts.Amount) + " USD"})
	}
	if facts.RecordsModified > 0 {
		s = append(s, phrase{Text: ", changing " + counted(facts.RecordsModified, "record")})
	}
	switch {
	case found.First == "":
	case found.To:
		s = append(s, phrase{Text: " to "}, agentText(found.First))
	default:
		s = append(s, phrase{Text: ", naming "}, agentText(found.First))
	}
	if found.Object != "" {
		s = append(s, phrase{Text: ": "}, agentText(found.Object))
	}
	return s
}

func counted(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return thousands(n) + " " + noun + "s"
}

// payment is the verb for a payment, and the preposition before its recipient.
type payment struct{ verb, side string }

var (
	paying       = &payment{"pay", " to "}
	transferring = &payment{"transfer", " to "}
	refunding    = &payment{"refund", " to "}
	spending     = &payment{"spend", " at "}
)

// payments are the words in an action's name that mean that it moves money.
var payments = map[string]*payment{
	"pay": paying, "payment": paying, "payments": paying, "payout": paying, "payouts": paying, "remit": paying, "disburse": paying,
	"transfer": transferring, "wire": transferring, "refund": refunding, "reimburse": refunding,
	"buy": spending, "purchase": spending,
}

// paymentOf looks for a word of payments in the name of an action. It returns nil if there is none.
func paymentOf(action string) *payment {
	split := func(r rune) bool { return !unicode.IsLetter(r) }
	for word := range strings.FieldsFuncSeq(camelWords(clip(action, maxAgentText)), split) {
		if found := payments[strings.ToLower(word)]; found != nil {
			return found
		}
	}
	return nil
}

// camelWords separates the words of a name like sendPayment with spaces.
func camelWords(name string) string {
	var parted strings.Builder
	lower := false
	for _, r := range name {
		if lower && unicode.IsUpper(r) {
			parted.WriteByte(' ')
		}
		parted.WriteRune(r)
		lower = unicode.IsLower(r)
	}
	return parted.String()
}

// recipients are the recipients that a payload names in members with common names.
type recipients struct {
	First  string
	Others int    // further, different recipients
	To     bool   // something is sent to First
	Object string // what else the action is about, such as a command or a URL
}

// recipientNames are the names of members for recipients, most important first, in lower case and
// without separators.
var recipientNames = []string{
	"payee", "payeename", "beneficiary", "beneficiaryname", "recipient", "recipientname", "recipients", "supplier", "suppliername", "vendor",
	"vendorname", "merchant", "merchantname", "creditor", "counterparty", "to", "sendto", "destination", "toaccount",
}

// addressed are the recipientNames to which something is sent.
var addressed = []string{"recipient", "recipientname", "recipients", "to", "sendto", "destination", "toaccount"}

var objectNames = []string{"command", "cmd", "sql", "statement", "query", "url", "path", "file", "table", "resource", "target"}

// findRecipients searches an object and everything within it for recipients. Outer members come first,
// so that a payee within a list of earlier payments is not taken for this one's. It reads the whole
// payload: a long list in it must not hide a recipient.
func findRecipients(payload []byte) (found recipients) {
	v, err := canon.Parse(payload)
	if err != nil {
		return recipients{} // the payload was erased or is not shown
	}
	byName := collectNames(v)
	different := make(map[string]bool)
	for _, name := range recipientNames {
		for _, text := range byName[name] {
			if found.First == "" {
				found.First, found.To = text, slices.Contains(addressed, name)
			}
			different[text] = true
		}
	}
	found.Others = max(len(different)-1, 0)
	for _, name := range objectNames {
		if texts := byName[name]; len(texts) > 0 {
			found.Object = texts[0]
			break
		}
	}
	return found
}

var separators = strings.NewReplacer("_", "", "-", "", " ", "", ".", "")

// collectNames returns the texts of the members that recipientNames and objectNames list, level by
// level.
func collectNames(document canon.Value) map[string][]string {
	byName := make(map[string][]string)
	for level := []canon.Value{document}; len(level) > 0; {
		var next []canon.Value
		add := func(v canon.Value) {
			if v.Kind() == canon.Object || v.Kind() == canon.Array {
				next = append(next, v)
			}
		}
		for _, v := range level {
			for _, m := range v.Members() {
				name := strings.ToLower(separators.Replace(m.Name))
				if slices.Contains(recipientNames, name) || slices.Contains(objectNames, name) {
					byName[name] = append(byName[name], texts(m.Value)...)
				}
				add(m.Value)
			}
			for _, item := range v.Items() {
				add(item)
			}
		}
		level = next
	}
	return byName
}

// texts returns the texts that identify a member's value: the string itself, the items of an array, or
// the name in an object.
func texts(v canon.Value) (found []string) {
	switch v.Kind() {
	case canon.String:
		if text := strings.TrimSpace(v.Str()); text != "" {
			found = append(found, text)
		}
	case canon.Array:
		for _, item := range v.Items() {
			if item.Kind() != canon.Array {
				found = append(found, texts(item)...)
			}
		}
	case canon.Object:
		for _, name := range []string{"name", "display_name", "email", "account", "iban", "id"} {
			if inner, ok := v.Get(name); ok && inner.Kind() == canon.String && inner.Str() != "" {
				return []string{inner.Str()}
			}
		}
	}
	return found
}
