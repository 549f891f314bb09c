package review

import "net/url"

// searchFlags are the flags of the lists that can be searched.
type searchFlags struct {
	Name       string            `help:"Only with these words in the chain's name." placeholder:"WORDS" env:"-"`
	Agent      string            `help:"Only with an action of this agent." placeholder:"NAME" env:"-"`
	ActionType string            `help:"Only with an action of this type." placeholder:"TYPE" env:"-"`
	Action     string            `help:"Only with an action of this name." placeholder:"NAME" env:"-"`
	Since      string            `help:"Only from this day (2026-11-01, UTC) or timestamp on." placeholder:"TIME" env:"-"`
	Until      string            `help:"Only to the end of this day, or before this timestamp." placeholder:"TIME" env:"-"`
	Metadata   map[string]string `help:"Only with this member of the chain's metadata; may be repeated." placeholder:"KEY=VALUE" mapsep:"none" env:"-"`
}

// query returns the parameters of the API's list. The server checks them.
func (f *searchFlags) query() url.Values {
	query := make(url.Values)
	setNonEmpty(query, map[string]string{
		"name": f.Name, "agent_name": f.Agent, "action_type": f.ActionType, "action_name": f.Action, "since": f.Since, "until": f.Until,
	})
	for key, value := range f.Metadata {
		query.Set("metadata["+key+"]", value)
	}
	return query
}

// decidedFlags are the search flags of lists whose entries hold decided actions.
type decidedFlags struct {
	searchFlags
	Decision string `help:"Only with an action that was decided this way: allow, allow_with_flag, require_approval or deny." placeholder:"DECISION" env:"-"`
}

func (f *decidedFlags) query() url.Values {
	query := f.searchFlags.query()
	setNonEmpty(query, map[string]string{"decision": f.Decision})
	return query
}

func setNonEmpty(query url.Values, values map[string]string) {
	for name, value := range values {
		if value != "" {
			query.Set(name, value)
		}
	}
}
