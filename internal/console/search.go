package console

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"countersign/internal/ledger"
)

// searchBox is the form above a list, with what was typed into it.
type searchBox struct {
	Path   string // of the list
	Text   string
	Status string // that the list is filtered by, for the form to keep
	What   string // what the list holds, for people
	// Decisions says that the list is searched by decisions too.
	Decisions bool
	// Fault says what cannot be understood; then nothing is searched.
	Fault string
	find  ledger.Find
}

// maxSearchText bounds what can be typed, in characters.
const maxSearchText = 500

// readSearch reads the box from a page's address.
func readSearch(query url.Values, path, what string, decisions bool) *searchBox {
	box := &searchBox{Path: path, What: what, Decisions: decisions, Text: strings.TrimSpace(query.Get("q"))}
	box.Fault = box.parse()
	return box
}

// Searching reports whether anything is searched for.
func (b *searchBox) Searching() bool { return b.Text != "" }

// All leads to the list as it is without a search.
func (b *searchBox) All() string { return b.link(nil) }

// link leads to a page of the list, and keeps the search.
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

// parse reads words of a name, conditions like agent:clerk, and metadata.key=value.
// Quotation marks keep spaces together. It returns what cannot be understood, "" for
// nothing.
func (b *searchBox) parse() (fault string) {
	if !utf8.ValidString(b.Text) || strings.ContainsRune(b.Text, 0) {
		b.Text = ""
		return "The search cannot be read."
	}
	if runes := []rune(b.Text); len(runes) > maxSearchText {
		b.Text = string(runes[:maxSearchText])
		return fmt.Sprintf("A search has at most %d characters.", maxSearchText)
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
		return "What is looked for in the name " + err.Error() + "."
	case len(b.find.Metadata) > ledger.MaxFindPairs:
		return fmt.Sprintf("A search names at most %d members of metadata.", ledger.MaxFindPairs)
	case b.find.Since != nil && b.find.Until != nil && *b.find.Since >= *b.find.Until:
		return "The time ends before it begins: until must be later than since."
	}
	return ""
}

// condition reads one condition. It returns what cannot be understood.
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
			return "Approvals are found by their status: choose one below, in place of decision:" + value + "."
		}
		if !slices.Contains(ledger.Outcomes, b.find.Decision) {
			return "decision: must be one of allow, allow_with_flag, require_approval, deny."
		}
	default:
		return kind + `: is not known here. Without the colon, or as name:"…", it is looked for in names.`
	}
	return fault
}

// splitSearch splits at spaces that do not stand between quotation marks.
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
