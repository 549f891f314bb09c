package ledger

import (
	"errors"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"countersign/internal/canon"
)

// Find is a search. Empty members match anything. Agent, ActionType, ActionName and Decision are
// about the chain's actions: some action must match Agent and Decision, some ActionType and
// Decision, and some ActionName and Decision. They need not be the same action.
type Find struct {
	Name       string // words in the chain's name, in any order and case
	Agent      string
	ActionType string
	ActionName string
	Decision   Outcome
	Metadata   []Pair // members of the chain's metadata
	Since      *Time  // at that time or later
	Until      *Time  // before that time
}

// Pair is a member of metadata: its name, and its value as text.
type Pair struct{ Key, Value string }

// Limits of a search and of the index.
const (
	MaxFindText     = 200 // characters of each searched text
	MaxFindPairs    = 5   // members of metadata
	maxIndexedWords = 16  // words of a name
	maxIndexedPairs = 32  // members of metadata, in order of their names
)

// Outcomes lists the decisions, mildest first.
var Outcomes = []Outcome{Allow, AllowWithFlag, RequireApproval, Deny}

// Any reports whether the search has any condition.
func (f *Find) Any() bool { return f.Indexed() || f.Since != nil || f.Until != nil }

// Indexed reports whether the search has a condition other than a time.
func (f *Find) Indexed() bool {
	return f.Name != "" || f.SearchesActions() || len(f.Metadata) > 0
}

// SearchesActions reports whether the search has a condition on actions.
func (f *Find) SearchesActions() bool {
	return f.Agent != "" || f.ActionType != "" || f.ActionName != "" || f.Decision != ""
}

// Check refuses a name without a word, which would match everything.
func (f *Find) Check() error {
	if f.Name != "" && len(words(f.Name)) == 0 {
		return errors.New("must hold a letter or a digit")
	}
	return nil
}

// ErrMalformedMoment says that a text is neither a timestamp nor a date.
var ErrMalformedMoment = errors.New("must be a date like 2026-11-01, or an RFC 3339 timestamp")

// ParseMoment parses a timestamp, or a date in UTC. A date means its start, or its end if end is
// set.
func ParseMoment(text string, end bool) (Time, error) {
	if len(text) == len(time.DateOnly) {
		day, err := time.Parse(time.DateOnly, text)
		if err != nil || TimeOf(day) < earliestTime {
			return 0, ErrMalformedMoment
		}
		if end {
			day = day.AddDate(0, 0, 1)
		}
		return TimeOf(day), nil
	}
	t, err := ParseTime(text)
	if err != nil {
		return 0, ErrMalformedMoment
	}
	return t, nil
}

// During reports whether a time is within the searched period.
func (f *Find) During(t Time) bool {
	return (f.Since == nil || t >= *f.Since) && (f.Until == nil || t < *f.Until)
}

// MatchesChain reports whether the chain's name and metadata match.
func (f *Find) MatchesChain(c *Chain) bool {
	if f.Name != "" {
		own := words(c.Name)
		if slices.ContainsFunc(words(f.Name), func(word string) bool { return !slices.Contains(own, word) }) {
			return false
		}
	}
	if len(f.Metadata) == 0 {
		return true
	}
	own := pairs(c.Metadata)
	return !slices.ContainsFunc(f.Metadata, func(p Pair) bool { return !slices.Contains(own, p) })
}

// SearchedAction is the part of an action that a search considers.
type SearchedAction struct {
	Agent, Type, Name string
	Decision          Outcome
}

// SearchedAction returns the part of the event's action that a search considers.
func (e *Event) SearchedAction() SearchedAction {
	return SearchedAction{e.Action.AgentName, e.Action.ActionType, e.Action.ActionName, e.Decision.Outcome}
}

// Marker reports whether this is a marker and not an action.
func (a SearchedAction) Marker() bool { return markerType(a.Type) }

// aspects returns the conditions on actions. Each must be met by some action.
func (f *Find) aspects() []SearchedAction {
	var all []SearchedAction
	if f.Agent != "" {
		all = append(all, SearchedAction{Agent: f.Agent, Decision: f.Decision})
	}
	if f.ActionType != "" {
		all = append(all, SearchedAction{Type: f.ActionType, Decision: f.Decision})
	}
	if f.ActionName != "" {
		all = append(all, SearchedAction{Name: f.ActionName, Decision: f.Decision})
	}
	if len(all) == 0 && f.Decision != "" {
		all = append(all, SearchedAction{Decision: f.Decision})
	}
	return all
}

// meets reports whether an action meets one condition.
func (a SearchedAction) meets(want SearchedAction) bool {
	return !a.Marker() && (want.Agent == "" || a.Agent == want.Agent) && (want.Type == "" || a.Type == want.Type) &&
		(want.Name == "" || a.Name == want.Name) && (want.Decision == "" || a.Decision == want.Decision)
}

// MatchesActions reports whether the actions together meet all conditions.
func (f *Find) MatchesActions(actions []SearchedAction) bool {
	for _, want := range f.aspects() {
		if !slices.ContainsFunc(actions, func(a SearchedAction) bool { return a.meets(want) }) {
			return false
		}
	}
	return true
}

// words returns the words of a text in lower case, each once.
func words(text string) []string {
	var found []string
	for _, word := range strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		if !slices.Contains(found, word) {
			found = append(found, word)
		}
	}
	return found[:min(len(found), maxIndexedWords)]
}

// pairs returns the searchable members of metadata: those whose values are texts, numbers, true,
// false or null.
func pairs(metadata []byte) []Pair {
	if metadata == nil {
		return nil
	}
	object, err := canon.Parse(metadata)
	if err != nil {
		return nil
	}
	var found []Pair
	for _, member := range object.Members() {
		pair := Pair{Key: member.Name}
		switch member.Value.Kind() {
		case canon.Object, canon.Array:
			continue
		case canon.String:
			pair.Value = member.Value.Str()
		default:
			pair.Value = string(member.Value.Append(nil))
		}
		if utf8.RuneCountInString(pair.Key) > MaxFindText || utf8.RuneCountInString(pair.Value) > MaxFindText {
			continue
		}
		if found = append(found, pair); len(found) == maxIndexedPairs {
			break
		}
	}
	return found
}

// ReceiptContent returns the part of a receipt that a search considers. It reads signed bytes,
// which must have been verified.
func ReceiptContent(body []byte) (generated Time, actions []SearchedAction, err error) {
	v, err := canon.Parse(body)
	if err != nil {
		return 0, nil, err
	}
	text := func(v canon.Value, name string) string {
		member, _ := v.Get(name)
		return member.Str()
	}
	if generated, err = ParseTime(text(v, "generated_at")); err != nil {
		return 0, nil, err
	}
	lines, _ := v.Get("events_summary")
	for _, line := range lines.Items() {
		if a := (SearchedAction{text(line, "agent_name"), text(line, "action_type"), text(line, "action_name"), Outcome(text(line, "policy_decision"))}); a.Decision != "" {
			actions = append(actions, a)
		}
	}
	return generated, actions, nil
}
