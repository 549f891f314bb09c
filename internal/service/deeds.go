package service

import (
	"bytes"
	"net/url"
	"slices"

	"countersign/internal/canon"
	"countersign/internal/ledger"
	"countersign/internal/store"
)

// moved writes a member that says from what to what something was changed. Either is
// null where there is none.
func moved(w *canon.ObjectWriter, name, from, to string) {
	change := canon.BeginObject(w.Name(name))
	change.StringOrNull("from", from)
	change.StringOrNull("to", to)
	w.Value(change.End())
}

// moment is a time as the audit log says it, "" for none.
func moment(at *ledger.Time) string {
	if at == nil {
		return ""
	}
	return at.String()
}

// organizationDeed says which settings were changed, from what and to what.
func organizationDeed(before, after *ledger.Organization) (*deed, error) {
	was, err := settingsOf(before)
	if err != nil {
		return nil, err
	}
	is, err := settingsOf(after)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, settings := range []canon.Value{was, is} {
		for _, member := range settings.Members() {
			names = append(names, member.Name)
		}
	}
	slices.Sort(names)
	changed := canon.BeginObject(nil)
	for _, name := range slices.Compact(names) {
		from, _ := was.Get(name)
		to, _ := is.Get(name)
		if old, next := from.Append(nil), to.Append(nil); !bytes.Equal(old, next) {
			change := canon.BeginObject(changed.Name(name))
			change.Raw("from", old)
			change.Raw("to", next)
			changed.Value(change.End())
		}
	}
	return &deed{action: ledger.ActOrganizationUpdate, target: after.Slug, detail: details(func(w *canon.ObjectWriter) {
		w.Raw("changed", changed.End())
	})}, nil
}

// settingsOf are an organization's settings and its name. One that has its default is
// missing.
func settingsOf(org *ledger.Organization) (canon.Value, error) {
	encoded, err := org.Settings.Encode()
	if err != nil {
		return canon.Value{}, err
	}
	settings, err := canon.Parse(encoded)
	if err != nil {
		return canon.Value{}, err
	}
	named := canon.BeginObject(nil)
	for _, member := range settings.Members() {
		if member.Name > "name" {
			break
		}
		named.Raw(member.Name, member.Value.Append(nil))
	}
	named.String("name", org.Name)
	for _, member := range settings.Members() {
		if member.Name > "name" {
			named.Raw(member.Name, member.Value.Append(nil))
		}
	}
	return canon.Parse(named.End())
}

// webhookDeed names an endpoint. Its address is kept without what may be secret.
func webhookDeed(action string, record *store.WebhookRecord, from, to string) *deed {
	return &deed{action: action, target: record.ID.String(), detail: details(func(w *canon.ObjectWriter) {
		w.StringOrNull("description", record.Description)
		w.Strings("events", record.Events)
		if from != to {
			moved(w, "status", from, to)
		}
		w.String("url", shownURL(record.URL))
	})}
}

// shownURL is an address without its user and password, its fragment and the values of
// its query, any of which may be a secret.
func shownURL(text string) string {
	address, err := url.Parse(text)
	if err != nil {
		return "unreadable"
	}
	address.User, address.Fragment, address.RawFragment = nil, "", ""
	const hidden = "redacted"
	query, err := url.ParseQuery(address.RawQuery)
	shown := make(url.Values)
	for name, values := range query {
		if slices.Contains(values, "") { // the name may be the secret
			name = hidden
		}
		shown.Set(name, hidden)
	}
	if err != nil {
		shown = url.Values{hidden: {hidden}}
	}
	address.RawQuery, address.ForceQuery = shown.Encode(), false
	return address.String()
}

func webhookStatus(record *store.WebhookRecord) string {
	switch {
	case record.DeletedAt != nil:
		return "deleted"
	case record.DisabledAt != nil:
		return "disabled"
	default:
		return "active"
	}
}

// signingKeyDeed names a signing key and, where it ended the last active one, its
// successor.
func signingKeyDeed(action string, key *store.SigningKeyRecord, from string, successor *store.SigningKeyRecord) *deed {
	return &deed{action: action, target: key.ID.String(), detail: details(func(w *canon.ObjectWriter) {
		w.StringOrNull("name", key.Name)
		moved(w, "status", from, key.Status)
		if successor != nil {
			w.String("successor_id", successor.ID.String())
		}
	})}
}

// approvalDeed names the action that was decided, its chain, and the step.
func approvalDeed(action string, chain *ledger.Chain, before, after *ledger.Approval) *deed {
	return &deed{action: action, target: after.ID.String(), detail: details(func(w *canon.ObjectWriter) {
		w.String("action_name", after.ActionName)
		w.String("action_type", after.ActionType)
		w.String("agent_name", after.AgentName)
		w.String("chain_id", after.Chain.String())
		w.StringOrNull("chain_name", chain.Name)
		if by := after.DeniedBy; by != nil {
			w.StringOrNull("policy_name", by.PolicyName)
			w.String("policy_version", by.PolicyVersion)
		}
		moved(w, "status", string(before.Status), string(after.Status))
	})}
}
