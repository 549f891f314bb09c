package httpapi

import (
	"slices"
	"strings"
	"unicode/utf8"

	"countersign/internal/ledger"
)

// findParameters are the parameters of lists that can be searched, besides metadata[KEY].
var findParameters = []string{"name", "agent_name", "action_type", "action_name", "since", "until"}

// search returns the query of a list that can be searched. known are the names of its other
// parameters.
func (x *exchange) search(known ...string) *listQuery {
	return x.parametersMatching(metadataKey, slices.Concat(known, findParameters, []string{"limit", "cursor"})...)
}

// metadataKey returns the KEY of a parameter of the form metadata[KEY].
func metadataKey(name string) (key string, ok bool) {
	key, ok = strings.CutPrefix(name, "metadata[")
	if ok {
		key, ok = strings.CutSuffix(key, "]")
	}
	return key, ok
}

// find reads the search conditions.
func (q *listQuery) find() ledger.Find {
	find := ledger.Find{
		Name: q.text("name"), Agent: q.text("agent_name"), ActionType: q.text("action_type"), ActionName: q.text("action_name"),
		Since: q.moment("since", false), Until: q.moment("until", true), Metadata: q.metadata(),
	}
	if err := find.Check(); err != nil {
		q.fault("name", err.Error())
	}
	if find.Since != nil && find.Until != nil && *find.Since >= *find.Until {
		q.fault("until", "must be later than since")
	}
	return find
}

// decision reads the decision to search for.
func (q *listQuery) decision() ledger.Outcome {
	decision := ledger.Outcome(q.text("decision"))
	if decision != "" && !slices.Contains(ledger.Outcomes, decision) {
		q.fault("decision", "must be one of allow, allow_with_flag, require_approval, deny")
	}
	return decision
}

// moment reads a date or a timestamp. end says that a date means the end of that day. It returns
// nil if the parameter is missing.
func (q *listQuery) moment(name string, end bool) *ledger.Time {
	text := q.values.Get(name)
	if text == "" {
		return nil
	}
	moment, err := ledger.ParseMoment(text, end)
	if err != nil {
		q.fault(name, err.Error())
	}
	return &moment
}

// metadata reads the parameters of the form metadata[KEY]=VALUE, sorted by key.
func (q *listQuery) metadata() (pairs []ledger.Pair) {
	var names []string
	for name := range q.values {
		if _, ok := metadataKey(name); ok {
			names = append(names, name)
		}
	}
	if len(names) > ledger.MaxFindPairs {
		q.fault("metadata", "must name at most 5 keys")
		return nil
	}
	slices.Sort(names)
	for _, name := range names {
		key, _ := metadataKey(name)
		if !utf8.ValidString(key) || strings.ContainsRune(key, 0) || utf8.RuneCountInString(key) > ledger.MaxFindText {
			q.fault("metadata", "must name keys of at most 200 characters, in UTF-8 without the character U+0000")
			continue
		}
		pairs = append(pairs, ledger.Pair{Key: key, Value: q.text(name)})
	}
	return pairs
}
