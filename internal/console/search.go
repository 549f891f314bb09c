package console

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"countersign/internal/ledger"
)

// searchBox is the search form above a list.
type searchBox struct {
	Path   string // of the list
	Text   string
	Status string // the list's filter, which the form keeps
	What   string // the name of the list's entries, for people
	// Decisions says that the list can be searched by decision.
	Decisions bool
	// Fault says what is wrong with the text. If it is set, nothing is searched.
	Fault string
	find  ledger.Find
}

// maxSearchText is the maximum length of a search, in characters.
const maxSearchText = 500

// readSearch reads the search from the query of a page.
func readSearch(query url.Values, path, what string, decisions bool) *searchBox {
	box := &searchBox{Path: path, What: what, Decisions: decisions, Text: strings.TrimSpace(query.Get("q"))}
	box.Fault = box.parse()
	return box
}

// Searching reports whether anything is searched for.
func (b *searchBox) Searching() bool { return b.Text != "" }

// All returns the address of the list without the search.
func (b *searchBox) All() string { return b.link(nil) }

// link returns the address of a page of the list with the search. With a nil query, it returns the list
// without the search.
func (b *searchBox) link(query url.Values) string {
	if query == nil {
		query = make(url.Values)
	} else if b.Text != "" {
		query.Set("q", b.Text)
	}
	if b.Status != "" {
		query.Set("status", b.Status)
	}
	return (&url.URL{Path: b.Path, RawQuery: query.Encode()}).String()
}

// parse parses words of a name, conditions like agent:clerk, and metadata.key=value. Values with spaces
// are quoted. It returns what is wrong with the text, or "".
func (b *searchBox) parse() (fault string) {
	if !utf8.ValidString(b.Text) || strings.ContainsRune(b.Text, 0) {
		b.Text = ""
		return "The search cannot be read."
	}
	if runes := []rune(b.Text); len(runes) > maxSearchText {
		b.Text = string(runes[:maxSearchText])
		return fmt.Sprintf("A search can have at most %d characters.", maxSearchText)
	}
	for _, word := range splitSearch(b.Text) {
		if key, value, ok := strings.Cut(word, "="); ok && strings.HasPrefix(key, "metadata.") {
			b.find.Metadata = append(b.find.Metadata, ledger.Pair{Key: strings.TrimPrefix(key, "metadata."), Value: value})
		} else if kind, value, ok := strings.Cut(word, ":"); !ok {
			b.find.Name += " " + word
		} else if fault := b.condition(kind, value); fault != "" {
			return fault
		}
	}
	b.find.Name = strings.TrimSpace(b.find.Name)
	switch err := b.find.Check(); {
	case err != nil:
		return "The search for a name " + err.Error() + "."
	case len(b.find.Metadata) > ledger.MaxFindPairs:
		return fmt.Sprintf("A search can have at most %d metadata conditions.", ledger.MaxFindPairs)
	case b.find.Since != nil && b.find.Until != nil && *b.find.Since >= *b.find.Until:
		return "until must be later than since."
	}
	return ""
}

// condition parses one condition. It returns what is wrong with it, or "".
func (b *searchBox) condition(kind, value string) (fault string) {
	if value == "" {
		return kind + ": needs a value right after the colon."
	}
	moment := func(end bool) *ledger.Time {
		at, err := ledger.ParseMoment(value, end)
		if err != nil {
			fault = kind + ": " + err.Error() + "."
		}
		return &at
	}
	switch kind {
	case "name":
		b.find.Name += " " + value
	case "agent":
		b.find.Agent = value
	case "type":
		b.find.ActionType = value
	case "action":
		b.find.ActionName = value
	case "since":
		b.find.Since = moment(false)
	case "until":
		b.find.Until = moment(true)
	case "decision":
		b.find.Decision = ledger.Outcome(value)
		if !b.Decisions {
			return "Approvals cannot be searched by decision. Choose a status below instead of decision:" + value + "."
		}
		if !slices.Contains(ledger.Outcomes, b.find.Decision) {
			return "decision: must be one of allow, allow_with_flag, require_approval, deny."
		}
	default:
		return kind + `: is not a search condition. To search for it in names, omit the colon or write name:"…".`
	}
	return fault
}

// splitSearch splits a text at spaces outside quotation marks.
func splitSearch(text string) (words []string) {
	var word strings.Builder
	quoted, begun := false, false
	for _, r := range text {
		switch {
		case r == '"':
			quoted, begun = !quoted, true
		case !quoted && (r == ' ' || r == '\t' || r == '\n' || r == '\r'):
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	if begun {
		words = append(words, word.String())
	}
	return words
}
